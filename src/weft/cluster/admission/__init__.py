"""What the API server checks and sets for Weft by itself, in its own language (CEL).

In: who schedules pods that ask for GPUs, and who may write where a pod's GPUs are; both generated
from the dialects, so that a new one cannot be forgotten. Objects as the API has them, printed by
`weft admission`.
Out: webhooks: nothing of Weft's has to run for a pod to be created.
"""
