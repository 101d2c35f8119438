"""Time of pods together on a GPU: loss counted as time, where pods say what they take.

Multi-stage, after ISACPP: who finishes first is dropped, the others go on without it, and so each
stage counts by its length. Times are seconds; `work` is what a pod has yet to do, alone.
"""

import copy
from functools import lru_cache
from itertools import permutations

import numpy as np

from weft.core.framework import Query
from weft.core.framework.residency import (
    LEAST_LEFT,
    SECOND_NS,
    GpuKey,
    Residencies,
    Residency,
    Speed,
)
from weft.core.ledger.residents import CoResidents, Resident
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Shape
from weft.model.interference_table import CardTable, Floats, InterferenceView

MOST = 4
"""Sets of so many and more are not looked at."""
SPEEDS_KEPT = 4096
"""Speeds of so many pods in sets are kept for a GPU model."""


def finishes(work: Floats, slower: Floats) -> Floats:
    """End of each pod, [k, d]; work 0 is nobody. `slower` [k, k, d]: log slowdown of k by k."""
    remaining, end = work.copy(), np.zeros_like(work)
    for _ in range(len(work)):
        runs = remaining > 0.0
        speed = np.exp(-(slower * runs).sum(axis=1))
        needs = np.where(runs, remaining / speed, np.inf)
        stage = needs.min(axis=0, initial=np.inf)
        stage = np.where(np.isfinite(stage), stage, 0.0)
        end += runs * stage
        remaining = np.where(runs & (needs > stage), remaining - stage * speed, 0.0)
    return end


class Remaining:
    """Pods on each device and the work they have done, by rows of the table's devices.

    A device is looked up when it is first asked for, and again where who is on it has changed: what
    a decision needs of a large cluster are then a few columns. `caution` says how far
    what is believed lies between the expected slowdown and its bound.
    """

    def __init__(self, residencies: Residencies, caution: float) -> None:
        self.residencies, self._caution = residencies, caution
        self._changed: set[GpuKey] = residencies.follow()
        self._table: LedgerTable | None = None
        self.view: InterferenceView | None = None

    def of(self, table: LedgerTable, view: InterferenceView, devices: Ints) -> Ints:
        """Number of pods on each, 0 where not all say how long they take; makes `applications`,
        `believed` and `left_s` good for these devices, as `view` sees them.
        """
        if table is not self._table or view is not self.view:
            self._begin(table, view)
        for node, gpu in self._changed:
            row = table.row_of.get(node, -1)
            device = table.device_row(row, gpu) if row >= 0 else -1
            if device >= 0:
                self._known[device] = False
        self._changed.clear()
        for device in devices[~self._known.take(devices)].tolist():
            self._look_up(table, view, device)
        return self._count.take(devices)

    def left_s(self, devices: Ints) -> Floats:
        """Work left of each pod there, seconds alone, 0 for nobody, [MOST − 1, d]."""
        passed_s = (self.residencies.now_ns - self._since_ns.take(devices, axis=1)) / SECOND_NS
        done_s = self._done_s.take(devices, axis=1) + passed_s * self._speed.take(devices, axis=1)
        expected_s = self._expected_s.take(devices, axis=1)
        return np.asarray(np.maximum(expected_s - done_s, LEAST_LEFT * expected_s))

    def _begin(self, table: LedgerTable, view: InterferenceView) -> None:
        self._table, self.view = table, view
        shape = (MOST - 1, table.devices)
        self._known: Bools = np.zeros(table.devices, dtype=np.bool_)
        self._count: Ints = np.zeros(table.devices, dtype=np.int64)
        self.applications: Ints = np.full(shape, view.unknown)
        self._since_ns: Ints = np.zeros(shape, dtype=np.int64)
        self._expected_s, self._done_s, self._speed = (np.zeros(shape) for _ in range(3))
        cards = [view.of(kind.model) for kind in table.kinds]
        self._speeds = [_speed(card, view) for card in cards]
        self.believed: Floats = np.array([_believed(card, self._caution) for card in cards])

    def _look_up(self, table: LedgerTable, view: InterferenceView, device: int) -> None:
        self._known[device] = True
        node = table.nodes[table.device_node[device]]
        gpu = node.gpus[table.device_local[device]].index
        on_gpu = self.residencies.on((node.name, gpu))
        known = len(on_gpu) < MOST and all(residency.expected_s for residency in on_gpu)
        self._count[device] = len(on_gpu) if known else 0
        self.applications[:, device] = view.unknown
        for column in (self._expected_s, self._done_s, self._speed):
            column[:, device] = 0.0
        if known:
            speed = self._speeds[table.device_kind[device]]
            for place, residency in enumerate(on_gpu):
                self._note(
                    (place, device), residency, speed, view.index_of(residency.resident.application)
                )

    def _note(
        self, at: tuple[int, int], residency: Residency, speed: Speed, application: int
    ) -> None:
        done = residency.done(speed)
        self.applications[at], self._expected_s[at] = application, residency.expected_s
        self._done_s[at], self._since_ns[at], self._speed[at] = done


