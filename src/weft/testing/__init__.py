"""Tools for testing policies and dialects, used by their authors and by Weft's own tests.

In: builders that need only what matters, random small clusters, the engine in one call. Out:
anything a running scheduler needs; fakes and reference implementations (`tests/fakes`).
"""

from weft.testing.builders import AGENT_BY_NAME, node, placement, pod, shape
from weft.testing.deciding import decide
from weft.testing.random_clusters import random_node, random_nodes, random_shape

__all__ = [
    "AGENT_BY_NAME",
    "decide",
    "node",
    "placement",
    "pod",
    "random_node",
    "random_nodes",
    "random_shape",
    "shape",
]
