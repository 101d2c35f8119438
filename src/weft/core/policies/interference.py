"""Interference: share a GPU only if the predicted slowdown of every pod stays within bounds.

- admit  the predicted upper slowdown of latency-critical pods is within their bound and their own
         slowdown limit, and all pods together do at least the work of `gain` GPUs; GPUs without a
         prediction are judged by measured use
- wait   while few pods wait, a whole GPU will soon be free: then a shared GPU must gain more, and
         slow batch pods down less, than while many pods wait
- score  sum of speeds after − before − 0.5 · latency-critical pods' loss + the bonus of a GPU in
         use; of equal GPUs the one that leaves the least fragments
- match  if several pods wait, the assignment of pods to GPUs with the largest sum

For pods that state their duration, the loss is counted as time. The prediction has stages, after
ISACPP: when the first pod finishes, the others go on without it, and each stage counts by its
length. Times are seconds; `work` is a pod's remaining run time if alone."""

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Annotated, Any

import msgspec
import numpy as np

from weft.core.framework import Demand, Policy, Query
from weft.core.framework.feasibility import Codes, declared_codes
from weft.core.framework.policy import ExpectedSlowdown, SlowdownTolerance
from weft.core.framework.residency import (
    LEAST_LEFT,
    SECOND_NS,
    GpuKey,
    Residencies,
    Residency,
    Speed,
)
from weft.core.ledger.table import Bools, CoResidents, Ints, LedgerTable, Resident
from weft.core.policies import pair_costs, sharing_cost
from weft.core.policies.co_residents import CoResidentCache
from weft.core.policies.fgd import Fgd
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache
from weft.core.policies.pair_costs import few_of_each, most_valuable
from weft.core.policies.sharing_cost import (
    BY_USE,
    CAUTION,
    IF_CALM,
    KNOWN,
    SharingCost,
    SlowdownBounds,
)
from weft.model import BadInputError, Shape, interference_table
from weft.model.interference_table import (
    INTERFERENCE,
    CardTable,
    Floats,
    InterferenceTable,
    InterferenceView,
)
from weft.model.request import LATENCY_CRITICAL

# --- time of pods together on a GPU ---------------------------------------------------------------

MOST = 4
"""Sets of this many co-residents or more are not considered."""
SPEEDS_KEPT = 4096
"""Maximum number of cached speeds (of a pod with a set of co-residents), per GPU model."""


def finishes(work: Floats, slower: Floats) -> Floats:
    """Return the time in seconds at which each pod ends, [k, d]. Rows with work 0 stand for no pod.
    `slower` [k, k, d] is the log slowdown of each pod by each other."""
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
    """Pods on each device and the work that they have done, by rows of the table's devices.

    A device is looked up when first needed, and again after its pods have changed, so that a
    decision on a large cluster reads few devices. `caution` interpolates between the expected
    slowdown (0) and its upper bound (1)."""

    def __init__(self, residencies: Residencies, caution: float) -> None:
        self.residencies, self._caution = residencies, caution
        self._changed: set[GpuKey] = residencies.follow()
        self._table: LedgerTable | None = None
        self.view: InterferenceView | None = None

    def of(self, table: LedgerTable, view: InterferenceView, devices: Ints) -> Ints:
        """Return the number of pods on each device; 0 unless all of them state their duration.

        Afterwards `applications`, `believed` and `left_s` are valid for these devices and
        `view`."""
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
        """Return the remaining work of each pod, in seconds if alone, 0 for no pod, [MOST − 1,
        d]."""
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
    """Times at which pods end on those of the query's GPUs where every pod states its duration, and
    what a further pod there would cost; as of `residencies.now_ns`."""

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
        """Return a copy for some of the query's devices; `wait_s` still counts all of them."""
        few, positions = copy.copy(self), np.flatnonzero(devices.take(self.devices))
        few.devices, few._kinds, few._pods = (
            column.take(positions) for column in (self.devices, self._kinds, self._pods)
        )
        few._applications = self._applications.take(positions, axis=1)
        few._work, few._end = self._work.take(positions, axis=1), self._end.take(positions, axis=1)
        return few

    def pays(self, shape: Shape, waiting: int, away: float) -> Bools:
        """Mask of `devices` where joining costs less than waiting for an empty GPU, in seconds.

        `away` is the number of waiting pods per GPU: each second of GPU time saved lets waiting
        pods start `away` seconds sooner in sum."""
        later, saved = self.costs(shape.application, shape.expected_s)
        return np.asarray(later < self.wait_s(waiting) + away * saved)

    def wait_s(self, waiting: int) -> float:
        """Return the seconds until the last of the waiting pods has its own GPU, if no pod
        shares."""
        rounds, last = divmod(waiting - 1, len(self._empty_s))
        return float(self._empty_s[last] + rounds * self._empty_s[-1])

    def costs(self, application: str, takes_s: float) -> tuple[Floats, Floats]:
        """Compute the effect, in seconds, of a pod of this application, with `takes_s` seconds of
        work, joining each of `devices`: how much later all pods end in sum, and how much less GPU
        time they use than one after the other."""
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
        """Group the positions in `devices` by the number of pods there."""
        sizes = ((count, np.flatnonzero(self._pods == count)) for count in range(1, MOST))
        return [(count, at) for count, at in sizes if len(at)]

    def _finishes(self, at: Ints, applications: Ints, work: Floats) -> Floats:
        """Compute when these pods end on the devices at these positions, [k, a], in seconds from
        now."""
        size, slots = len(applications), self._believed.shape[1]
        slower = np.zeros((size, size, len(at)))  # the diagonal stays 0: no pod slows itself down
        card = self._kinds.take(at) * slots
        for slowed, slowing in permutations(range(size), 2):
            pair = (card + applications[slowed]) * slots + applications[slowing]
            slower[slowed, slowing] = self._believed.take(pair)
        return finishes(work, slower)


