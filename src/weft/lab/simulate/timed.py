"""Timed mode: the trace's own arrivals and departures on a virtual clock, with queueing.

A pod runs for as long as in the trace (deletion − scheduling), counted from its placement here; a
row without these times never ends. A gang's pod is counted from when the gang's minimum number of
pods are placed. Arrivals can be compressed in time by `compress` while durations stay, because the
trace alone never fills its cluster. At each creation time the pod of that row arrives, or, with
resampling, the pod drawn for it.

A preempted pod runs on, and keeps its place, for the scenario's grace period. Unless it completes
by then, its work is lost, and its controller creates it again. A pod evicted for another reason
ends, and is created again, at once."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from weft.core.engine import (
    Bind,
    Evict,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
)
from weft.core.engine.team_queues import charge_of
from weft.core.record import DecisionsWriter
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.event_loop import (
    ARRIVES,
    ENDS,
    GOES,
    LEAVES,
    PROFILE,
    RETURNS,
    WAKES,
    WORLD,
    Decider,
    EventLoop,
)
from weft.lab.simulate.gangs import GangClock
from weft.lab.simulate.holdings import OnHoldings
from weft.lab.simulate.inflation import name_of
from weft.lab.simulate.meter import Meter, commonest_first, main_reason
from weft.lab.simulate.openb import TracePod, duration_ns
from weft.lab.simulate.preempted import LostWork, MovedPods
from weft.lab.simulate.queues import QueueClock
from weft.lab.simulate.results import (
    CompletionTimes,
    PolicyRun,
    QueueTimes,
    SizeWaits,
    Timeline,
    WaitTimes,
)
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.sharing.outcome import JobTimes, seconds
from weft.model import Gang, Node, Placement, PodRequest

# --- Records use and pending pods over a run's time, in a few hundred steps of equal length -------
#
# The run's length is not known beforehand: when there are too many steps, their length doubles and
# pairs are merged. So runs of different lengths share boundaries of steps. The time after the last
# start must not make steps coarse: it is cut off after as many steps again.

MOST_STEPS = 400
SECOND_NS = 1_000_000_000


class TimelineRecorder:
    """Integrates piecewise constant amounts over time. Times are nanoseconds."""

    def __init__(self, first_ns: int, capacity_milli: int) -> None:
        self._first_ns, self._step_ns = first_ns, SECOND_NS
        self._percent = 100 / max(1, capacity_milli)
        self._steps: list[list[float]] = []
        self._fragments: list[float] = []

    def record(
        self,
        begin_ns: int,
        end_ns: int,
        amounts: tuple[int, int, int],
        fragments_milli: float,
        *,
        after_all: bool = False,
    ) -> None:
        """Add amounts that held from `begin_ns` to `end_ns`.

        `amounts` are the GPU requested by placed pods and the GPU held by them, both in
        thousandths, and the number of pending pods; `fragments_milli` is FGD's measure.
        `after_all`: no further pod starts."""
        if after_all:
            end_ns = min(end_ns, self._first_ns + 2 * MOST_STEPS * self._step_ns)
        while not after_all and end_ns > self._first_ns + MOST_STEPS * self._step_ns:
            self._join_pairs()
        at_ns = begin_ns - self._first_ns
        until_ns = end_ns - self._first_ns
        while at_ns < until_ns:
            step = at_ns // self._step_ns
            stop_ns = min(until_ns, (step + 1) * self._step_ns)
            while len(self._steps) <= step:
                self._steps.append([0.0, 0.0, 0.0])
                self._fragments.append(0.0)
            sums = self._steps[step]
            for i, amount in enumerate(amounts):
                sums[i] += amount * (stop_ns - at_ns)
            self._fragments[step] = fragments_milli
            at_ns = stop_ns

    def end(self, now_ns: int, amounts: tuple[int, int, int], fragments_milli: float) -> None:
        """Add a last step with the final amounts."""
        whole_steps = -(-(now_ns - self._first_ns) // self._step_ns)
        until_ns = self._first_ns + (whole_steps + 1) * self._step_ns
        self.record(now_ns, until_ns, amounts, fragments_milli, after_all=True)

    def step_of(self, at_ns: int) -> int:
        """Return the number of the step that contains `at_ns`; fragmentation is measured once per
        step."""
        return (at_ns - self._first_ns) // self._step_ns

    def _join_pairs(self) -> None:
        before, ends = self._steps, self._fragments
        self._steps = [
            [sum(sums) for sums in zip(*before[i : i + 2], strict=True)]
            for i in range(0, len(before), 2)
        ]
        self._fragments = [ends[min(i + 1, len(ends) - 1)] for i in range(0, len(ends), 2)]
        self._step_ns *= 2

    def timeline(self, until_ns: int) -> Timeline:
        """Return the means over each step; `until_ns` is the time of the last start."""
        steps, step_ns = self._steps, self._step_ns

        def percents(column: int) -> list[float]:
            return [round(sums[column] * self._percent / step_ns, 2) for sums in steps]

        return Timeline(
            step_s=step_ns / SECOND_NS,
            steps_to_last_start=-(-max(0, until_ns - self._first_ns) // step_ns),
            allocated_percent=percents(0),
            held_percent=percents(1),
            waiting_pods=[round(sums[2] / step_ns, 2) for sums in steps],
            fragmented_percent=[round(milli * self._percent, 2) for milli in self._fragments],
        )


# --- Rows per pod of a timed run, and the number of placed pods over time. Plain values -----------
#
# Columns are named as for jobs that share GPUs (`sharing.outcome`); times are seconds of the run's
# clock.


class TimedPods(NamedTuple):
    """Times in ns at which pods arrived, were bound and ended, by pod number, and the pods
    themselves."""

    pods: Sequence[TracePod]
    created: Mapping[int, int]
    bound: Mapping[int, int]
    ended: Mapping[int, int]


class PodsPoint(msgspec.Struct, frozen=True):
    """Numbers of placed (`resident`) and pending pods from `at_s` until the next point."""

    at_s: float
    resident: int
    waiting: int


def pod_rows(
    times: TimedPods, named: Callable[[int], tuple[str, str]] | None = None
) -> list[JobTimes]:
    """Return one row per pod, by arrival.

    `named(number)` returns the pod's (uid, kind); by default its number, as in decisions, and its
    name in the trace. A pod created again after an eviction has one row, with its last binding."""

    def second(at_ns: int | None) -> float | None:
        return None if at_ns is None else seconds(at_ns)

    rows = []
    for number, came_ns in times.created.items():
        uid, kind = named(number) if named else (str(number), times.pods[number].name)
        bound_s, ended_s = second(times.bound.get(number)), second(times.ended.get(number))
        rows.append(JobTimes(uid, kind, seconds(came_ns), bound_s, ended_s))
    return rows


def pods_over_time(rows: Iterable[JobTimes]) -> list[PodsPoint]:
    """Return a point for every time at which a pod arrived, was bound or ended.

    Pods that were never bound are pending to the end."""
    resident, waiting = Counter[float](), Counter[float]()
    for row in rows:
        waiting[row.arrived_s] += 1
        if row.bound_s is not None:
            waiting[row.bound_s] -= 1
            resident[row.bound_s] += 1
        if row.finished_s is not None:
            resident[row.finished_s] -= 1
    points, has, has_not = [], 0, 0
    for at_s in sorted(waiting.keys() | resident.keys()):
        has, has_not = has + resident[at_s], has_not + waiting[at_s]
        points.append(PodsPoint(at_s, has, has_not))
    return points


class TimedRun(EventLoop[int]):
    """A run in timed mode, and its measurements.

    A pod's number is the row at whose creation time it arrives; with resampling several pods may be
    copies of one row. `on_come` is called after each arrival."""

    nobody = 0

    def __init__(
        self,
        scenario: Scenario,
        decider: Decider,
        arrivals: Arrivals,
        decisions: DecisionsWriter | None,
        heap: list[tuple[int, int, int]],
        on_come: Callable[["TimedRun"], None],
    ) -> None:
        self.pods = [scenario.pods[row] for row in arrivals.pod_rows]
        self.gang_of = _gangs_of(scenario.pods, arrivals.pod_rows)
        first_ns = heap[0][0] if heap else 0
        super().__init__(*scenario.start(decider, arrivals, decisions), heap, first_ns)
        self._world, self._on_come = scenario.world, on_come
        self.meter = Meter(self.engine, scenario.typical(), scenario.capacity_milli)
        self.capacity_milli = scenario.capacity_milli
        self.created: dict[int, int] = {}
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.ends_ns: dict[int, int] = {}
        self.gangs = GangClock()
        self.queues = QueueClock(scenario.queues) if scenario.has_queues else None
        self.lost = LostWork() if scenario.preempts else None
        self.moved, self._moves = MovedPods(), scenario.moves.after_ns > 0
        self.grace_ns, self.goes_ns = scenario.grace_ns, dict[int, int]()
        self.places: dict[int, Placement] = {}
        self.first_reason: dict[int, str] = {}
        self.last_reason: dict[int, str] = {}
        self.asked_ns = self.held_ns = 0.0
        self.asked_milli = self.held_milli = 0
        self.first = self.busy_until = first_ns
        self.busy_asked_ns = self.busy_held_ns = 0.0
        self.timeline = TimelineRecorder(first_ns, scenario.capacity_milli)
        self.fragments_milli = self.meter.fragments_milli()
        self.gave_up = 0

    def _next(self) -> tuple[int, int, int] | None:
        """Return the next event; None at the end of the run.

        The run also ends when all pods have ended and the engine would only check reserved places
        again."""
        due = super()._next()
        if due and due[1] == WAKES and self.engine.kept_places.on and not self.places:
            waits = len(self.created) > len(self.started)
            if not waits and all(kind == WAKES for _, kind, _ in self.heap):
                return None
        return due

    def _advance(self, at_ns: int, kind: int) -> None:
        """Add up use over the time until the next event."""
        now = at_ns
        if now == self.now:
            return
        if self.timeline.step_of(now) != self.timeline.step_of(self.now):
            self.fragments_milli = self.meter.fragments_milli()
        waiting = len(self.created) - len(self.started) - self.gave_up
        amounts, over = (self.asked_milli, self.held_milli, waiting), self._is_over(waiting)
        self.timeline.record(self.now, now, amounts, self.fragments_milli, after_all=over)
        self.asked_ns += self.asked_milli * (now - self.now)
        self.held_ns += self.held_milli * (now - self.now)
        self.now = now

    def _is_over(self, waiting: int) -> bool:
        """Return True if no further pod can start."""
        return not waiting and not self.goes_ns and len(self.created) == len(self.pods)

    def _comes_or_starts(self) -> None:
        """Mark an arrival or a start, up to which use over time is measured."""
        self.busy_until = self.now
        self.busy_asked_ns, self.busy_held_ns = self.asked_ns, self.held_ns
        if self.queues is not None:
            self.queues.mark(self.now)

    def _happens(self, kind: int, key: int) -> None:
        if kind == ARRIVES:
            self.arrive(key)
            self._on_come(self)
        elif kind == ENDS:
            if self.ends_ns.get(key) == self.now:  # else the pod was evicted before
                self.end(key)
        elif kind == GOES:
            if self.goes_ns.get(key) == self.now:  # else the pod ended before
                self.loses_place(key)
                self.schedule(self.now, RETURNS, key)
        elif kind == RETURNS:
            self.comes_anew(key)
        elif kind == LEAVES:
            self.leave(key)
        elif kind == WORLD:
            self.tell(self._world[key].event)
        else:
            self.tell(Tick())

    def _refused(self, command: Unschedulable) -> None:
        reason, number = main_reason(command.record), int(command.pod.uid)
        self.first_reason.setdefault(number, reason)
        self.last_reason[number] = reason

    def _bind(self, command: Bind) -> None:
        number, placement = int(command.pod.uid), command.placement
        self._handle(PodBound(str(number)), self.now)
        self.started[number] = self.now
        self._comes_or_starts()
        self.places[number] = placement
        self.held_milli += self.meter.held_change(placement)
        self.asked_milli += self.pods[number].total_milli
        if self.queues is not None:
            charge = charge_of(placement, self._node(placement.node))
            self.queues.placed(number, charge.gpu_milli, self.now)
        for each in self.gangs.placed(number, self.now) if number in self.gang_of else (number,):
            self._runs(each)
        if self._moves and self.pods[number].restart_s is not None and number not in self.gang_of:
            anew = self._request(number)
            self.tell(PodSeenBound(placement, movable=anew, priority=anew.priority))

    def _node(self, name: str) -> Node | None:
        table = self.engine.ledger.table
        row = table.row_of.get(name)
        return None if row is None else table.nodes[row]

    def _runs(self, number: int) -> None:
        """Schedule the end of a pod that starts to run now."""
        lasts = duration_ns(self.pods[number])
        if lasts is not None and not self.pods[number].withdrawn:
            lasts -= self.moved.done_ns(number)
            self.ends_ns[number] = self.now + lasts
            self.schedule(self.now + lasts, ENDS, number)

    def end(self, number: int) -> None:
        """End a pod that completed."""
        self.ended[number] = self.now
        self.gangs.ends(number, self.now)
        if self.queues is not None:
            self.queues.ends(number, self.now)
        self._take_place(number, completed=self.engine.forecasts.on or number in self.gang_of)

    def _take_place(self, number: int, *, completed: bool = False) -> None:
        self.ends_ns.pop(number, None)
        self.goes_ns.pop(number, None)
        self.moved.ends(number)
        self.asked_milli -= self.pods[number].total_milli
        self.tell(PodGone(str(number), completed=completed))
        self.held_milli += self.meter.held_change(self.places.pop(number))

    def _evict(self, command: Evict) -> None:
        """Evict the pod, now or after its grace period; its controller creates it again."""
        uid = command.placement.uid
        if not uid.isdecimal() or int(uid) not in self.places:
            return  # a pod of another scheduler
        number = int(uid)
        if why := command.record.preempted:
            if why.moves_to:
                self.moved.asked(number)
            self.goes_ns[number] = self.now + self.grace_ns
            self.schedule(self.goes_ns[number], GOES, number)
        else:
            self.loses_place(number)
            self.comes_anew(number)

    def loses_place(self, number: int) -> None:
        """Evict a pod: its work is lost, or only `restart_s` seconds of its work if the pod is
        moved."""
        ran_ns, pod = self.now - self.started.pop(number), self.pods[number]
        if number in self.gang_of:
            ran_ns = self.gangs.loses_place(number, self.now)
        if self.moved.goes(number, pod.total_milli, ran_ns, pod.restart_s or 0):
            ran_ns = (pod.restart_s or 0) * SECOND_NS
        elif self.lost is not None:
            self.lost.add(pod.total_milli, ran_ns)
        if self.queues is not None:
            self.queues.loses_place(number, ran_ns, self.now)
        self._take_place(number)

    def comes_anew(self, number: int) -> None:
        """Create an evicted pod again, without its gang if a pod of the gang has completed."""
        request, pod = self._request(number), self.pods[number]
        if pod.request is not None:  # as long after its first creation, by the recorded clock
            later_ns = self.now - self.created[number]
            request = replace(request, created_ns=pod.request.created_ns + later_ns)
        if request.gang and self.gangs.is_over_for_some(number):
            request = replace(request, gang=UNSET)
        self.tell(PodAdded(request))

    def arrive(self, number: int) -> None:
        """Create the pod with this number."""
        pod = self.pods[number]
        self.created[number] = self.now
        self._comes_or_starts()
        if (gang := self.gang_of.get(number)) is not None:
            self.gangs.comes(number, gang, pod.total_milli, self.now)
        if self.queues is not None:
            self.queues.comes(number, pod.queue, pod.total_milli, self.now)
        self.tell(PodAdded(self._request(number)))
        self.meter.arrived(pod.total_milli, self.asked_milli)

    def _request(self, number: int) -> PodRequest:
        pod, uid = self.pods[number], str(number)
        if pod.request is not None:
            return replace(pod.request, uid=uid, scheduler_name=PROFILE)
        gang = self.gang_of.get(number, UNSET)
        return PodRequest(
            uid,
            pod.name,
            pod.shape,
            priority=pod.priority,
            created_ns=self.now,
            gang=gang,
            queue=pod.listed_queue or UNSET,
            restart_s=UNSET if pod.restart_s is None else pod.restart_s,
        )

    def leave(self, number: int) -> None:
        """Delete a pod that was never bound in the recording.

        If this run has bound the pod, it ends now if `withdrawn` is "later", else it runs on."""
        if number not in self.started:
            self.gave_up += 1
            if self.queues is not None:
                self.queues.gives_up(number, self.now)
            self.tell(PodGone(str(number)))
        elif self.pods[number].withdrawn == "later":
            self.end(number)

    def result(self, policy: str, seed: int, *, timing: bool) -> PolicyRun:
        """Return the results of the finished run."""
        waiting = self.created.keys() - self.started.keys()
        left = Counter(self.last_reason.get(number, "not decided") for number in waiting)
        run = self.meter.result(policy, seed, len(waiting), self.asked_milli, timing=timing)
        stays = self.asked_milli, self.held_milli, len(waiting) - self.gave_up
        self.timeline.end(self.now, stays, self.meter.fragments_milli())
        return replace(
            run,
            curve={},
            fragmentation_curve={},
            unscheduled=commonest_first(left),
            waits=self._waits(),
            completion=self._completion(),
            timeline=self.timeline.timeline(self.busy_until),
            waited=commonest_first(Counter(self.first_reason.values())),
            gangs=self.gangs.result(self.now) or UNSET,
            preemption=self.lost.result() if self.lost is not None else UNSET,
            queues=UNSET if self.queues is None else self._of_queues(self.queues),
            moves=self.moved.result(self.asked_ns) if self._moves else UNSET,
            sizes=[self._of_size(several=True), self._of_size(several=False)],
        )

    def _of_queues(self, queues: QueueClock) -> list[QueueTimes]:
        waits_ns = {number: self._waited_ns(number) for number in self.started}
        measured = self.first, self.busy_until if self.busy_until > self.first else self.now
        return queues.result(waits_ns, measured, self.capacity_milli)

    def _waited_ns(self, number: int) -> int:
        """Return the ns that a started pod waited, without the time that it ran before it was
        moved."""
        return self.started[number] - self.created[number] - self.moved.ran_ns(number)

    def _of_size(self, *, several: bool) -> SizeWaits:
        """Return the waits of pods that request several GPUs, or of all other pods."""
        all_of = [n for n in self.created if (self.pods[n].gpus > 1) == several]
        waited = [self._waited_ns(number) for number in all_of if number in self.started]
        waits = np.array(waited or [0], dtype=np.float64) / SECOND_NS
        left = len(all_of) - len(waited)
        return SizeWaits(several, len(all_of), left, _rounded(waits.mean()), _at(waits, 99))

    def _waits(self) -> WaitTimes:
        waited = [self._waited_ns(number) for number in self.started]
        waits = np.array(waited or [0], dtype=np.float64) / SECOND_NS
        span, asked, held = self.busy_until - self.first, self.busy_asked_ns, self.busy_held_ns
        if not span:  # all arrived and started at the same time
            span, asked, held = max(1, self.now - self.first), self.asked_ns, self.held_ns
        whole = span * max(1, self.capacity_milli)
        return WaitTimes(
            started=len(self.started),
            never_started=len(self.created) - len(self.started),
            mean_s=_rounded(waits.mean()),
            p50_s=_at(waits, 50),
            p90_s=_at(waits, 90),
            p95_s=_at(waits, 95),
            p99_s=_at(waits, 99),
            max_s=_rounded(waits.max()),
            mean_held_percent=round(100 * held / whole, 2),
            mean_allocated_percent=round(100 * asked / whole, 2),
            end_s=round(self.now / SECOND_NS, 3),
        )

    def _completion(self) -> CompletionTimes:
        took = self._seconds(self.ended)
        return CompletionTimes(
            len(self.ended), _rounded(took.mean()), _at(took, 50), _at(took, 95), _at(took, 99)
        )

    def _seconds(self, until: dict[int, int]) -> NDArray[np.float64]:
        """Return the seconds from pods' creation to the times in `until`; a single 0 if it is
        empty."""
        took = [at - self.created[number] for number, at in until.items()]
        return np.array(took or [0], dtype=np.float64) / SECOND_NS


def _gangs_of(pods: Sequence[TracePod], rows: Sequence[int]) -> dict[int, Gang]:
    """Return the gangs of pods, by pod number: the gang of the row at whose time the pod arrives.

    With resampling, the minimum number of pods is that of the gang whose pods were drawn."""
    gangs: dict[int, Gang] = {}
    for number, row in enumerate(rows):
        gang, drawn = pods[number].gang, pods[row].gang
        if gang is not None:
            gangs[number] = (
                gang if row == number else replace(gang, least=drawn.least if drawn else 1)
            )
    return gangs


def _at(seconds: NDArray[np.float64], percent: float) -> float:
    return _rounded(np.percentile(seconds, percent))


def _rounded(seconds: np.floating[Any]) -> float:
    return round(float(seconds), 3)


def _happenings(scenario: Scenario, compress: float) -> list[tuple[int, int, int]]:
    """Return a heap of all events known before the run, as (time in ns, kind, number)."""
    heap = [(happens.at_ns, WORLD, number) for number, happens in enumerate(scenario.world)]
    for number, pod in enumerate(scenario.pods):
        assert pod.created_s is not None
        heap.append((round(pod.created_s * SECOND_NS / compress), ARRIVES, number))
        if pod.withdrawn and pod.deleted_s is not None:
            heap.append((round(pod.deleted_s * SECOND_NS), LEAVES, number))
    heapq.heapify(heap)
    return heap


def run_timed(
    scenario: Scenario,
    decider: Decider,
    arrivals: Arrivals,
    *,
    compress: float = 1.0,
    timing: bool = True,
    decisions: DecisionsWriter | None = None,
    progress: Callable[[int], None] | None = None,
    on_holdings: OnHoldings | None = None,
    on_times: Callable[[TimedPods], None] | None = None,
    make_run: type[TimedRun] = TimedRun,
) -> PolicyRun:
    """Run one policy or profile over the trace's own time.

    The results count pods that never started, by reason, and pods that had to wait.
    `on_holdings` is called after the last arrival, since at the end nearly all pods have left;
    `on_times` at the end, with the times at which each pod arrived, was bound and ended.
    `make_run` is the kind of run: `TimedRun`, or a subclass that schedules gangs by a rule of
    `gang_rules`."""

    def on_come(run: TimedRun) -> None:
        done = len(run.created)
        if progress is not None and done % 1000 == 0:
            progress(done)
        if on_holdings is not None and done == len(run.pods):
            on_holdings(run.engine, lambda uid: name_of(uid, run.pods))

    heap = _happenings(scenario, compress)
    run = make_run(scenario, decider, arrivals, decisions, heap, on_come)
    run.run()
    if on_times is not None:
        on_times(TimedPods(run.pods, run.created, run.started, run.ended))
    return run.result(decider.name, arrivals.seed, timing=timing)
