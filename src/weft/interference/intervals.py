"""95 % intervals of means, and of ratios of means, over few values.

They are Student's, widened on the side to which few skewed values make them too short (Hall 1992,
"On the removal of skewness by transformation"). A few values show too little of their own skewness
even for that: their intervals are stricter by as much as it takes to hold 93 % of the means of
lognormal values (σ = 1) all the same, which the tests count. Experiments use them over seeds,
predictions' scores over families of applications.
"""

import math
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

ENOUGH_FOR_INTERVAL = 5
"""Below so many values an interval would be wider than all that was seen, or too short."""
MOST_LONGER = 2.5
"""A half is so many times Student's at most: one outlier among few would make it boundless."""
_LEAST_SKEWNESS = 1e-6
"""Below it the correction is lost in rounding, as its formula divides by the skewness."""
_ROUNDING = 1e-12
Floats = NDArray[np.float64]


class CriticalValues(msgspec.Struct, frozen=True):
    """How many standard errors a mean may lie from the truth: Student's, and with the corrections
    `above` and `below` it."""

    student: float
    above: float
    below: float


def skewness(values: Sequence[float]) -> float:
    """Unbiased third standardised moment of three or more values; 0 where all are equal."""
    count, mean = len(values), sum(values) / len(values)
    centred = [value - mean for value in values]  # a report has 100,000 of few: no arrays
    variance = sum(value * value for value in centred) / count
    if not variance > 0:
        return 0.0
    unbiased = math.sqrt(count * (count - 1)) / (count - 2)
    return float(unbiased * (sum(value**3 for value in centred) / count) / variance**1.5)


def critical_values(count: int, skew: float, level: float = 0.05) -> CriticalValues:
    """Critical values for the mean of so many values with this skewness, wrong at `level`."""
    student = _student(count - 1, 1 - level / 2)
    strict = _student(count - 1, 1 - level * strictness(count) / 2)
    if abs(skew) < _LEAST_SKEWNESS:
        return CriticalValues(student, strict, strict)
    above, below = _unbent(strict, count, skew), -_unbent(-strict, count, skew)
    most = MOST_LONGER * strict
    return CriticalValues(student, min(max(strict, above), most), min(max(strict, below), most))


def strictness(count: int) -> float:
    """The part of its level at which an interval of so many values is made: a third of 5 values,
    half of 10, all from 25 on. Found by simulation, the largest that hold (tests)."""
    return min(1.0, (count + 5) / 30)


@cache
def _student(degrees_of_freedom: int, probability: float) -> float:
    from scipy.special import stdtrit  # heavy

    return float(stdtrit(degrees_of_freedom, probability))


def _unbent(value: float, count: int, skew: float) -> float:
    """Hall's transformation, reversed: from a symmetric critical value to a skewed one."""
    root = math.sqrt(count)
    inner = 1 + skew / root * (value - skew / (6 * root))
    return 3 * root / skew * (math.cbrt(inner) - 1)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Ends of the mean's 95 % interval; None below `ENOUGH_FOR_INTERVAL` values."""
    count = len(values)
    if count < ENOUGH_FOR_INTERVAL:
        return None
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    critical, error = critical_values(count, skewness(values)), deviation / math.sqrt(count)
    return mean - critical.above * error, mean + critical.below * error


class RatioOfMeans(msgspec.Struct, frozen=True):
    """Moments of paired values and their baseline: means, their variances and covariance, and
    the skewness of value − ratio × baseline; `exact` where the ratio is the same in all pairs."""

    count: int
    mean: float
    mean_base: float
    var: float
    cov: float
    var_base: float
    skew: float
    exact: bool

    def interval(self, level: float = 0.05) -> tuple[float, float] | None:
        """Ends of Fieller's interval, its halves longer as the corrections say; None if it has
        none because the baseline's own mean may be 0. It is wrong at `level`."""
        ratio = self.mean / self.mean_base
        if self.exact:
            return ratio, ratio
        critical = critical_values(self.count, self.skew, level)
        if not critical.student > 0:
            return ratio, ratio
        # Its ends are the roots in R of (mean − R mean_base)² = t² (var − 2 R cov + R² var_base).
        square = critical.student**2
        a = self.mean_base**2 - square * self.var_base
        b = self.mean * self.mean_base - square * self.cov
        c = self.mean**2 - square * self.var
        if not a > 0:
            return None
        root = math.sqrt(max(0.0, b * b - a * c))
        below = (ratio - (b - root) / a) * critical.above / critical.student
        above = ((b + root) / a - ratio) * critical.below / critical.student
        return ratio - below, ratio + above


def ratio_of_means(measured: Floats, base: Floats) -> RatioOfMeans:
    """The interval of a ratio of means, from at least three pairs."""
    means = float(measured.mean()), float(base.mean())
    (var, cov), (_, var_base) = (np.cov(measured, base) / len(measured)).tolist()
    apart = measured - means[0] / means[1] * base
    exact = float(np.abs(apart).max()) <= _ROUNDING * float(np.abs(measured).max())
    skew = skewness(apart.tolist())
    return RatioOfMeans(len(measured), *means, var, cov, var_base, skew, exact)
