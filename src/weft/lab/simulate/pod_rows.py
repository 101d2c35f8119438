"""Rows per pod of a timed run, and the number of placed pods over time. Plain values.

Columns are named as for jobs that share GPUs (`sharing.outcome`); times are seconds of the run's
clock."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.sharing.outcome import JobTimes, seconds


class TimedPods(NamedTuple):
    """Times in ns at which pods arrived, were bound and ended, by pod number; `pods` by number
    too."""

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

    `named(number)` returns its (uid, kind); by default the number, as in decisions, and the name of
    the trace's pod. Nothing restarts or evicts pods in a timed run."""

    def second(at_ns: int | None) -> float | None:
        return None if at_ns is None else seconds(at_ns)

    rows = []
    for number, came_ns in times.created.items():
        uid, kind = named(number) if named else (str(number), times.pods[number].name)
        bound_s, ended_s = second(times.bound.get(number)), second(times.ended.get(number))
        rows.append(JobTimes(uid, kind, seconds(came_ns), bound_s, ended_s))
    return rows


def pods_over_time(rows: Iterable[JobTimes]) -> list[PodsPoint]:
    """Return a point at every time a pod arrived, was bound or ended; unbound pods wait to the
    end."""
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
