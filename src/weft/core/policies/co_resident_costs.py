"""Costs of co-residents on a GPU model to each other, and what one more pod changes."""

from itertools import permutations
from typing import NamedTuple

import numpy as np

from weft.core.ledger.table import Bools, Ints
from weft.core.policies.co_residents import CRITICAL, CoResidentSets
from weft.core.policies.growing_arrays import GrowingArray
from weft.model.interference_table import Floats, InterferenceView, PredictionTier, Tiers

CAUTION = 0.5
"""Speeds are valued so far between what is expected and the worst: the best of many guesses is
rarely as good as it seems, and what was measured goes before it."""

ROUNDING = 1e-9
"""A bound that a table names exactly is kept."""

WORST, BELIEVED, EXPECTED = range(3)
"""Log slowdown: by its bound, so far between as `CAUTION` says, by its mean."""
_PAIRS = 3


class JoinedSets(NamedTuple):
    """Sets of co-residents and one more pod, the last: a row for each place, a column for each set.

    `logs` [3, places + 1, c] are the sums of log slowdown above, `classes` [places, c] those of who
    was there, `bound` [places, c] how much slower they may get, +inf for no bound. `before` [c]
    is the sum of speeds without the new one; `forbidden` [c] and `doubtful` [c] say that a pair of
    them must not be together, or that nobody knows about one, or not surely.
    """

    logs: Floats
    classes: Ints
    bound: Floats
    before: Floats
    forbidden: Bools
    doubtful: Bools


class SetCosts:
    """The sets of `sets` as one view sees them on one GPU model; grows with them.

    Numbers may overflow to +inf here, and numpy then warns unless its caller said not to.
    """

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
        """True if it is about these, seen so, with as many places."""
        same = sets is self._companies and view is self._view
        return same and sets.places == self._places

    def follow(self) -> None:
        """Adds sets that are new."""
        known, count = self._index.length, len(self._companies.members)
        if known < count:
            new = np.arange(known, count)
            names = self._companies.names[self._index_of_name.length :]
            indexes = [self._view.index_of(name) for name in names]
            self._index_of_name.add(np.array(indexes, dtype=np.int64))
            self._add_columns(self._index_of_name.take(self._companies.application.take(new)), new)

    def joined(self, application: str, columns: Ints) -> JoinedSets:
        """These sets and a pod of this application."""
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
        """The index of nobody, who costs nothing: one after that of who is unknown."""
        return self._view.unknown + 1

    def _facing(self, joining: int) -> tuple[Floats, Bools]:
        """Each index beside this one: what it loses [3, k] and costs [3, k]; what is bad."""
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
    """Log slowdowns of pairs: `WORST`, `BELIEVED` and `EXPECTED`."""
    return upper, mean + CAUTION * (upper - mean), mean


def _bad(upper: Floats, tier: Tiers) -> Bools:
    """Masks of pairs: forbidden; not surely known, [2, ...]."""
    return np.array([np.isinf(upper), (tier < 0) | (tier >= PredictionTier.UNKNOWN)])
