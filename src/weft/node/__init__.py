"""On a GPU node: finds its GPUs, and gives pods' containers the shares they were assigned.

Contents: reading GPUs (`devices/`), the container runtime's plugin interface (`nri/`), and the
parts of `weft agent`. A decision arrives as a delivery record (`model/delivery.py`) in a pod's
annotations. Not here: making decisions (`core/`), the scheduler and the extender (`cluster/`).
"""
