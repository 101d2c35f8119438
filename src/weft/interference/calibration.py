"""Calibrates bounds so that nine of ten measurements stay within them.

Split-conformal by groups: each sample is predicted by a model that has not seen its group (its
pair, its application or its family), and its error is divided by the deviation that the model
predicted. A quantile of these scores is the factor by which predicted deviations are multiplied.
With few groups the plain quantile is too low, since new groups differ more than samples of one
group do. So the level is the lowest one at which the quantile over the other groups covers, on
average, nine of ten samples of the group that was left out, and the factor is widened as for any
estimate from few values."""

from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from weft.interference.features import Floats, Ints

COVERAGE = 0.9
LEAST_GROUPS = 9
"""With fewer groups, no finite factor covers the next group in nine of ten cases for every
distribution: the bound would have to lie beyond the worst group. Such bounds are called
uncalibrated."""
LEVELS = (0.8, 0.85, 0.875, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)


class Calibration(msgspec.Struct, frozen=True):
    """Factors on the model's predicted deviation, by what is new about a pair.

    `pair`: only the pair is new. `size`: an application of a known family is new. `target`: the
    target's family is new. `other`: only the neighbour's family is new. `families` counts the
    families that `target` and `other` were calibrated on, `applications` those for `size`."""

    pair: float = 1.2816
    size: float = 1.2816
    target: float = 1.2816
    other: float = 1.2816
    families: int = 0
    applications: int = 0
    several: float = 1.2816
    """Factor for the trees' standard deviation with several co-residents, calibrated on
    `companies` sets of co-located applications, each predicted by trees trained without it."""
    companies: int = 0

    @property
    def new_families(self) -> bool:
        """True if there were enough families to calibrate bounds for a new family."""
        return self.families >= LEAST_GROUPS

    @property
    def new_companies(self) -> bool:
        """True if there were enough sets of co-located applications to calibrate bounds for a new
        set."""
        return self.companies >= LEAST_GROUPS

    @property
    def new_sizes(self) -> bool:
        """True if there were enough applications to calibrate bounds for a new application of a
        known family."""
        return self.applications >= LEAST_GROUPS


def quantile(scores: Floats, weights: Floats, level: float) -> float:
    """Return the smallest score for which scores up to it carry at least `level` of the total
    weight."""
    order = np.argsort(scores)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = min(int(np.searchsorted(reached, level - 1e-12)), len(scores) - 1)
    return float(scores[order[at]])


def factor_of(scores: Sequence[Floats], coverage: float = COVERAGE) -> float:
    """Return the calibration factor for scores by group, at least 0; each sample has the same
    weight. Without scores it is the normal distribution's, 1.2816."""
    nonempty = [group for group in scores if len(group)]
    if not nonempty:
        return 1.2816
    pooled = np.concatenate(nonempty)
    level = coverage if len(nonempty) < 2 else _level(nonempty, coverage)
    return max(0.0, quantile(pooled, np.ones(len(pooled)), level))


def few_groups(groups: int) -> float:
    """Return the factor by which bounds for a new group are widened when learnt from `groups`
    groups.

    It is the width of Student's prediction interval over that of the normal distribution: t(0.9,
    G − 1)·√(1 + 1/G) ÷ z(0.9); 3 for fewer than two groups."""
    if groups < 2:
        return 3.0
    z, free = NormalDist().inv_cdf(COVERAGE), groups - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return float(t / z * np.sqrt(1 + 1 / groups))


def _level(groups: Sequence[Floats], coverage: float) -> float:
    for level in LEVELS:
        if level >= coverage and _held_out(groups, level) >= coverage:
            return level
    return LEVELS[-1]


def _held_out(groups: Sequence[Floats], level: float) -> float:
    """Return the share of samples that lie within the bound set by all other groups."""
    within = total = 0
    for at, group in enumerate(groups):
        others = np.concatenate([rest for number, rest in enumerate(groups) if number != at])
        within += int((group <= quantile(others, np.ones(len(others)), level)).sum())
        total += len(group)
    return within / total


def scores_of(speed: Floats, predicted: Floats, deviation: Floats) -> Floats:
    """Return by how many predicted deviations each sample was slower than predicted."""
    return np.asarray((predicted - speed) / np.maximum(deviation, 1e-6))


def by_group(scores: Floats, group: Ints) -> list[Floats]:
    """Split scores by their group's number."""
    return [scores[group == name] for name in np.unique(group)]
