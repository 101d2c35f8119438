"""First fit: the first node that fits, and on it the first GPU that fits."""

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints


class FirstFit(Policy):
    """First in tie-break order: nodes by rank and name, GPUs by index."""

    name = "first-fit"
    summary = "the first node and the first GPU that fit"
    source = "nano-gpu v0.3, SampleRater"

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The first that fits."""
        return 0
