"""Timed mode: the trace's own arrivals and departures on a virtual clock, with queueing.

A pod lasts as long as it did in the trace (deletion − scheduling), counted from its placement
here; a row without either never ends. Time can be compressed: arrivals come `compress` times
faster while durations stay, because the trace alone never loads its cluster.
"""

import heapq
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from weft.core.engine import Bind, Event, PodAdded, PodBound, PodGone, Tick, Unschedulable, Wake
from weft.core.engine.decision_faults import unless_faulted
from weft.core.framework import Policy
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.meter import Meter
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import PolicyRun, WaitTimes
from weft.lab.simulate.scenario import Scenario
from weft.model import BadInputError, PodRequest

SECOND_NS = 1_000_000_000
_ARRIVES, _ENDS, _WAKES = 1, 0, 2  # at one instant: ends free room, then arrivals, then retries


class _Timed:
    """The event heap of one run, and what it has measured so far."""

    def __init__(
        self, scenario: Scenario, policy: Policy, arrivals: Arrivals, decisions: BinaryIO | None
    ) -> None:
        self.pods = scenario.pods
        engine, self.handle = scenario.start(policy, arrivals, decisions)
        self.meter = Meter(engine, scenario.typical(), scenario.capacity_milli)
        self.heap: list[tuple[int, int, int]] = []
        self.started: dict[int, int] = {}
        self.refused: set[int] = set()
        self.created: dict[int, int] = {}
        self.wake_at: int | None = None
        self.held_ns = 0.0
        self.now = self.first = self.held_milli = 0

    def advance(self, now: int) -> None:
        """Account for the time that passes until `now`."""
        self.held_ns += self.held_milli * (now - self.now)
        self.now = now

    def tell(self, event: Event) -> None:
        """Hand an event to the engine and carry out what it wants."""
        for command in unless_faulted(self.handle(event, self.now)):
            if isinstance(command, Bind):
                self._start(int(command.pod.uid))
            elif isinstance(command, Unschedulable):
                self._wait(int(command.pod.uid), command)
            elif isinstance(command, Wake) and (
                self.wake_at is None or command.at_ns < self.wake_at or self.wake_at <= self.now
            ):
                self.wake_at = command.at_ns
                heapq.heappush(self.heap, (command.at_ns, _WAKES, 0))

    def _start(self, row: int) -> None:
        self.handle(PodBound(str(row)), self.now)
        self.started[row] = self.now
        self.held_milli += self.pods[row].total_milli
        lasts = duration_ns(self.pods[row])
        if lasts is not None:
            heapq.heappush(self.heap, (self.now + lasts, _ENDS, row))

    def _wait(self, row: int, command: Unschedulable) -> None:
        if row not in self.refused:
            self.refused.add(row)
            self.meter.refused(command.record)

    def end(self, row: int) -> None:
        """A pod's time is over."""
        self.held_milli -= self.pods[row].total_milli
        self.tell(PodGone(str(row)))

    def arrive(self, row: int) -> None:
        """A pod is created."""
        pod = self.pods[row]
        self.created[row] = self.now
        request = PodRequest(str(row), pod.name, pod.shape, created_ns=self.now)
        self.meter.arrives(pod.total_milli)
        self.tell(PodAdded(request))
        self.meter.arrived(pod.total_milli, self.held_milli)

    def waits(self, capacity_milli: int) -> WaitTimes:
        """Statistics of the times that pods waited."""
        waited = np.array([at - self.created[row] for row, at in self.started.items()])
        seconds = waited / SECOND_NS if len(waited) else np.zeros(1)
        p50, p90, p99 = (float(q) for q in np.percentile(seconds, [50, 90, 99]))
        span = max(1, self.now - self.first) * max(1, capacity_milli)
        return WaitTimes(
            started=len(self.started),
            never_started=len(self.created) - len(self.started),
            mean_s=round(float(seconds.mean()), 3),
            p50_s=round(p50, 3),
            p90_s=round(p90, 3),
            p99_s=round(p99, 3),
            max_s=round(float(seconds.max()), 3),
            mean_allocation_percent=round(100 * self.held_ns / span, 2),
            end_s=round(self.now / SECOND_NS, 3),
        )


def duration_ns(pod: TracePod) -> int | None:
    """The time that the pod runs once placed; None if the trace does not say."""
    if pod.deleted_s is None or pod.scheduled_s is None:
        return None
    return (pod.deleted_s - pod.scheduled_s) * SECOND_NS


def check_times(pods: list[TracePod], source: str) -> None:
    """Timed mode needs creation times; a five-column list has none."""
    for row, pod in enumerate(pods):
        place = f"{source}, line {row + 2}, column"
        if pod.created_s is None:
            problem = (
                "is missing: timed mode needs creation_time (and deletion_time, scheduled_time "
                "for pods that end); leave --timed out for lists without times"
            )
            raise BadInputError(f"{place} creation_time", problem)
        if (duration_ns(pod) or 0) < 0:
            problem = f"{pod.deleted_s} is before scheduled_time {pod.scheduled_s}"
            raise BadInputError(f"{place} deletion_time", problem)


def run_timed(
    scenario: Scenario,
    policy: Policy,
    arrivals: Arrivals,
    *,
    compress: float = 1.0,
    timing: bool = True,
    decisions: BinaryIO | None = None,
    progress: Callable[[int], None] | None = None,
) -> PolicyRun:
    """One policy over the trace's own time.

    `failed_pods` counts pods that never started, `unscheduled` those that had to wait.
    """
    run = _Timed(scenario, policy, arrivals, decisions)
    for row, pod in enumerate(scenario.pods):
        assert pod.created_s is not None
        at = int(pod.created_s * SECOND_NS / compress)
        heapq.heappush(run.heap, (at, _ARRIVES, row))
    run.now = run.first = run.heap[0][0] if run.heap else 0
    done = 0
    while run.heap:
        at, kind, row = heapq.heappop(run.heap)
        run.advance(at)
        if kind == _ARRIVES:
            run.arrive(row)
            done += 1
            if progress is not None and done % 1000 == 0:
                progress(done)
        elif kind == _ENDS:
            run.end(row)
        else:
            run.tell(Tick())
    waits = run.waits(scenario.capacity_milli)
    measured = policy.name, arrivals.seed, waits.never_started
    return run.meter.result(*measured, timing=timing, waits=waits)