class OverlapTime:
    """The query's GPUs on which everybody said how long it takes, as of `residencies.now_ns`."""

    def __init__(self, query: Query, remaining: Remaining, view: InterferenceView) -> None:
        table, pods = query.table, query.device_pods
        shared = np.flatnonzero((pods > 0) & (pods < MOST))
        rows = query.take_devices(np.arange(table.devices)).take(shared)
        known = remaining.of(table, view, rows) == pods.take(shared)
        self._believed, rows = remaining.believed, rows[known]
        self.devices: Ints = shared[known]
        self._index_of = view.index_of
        self._kinds, self._pods = query.device_kind.take(self.devices), pods.take(self.devices)
        self._applications, self._work = (
            remaining.applications.take(rows, axis=1),
            remaining.left_s(rows),
        )
        self._end = np.zeros_like(self._work)
        for count, at in self._by_size():
            applications, work = self._applications[:count, at], self._work[:count, at]
            self._end[:count, at] = self._finishes(at, applications, work) if count > 1 else work
        self._empty_s = np.sort(self._end.max(axis=0))

    def only(self, devices: Bools) -> "OverlapTime":
        """The same of these of the query's devices; the wait is still for any of them all."""
        few, positions = copy.copy(self), np.flatnonzero(devices.take(self.devices))
        few.devices, few._kinds, few._pods = (
            column.take(positions) for column in (self.devices, self._kinds, self._pods)
        )
        few._applications = self._applications.take(positions, axis=1)
        few._work, few._end = self._work.take(positions, axis=1), self._end.take(positions, axis=1)
        return few

    def pays(self, shape: Shape, waiting: int, away: float) -> Bools:
        """On which of `devices` joining costs less than to wait for a GPU of one's own.

        `away` is how many pods wait for each GPU: so much sooner they all start for each second of
        a GPU that is saved.
        """
        later, saved = self.costs(shape.application, shape.expected_s)
        return np.asarray(later < self.wait_s(waiting) + away * saved)

    def wait_s(self, waiting: int) -> float:
        """Time until the last of so many waiting pods has a GPU of its own, if nobody shares."""
        rounds, last = divmod(waiting - 1, len(self._empty_s))
        return float(self._empty_s[last] + rounds * self._empty_s[-1])

    def costs(self, application: str, takes_s: float) -> tuple[Floats, Floats]:
        """If such a pod joined: how much later everybody ends than without, and how much less time
        of GPUs it takes than one after the other; seconds, for each of `devices`.
        """
        later, saved = np.zeros(len(self.devices)), np.zeros(len(self.devices))
        for count, at in self._by_size():
            joins, takes = np.full(len(at), self._index_of(application)), np.full(len(at), takes_s)
            applications = np.concatenate([self._applications[:count, at], joins[None]])
            work = np.concatenate([self._work[:count, at], takes[None]])
            end, before = self._finishes(at, applications, work), self._end[:count, at]
            later[at] = end.sum(axis=0) - before.sum(axis=0) - takes_s
            saved[at] = before.max(axis=0) + takes_s - end.max(axis=0)
        return later, saved

    def _by_size(self) -> list[tuple[int, Ints]]:
        """Positions in `devices` by how many pods are there."""
        sizes = ((count, np.flatnonzero(self._pods == count)) for count in range(1, MOST))
        return [(count, at) for count, at in sizes if len(at)]

    def _finishes(self, at: Ints, applications: Ints, work: Floats) -> Floats:
        """Ends of these pods, on the devices at these positions, [k, a]."""
        size, slots = len(applications), self._believed.shape[1]
        slower = np.zeros((size, size, len(at)))  # nobody slows itself down
        card = self._kinds.take(at) * slots
        for slowed, slowing in permutations(range(size), 2):
            pair = (card + applications[slowed]) * slots + applications[slowing]
            slower[slowed, slowing] = self._believed.take(pair)
        return finishes(work, slower)


def _believed(card: CardTable, caution: float) -> Floats:
    """Log slowdown of each by each, so far between mean and bound."""
    believed = card.mean + caution * (card.upper - card.mean)
    return np.minimum(believed, 50.0)  # forbidden pairs are kept apart elsewhere


def _speed(card: CardTable, view: InterferenceView) -> Speed:
    @lru_cache(SPEEDS_KEPT)
    def speed(resident: Resident, co_residents: CoResidents) -> float:
        indexes = [view.index_of(other.application) for other in co_residents]
        return float(np.exp(-card.mean[view.index_of(resident.application), indexes].sum()))

    return speed
