"""Random: any node that fits, and on it any GPU that fits."""

from weft.core.framework import Policy, Query
from weft.core.framework.policy import draw
from weft.core.ledger.table import Ints


class Random(Policy):
    """Uniform among the nodes that fit, then uniform among the GPUs that fit.

    Draws depend on seed, pod UID and attempt alone, so runs repeat and no draw shifts another.
    Whole cards are the node's first idle ones.
    """

    name = "random"
    summary = "any node that fits, any GPU that fits"
    source = "FGD (ATC'23), baseline Random"

    def choose_node(self, rows: Ints, key: str) -> int:
        """One of all nodes that fit: none is scored, so all are equally good."""
        return draw(key + "/node", len(rows))

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """One of the devices that fit."""
        return draw(key + "/gpu", len(fits))
