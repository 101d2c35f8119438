"""Gain of a pod that joins others on a GPU, and whether it may, by prediction."""

import math
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from weft.core.framework.policy import ExpectedSlowdown, SlowdownTolerance
from weft.core.ledger.residents import CoResidents, Resident, own_percent
from weft.core.ledger.table import Bools, Ints
from weft.core.policies import co_residents
from weft.core.policies.co_resident_costs import ROUNDING, JoinedSets, SetCosts
from weft.core.policies.co_residents import ANY_CLASS, CRITICAL, HARMLESS, NOBODY, CoResidentSets
from weft.model import Shape
from weft.model.interference_table import Floats, InterferenceView, PredictionTier
from weft.model.slowdown_limit import bound_of

CRITICAL_LOSS = 0.5
"""Weight of what latency-critical pods lose against speed gained."""

KNOWN, BY_USE, IF_CALM, ALONE, NEVER = range(5)
"""Co-residents are judged by: prediction; the GPU's measured use; the same, for a latency-critical
pod beside best-effort ones; nothing known makes it good; it is forbidden."""


CROWD = (0.0, 0.0, float(NEVER), 0.0)
"""Column of a set that must not be."""
CROWD_COLUMN = np.array(CROWD)[:, None]
NOBODY_COLUMN = np.array([[1.0], [1.0], [KNOWN], [0.0]])
"""Column of a GPU of its own."""

MOST_VALUE, MOST_LOG = 1e9, 700.0
"""No set brings more or less, and no log slowdown above it is told as times."""
_SIGNS = np.array([1.0, -1.0, -1.0])[:, None, None]
"""Signs of `JoinedSets.logs`: how many times slower at worst, and the two speeds."""


class SlowdownBounds(NamedTuple):
    """Slowdown limits of each class, at worst, and the least speed together.

    A latency-critical pod's own slack may be less. So many pods at `most` share a GPU, `most_small`
    where all of them are latency-critical and small, and known.
    """

    critical: float
    batch: float
    gain: float
    most: int
    most_small: int


class SharingCost:
    """Judges co-residents for who would join them; a judge for `CoResidentCache`, which asks
    of `most` pods and more only where all are small.

    A pod's log slowdown is the sum of what each other one costs it.
    """

    def __init__(self, view: InterferenceView, bounds: SlowdownBounds, bonus: float) -> None:
        self.view, self.bounds, self.bonus = view, bounds, bonus
        self._within: dict[str, SetCosts] = {}

    @property
    def tolerance(self) -> SlowdownTolerance:
        """Tolerated slowdown of running pods."""
        return SlowdownTolerance(self.bounds.critical, self.view.costs)

    def __call__(
        self, joining: Resident, sets: CoResidentSets, numbers: Ints, model: str
    ) -> Floats:
        """(1 if it may be, what it brings, what it is judged by, batch pods' slowdown ÷ bound)."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            together = self._of(sets, model).joined(joining.application, numbers)
            columns, keeps = self._judged(joining, together)
        size, judged_by = sets.size.take(numbers), columns[2]
        good = (size < self.bounds.most) | (keeps & (judged_by == KNOWN))
        columns[:, ~good | (judged_by == NEVER)] = CROWD_COLUMN
        columns[:, size == 0] = NOBODY_COLUMN
        return columns

    def _of(self, sets: CoResidentSets, model: str) -> SetCosts:
        """Costs of these sets on such a GPU."""
        costs = self._within.get(model)
        if costs is None or not costs.is_of(sets, self.view):
            self._within = {
                name: known for name, known in self._within.items() if known.is_of(sets, self.view)
            }
            costs = self._within[model] = SetCosts(sets, self.view, model, self.bounds.critical)
        costs.follow()
        return costs

    def _judged(self, joining: Resident, together: JoinedSets) -> tuple[Floats, Bools]:
        """The four columns, wherever they may be together; and who keeps critical pods' bounds."""
        critical, batch, gain, _, _ = self.bounds
        own = co_residents.CLASS_OF.get(joining.job_class, ANY_CLASS)
        classes = np.concatenate([together.classes, np.full((1, together.classes.shape[1]), own)])
        worst, speeds, expected = np.exp(together.logs * _SIGNS)
        is_pod = classes != NOBODY
        speeds, expected = np.where(is_pod, speeds, 0.0), np.where(is_pod, expected, 0.0)
        lost = np.where(classes == CRITICAL, 1.0 / speeds - 1.0, 0.0).sum(axis=0)
        value = speeds.sum(axis=0) - together.before + self.bonus
        value -= CRITICAL_LOSS * lost
        value = np.fmin(np.fmax(value, -MOST_VALUE), MOST_VALUE)
        keeps = (worst[:-1] <= together.bound).all(axis=0)
        if own == CRITICAL:
            keeps &= worst[-1] <= bound_of(joining.bound_percent, critical) + ROUNDING
        good = keeps & (expected.sum(axis=0) >= gain)
        stretch = np.where(classes == ANY_CLASS, np.maximum(1.0, worst) / batch, 0.0).max(axis=0)
        judged_by = _judged_by(own, together)
        known = judged_by == KNOWN
        columns = np.empty((4, len(value)))
        columns[0], columns[2], columns[3] = known & good, judged_by, np.where(known, stretch, 0.0)
        # measured use decides on what is not known; no guess makes it worth nothing
        columns[1] = np.where(known, value, np.maximum(value, gain - 1.0))
        return columns, keeps

    def predictions(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """For the pod and each that it joins, and what those with a bound of their own may."""
        own = own_percent(shape.job_class, shape.slowdown_limit, model)
        percents = (own, *(pod.bound_percent for pod in co_residents))
        expected = zip(predictions(self.view, shape, co_residents, model), percents, strict=True)
        return tuple(
            replace(slowdown, allowed=bound_of(percent, self.bounds.critical))
            if percent
            else slowdown
            for slowdown, percent in expected
        )


def predictions(
    view: InterferenceView, shape: Shape, there: CoResidents, model: str
) -> tuple[ExpectedSlowdown, ...]:
    """For the pod and each that it joins, beside all the others; for people, to the thousandth.

    What is beyond all numbers (a pair that a policy lets in although it is forbidden) is said as 0.
    """
    card = view.of(model)
    names = [shape.application, *(resident.application for resident in there)]
    index = [view.index_of(name) for name in names]
    expected = []
    for at, target in enumerate(index):
        others = [other for k, other in enumerate(index) if k != at]
        tiers = card.tier[target, others]
        mean, upper = (_times(float(log[target, others].sum())) for log in (card.mean, card.upper))
        tier, sure = PredictionTier(int(abs(tiers).max())).name.lower(), bool((tiers >= 0).all())
        expected.append(ExpectedSlowdown(names[at], mean, upper, tier, sure))
    return tuple(expected)


def _times(log: float) -> float:
    """Slowdown in times; 0 for what is no number to people."""
    times = math.exp(log) if log < MOST_LOG else 0.0
    return round(times, 3)


def _judged_by(own: int, together: JoinedSets) -> Ints:
    """Measure that a pod of this class and each set of co-residents are judged by."""
    classes = together.classes
    guess = np.full(classes.shape[1], BY_USE)
    if own == CRITICAL:
        calm = (classes == HARMLESS) | (classes == NOBODY)
        guess = np.where(calm.all(axis=0), IF_CALM, ALONE)
    guess = np.where((classes == CRITICAL).any(axis=0), ALONE, guess)
    return np.where(together.forbidden, NEVER, np.where(together.doubtful, guess, KNOWN))
