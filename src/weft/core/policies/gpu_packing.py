"""GpuPacking: GPUs in use first, then idle GPUs of nodes in use, then idle nodes."""

import numpy as np

from weft.core.framework import Need, Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.gpu_amounts import free_share

FAR = 1 << 40
"""More than any GPU has free: keeps devices that do not fit out of a minimum."""


class GpuPacking(Policy):
    """Three tiers by what the pod would have to break into; on the node, the tightest GPUs."""

    name = "gpu-packing"
    summary = "used GPUs before idle GPUs before idle nodes"
    source = "FGD (ATC'23), baseline GpuPacking"

    def score_nodes(self, query: Query) -> Ints | None:
        """50–100 on used GPUs (fuller is higher), 33–49 on idle ones, up to 33 on idle nodes, [n].

        A pod with several GPU requests is judged by its first.
        """
        need = query.need
        if need is None:
            return None
        if need.whole:
            busy: Ints | int = max(50 - need.count, 33)
        elif need.count == 1:
            tightest = query.min(np.where(query.device_fits, free_share(query), FAR), FAR)
            used_tier = np.maximum(100 - tightest // 10 // 10, 50)
            busy = np.where(tightest == 1000, 49, used_tier)
        else:
            busy = _several(query, need)
        gpus = query.gpus
        return np.where(query.idle == gpus, np.maximum(33 - gpus, gpus), busy)


def _several(query: Query, need: Need) -> Ints:
    """The score where the pod takes the `need.count` tightest GPUs that fit, [n]."""
    free, node = np.where(query.device_fits, free_share(query), FAR), query.device_node
    order = np.lexsort((free, node))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = query.device_local
    used = query.device_fits & (rank < need.count)
    idle = query.count(used & (free == 1000))
    percent = query.sum(np.where(used, free // 10, 0))
    return np.where(idle > 0, np.maximum(50 - idle, 33), np.maximum(100 - percent // 10, 50))
