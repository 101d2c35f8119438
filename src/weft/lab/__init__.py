"""Compares policies without a cluster, and measures applications on a GPU.

Contents: the simulator, experiments and their reports, profiling, and workloads to measure. Not
here: decisions (`core/`), and the connection to a live cluster (`cluster/`)."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `weft.lab.compare` when it is first used, so that commands need not load it."""
    if name == "compare":
        from weft.lab.notebook import compare

        return compare
    raise AttributeError(f"module 'weft.lab' has no attribute {name!r}")
