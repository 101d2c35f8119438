"""Differences between two policies on the same seeds, with bootstrap intervals."""

from collections.abc import Sequence

import msgspec
import numpy as np

DRAWS = 10_000
_SEED = 20_210_118


class Difference(msgspec.Struct, frozen=True):
    """A difference in percent of the baseline's mean, and its 95 % interval."""

    percent: float
    low_percent: float
    high_percent: float


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Ratio of means less 1, in percent; value i and baseline i are of one seed.

    The interval is the percentile bootstrap's: seeds are drawn with replacement, both policies'
    values of a seed together. The draws are always the same, so that results can be repeated.
    """
    if len(values) != len(baseline) or not values:
        raise ValueError("paired values need as many of the one as of the other, at least one")
    measured, base = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    drawn = np.random.default_rng(_SEED).integers(0, len(measured), (DRAWS, len(measured)))
    ratios = measured[drawn].mean(axis=1) / base[drawn].mean(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    ratio = measured.mean() / base.mean()
    return Difference(_percent(ratio), _percent(low), _percent(high))


def paired_p_value(values: Sequence[float], baseline: Sequence[float]) -> float:
    """The two-sided p-value of the means' difference, by the same draws."""
    measured, base = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    drawn = np.random.default_rng(_SEED).integers(0, len(measured), (DRAWS, len(measured)))
    apart = (measured - base)[drawn].mean(axis=1)
    less, more = (np.count_nonzero(side) for side in (apart <= 0, apart >= 0))
    return float(min(1.0, 2 * (min(less, more) + 1) / (DRAWS + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The same, adjusted by Holm for that there are several."""
    adjusted, worst = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = worst
    return adjusted


def _percent(ratio: float) -> float:
    return round(100 * (float(ratio) - 1), 2)
