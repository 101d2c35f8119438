"""Compares policies without a cluster, and measures applications on a GPU.

In: the simulator, experiments and their reports, profiling, the workloads it measures.
Out: deciding (`core/`); a live cluster (`cluster/`).
"""
