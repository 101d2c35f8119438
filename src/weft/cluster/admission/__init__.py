"""Policies that the API server itself enforces for Weft, written in CEL.

In: which scheduler gets pods that request GPUs, and who may write a pod's GPU assignment; both
generated from the dialects, so that a new dialect is always covered. `weft admission` prints them
as API objects. For API servers that cannot set a schedulerName by policy, a webhook does so; pods
are created without waiting for it if it fails. Out: which GPUs a pod gets, and leader election: no
process of Weft is needed to create a pod.
"""
