"""Turns samples into their canonical unit, and sets aside what cannot be true.

DCGM's blank values, NaN, negative numbers and what no card has are missing: NaN. Apart from the
names (`metric_names`), which whoever only reports metrics reads without NumPy.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, PERCENT, Alias

Floats = npt.NDArray[np.float64]

LARGEST: dict[Metric, float] = {
    Metric.MEMORY_USED_MIB: 2.0**24,
    Metric.MEMORY_FREE_MIB: 2.0**24,
    Metric.MEMORY_RESERVED_MIB: 2.0**24,
    Metric.PCIE_SENT_BYTES_PER_S: 2.0**40,
    Metric.PCIE_RECEIVED_BYTES_PER_S: 2.0**40,
    Metric.POWER_W: 20_000.0,
    Metric.POWER_LIMIT_W: 20_000.0,
    Metric.ENERGY_J: 1.4e11,
    Metric.SM_CLOCK_MHZ: 20_000.0,
}
"""Above this a value is no measurement. Ratios end at 1. DCGM's blanks of 64 bit (2⁶³ − 16 and the
next few) and of floating metrics (2⁴⁷ and the next few) lie beyond all of these."""

BLANK_32_BIT = (2.0**31 - 16, 2.0**31 - 13)
"""DCGM's blank, not found, not supported and not permitted; bytes and joules pass these by."""


def read(name: str, samples: Floats, aliases: Mapping[str, Alias] = ALIASES) -> Floats:
    """Samples of the metric `name` in its canonical unit, any shape; NaN where they say nothing.

    All samples of one answer must be given together: a metric that is percent or ratio is scaled
    by its largest. KeyError: `name` is not in `aliases`.
    """
    alias = aliases[name]
    values = samples * (alias.scale or scale_of(samples))
    largest = LARGEST.get(alias.metric, 1.0)
    with np.errstate(invalid="ignore"):
        blank = (samples >= BLANK_32_BIT[0]) & (samples <= BLANK_32_BIT[1])
        return np.where((values >= 0.0) & (values <= largest) & ~blank, values, np.nan)


def scale_of(samples: Floats) -> float:
    """1 for ratios, 0.01 for percentages, which are whole numbers: one fraction tells.

    A wrong sample among many can so make readings go missing, never make busy cards look idle.
    Where all samples are 0 or 1 nothing tells, and 1 is taken for fully busy.
    """
    with np.errstate(invalid="ignore"):
        if bool(((samples > 0.0) & (samples < 1.0)).any()):
            return 1.0
        return PERCENT if bool(((samples > 1.0) & (samples <= 100.0)).any()) else 1.0
