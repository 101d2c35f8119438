"""Free and requested amounts of GPUs, for policies that treat pods of all dialects alike.

Pods that request GPU memory are measured by memory, all others by cores; both in thousandths of a
GPU, so that GPUs of different sizes are comparable."""

import numpy as np

from weft.core.framework import Query
from weft.core.ledger.table import Ints


def by_memory(query: Query) -> bool:
    """Return True if a GPU request of the pod is for memory of a shared GPU."""
    return any(need.asks_memory and not need.whole for need in query.demand.needs)


def free_share(query: Query) -> Ints:
    """Return the free part of each device, by memory or cores as the pod requests, thousandths,
    [d]."""
    if not by_memory(query):
        return query.device_milli_free
    return query.device_memory_free * 1000 // np.maximum(query.device_memory_total, 1)


def free_milli(query: Query) -> Ints:
    """Sum the free amounts of each node's GPUs, by memory or cores as the pod requests, thousandths
    of a GPU, [n]."""
    return query.sum(free_share(query)) if by_memory(query) else query.milli_free


def asked_milli(query: Query) -> Ints | int:
    """Sum the pod's requests, in thousandths of a GPU: [n] if they depend on the node's GPU size,
    otherwise one number."""
    if not by_memory(query):
        return query.demand.milli
    sizes = np.array([max(kind.memory_mib, 1) for kind in query.table.kinds], dtype=np.int64)
    requested = [need.count * (need.memory_mib * 1000 // sizes) for need in query.demand.needs]
    return np.asarray(np.sum(requested, axis=0).take(query.node_kind))


def standing(query: Query) -> Ints:
    """Return the amounts by which devices are ranked, [d]: for a share the device's room (MiB or
    thousandths of its cores); for whole GPUs, which are all alike, the number of idle GPUs on the
    node."""
    if query.need is not None and query.need.whole:
        return query.idle.take(query.device_node)
    return query.room
