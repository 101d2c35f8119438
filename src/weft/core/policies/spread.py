"""Spread: use the emptiest GPU first, on the emptiest node."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.gpu_amounts import free_milli, standing


class SpreadPolicy(Policy):
    """Prefers the fitting GPU with the most free; whole cards where the most are idle.

    Of nodes whose best GPUs are alike, the one of whose GPUs the most is free.
    """

    name = "spread"
    summary = "the GPU with the most free, on the emptiest of nodes whose best GPUs are alike"
    source = "the usual counterpart of binpack"

    def score_devices(self, query: Query) -> Ints:
        """Thousands of what is free (MiB where the GPU request asks memory, else thousandths of a
        card), and below that thousandths of the node's GPUs that are free, up to 999, [d]."""
        usable = np.maximum(query.sum(query.device_usable), 1)
        node = np.minimum(free_milli(query) // usable, 999)
        return standing(query) * 1000 + node.take(query.device_node)
