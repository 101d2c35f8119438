"""Elastic GPU's spread rater, which rates everything 0: the last GPU that fits."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.policy import PlacementOptions, RemainingRequest
from weft.core.ledger.table import Ints


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

    def rate_options(self, options: PlacementOptions) -> Ints:
        """Several GPU requests: all ways are alike."""
        return np.zeros(len(options.memory_free), dtype=np.int64)

    def bound_options(self, options: PlacementOptions, remaining: RemainingRequest) -> Ints:
        """As alike as the ways themselves."""
        return self.rate_options(options)
