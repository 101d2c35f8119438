"""A row a pod of a timed run, by hand, and pods with a place and without over time."""

from traces import scenario, trace_pod

from weft.core.policies.packing import FirstFit
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.sharing.outcome import JobTimes
from weft.lab.simulate.timed import TimedPods, pod_rows, pods_over_time, run_timed
from weft.testing import node

WORLD = scenario(
    [
        trace_pod("a", times=(0, 100, 0)),
        trace_pod("b", times=(10, None, None)),
        trace_pod("c", times=(20, 50, 20)),
    ],
    node("a", gpus=1),
)
"""One card: `a` holds it to 100, `b` from then on without an end, `c` never gets it."""


def times_of(*rows: int) -> TimedPods:
    told: list[TimedPods] = []
    order = Arrivals(0, list(rows), [0])
    measured = run_timed(WORLD, FirstFit(), order, timing=False, on_times=told.append)
    assert measured == run_timed(WORLD, FirstFit(), order, timing=False)
    (times,) = told
    return times


def test_each_pod_has_its_times_and_none_for_what_never_was() -> None:
    rows = pod_rows(times_of(0, 1, 2))
    assert rows == [
        JobTimes("0", "a", 0.0, 0.0, 100.0),
        JobTimes("1", "b", 10.0, 100.0, None),
        JobTimes("2", "c", 20.0, None, None),
    ]
    points = [(point.at_s, point.resident, point.waiting) for point in pods_over_time(rows)]
    assert points == [(0.0, 1, 0), (10.0, 1, 1), (20.0, 1, 2), (100.0, 1, 1)]


def test_pods_of_one_row_are_told_apart() -> None:
    rows = pod_rows(times_of(0, 0, 2))
    assert [(row.uid, row.kind) for row in rows] == [("0", "a"), ("1", "a"), ("2", "c")]
    named = pod_rows(times_of(0, 0, 2), lambda number: (f"job-{number}", "x"))
    assert [(row.uid, row.kind) for row in named] == [(f"job-{number}", "x") for number in range(3)]


def test_nobody_gives_nothing() -> None:
    assert pods_over_time(pod_rows(TimedPods([], {}, {}, {}))) == []
