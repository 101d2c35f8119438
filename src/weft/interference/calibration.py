"""Calibrates bounds: nine of ten measurements stay within.

Split-conformal by groups: each sample is predicted without its group (its pair, its application,
its family), and its error is taken in units of what the model itself thought possible. A quantile
of these scores is the factor. With few groups the plain quantile is too low, since new groups
differ more than samples do; so the level is the one at which the quantile over the other groups
covers, on average, nine of ten of the group that was left out, and the factor is widened as for any
estimate from few.
"""

from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from weft.interference.features import Floats, Ints

COVERAGE = 0.9
LEAST_GROUPS = 9
"""From fewer groups no bound for the next one holds in nine of ten whatever their differences are
like: it would have to lie beyond the worst of them. Bounds are then called uncalibrated."""
LEVELS = (0.8, 0.85, 0.875, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)


class Calibration(msgspec.Struct, frozen=True):
    """Factors on the model's deviation, by what is new about a pair.

    `pair`: nothing but the pair. `size`: an application of a known family. `target`: the victim's
    family. `other`: the other's alone. `families` were there to learn `target` and `other` from,
    `applications` for `size`.
    """

    pair: float = 1.2816
    size: float = 1.2816
    target: float = 1.2816
    other: float = 1.2816
    families: int = 0
    applications: int = 0
    several: float = 1.2816
    """On the trees' deviation beside several others; out of `companies` that were left out."""
    companies: int = 0

    @property
    def new_families(self) -> bool:
        """True if bounds on new families are calibrated."""
        return self.families >= LEAST_GROUPS

    @property
    def new_companies(self) -> bool:
        """True if bounds on new sets of co-residents of known applications are calibrated."""
        return self.companies >= LEAST_GROUPS

    @property
    def new_sizes(self) -> bool:
        """True if bounds on new applications of known families are."""
        return self.applications >= LEAST_GROUPS


def quantile(scores: Floats, weights: Floats, level: float) -> float:
    """The smallest score at which the weights below and at it reach `level` of all."""
    order = np.argsort(scores)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = min(int(np.searchsorted(reached, level - 1e-12)), len(scores) - 1)
    return float(scores[order[at]])


def factor_of(scores: Sequence[Floats], coverage: float = COVERAGE) -> float:
    """The factor for scores by group, each weighted by its samples. Never below 0."""
    nonempty = [group for group in scores if len(group)]
    if not nonempty:
        return 1.2816
    pooled = np.concatenate(nonempty)
    level = coverage if len(nonempty) < 2 else _level(nonempty, coverage)
    return max(0.0, quantile(pooled, np.ones(len(pooled)), level))


def few_groups(groups: int) -> float:
    """Factor by which a bound for a new group is wider, learnt from so few groups.

    The width of Student's prediction interval by a bell curve's: t(0.9, G − 1)·√(1 + 1/G) ÷ z(0.9).
    """
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
    """Share of samples within the bound that all other groups set."""
    within = total = 0
    for at, group in enumerate(groups):
        others = np.concatenate([rest for number, rest in enumerate(groups) if number != at])
        within += int((group <= quantile(others, np.ones(len(others)), level)).sum())
        total += len(group)
    return within / total


def scores_of(speed: Floats, predicted: Floats, deviation: Floats) -> Floats:
    """Deviations by which each sample was slower than predicted."""
    return np.asarray((predicted - speed) / np.maximum(deviation, 1e-6))


def by_group(scores: Floats, group: Ints) -> list[Floats]:
    """Scores split by their group's number."""
    return [scores[group == name] for name in np.unique(group)]
