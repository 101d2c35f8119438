"""A row a pod of a timed run, and how many had a place over time. Plain values.

Columns have the names that they have where jobs share cards (`sharing.outcome`): times are seconds
on the run's clock.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.sharing.outcome import JobTimes, seconds


class TimedPods(NamedTuple):
    """Nanoseconds at which pods came, were bound and ended, by number; `pods` by number, too."""

    pods: Sequence[TracePod]
    created: Mapping[int, int]
    bound: Mapping[int, int]
    ended: Mapping[int, int]


class PodsPoint(msgspec.Struct, frozen=True):
    """Pods with a place (`resident`) and without one, from `at_s` on until the next point."""

    at_s: float
    resident: int
    waiting: int


def pod_rows(
    times: TimedPods, named: Callable[[int], tuple[str, str]] | None = None
) -> list[JobTimes]:
    """A row a pod, in the order in which they came.

    `named(number)` is its (uid, kind); left out: the number, as in decisions, and the name of
    the trace's pod. Nothing restarts or evicts pods in a timed run.
    """

    def second(at_ns: int | None) -> float | None:
        return None if at_ns is None else seconds(at_ns)

    rows = []
    for number, came_ns in times.created.items():
        uid, kind = named(number) if named else (str(number), times.pods[number].name)
        bound_s, ended_s = second(times.bound.get(number)), second(times.ended.get(number))
        rows.append(JobTimes(uid, kind, seconds(came_ns), bound_s, ended_s))
    return rows


def pods_over_time(rows: Iterable[JobTimes]) -> list[PodsPoint]:
    """A point wherever a pod came, was bound or ended; who never was bound waits to the end."""
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
