"""Predicted gain of a pod that joins others on a GPU, and whether it may join.

There are three parts: the slowdowns of co-residents by each other on a GPU model; the judgement of
a pod that joins a set of co-residents; and that judgement as one of several terms of a policy. An
unknown pair neither excludes a GPU nor favours it: the other terms decide."""

import math
from itertools import permutations
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from weft.core.framework import Query
from weft.core.framework.policy import ExpectedSlowdown, SlowdownTolerance
from weft.core.ledger.table import Bools, CoResidents, Ints, Resident, own_percent
from weft.core.policies import co_residents
from weft.core.policies.co_residents import (
    ANY_CLASS,
    CRITICAL,
    HARMLESS,
    NOBODY,
    CoResidentCache,
    CoResidentSets,
    GrowingArray,
)
from weft.model import Shape
from weft.model.interference_table import (
    NO_INTERFERENCE,
    Floats,
    InterferenceTable,
    InterferenceView,
    PredictionTier,
    Tiers,
)
from weft.model.slowdown_limit import bound_of

# --- costs of co-residents to each other ----------------------------------------------------------

CAUTION = 0.5
"""Speeds are taken this far between the expected and the worst case: the best of many estimates is
usually too optimistic, and measured pairs should be preferred."""

ROUNDING = 1e-9
"""Tolerance, so that a slowdown exactly at its bound is accepted."""

WORST, BELIEVED, EXPECTED = range(3)
"""Kinds of log slowdown: the upper bound; the value between mean and bound that `CAUTION` sets; the
mean."""
_PAIRS = 3


class JoinedSets(NamedTuple):
    """Sets of co-residents plus one joining pod: a row for each pod (the joining pod last), a
    column for each set.

    `logs` [3, places + 1, c] are the sums of log slowdown of the kinds `WORST`, `BELIEVED` and
    `EXPECTED`, `classes` [places, c] the classes of the pods already there, `bound` [places, c]
    their slowdown limits, +inf for none. `before` [c] is the sum of speeds without the new pod.
    `forbidden` [c] marks sets with a pair that must not share, `doubtful` [c] sets with a pair
    whose interference is not surely known."""

    logs: Floats
    classes: Ints
    bound: Floats
    before: Floats
    forbidden: Bools
    doubtful: Bools


class SetCosts:
    """Slowdowns within each set of `sets`, for one view and GPU model; `follow` adds new sets.

    Numbers may overflow to +inf, of which NumPy warns unless the caller disables that."""

    def __init__(
        self, sets: CoResidentSets, view: InterferenceView, model: str, critical: float
    ) -> None:
        self._companies, self._view, self._critical = sets, view, critical
        self._card = view.of(model)
        self._places = places = sets.places
        self._index_of_name = GrowingArray((), np.int64)
        self._index_of_name.add(np.array([self._nobody]))
        self._index = GrowingArray((places,), np.int64)
        self._logs = GrowingArray((_PAIRS, places), np.float64)
        self._bound = GrowingArray((places,), np.float64)
        self._before = GrowingArray((), np.float64)
        self._bad = GrowingArray((2,), np.bool_)

    def is_of(self, sets: CoResidentSets, view: InterferenceView) -> bool:
        """Return True if this object is for these sets and view, with the same number of places."""
        same = sets is self._companies and view is self._view
        return same and sets.places == self._places

    def follow(self) -> None:
        """Compute the slowdowns in sets that were added to `sets` since the last call."""
        known, count = self._index.length, len(self._companies.members)
        if known < count:
            new = np.arange(known, count)
            names = self._companies.names[self._index_of_name.length :]
            indexes = [self._view.index_of(name) for name in names]
            self._index_of_name.add(np.array(indexes, dtype=np.int64))
            self._add_columns(self._index_of_name.take(self._companies.application.take(new)), new)

    def joined(self, application: str, columns: Ints) -> JoinedSets:
        """Compute the slowdowns in these sets if a pod of this application joined each."""
        faces, bad = self._facing(self._view.index_of(application))
        index = self._index.take(columns)
        met = faces.take(index, axis=1)
        logs = np.empty((_PAIRS, self._places + 1, len(columns)))
        np.add(self._logs.take(columns), met[:_PAIRS], out=logs[:, :-1])
        met[_PAIRS:].sum(axis=1, out=logs[:, -1])
        forbidden, doubtful = self._bad.take(columns) | bad.take(index, axis=1).any(axis=1)
        return JoinedSets(
            logs,
            self._companies.job_class.take(columns),
            self._bound.take(columns),
            self._before.take(columns),
            forbidden,
            doubtful,
        )

    @property
    def _nobody(self) -> int:
        """Index of an empty place, which slows nobody down: one above the index of unknown
        applications."""
        return self._view.unknown + 1

    def _facing(self, joining: int) -> tuple[Floats, Bools]:
        """Return log slowdowns [6, k] with the joining application: three kinds for each
        application, then three for the joining one next to it; and masks of forbidden and doubtful
        applications, [2, k]."""
        card, size = self._card, self._nobody + 1
        faces, bad = np.zeros((2 * _PAIRS, size)), np.zeros((2, size), dtype=np.bool_)
        loses = _logs(card.upper[:, joining], card.mean[:, joining])
        costs = _logs(card.upper[joining], card.mean[joining])
        faces[:, :-1] = loses + costs
        for upper, tier in (
            (card.upper[:, joining], card.tier[:, joining]),
            (card.upper[joining], card.tier[joining]),
        ):
            bad[:, :-1] |= _bad(upper, tier)
        return faces, bad

    def _add_columns(self, index: Ints, new: Ints) -> None:
        card, is_pod = self._card, index < self._nobody
        logs = np.zeros((_PAIRS, *index.shape))
        bad = np.zeros((2, len(new)), dtype=np.bool_)
        for place, other in permutations(range(self._places), 2):
            is_pair = is_pod[place] & is_pod[other]
            pair = np.where(is_pair, index[place] * len(card.upper) + index[other], 0)
            upper = card.upper.take(pair)
            logs[:, place] += np.where(is_pair, _logs(upper, card.mean.take(pair)), 0.0)
            bad |= is_pair & _bad(upper, card.tier.take(pair))
        speeds = np.where(is_pod, np.exp(-logs[EXPECTED]), 0.0)
        self._index.add(index)
        self._logs.add(logs)
        self._before.add(speeds.sum(axis=0))
        self._bad.add(bad)
        self._bound.add(self._bounds(new))

    def _bounds(self, new: Ints) -> Floats:
        classes = self._companies.job_class.take(new)
        own = self._companies.bound_percent.take(new)
        bounds = np.where(own > 0, np.minimum(self._critical, own / 100), self._critical)
        return np.where(classes == CRITICAL, bounds + ROUNDING, np.inf)


