"""Free and requested amounts of GPUs, for policies that treat all dialects' pods alike.

Pods that request GPU memory are measured by memory, all others by cores; both in thousandths of a
card, so that cards of different sizes are comparable.
"""

import numpy as np

from weft.core.framework import Query
from weft.core.ledger.table import Ints


def by_memory(query: Query) -> bool:
    """Return True if the pod shares GPUs by memory: one of its GPU requests is for memory of a
    shared card."""
    return any(need.asks_memory and not need.whole for need in query.demand.needs)


def free_share(query: Query) -> Ints:
    """Return the free part of each device, thousandths, [d]."""
    if not by_memory(query):
        return query.device_milli_free
    return query.device_memory_free * 1000 // np.maximum(query.device_memory_total, 1)


def free_milli(query: Query) -> Ints:
    """Return the free amount over each node's GPUs, thousandths of a card, [n]."""
    return query.sum(free_share(query)) if by_memory(query) else query.milli_free


def asked_milli(query: Query) -> Ints | int:
    """Sum the pod's requests, thousandths of a card: [n], or one number for all nodes."""
    if not by_memory(query):
        return query.demand.milli
    sizes = np.array([max(kind.memory_mib, 1) for kind in query.table.kinds], dtype=np.int64)
    requested = [need.count * (need.memory_mib * 1000 // sizes) for need in query.demand.needs]
    return np.asarray(np.sum(requested, axis=0).take(query.node_kind))


def standing(query: Query) -> Ints:
    """Return what ranks devices: for a share their room (MiB or milli), for whole cards, which are
    all alike, the number of idle GPUs on the node, [d]."""
    if query.need is not None and query.need.whole:
        return query.idle.take(query.device_node)
    return query.room
