"""Ferikoglou's rules in the ledger: what pods leave idle is lent, less a reserve, while FRESH."""

import numpy as np

from weft.core.framework import Query
from weft.core.ledger.table import Bools
from weft.core.policies.ferikoglou import Ferikoglou
from weft.core.policies.gpu_readings import may_borrow
from weft.core.policies.memory_trend import MemoryTrend
from weft.model import PodRequest


class FerikoglouSafe(Ferikoglou):
    """The same three questions; samples must be FRESH, and the ledger has the last word.

    It lends only what residents were measured not to need, keeps the reserve, and stays within
    the declared harvest limit. The smallest of what came within `round_s` goes first; 0: of all
    that wait, as published, so that larger pods wait for as long as smaller ones come.
    """

    name = "ferikoglou-safe"
    summary = "ferikoglou within a reserve, on fresh samples, pods that warm up waited for"
    source = "Ferikoglou's rules on Weft's ledger"
    unsafe = ""
    harvests = True

    def __init__(self, round_s: int = 5) -> None:
        super().__init__()
        self.round_ns = 1_000_000_000 * round_s

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """The smallest first of those that came together."""
        came = pod.created_ns // self.round_ns if self.round_ns > 0 else 0
        return (came, *super().queue_key(pod))

    def filter_devices(self, query: Query) -> Bools:
        """The published decision, and one GPU of a node lends to unknown pods, [d]."""
        return np.asarray(super().filter_devices(query) & may_borrow(query))

    def _trusted(self, trend: MemoryTrend) -> Bools:
        """GPUs with enough samples, the newest as of now, [D]."""
        return trend.fresh
