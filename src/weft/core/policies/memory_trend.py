"""Memory trend of each GPU over the window, as the snapshot has it: Kube-Knots' numbers."""

import numpy as np

from weft.core.framework.signals import FRESH, Floats, SignalsView
from weft.core.ledger.table import Bools, LedgerTable

STEADY_BELOW = 0.5
"""A coefficient of variation of free memory below this is steady (as published)."""
TREND_ABOVE = 0.35
"""Free memory trends where its autocorrelation is above this (as published)."""
LEAST_SAMPLES = 20
"""Fewer samples say nothing (as published)."""
SERIES = ("memory_free_mib.cov", "window.samples")
"""Without these nothing is known of the window."""


class MemoryTrend:
    """Columns over all devices of a table, [D] each, NaN where unknown.

    `cov` and `autocorrelation` of free memory, `used_p80_mib`, `predicted_mib` free, and
    `next_sm`, the forecast share of SMs. `long` says that the window has samples enough, `fresh`
    that it also is as of now.
    """

    def __init__(self, view: SignalsView, table: LedgerTable) -> None:
        self.cov = view.over(table, "memory_free_mib.cov")[0]
        self.autocorrelation = view.over(table, "memory_free_mib.autocorrelation")[0]
        self.used_p80_mib = _truncated(view.over(table, "memory_used_mib.p80")[0])
        self.predicted_mib = _truncated(view.over(table, "memory_free_mib.predicted")[0])
        self.next_sm = view.over(table, "sm_active_ratio.next")[0]
        with np.errstate(invalid="ignore"):
            samples = view.over(table, "window.samples")[0]
            self.long: Bools = samples >= LEAST_SAMPLES
        now = [view.over(table, column)[1] == FRESH for column in SERIES]
        self.fresh: Bools = self.long & now[0] & now[1]


def _truncated(values: Floats) -> Floats:
    """Towards zero, as the original converts to whole MiB."""
    return np.asarray(np.trunc(values))
