"""Tools for testing policies and dialects, used by their authors and by Weft's own tests.

Contents: builders of nodes and pods with defaults for all that a test does not name, random small
clusters, and a function that runs the engine on given pods. Not here: anything that a running
scheduler needs; fakes and reference implementations (`tests/fakes`).
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
