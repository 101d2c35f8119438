"""Reads each system's pods and nodes, and writes placements in its words.

In: names, units, rounding, tie-breaks, annotations and node inventory of one system each, one file
a system, and who combines them. Out: where the pod goes (that is `core/engine/` and
`core/policies/`), and any I/O.

`dialect` is the contract, `catalog` lists the systems, `registry` reads pods (`parse_pod`, `write`,
`read_placement`), `inventory` reads nodes, `non_gpu_resources` what a pod takes beside GPUs.
`resources`, `system` and `shares` are what the systems have in common: what containers ask and the
GPU requests that follow, the common part of a request, and placements as text.
"""
