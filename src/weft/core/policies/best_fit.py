"""BestFit: the node that would have the least left, CPU and GPU counted alike."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints

CPU_MILLI = 128_000
GPU_MILLI = 8_000
"""The largest node, by which FGD's experiments scale both dimensions."""


class BestFit(Policy):
    """Least remaining (CPU + GPU cores) after placement; on the node, the tightest GPU."""

    name = "best-fit"
    summary = "the node with the least CPU and GPU left after placement"
    source = "FGD (ATC'23), baseline BestFit"

    def score_nodes(self, query: Query) -> Ints:
        """100·(1 − (½·CPU left/128 cores + ½·GPU left/8 cards)), truncated, [n]."""
        demand = query.demand
        free = 0.5 * (query.cpu_free - demand.cpu_milli)
        free /= CPU_MILLI
        gpu_left = 0.5 * (query.milli_free - demand.milli)
        gpu_left /= GPU_MILLI
        free += gpu_left
        return (100 * (1 - free)).astype(np.int64)
