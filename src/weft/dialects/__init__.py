"""How each system's pods ask for GPUs, and how its answers are written. One file a system.

In: names, units, rounding, tie-breaks and marks of one system each, and the registry that says
whose a pod is. Out: where the pod goes (that is `core/engine/` and `core/policies/`), and any I/O.

`dialect` is the contract, `registry` the way in (`parse_pod`, `write`, `read_placement`, `ALL`).
`resources`, `containers`, `requests` and `shares` are what the systems have in common: reading
quantities, containers onto claims, the common part of a request, and placements as text.
"""
