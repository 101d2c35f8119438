"""On a GPU node: which GPUs there are, and what pods were promised, carried into their containers.

In: reading GPUs (`devices/`), the container runtime's plugin interface, and the host
behind `weft agent`. A decision arrives as a delivery record (`model/delivery.py`) in a
pod's annotations.
Out: who gets what (`core/`), the scheduler and the extender (`cluster/`).
"""
