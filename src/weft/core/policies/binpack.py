"""Binpack: fill the fullest GPU first."""

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.gpu_amounts import standing


class Binpack(Policy):
    """Prefers the fitting GPU with the least free; whole cards where the fewest are idle."""

    name = "binpack"
    summary = "the GPU with the least free that still fits"
    source = "gpushare's best fit, over all nodes"

    def score_devices(self, query: Query) -> Ints:
        """Minus what is free: MiB where memory is requested, else thousandths of a card, [d]."""
        return -standing(query)
