"""95 % intervals of means and ratios of means, and p-values, by Student's t over few values.

Equal values say too little about their spread. So no interval is narrower than if the values
differed by the error of rounding two values to the measure's resolution. How often intervals
contain the true value is in docs/reference/report.md, and tested. Experiments compute intervals
over seeds, evaluations of predictors over families of applications."""

import math
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

ENOUGH_FOR_INTERVAL = 5
"""Minimum number of values for an interval; with fewer it would be wider than the range of the
values, or too narrow."""
_ROUNDING = 1e-9
"""Values whose relative difference is smaller than this count as equal."""
Floats = NDArray[np.float64]


def mean_interval(values: Sequence[float], resolution: float = 0.0) -> tuple[float, float] | None:
    """Return the ends of the mean's 95 % interval; None with fewer than `ENOUGH_FOR_INTERVAL`
    values."""
    count = len(values)
    if count < ENOUGH_FOR_INTERVAL:
        return None
    mean, error = _mean_and_error(values, resolution)
    half = _student(count - 1) * error
    return mean - half, mean + half


def p_value(values: Sequence[float], resolution: float = 0.0) -> float | None:
    """Return the two-sided probability of a mean this far from 0 if there is no effect.

    None with fewer than `ENOUGH_FOR_INTERVAL` values. The result is below 5 % exactly if the
    interval excludes 0."""
    from scipy.special import stdtr  # heavy

    count = len(values)
    if count < ENOUGH_FOR_INTERVAL:
        return None
    mean, error = _mean_and_error(values, resolution)
    if not error > 0:  # all values are 0, and nothing is known of their resolution
        return 1.0
    return float(f"{2 * stdtr(count - 1, -abs(mean) / error):.4g}")


def least_deviation(resolution: float) -> float:
    """Return the smallest standard deviation that an interval assumes: that of the rounding error
    of a difference of two values."""
    return resolution / math.sqrt(6)


def _mean_and_error(values: Sequence[float], resolution: float) -> tuple[float, float]:
    """Return the mean and its standard error."""
    count = len(values)
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    least = max(least_deviation(resolution), _ROUNDING * max(map(abs, values)))
    return mean, max(deviation, least) / math.sqrt(count)


@cache
def _student(degrees_of_freedom: int) -> float:
    from scipy.special import stdtrit  # heavy

    return float(stdtrit(degrees_of_freedom, 0.975))


class RatioOfMeans(msgspec.Struct, frozen=True):
    """Moments of paired values and baselines: their means, the means' variances and covariance, and
    the smallest standard error to assume for the mean of value − R × baseline."""

    count: int
    mean: float
    mean_base: float
    var: float
    cov: float
    var_base: float
    least_error: float

    def interval(self) -> tuple[float, float] | None:
        """Return the ends of Fieller's 95 % interval: all ratios R for which the mean of value − R
        × baseline may be 0. None if the baseline's own mean may be 0."""
        student = _student(self.count - 1)
        # Its ends are the roots in R of (mean − R mean_base)² = t² (var − 2 R cov + R² var_base).
        square = student**2
        a = self.mean_base**2 - square * self.var_base
        b = self.mean * self.mean_base - square * self.cov
        c = self.mean**2 - square * self.var
        half = student * self.least_error
        if not a > 0 or not abs(self.mean_base) > half:
            return None
        root, ratio = math.sqrt(max(0.0, b * b - a * c)), self.mean / self.mean_base
        least = half / abs(self.mean_base)
        return min((b - root) / a, ratio - least), max((b + root) / a, ratio + least)


def ratio_of_means(measured: Floats, base: Floats, resolution: float = 0.0) -> RatioOfMeans:
    """Return the moments for the interval of a ratio of means, from at least two pairs."""
    count = len(measured)
    (var, cov), (_, var_base) = (np.cov(measured, base) / count).tolist()
    rounding = _ROUNDING * float(np.abs(measured).max(initial=0.0))
    least = max(least_deviation(resolution), rounding) / math.sqrt(count)
    mean, mean_base = float(measured.mean()), float(base.mean())
    return RatioOfMeans(count, mean, mean_base, var, cov, var_base, least)
