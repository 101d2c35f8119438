"""Spread: use the emptiest GPU first."""

from weft.framework import Policy, Query
from weft.ledger.table import Ints
from weft.policies.amounts import standing


class Spread(Policy):
    """Of all GPUs that fit, the one with the most free; whole cards where the most are idle."""

    name = "spread"
    summary = "the GPU with the most free"
    source = "the usual counterpart of binpack"

    def score_devices(self, query: Query) -> Ints:
        """What is free: MiB where the claim asks memory, else thousandths of a card, [d]."""
        return standing(query)