def _logs(upper: Floats, mean: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the log slowdowns of pairs: `WORST`, `BELIEVED` and `EXPECTED`."""
    return upper, mean + CAUTION * (upper - mean), mean


def _bad(upper: Floats, tier: Tiers) -> Bools:
    """Return masks of pairs, [2, ...]: forbidden pairs, and pairs whose interference is not surely
    known."""
    return np.array([np.isinf(upper), (tier < 0) | (tier >= PredictionTier.UNKNOWN)])


# --- judgement of joining a set
# --------------------------------------------------------------------

CRITICAL_LOSS = 0.5
"""Weight of the speed that latency-critical pods lose, against speed gained."""

KNOWN, BY_USE, IF_CALM, ALONE, NEVER = range(5)
"""How a set is judged: by prediction; by the GPU's measured use; by measured use, for a
latency-critical pod with best-effort ones; not allowed as nothing is known; forbidden."""


CROWD = (0.0, 0.0, float(NEVER), 0.0)
"""Values for a set that no pod may join: allowed (0 or 1), gain, how it is judged, and the batch
pods' largest slowdown ÷ limit."""
CROWD_COLUMN = np.array(CROWD)[:, None]
NOBODY_COLUMN = np.array([[1.0], [1.0], [KNOWN], [0.0]])
"""Values for an empty GPU, in the order of `CROWD`."""

MOST_VALUE, MOST_LOG = 1e9, 700.0
"""Limits of the gain of joining a set, and of a log slowdown that is reported as a factor."""
_SIGNS = np.array([1.0, -1.0, -1.0])[:, None, None]
"""Signs for `JoinedSets.logs`: the worst as a slowdown, the other two as speeds."""


class SlowdownBounds(NamedTuple):
    """Slowdown limits of each class, and the least sum of speeds.

    A latency-critical pod may set a lower limit. At most `most` pods share a GPU, `most_small` if
    all of them are known, latency-critical and small."""

    critical: float
    batch: float
    gain: float
    most: int
    most_small: int


class SharingCost:
    """Judges whether a pod may join co-residents, and with which gain. `CoResidentCache` calls it,
    and considers sets of `most` pods and more only if all pods are small.

    A pod's log slowdown is the sum of the log slowdowns by each co-resident."""

    def __init__(self, view: InterferenceView, bounds: SlowdownBounds, bonus: float) -> None:
        self.view, self.bounds, self.bonus = view, bounds, bonus
        self._within: dict[str, SetCosts] = {}

    @property
    def tolerance(self) -> SlowdownTolerance:
        """Slowdown that running pods tolerate."""
        return SlowdownTolerance(self.bounds.critical, self.view.costs)

    def __call__(
        self, joining: Resident, sets: CoResidentSets, numbers: Ints, model: str
    ) -> Floats:
        """Return the columns of each set: 1 if allowed, the gain, how it was judged, and the batch
        pods' largest slowdown ÷ limit."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            together = self._of(sets, model).joined(joining.application, numbers)
            columns, keeps = self._judged(joining, together)
        size, judged_by = sets.size.take(numbers), columns[2]
        good = (size < self.bounds.most) | (keeps & (judged_by == KNOWN))
        columns[:, ~good | (judged_by == NEVER)] = CROWD_COLUMN
        columns[:, size == 0] = NOBODY_COLUMN
        return columns

    def _of(self, sets: CoResidentSets, model: str) -> SetCosts:
        """Return the slowdowns within these sets on this GPU model."""
        costs = self._within.get(model)
        if costs is None or not costs.is_of(sets, self.view):
            self._within = {
                name: known for name, known in self._within.items() if known.is_of(sets, self.view)
            }
            costs = self._within[model] = SetCosts(sets, self.view, model, self.bounds.critical)
        costs.follow()
        return costs

    def _judged(self, joining: Resident, together: JoinedSets) -> tuple[Floats, Bools]:
        """Compute the four values of each set (see `CROWD`), and a mask of sets that keep
        latency-critical pods' limits."""
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
        # measured use decides if nothing is known, and no estimate lowers the value
        columns[1] = np.where(known, value, np.maximum(value, gain - 1.0))
        return columns, keeps

    def predictions(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Predict the slowdown of the pod and of its co-residents, with the limit of pods that set
        one."""
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
    """Predict the slowdown of the pod and of each co-resident next to all others; rounded to
    thousandths.

    A forbidden pair that a policy admits nevertheless is reported as 0."""
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
    """Convert a log slowdown to a factor; 0 for one too large to print."""
    times = math.exp(log) if log < MOST_LOG else 0.0
    return round(times, 3)


def _judged_by(own: int, together: JoinedSets) -> Ints:
    """Return how a pod of this class is judged with each set of co-residents: `KNOWN`, `BY_USE` and
    so on."""
    classes = together.classes
    guess = np.full(classes.shape[1], BY_USE)
    if own == CRITICAL:
        calm = (classes == HARMLESS) | (classes == NOBODY)
        guess = np.where(calm.all(axis=0), IF_CALM, ALONE)
    guess = np.where((classes == CRITICAL).any(axis=0), ALONE, guess)
    return np.where(together.forbidden, NEVER, np.where(together.doubtful, guess, KNOWN))


# --- the judgement as a term of a policy
# -----------------------------------------------------------


class Weights(NamedTuple):
    """Weights of predicted interference (`own`), of stranding and of the load."""

    own: float
    stranding: float
    load: float


MIX = Weights(0.6, 0.2, 0.2)
"""Weights if interference is predicted."""
NO_MIX = Weights(0.0, 1.0, 1.0)
"""Weights if interference is not predicted."""
MOST = 4
"""Sets of this many pods or more are not predicted."""
UNKNOWN_VALUE = 0.5
"""Gain assumed for an unknown pair: halfway between an empty GPU (1) and a GPU that brings no gain
(0)."""


class InterferenceTerm:
    """Predicted interference as one term of a policy: limits on the slowdown of co-residents, and
    the gain of joining a GPU."""

    def __init__(self) -> None:
        self._joining = SharingCost(
            NO_INTERFERENCE, SlowdownBounds(1.10, 1.30, 1.05, MOST, MOST), 0.0
        )
        self._judged = CoResidentCache(
            self._joining, (0.0, UNKNOWN_VALUE, float(BY_USE), 0.0), MOST
        )

    @property
    def known(self) -> bool:
        """True if interference was ever predicted."""
        return bool(self._joining.view.source.classes)

    @property
    def tolerance(self) -> SlowdownTolerance | None:
        """Slowdown that running pods tolerate; None if nothing is predicted."""
        return self._joining.tolerance if self.known else None

    def predict_by(self, table: InterferenceTable) -> None:
        """Use the predictions of this table from now on."""
        self._joining.view = InterferenceView(table)
        self._judged.forget()

    def admits(self, query: Query) -> Bools:
        """Mask of GPUs without a known violation of a limit and without a forbidden pair, [d]."""
        within, _, judged_by, stretch = self._judged.over(query)
        bad = (judged_by == KNOWN) & ((within == 0.0) | (stretch > 1.0))
        return np.asarray(~(bad | (judged_by == NEVER)))

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Predict the slowdown of the pod and of its co-residents; empty if nothing is
        predicted."""
        return self._joining.predictions(shape, co_residents, model) if self.known else ()

    def mix(self, query: Query, stranding: Ints, load: Ints) -> Ints:
        """Add predicted gain, stranding and load, each 0 to 100, by the weights `MIX`; in
        thousandths, [d]."""
        points = MIX.own * 100_000.0 * self.value(query) + MIX.stranding * stranding
        return np.asarray(np.rint(points + MIX.load * load)).astype(np.int64)

    def value(self, query: Query) -> Floats:
        """Return the gain of joining each GPU, from 0 to 1 (an empty GPU); a half if the gain is
        unknown, [d]."""
        _, value, judged_by, _ = self._judged.over(query)
        return np.asarray(np.where(judged_by == KNOWN, np.clip(value, 0.0, 1.0), UNKNOWN_VALUE))
