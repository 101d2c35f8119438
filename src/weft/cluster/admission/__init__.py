"""Policies that the API server enforces for Weft by itself, in its own language (CEL).

In: who schedules pods that ask for GPUs, and who may write where a pod's GPUs are; both generated
from the dialects, so that a new one cannot be forgotten. Objects as the API has them, printed by
`weft admission`; and for API servers that cannot set a schedulerName by themselves, a webhook that
does, which nobody has to wait for.
Out: what a pod's GPUs are, and who leads: nothing of Weft's has to run for a pod to be created.
"""
