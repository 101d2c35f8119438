"""Caches how a policy judges a pod that would join a set of co-residents (the pods on a GPU).

A cluster has many GPUs but few distinct sets, so a decision looks judgements up by set. No pod
joins a set of `most` pods or more, except that a policy may allow more if all pods are small."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from weft.core.framework import Query
from weft.core.ledger.table import CoResidents, Ints, LedgerTable, Resident, own_percent
from weft.model import Shape
from weft.model.interference_table import Floats
from weft.model.request import BEST_EFFORT, LATENCY_CRITICAL

# --- growing arrays -------------------------------------------------------------------------------

Number = TypeVar("Number", bound=np.generic)

_ROOM = 16


class GrowingArray(Generic[Number]):
    """An array whose last axis grows; `shape` has the lengths of the other axes."""

    def __init__(self, shape: tuple[int, ...], kind: type[Number]) -> None:
        self.length = 0
        self._room: npt.NDArray[Number] = np.zeros((*shape, _ROOM), dtype=kind)

    @property
    def now(self) -> npt.NDArray[Number]:
        """Current values, not to be written to; this view may not show values added later."""
        return self._room[..., : self.length]

    def add(self, more: npt.NDArray[Number]) -> None:
        """Append these values along the last axis."""
        old, length = self.now, self.length + more.shape[-1]
        if length > self._room.shape[-1]:
            room = max(length, old.shape[-1] * 5 // 4)
            self._room = np.zeros((*old.shape[:-1], room), old.dtype)
            self._room[..., : self.length] = old
        self._room[..., self.length : length] = more
        self.length = length

    def take(self, positions: Ints) -> npt.NDArray[Number]:
        """Return the values at these positions of the last axis; all must exist."""
        return self._room.take(positions, axis=-1)


# --- sets of co-residents -------------------------------------------------------------------------

NOBODY, CRITICAL, HARMLESS, ANY_CLASS = range(4)
"""Numbers for classes of pods: no pod, latency-critical, best-effort, any other."""
CLASS_OF = {LATENCY_CRITICAL: CRITICAL, BEST_EFFORT: HARMLESS}

KEPT, KEPT_NUMBERS = 1024, 1 << 26
"""Maximum number of cached pairs of joining pod and GPU model, and of cached numbers in total."""


class CoResidentSets:
    """Sets of co-residents as arrays: one column per set, one row per pod of the set; rows may be
    empty.

    `application` holds indexes into `names` (0, "", for an empty row), `job_class` a number from
    `NOBODY` to `ANY_CLASS`, `bound_percent` as in `Resident`; `size` is the number of pods of
    each set, `places` the number of rows. If an added set needs more rows, the arrays are
    rebuilt."""

    def __init__(self) -> None:
        self.members: list[CoResidents] = []
        self.names = [""]
        self._number: dict[str, int] = {}
        self.size = GrowingArray((), np.int64)
        self._begin(0)

    def _begin(self, places: int) -> None:
        self.places = places
        self.application, self.job_class, self.bound_percent = (
            GrowingArray((places,), np.int64) for _ in range(3)
        )

    def add(self, more: Sequence[CoResidents]) -> None:
        """Add these sets, as further columns."""
        sizes = [len(co_residents) for co_residents in more]
        self.members += more
        self.size.add(np.array(sizes, dtype=np.int64))
        if max(sizes, default=0) > self.places:
            self._begin(max(sizes))
            more, sizes = self.members, [len(co_residents) for co_residents in self.members]
        starts = np.cumsum(sizes) - sizes
        column = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(column)) - starts.take(column)
        residents = [resident for co_residents in more for resident in co_residents]
        for growing, values in (
            (self.application, [self._of(resident.application) for resident in residents]),
            (
                self.job_class,
                [CLASS_OF.get(resident.job_class, ANY_CLASS) for resident in residents],
            ),
            (self.bound_percent, [resident.bound_percent for resident in residents]),
        ):
            cells = np.zeros((self.places, len(sizes)), dtype=np.int64)
            cells[place, column] = values
            growing.add(cells)

    def _of(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self.names)
            self.names.append(name)
        return number


Judge = Callable[[Resident, CoResidentSets, Ints, str], Floats]
"""Function that judges sets of co-residents: (joining pod, sets, numbers of the c sets to judge,
GPU model) → the policy's values for each of these sets (such as the gain of joining), [columns,
c]."""


def one_by_one(judge: Callable[[Resident, CoResidents, str], Sequence[float]]) -> Judge:
    """Turn a function that judges one set into a `Judge`. Fast enough for policies that only join
    sets of one pod, as there are few such sets."""

    def judges(joining: Resident, sets: CoResidentSets, numbers: Ints, model: str) -> Floats:
        columns = [judge(joining, sets.members[at], model) for at in numbers.tolist()]
        return np.array(columns, dtype=np.float64).T

    return judges


def asking(shape: Shape) -> Resident:
    """Return a pod of this shape as a resident, without facts that depend on the GPU."""
    return Resident(shape.application, shape.job_class)


def asking_on(query: Query) -> list[Resident]:
    """Return the query's pod as a resident on each of the table's device kinds.

    A resident's slowdown bound depends on the GPU model, and a pod may count as small only on large
    GPUs."""
    shape = query.demand.shape
    return [
        Resident(
            shape.application,
            shape.job_class,
            own_percent(shape.job_class, shape.slowdown_limit, kind.model),
            small,
        )
        for kind, small in zip(query.table.kinds, query.demand.small, strict=True)
    ]


class CoResidentCache:
    """Caches the columns that `judge` computes for each set of co-residents. A GPU with `most` pods
    or more is full, and has the values `crowd`; if the joining pod and all pods there are small,
    the limit is `most_small`. `forget` must be called when the answers of `judge` change."""

    def __init__(
        self, judge: Judge, crowd: Sequence[float], most: int, most_small: int = 0
    ) -> None:
        self._judge, self._crowd = judge, np.array(crowd, dtype=np.float64)[:, None]
        self._most, self._most_small = most, most_small
        self._table: LedgerTable | None = None
        self._begin(-1)

    def forget(self) -> None:
        """Drop all cached judgements."""
        self._known: OrderedDict[tuple[Resident, str], GrowingArray[np.float64]] = OrderedDict()

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._companies = CoResidentSets()
        self._index = GrowingArray((), np.int64)
        self.forget()

    def over(self, query: Query, joining: Resident | None = None) -> Floats:
        """Return the values that `judge` computes for the query's devices, [columns, d], as if
        the pod `joining` joined each; without `joining`, for the query's own pod."""
        table = query.table
        if table is not self._table or table.residents.epoch != self._epoch:
            self._table = table
            self._begin(table.residents.epoch)
        self._number(table.residents.members)
        if not table.kinds:  # no node has had a GPU yet, so there are no device kinds
            return self._crowd[:, :0]
        each = asking_on(query) if joining is None else [joining] * len(table.kinds)
        at = self._index.take(query.device_co_residents)
        judged = [
            self._of(joining_pod, kind.model)
            for joining_pod, kind in zip(each, table.kinds, strict=True)
        ]
        if len(judged) == 1:
            return judged[0].take(at)
        every = np.concatenate([joining_pod.now for joining_pod in judged], axis=1)
        return np.asarray(every.take(query.device_kind * judged[0].length + at, axis=1))

    def _number(self, members: Sequence[CoResidents]) -> None:
        """Number the new sets that are to be judged, from 1; a set with too many pods to be joined
        gets 0."""
        known = self._index.length
        if known == len(members):
            return
        judged: list[CoResidents] = []
        more = np.zeros(len(members) - known, dtype=np.int64)
        for place, co_residents in enumerate(members[known:]):
            few = len(co_residents) < self._most_small and all(
                resident.small for resident in co_residents
            )
            if few or len(co_residents) < self._most:
                judged.append(co_residents)
                more[place] = len(self._companies.members) + len(judged)
        self._index.add(more)
        if judged:
            self._companies.add(judged)

    def _of(self, joining: Resident, model: str) -> "GrowingArray[np.float64]":
        """Return the columns for one joining pod and GPU model, [columns, 1 + sets judged]; the
        first is for full GPUs."""
        key, size = (joining, model), 1 + len(self._companies.members)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = GrowingArray((len(self._crowd),), np.float64)
            known.add(self._crowd)
            while len(self._known) > max(1, min(KEPT, KEPT_NUMBERS // (len(self._crowd) * size))):
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        if known.length < size:
            new = np.arange(known.length - 1, size - 1)
            columns = np.repeat(self._crowd, len(new), axis=1)
            joined = joining.small | (self._companies.size.take(new) < self._most)
            if joined.any():
                columns[:, joined] = self._judge(joining, self._companies, new[joined], model)
            known.add(columns)
        return known
