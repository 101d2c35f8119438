"""Elastic GPU's spread rater, which rates everything 0: the last GPU that fits."""

from weft.framework import Policy, Query
from weft.framework.policy import Option
from weft.ledger.table import Ints


class ElasticSpread(Policy):
    """The original's rater was never written. All nodes tie, and the last assignment wins.

    For pods that are to spread, `spread` and `nano-spread` do.
    """

    name = "elastic-spread"
    summary = "the last GPU that fits; all nodes tie"
    source = "elastic-gpu-scheduler, rater Spread"
    ties = "last"

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The last that fits."""
        return len(fits) - 1

    def rate_option(self, option: Option) -> int:
        """Several claims: all assignments are alike."""
        return 0