def _believed(card: CardTable, caution: float) -> Floats:
    """Return each pair's log slowdown, interpolated by `caution` between mean and upper bound."""
    believed = card.mean + caution * (card.upper - card.mean)
    return np.minimum(believed, 50.0)  # forbidden pairs are excluded elsewhere


def _speed(card: CardTable, view: InterferenceView) -> Speed:
    @lru_cache(SPEEDS_KEPT)
    def speed(resident: Resident, co_residents: CoResidents) -> float:
        indexes = [view.index_of(other.application) for other in co_residents]
        return float(np.exp(-card.mean[view.index_of(resident.application), indexes].sum()))

    return speed


# --- the policy -----------------------------------------------------------------------------------

MOST_COLUMNS = 256
"""Maximum number of GPUs in one matching."""
MOST_SHAPES = 1024
MOST_UNLIKE = 48
"""Maximum number of different shapes of other pods in one matching, the first in the order of
waiting; this many take about 20 ms."""
UNKNOWN_MOST = 2
"""Maximum number of pods on a GPU that is judged by measured use."""
PRIOR = {LATENCY_CRITICAL: 0.15}
TRAINING = 0.90
"""GPU utilisation expected of a pod without predictions."""
CALM_SM = 0.3
Most = Annotated[int, msgspec.Meta(ge=1, le=1024)]
"""Maximum number of pods on a GPU."""
POINTS = 1_000_000
"""Points for a gain of 1 (the work of a whole GPU); fgd's 0 to 100 only decide between equals."""


