"""DotProd: place where what the pod asks for and what is free point in the least similar way."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.best_fit import CPU_MILLI, GPU_MILLI
from weft.core.policies.gpu_amounts import asked_milli, free_milli


class DotProduct(Policy):
    """The smallest product of request and free amounts, CPU and GPU; on it the tightest GPU."""

    name = "dot-product"
    summary = "the node where free × asked, summed over CPU and GPU, is smallest"
    source = "FGD (ATC'23), baseline DotProd"

    def score_nodes(self, query: Query) -> Ints:
        """100·(1 − ½·(CPU free·asked/128² + GPU free·asked/8²)), in cores and cards, [n]."""
        product = query.cpu_free / CPU_MILLI * (query.demand.cpu_milli / CPU_MILLI)
        product += free_milli(query) / GPU_MILLI * (asked_milli(query) / GPU_MILLI)
        return (100 * (1 - product / 2)).astype(np.int64)
