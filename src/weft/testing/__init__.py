"""Builders, fakes and slow, obvious references, for Weft's own tests and for authors of policies.

In: builders that say only what matters, a reference ledger and a reference of "fits", random
small clusters, the engine in one call; a fake API server (`api_server`) and a hollow kubelet
(`hollow_kubelet`), which say that they are fakes. Out: anything a running scheduler needs.

The fakes are imported from their own files, so that whoever only builds pods needs no client.
"""

from weft.testing.builders import AGENT_BY_NAME, node, placement, pod, shape
from weft.testing.deciding import decide
from weft.testing.random_clusters import random_node, random_nodes, random_shape
from weft.testing.reference import GpuAccount, ReferenceAccount, ReferenceLedger
from weft.testing.reference_fit import assignments, fewest_gpus, fits_on, fitting_nodes

__all__ = [
    "AGENT_BY_NAME",
    "GpuAccount",
    "ReferenceAccount",
    "ReferenceLedger",
    "assignments",
    "decide",
    "fewest_gpus",
    "fits_on",
    "fitting_nodes",
    "node",
    "placement",
    "pod",
    "random_node",
    "random_nodes",
    "random_shape",
    "shape",
]
