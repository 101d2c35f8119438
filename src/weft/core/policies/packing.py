"""Packing: policies that fill GPUs and nodes in use, by requests, and the plain first fit.

- first-fit       the first node that fits, and on it the first GPU that fits
- best-fit        the node that would have the least left, CPU and GPU counted alike
- binpack         the fullest GPU first
- gpushare        on the node, the GPU with the least memory that is enough
- dot-product     the node whose free amounts are least similar to the pod's requests
- gpu-packing     GPUs in use first, then idle GPUs of nodes in use, then idle nodes
- gpu-clustering  pods of one GPU size together"""

import numpy as np

from weft.core.framework import Need, Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.gpu_amounts import asked_milli, free_milli, free_share, standing


class FirstFit(Policy):
    """Chooses the first node and GPU that fit, in tie-break order: nodes by rank and name, GPUs by
    index."""

    name = "first-fit"
    summary = "the first node and the first GPU that fit"
    source = "nano-gpu v0.3, SampleRater"

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the first device that fits."""
        return 0


CPU_MILLI = 128_000
GPU_MILLI = 8_000
"""CPU and GPUs of the largest node, by which FGD's experiments scale both dimensions."""


class BestFit(Policy):
    """Prefers the node with the least CPU and GPU cores left after placement; on it, the fitting
    GPU with the least free."""

    name = "best-fit"
    summary = "the node with the least CPU and GPU left after placement"
    source = "FGD (ATC'23), baseline BestFit"

    def score_nodes(self, query: Query) -> Ints:
        """Score 100·(1 − (½·CPU left/128 cores + ½·GPU left/8 GPUs)), truncated, [n]."""
        demand = query.demand
        free = 0.5 * (query.cpu_free - demand.cpu_milli)
        free /= CPU_MILLI
        gpu_left = 0.5 * (query.milli_free - demand.milli)
        gpu_left /= GPU_MILLI
        free += gpu_left
        return (100 * (1 - free)).astype(np.int64)


class Binpack(Policy):
    """Prefers the fitting GPU with the least free memory or cores; for whole GPUs, the node with
    the fewest idle GPUs."""

    name = "binpack"
    summary = "the GPU with the least free memory or cores that still fits"
    source = "gpushare's best fit, over all nodes"

    def score_devices(self, query: Query) -> Ints:
        """Score minus the free amount, [d]: MiB for a memory request, otherwise thousandths of a
        GPU."""
        return -standing(query)


class GpuShare(Policy):
    """Chooses the GPU with the smallest free memory that is enough, of equals the lowest index, by
    the default of `choose_device`. The original leaves the choice of the node to kube-scheduler;
    here the first node that fits wins."""

    name = "gpushare"
    summary = "on the first node that fits, the GPU with the least free memory that is enough"
    source = "gpushare-scheduler-extender"


class DotProduct(Policy):
    """Prefers the node where requested × free, summed over CPU and GPU, is smallest; on it, the
    fitting GPU with the least free."""

    name = "dot-product"
    summary = "the node where free × asked, summed over CPU and GPU, is smallest"
    source = "FGD (ATC'23), baseline DotProd"

    def score_nodes(self, query: Query) -> Ints:
        """Score 100·(1 − ½·(CPU free·requested/128² + GPU free·requested/8²)), in cores and GPUs,
        [n]."""
        product = query.cpu_free / CPU_MILLI * (query.demand.cpu_milli / CPU_MILLI)
        product += free_milli(query) / GPU_MILLI * (asked_milli(query) / GPU_MILLI)
        return (100 * (1 - product / 2)).astype(np.int64)


FAR = 1 << 40
"""Larger than any GPU's free amount: keeps devices that do not fit out of a minimum."""


class GpuPacking(Policy):
    """Prefers GPUs in use, then idle GPUs, then idle nodes; on the node, the tightest GPUs."""

    name = "gpu-packing"
    summary = "GPUs in use first, then idle GPUs of nodes in use, then idle nodes"
    source = "FGD (ATC'23), baseline GpuPacking"

    def score_nodes(self, query: Query) -> Ints | None:
        """Score 50–100 for GPUs in use (fuller is higher), 33–49 for idle GPUs, up to 33 for
        idle nodes, [n]; None for a pod without GPUs."""
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
    """Score nodes for a pod that takes the `need.count` tightest GPUs that fit, [n]."""
    free, node = np.where(query.device_fits, free_share(query), FAR), query.device_node
    order = np.lexsort((free, node))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = query.device_local
    used = query.device_fits & (rank < need.count)
    idle = query.count(used & (free == 1000))
    percent = query.sum(np.where(used, free // 10, 0))
    return np.where(idle > 0, np.maximum(50 - idle, 33), np.maximum(100 - percent // 10, 50))


class GpuClustering(Policy):
    """Prefers nodes with pods of the same class (shared, 1 GPU, 2 GPUs …), the fuller ones
    first."""

    name = "gpu-clustering"
    summary = "nodes that already host pods of the same GPU class"
    source = "FGD (ATC'23), baseline GpuClustering"

    def score_nodes(self, query: Query) -> Ints | None:
        """Score 25·(8 − GPUs free)/8, plus 75 on nodes with pods of this class only, 50 on nodes
        with this class and others, 25 on nodes without GPU pods, [n]; None for a pod without
        GPUs."""
        demand = query.demand
        if not demand.needs:
            return None
        hosted = query.hosted
        own, all_pods = hosted[:, demand.pod_class], np.add.reduce(hosted, axis=1)
        co_residents = np.where(
            own > 0, np.where(own == all_pods, 75, 50), np.where(all_pods, 0, 25)
        )
        return co_residents + 25 * (GPU_MILLI - free_milli(query)) // GPU_MILLI
