"""Small nodes first: keeps the large ones whole for pods that need many GPUs at once."""

import numpy as np

from weft.core.framework import Ints, Policy, Query


class SmallNodes(Policy):
    """The node with the fewest GPUs; on it, the tightest GPU (what `Policy` does by default).

    Nodes with at most `spare_up_to` GPUs come last.
    """

    name = "small-nodes"
    summary = "the node with the fewest GPUs that fits"
    source = "an example of a third-party policy"

    def __init__(self, spare_up_to: int = 0) -> None:
        self.spare_up_to = spare_up_to

    def score_nodes(self, query: Query) -> Ints:
        """Minus the number of GPUs, and far below that where the node is to be spared, [n]."""
        return np.where(query.gpus <= self.spare_up_to, -10_000, 0) - query.gpus
