"""Differences between two policies on the same seeds: intervals and p-values that agree.

Both are of the paired t-test, corrected for skewness and few seeds as all intervals here are
(interference/intervals.py). The interval of a ratio of means is Fieller's: all ratios R for which
the mean of value − R × baseline, seed by seed, may be 0. It leaves out 0 % exactly where p is below
0.05.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from weft.interference.intervals import ENOUGH_FOR_INTERVAL, Floats, ratio_of_means

_HALVINGS = 40
"""p-values are found by halving: to twelve digits."""


class Difference(msgspec.Struct, frozen=True):
    """A difference in percent of the baseline's mean, and its 95 % interval.

    No interval below five seeds, nor where the baseline's own mean may be 0.
    """

    percent: float
    low_percent: float | None = None
    high_percent: float | None = None

    @property
    def at_most_percent(self) -> float:
        """Upper end of the interval, infinite without one."""
        return math.inf if self.high_percent is None else self.high_percent

    def text(self, mark: str = "", decimals: int = 1) -> str:
        """The percent, `mark` behind its sign, and its interval if it has one."""
        ends = "" if self.low_percent is None else f" [{self.low_percent:+.{decimals}f}, "
        ends += "" if self.high_percent is None else f"{self.high_percent:+.{decimals}f}]"
        return f"{self.percent:+.{decimals}f} %{mark}{ends}"


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Ratio of means less 1, in percent; value i and baseline i are of one seed."""
    measured, base = _pairs(values, baseline)
    ratio = float(measured.mean() / base.mean())
    if len(measured) < ENOUGH_FOR_INTERVAL:
        return Difference(_percent(ratio))
    ends = ratio_of_means(measured, base).interval()
    return Difference(_percent(ratio), *(() if ends is None else map(_percent, ends)))


def paired_p_value(values: Sequence[float], baseline: Sequence[float]) -> float | None:
    """How likely means this far apart are without any effect, two-sided; None below five seeds.

    It is the level at which the interval ends at 0 %.
    """
    measured, base = _pairs(values, baseline)
    if len(measured) < ENOUGH_FOR_INTERVAL:
        return None
    ratio, without, within = ratio_of_means(measured, base), 0.0, 1.0
    for _ in range(_HALVINGS):
        level = (without + within) / 2
        ends = ratio.interval(level)
        if ends is None or ends[0] <= 1 <= ends[1]:
            without = level
        else:
            within = level
    return round((without + within) / 2, 9)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The same, adjusted by Holm for that there are several; None stays."""
    known = {at: value for at, value in enumerate(p_values) if value is not None}
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, at in enumerate(sorted(known, key=known.__getitem__)):
        worst = max(worst, min(1.0, (len(known) - rank) * known[at]))
        adjusted[at] = worst
    return adjusted


def _pairs(values: Sequence[float], baseline: Sequence[float]) -> tuple[Floats, Floats]:
    if len(values) != len(baseline) or not values:
        raise ValueError("paired values need as many of the one as of the other, at least one")
    return np.asarray(values, np.float64), np.asarray(baseline, np.float64)


def _percent(ratio: float) -> float:
    return round(100 * (ratio - 1), 2)
