"""Means over seeds, and differences between two policies on the same seeds.

Intervals and p-values agree: both are Student's, of the differences seed by seed
(interference/intervals.py). In percent of the baseline's mean the interval is Fieller's: all ratios
R for which the mean of value − R × baseline may be 0. Both exclude 0 exactly if p is below 0.05."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from weft.interference.intervals import (
    ENOUGH_FOR_INTERVAL,
    Floats,
    mean_interval,
    p_value,
    ratio_of_means,
)


class SeedMean(msgspec.Struct, frozen=True):
    """A mean over seeds with the half-width of its 95 % interval, None for few seeds.

    `equal` is True if several seeds all have the same value."""

    mean: float
    half: float | None = None
    equal: bool = False

    def text(self, decimals: int) -> str:
        """Return the mean ± the half-width, or a note that it is equal in all seeds."""
        mean = f"{self.mean:,.{decimals}f}"
        if self.half is None:
            return mean
        return f"{mean}, {EQUAL}" if self.equal else f"{mean} ± {self.half:,.{decimals}f}"


def mean_ci95(values: Sequence[float], resolution: float = 0.0) -> SeedMean:
    """Return the mean and its 95 % interval; `resolution` is the smallest difference between two
    values."""
    mean, ends = sum(values) / len(values), mean_interval(values, resolution)
    equal = len(values) > 1 and max(values) == min(values)
    return SeedMean(mean, None if ends is None else (ends[1] - ends[0]) / 2, equal)


EQUAL = "equal in all seeds"
POINTS = "points"
"""The unit of differences between percentages."""


class Difference(msgspec.Struct, frozen=True):
    """A mean difference to a baseline over the same seeds, with its 95 % interval: in the measure's
    own unit (`mean`, `low`, `high`), and in percent of the baseline's mean.

    There are no intervals with fewer than five seeds, none in percent if the baseline's mean may be
    0, and no percent if it is 0. `zeros` counts the seeds whose baseline is 0; `equal` is True if
    value and baseline are equal in every seed."""

    percent: float | None
    low_percent: float | None = None
    high_percent: float | None = None
    mean: float = 0.0
    low: float | None = None
    high: float | None = None
    unit: str = ""
    seeds: int = 1
    zeros: int = 0
    equal: bool = False

    @property
    def at_most_percent(self) -> float:
        """Upper end of the interval in percent; infinite without one."""
        return math.inf if self.high_percent is None else self.high_percent

    @property
    def has_interval(self) -> bool:
        """True if there are enough seeds for an interval."""
        return self.low is not None

    def text(self, mark: str = "", decimals: int = 1) -> str:
        """Return the difference, its interval if it has one, and `mark` after the unit.

        Differences of percentages are in points, all others in percent if defined, else in the
        measure's own unit."""
        if self.equal:
            return f"{EQUAL if self.seeds > 1 else 'equal'}{mark}"
        if self.unit == POINTS:
            return _with_ends(self.mean, self.low, self.high, " points" + mark, 2)
        if self.percent is None:
            return f"{self.own_text}{mark} (in percent not defined: {self._zeros_text})"
        in_percent = _with_ends(
            self.percent, self.low_percent, self.high_percent, f" %{mark}", decimals
        )
        if self.low_percent is not None or not self.has_interval:
            return in_percent
        return f"{in_percent} ({self.own_text}; no interval in percent: {self._zeros_text})"

    def short_text(self) -> str:
        """Return the difference without its interval, for a table's cell."""
        bare = msgspec.structs.replace(self, low=None, high=None, low_percent=None)
        return bare.text() if self.percent is not None or self.equal else bare.own_text

    @property
    def own_text(self) -> str:
        """The difference in the measure's own unit, with its interval if it has one."""
        unit = f" {self.unit}" if self.unit else ""
        return _with_ends(self.mean, self.low, self.high, unit)

    @property
    def _zeros_text(self) -> str:
        if not self.zeros:
            return "the baseline differs too much between seeds"
        return f"baseline is 0 in {self.zeros} of {self.seeds} seeds"


def paired_difference(
    values: Sequence[float], baseline: Sequence[float], resolution: float = 0.0, unit: str = ""
) -> Difference:
    """Return the mean difference; values[i] and baseline[i] are of the same seed.

    `resolution` is the smallest difference between two values of the measure."""
    measured, base = _pairs(values, baseline)
    apart: list[float] = (measured - base).tolist()
    low, high = mean_interval(apart, resolution) or (None, None)
    percent = low_percent = high_percent = None
    if base.any() and float(base.mean()):
        percent = _percent(float(measured.mean() / base.mean()))
        if len(measured) >= ENOUGH_FOR_INTERVAL:
            ends = ratio_of_means(measured, base, resolution).interval()
            low_percent, high_percent = map(_percent, ends) if ends else (None, None)
    return Difference(
        percent,
        low_percent,
        high_percent,
        mean=_rounded(sum(apart) / len(apart)),
        low=None if low is None else _rounded(low),
        high=None if high is None else _rounded(high),
        unit=unit,
        seeds=len(apart),
        zeros=int((base == 0).sum()),
        equal=not any(apart),
    )


def paired_p_value(
    values: Sequence[float], baseline: Sequence[float], resolution: float = 0.0
) -> float | None:
    """Return the two-sided probability of means at least this far apart if there is no effect.

    None with fewer than five seeds. It is below 5 % exactly if the interval excludes 0."""
    measured, base = _pairs(values, baseline)
    return p_value((measured - base).tolist(), resolution)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust several p-values by Holm's method; None stays None."""
    known = {at: value for at, value in enumerate(p_values) if value is not None}
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, at in enumerate(sorted(known, key=known.__getitem__)):
        worst = max(worst, min(1.0, (len(known) - rank) * known[at]))
        adjusted[at] = worst
    return adjusted


def _pairs(values: Sequence[float], baseline: Sequence[float]) -> tuple[Floats, Floats]:
    if len(values) != len(baseline) or not values:
        raise ValueError("values and baseline need the same number of values, at least one")
    return np.asarray(values, np.float64), np.asarray(baseline, np.float64)


def _percent(ratio: float) -> float:
    return round(100 * (ratio - 1), 2)


def _rounded(value: float) -> float:
    """Round to six significant digits, the precision of differences of recorded values."""
    return float(f"{value:.6g}")


def _with_ends(
    value: float, low: float | None, high: float | None, unit: str, decimals: int | None = None
) -> str:
    form = "+,.4g" if decimals is None else f"+.{decimals}f"
    ends = "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{unit}{ends}"
