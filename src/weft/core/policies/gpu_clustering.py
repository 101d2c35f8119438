"""GpuClustering: pods of one GPU size together."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.best_fit import GPU_MILLI
from weft.core.policies.gpu_amounts import free_milli


class GpuClustering(Policy):
    """Nodes that host pods of the same class (shared, 1 GPU, 2 GPUs …), fuller ones first."""

    name = "gpu-clustering"
    summary = "nodes that already host pods of the same GPU class"
    source = "FGD (ATC'23), baseline GpuClustering"

    def score_nodes(self, query: Query) -> Ints | None:
        """25·(8 − GPUs free)/8, +75 where only this class is hosted, +50 where it is one of
        several, +25 where no pod with a GPU is, [n]."""
        demand = query.demand
        if not demand.needs:
            return None
        hosted = query.hosted
        own, all_pods = hosted[:, demand.pod_class], np.add.reduce(hosted, axis=1)
        co_residents = np.where(
            own > 0, np.where(own == all_pods, 75, 50), np.where(all_pods, 0, 25)
        )
        return co_residents + 25 * (GPU_MILLI - free_milli(query)) // GPU_MILLI
