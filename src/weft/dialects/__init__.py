"""How each system's pods ask for GPUs, and how its answers are written. One file a system.

In: names, units, rounding, tie-breaks and marks of one system each, and the registry that says
whose a pod is. Out: where the pod goes (that is `engine/` and `policies/`), and any I/O.
"""
