"""Policies that the API server itself enforces for Weft, written in CEL.

Contents: policies that set the scheduler of pods that request GPUs, and policies that restrict who
may write a pod's GPU assignment; both generated from the dialects, so that a new dialect is always
covered. `weft admission` prints them as API objects. For API servers that cannot set a
schedulerName by policy, a webhook does so; if it fails, pods are created without it. Not here:
choosing GPUs, and leader election; creating a pod needs no process of Weft."""