class InterferencePolicy(Policy):
    """Lets pods share a GPU by predicted slowdown, and matches waiting pods with GPUs.

    `critical` and `batch` limit the slowdown of latency-critical and batch pods (best-effort pods
    have no limit); a latency-critical pod may set a lower limit. `gain` is the least sum of speeds
    on a shared GPU, raised by up to `patience` while few pods wait; with `overlap`, the ends of
    pods with stated durations are computed instead. `most` is the maximum number of pods on a GPU,
    `most_small` the maximum if all are latency-critical and small, `bonus` the value of using a GPU
    already in use, which saves energy."""

    name = "interference"
    summary = (
        "shares GPUs where predicted slowdown stays within bounds; matches waiting pods with GPUs"
    )
    source = "Weft; matching after Co-scheML and MuxFlow"
    reads = frozenset({"signals", "occupants", "co_residents", "pending", "residencies"})
    inputs: Mapping[str, Any] = {INTERFERENCE: InterferenceTable, **Fgd.inputs}

    def __init__(
        self,
        critical: float = 1.10,
        batch: float = 1.30,
        gain: float = 1.05,
        most: Most = 2,
        bonus: float = 0.0,
        patience: float = 0.45,
        overlap: bool = True,
        most_small: Most = 4,
    ) -> None:
        bounds = SlowdownBounds(critical, batch, gain, most, max(most, most_small))
        for option, value in (
            ("critical", critical),
            ("batch", batch),
            ("most", most),
            ("most_small", most_small),
        ):
            if not value >= 1:
                raise BadInputError(
                    f"policy {self.name}, option {option}",
                    f"{value} is not allowed; write 1 or more",
                )
        self._joining = SharingCost(interference_table.NO_INTERFERENCE, bounds, bonus)
        self._judged = CoResidentCache(self._joining, sharing_cost.CROWD, most, bounds.most_small)
        pair_costs.load_solver()
        self._floor, self._patience, self._overlap = gain - 1.0, patience, overlap
        self._remaining: Remaining | None = None
        self._seen = SnapshotCache(GpuReadingColumns)
        self._asked_on: LedgerTable | None = None
        self._asked: dict[Shape, tuple[Demand, Codes]] = {}
        self._fgd = Fgd()

    def take_input(self, name: str, value: Any) -> None:
        """Take predicted interference, or pass typical pods to fgd."""
        if name == INTERFERENCE:
            self._joining.view = InterferenceView(value)
            self._judged.forget()
        else:
            self._fgd.take_input(name, value)

    @property
    def tolerance(self) -> SlowdownTolerance:
        """Slowdown that running pods tolerate, and the predictions."""
        return self._joining.tolerance

    def filter_devices(self, query: Query) -> Bools:
        """Mask of devices that are empty, or whose co-residents stay within bounds, [d]."""
        return self._admitted(query)[0]

    def score_nodes(self, query: Query) -> Ints | None:
        """Score nodes with fgd for a pod that requests whole GPUs or none, [n]; None for all other
        pods."""
        return self._fgd.score_nodes(query)

    def score_devices(self, query: Query) -> Ints | None:
        """Score the gain of placing the pod on each device, in millionths of a GPU's work, plus
        fgd's 0 to 100, [d]."""
        points = np.rint(1000.0 * self._judged.over(query)[1]).astype(np.int64) * (POINTS // 1000)
        return np.asarray(points + self._fragments(query, points))

    def _fragments(self, query: Query, points: Ints) -> Ints:
        """Score with fgd (0 to 100) only each node's devices with the most points, one of each
        group of equal devices, [d]."""
        best = query.max(np.where(query.device_fits, points, 0), 0).take(query.device_node)
        alone = query.about(query.demand)
        alone.narrow(query.device_fits & (points == best))
        if not query.hypothetical:
            alone.narrow(query.device_first | ~query.device_idle)
            query = alone
        fragments = self._fgd.score_devices(query)
        return np.zeros(len(points), dtype=np.int64) if fragments is None else fragments

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Predict the slowdown of the pod and of its co-residents."""
        return self._joining.predictions(shape, co_residents, model)

    def contested(self, scores: Ints, waiting: int) -> bool:
        """Return False if there is an empty GPU for every waiting pod."""
        return int(np.count_nonzero(scores >= POINTS)) < waiting

    def filter_pending(self, query: Query, pending: Sequence[Shape]) -> Bools | None:
        """Mask of GPUs that the best assignment of waiting pods gives to pods of this shape,
        [d]. If no other pod waits, or there is an idle GPU for each waiting pod: all GPUs on
        which joining beats waiting."""
        lasting = self._lasting(query, pending)
        overlap = lasting and lasting.only(query.device_fits)
        good = query.device_fits & self._worth_it(query, len(pending), overlap)[0]
        fits = np.flatnonzero(good)
        if not len(fits) or len(pending) < 2:
            return good
        if np.count_nonzero(query.device_idle.take(fits)) >= len(pending):
            return good
        waiting = len(pending)
        group = query.device_co_residents * len(query.table.kinds) + query.device_kind
        group = (group << 24) + query.device_memory_free
        fits = fits[few_of_each(group.take(fits), len(pending))][:MOST_COLUMNS]
        few = np.zeros(len(good), dtype=np.bool_)
        few[fits] = True
        overlap = lasting and lasting.only(few)
        rivals = self._rivals(query, fits, pending)
        worth = {
            shape: self._worth(query, shape, waiting, overlap).take(fits)
            for shape in dict.fromkeys(rivals)
        }
        matched = most_valuable(np.array([worth[shape] for shape in rivals]))
        chosen = np.zeros(len(good), dtype=np.bool_)
        for shape, column in zip(rivals, matched, strict=True):
            if column >= 0 and shape == query.demand.shape:
                chosen[fits[column]] = True
        return chosen

    def _rivals(self, query: Query, gpus: Ints, pending: Sequence[Shape]) -> list[Shape]:
        """List the shapes of waiting pods that could take one of these GPUs, including the pod's
        own.

        At most `MOST_UNLIKE` different shapes of other pods are listed. A pod that could take none
        of the GPUs would not change the matching."""
        milli = int(query.device_milli_free.take(gpus).max())
        mib = int(query.device_memory_strict.take(gpus).max())
        is_idle, own = bool(query.device_idle.take(gpus).any()), query.demand.shape
        rivals, unlike = [], {own: None}
        for shape in pending:
            if not _could_take(shape, milli, mib, is_idle=is_idle) and shape != own:
                continue
            if shape in unlike or len(unlike) <= MOST_UNLIKE:
                unlike[shape] = None
                rivals.append(shape)
        return rivals

    def _lasting(self, query: Query, pending: Sequence[Shape]) -> OverlapTime | None:
        """Return the ends of pods on the query's GPUs; None if there is no GPU on which every pod
        states its duration, or no waiting pod states one."""
        residencies = query.residencies
        if not (self._overlap and residencies.expected and any(pod.expected_s for pod in pending)):
            return None
        if self._remaining is None or self._remaining.residencies is not residencies:
            self._remaining = Remaining(residencies, CAUTION)
        overlap = OverlapTime(query, self._remaining, self._joining.view)
        return overlap if len(overlap.devices) else None

    def _worth_it(
        self, query: Query, waiting: int, lasting: OverlapTime | None
    ) -> tuple[Bools, Floats]:
        """Return a mask of devices where joining beats waiting, and the gain of joining, [d] each.

        With as many waiting pods as GPUs, a pod is assumed to wait for a whole GPU about as long
        as a job runs. For GPUs whose pods all state their duration, as this pod does, the wait
        and the time that they run together are computed instead."""
        _, value, judged_by, stretch = self._judged.over(query)
        away = waiting / max(1, int(query.table.usable_gpus.sum()))
        floor = self._floor + self._patience * max(0.0, 1.0 - away)
        good = value >= floor
        shape = query.demand.shape
        if lasting is not None and shape.expected_s:
            good[lasting.devices] = lasting.pays(shape, waiting, away)
            value = np.maximum(value, self._floor)  # these pods may be matched too, by their gain
        good &= stretch <= 1.0 + away
        return np.asarray(good | (judged_by != KNOWN)), value

    def _worth(
        self, query: Query, shape: Shape, waiting: int, lasting: OverlapTime | None
    ) -> Floats:
        """Return the gain of a pod with this shape on each of the query's devices; 0 if the pod
        does not fit."""
        demand, codes = self._asks(query.table, shape)
        if demand.mode not in {"node", "device"}:
            return np.zeros(len(query.device_pods))
        about_shape = query if shape == query.demand.shape else query.about(demand)
        codes = codes if query.rows is None else codes.take(query.rows)
        good, value = self._worth_it(about_shape, waiting, lasting)
        good &= about_shape.device_fits & self._admitted(about_shape)[0]
        return np.where(good & (codes == 0).take(about_shape.device_node), value, 0.0)

    def _asks(self, table: LedgerTable, shape: Shape) -> tuple[Demand, Codes]:
        """Return a shape's demand on this table, and the reasons for which nodes refuse it;
        cached."""
        if table is not self._asked_on or len(self._asked) > MOST_SHAPES:
            self._asked_on, self._asked = table, {}
        known = self._asked.get(shape)
        if known is None:
            demand = Demand(shape, table)
            known = self._asked[shape] = (demand, declared_codes(table, demand))
        return known

    def _admitted(self, query: Query) -> tuple[Bools, Floats]:
        """Return a mask of devices that the pod may join, and the gain, [d] each."""
        within, value, judged_by, _ = self._judged.over(query)
        admitted = within > 0.0
        if (judged_by == BY_USE).any() or (judged_by == IF_CALM).any():
            readings = self._seen.of(query)
            few = query.device_pods < UNKNOWN_MOST
            expected = PRIOR.get(query.demand.shape.job_class, TRAINING)
            busy = query.take_devices(readings.utilisation) + expected > 1.0
            calm = query.take_devices(readings.sm) <= CALM_SM
            admitted |= few & (judged_by == BY_USE) & ~busy
            admitted |= few & (judged_by == IF_CALM) & calm
        return admitted, value


def _could_take(shape: Shape, milli: int, mib: int, *, is_idle: bool) -> bool:
    """Return False if a request of this shape cannot fit a GPU with this much free. True is no
    promise; the check is far cheaper than a query."""
    if len(shape.gpu_requests) != 1:
        return False
    asks = shape.gpu_requests[0]
    if asks.whole:
        return is_idle
    return asks.milli <= milli and (asks.memory.kind != "mib" or asks.memory.value <= mib)
