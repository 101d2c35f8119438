"""Differences between two policies on the same seeds, with bootstrap intervals."""

from collections.abc import Sequence

import msgspec
import numpy as np

DRAWS = 10_000
_SEED = 20_210_118


class Difference(msgspec.Struct, frozen=True):
    """How much more or less, in percent of the baseline's mean, and its 95 % interval."""

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
    mine, theirs = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    drawn = np.random.default_rng(_SEED).integers(0, len(mine), (DRAWS, len(mine)))
    ratios = mine[drawn].mean(axis=1) / theirs[drawn].mean(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    ratio = mine.mean() / theirs.mean()
    return Difference(_percent(ratio), _percent(low), _percent(high))


def _percent(ratio: float) -> float:
    return round(100 * (float(ratio) - 1), 2)
