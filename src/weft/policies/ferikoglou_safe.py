"""Ferikoglou's rules in the ledger: what pods leave idle is lent, less a reserve, while FRESH."""

from weft.ledger.table import Bools
from weft.policies.ferikoglou import Ferikoglou
from weft.policies.memory_trend import MemoryTrend


class FerikoglouSafe(Ferikoglou):
    """The same three questions; samples must be FRESH, and the ledger has the last word.

    It lends only what residents were measured not to need, keeps the reserve, and stays within
    the declared harvest limit.
    """

    name = "ferikoglou-safe"
    summary = "ferikoglou within a reserve, on fresh samples, pods that warm up waited for"
    source = "Ferikoglou's rules on Weft's ledger"
    unsafe = ""
    harvests = True

    def _trusted(self, trend: MemoryTrend) -> Bools:
        """GPUs with enough samples, the newest as of now, [D]."""
        return trend.fresh
