"""On a GPU node: finds its GPUs, and gives pods' containers the shares they were assigned.

In: reading GPUs (`devices/`), the container runtime's plugin interface, and the process behind
`weft agent`. A decision arrives as a delivery record (`model/delivery.py`) in a pod's annotations.
Out: decisions (`core/`), the scheduler and the extender (`cluster/`).
"""
