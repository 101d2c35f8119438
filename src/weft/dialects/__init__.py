"""Reads pods and nodes of each supported GPU sharing system, and writes placements in that system's
form.

Contents: one file for each system, with its resource names, units, rounding, tie-breaks,
annotations and node inventory; and the code that combines them. Not here: deciding where a pod goes
(`core/engine/` and `core/policies/`), and any I/O.

`dialect` is the contract, `catalog` lists the systems, `registry` reads pods (`parse_pod`, `write`,
`read_placement`), `inventory` reads nodes. `resources`, `system` and `shares` are common to all:
the requests of containers, the common part of a pod's request, and placements as text.
"""
