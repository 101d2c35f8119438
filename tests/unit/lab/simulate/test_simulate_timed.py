"""Timed mode by hand: waits to the second, departures, compression, and pods that never end."""

import io
import json

import pytest
from traces import in_order, scenario, trace_pod

from weft.core.engine import PodAdded, PodGone, Tick
from weft.core.policies.catalog import built_in
from weft.core.policies.packing import FirstFit
from weft.core.policies.spreading import Exclusive
from weft.core.record import DecisionLine, DecisionsWriter, Header, replay
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.openb import TracePod, check_times, duration_ns
from weft.lab.simulate.results import CompletionTimes, PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import run_timed
from weft.model import BadInputError
from weft.testing import node

import msgspec  # isort: skip


def run(world: Scenario, **options: float) -> PolicyRun:
    return run_timed(world, FirstFit(), in_order(world), timing=False, **options)  # type: ignore[arg-type]


def one_card(*pods: TracePod) -> Scenario:
    return scenario(list(pods), node("a", gpus=1))


def test_a_tiny_trace_by_hand() -> None:
    """One card. `a` holds it from 0 to 100; `b` (from 10) waits 90 s and runs 50; `c` (from 20)
    waits until 150. Allocation: 100 % of the 150 s from the first arrival to the last start.
    """
    world = one_card(
        trace_pod("a", times=(0, 100, 0)),
        trace_pod("b", times=(10, 60, 10)),
        trace_pod("c", times=(20, 50, 20)),
    )
    found = run(world)
    assert found.waits is not None
    assert (found.waits.started, found.waits.never_started) == (3, 0)
    assert (found.waits.mean_s, found.waits.p50_s, found.waits.max_s) == (73.333, 90.0, 130.0)
    assert (found.waits.p90_s, found.waits.p95_s, found.waits.p99_s) == (122.0, 126.0, 129.2)
    assert found.completion == CompletionTimes(3, 133.333, 140.0, 158.0, 159.6)
    assert (found.waits.end_s, found.waits.mean_held_percent) == (180.0, 100.0)
    assert (found.failed_pods, found.pods, found.used_gpu_milli) == (0, 3, 0)
    assert (found.unscheduled, sum(found.waited.values())) == ({}, 2)
    assert (found.curve, found.fragmentation_curve) == ({}, {})
    assert found.timeline is not None
    assert (found.timeline.step_s, found.timeline.steps_to_last_start) == (1.0, 150)
    assert found.timeline.held_percent == found.timeline.allocated_percent == [100.0] * 180 + [0.0]
    waiting = [0] * 10 + [1] * 10 + [2] * 80 + [1] * 50 + [0] * 31
    assert found.timeline.waiting_pods == waiting


def test_use_over_time_is_up_to_the_last_start() -> None:
    """A card held for 10 of 20 seconds; then half of it for 1000 more, which say nothing of how
    many pods could run."""
    world = one_card(
        trace_pod("a", times=(100, 110, 100)), trace_pod("b", 1, 500, times=(120, 1120, 120))
    )
    found = run(world)
    assert found.waits is not None
    assert found.timeline is not None
    assert (found.waits.mean_held_percent, found.waits.mean_allocated_percent) == (50.0, 50.0)
    assert (found.waits.mean_s, found.waits.end_s) == (0.0, 1120.0)
    assert (found.timeline.step_s, found.timeline.steps_to_last_start) == (1.0, 20)
    assert sum(found.timeline.held_percent[:20]) / 20 == 50.0
    assert found.timeline.held_percent[20:] == [50.0] * 780, "no more than 800 steps"


def test_where_all_start_at_once_use_is_of_the_whole_run() -> None:
    waits = run(one_card(trace_pod("a", 1, 500, times=(3, 13, 3)))).waits
    assert waits is not None
    assert waits.mean_held_percent == 50.0


def test_who_never_starts_waits_to_the_end() -> None:
    world = one_card(
        trace_pod("big", 1, 500, times=(0, 10, 0)), trace_pod("huge", 8, 1000, times=(1, 9, 1))
    )
    found = run(world)
    assert found.timeline is not None
    assert found.timeline.steps_to_last_start == 1
    assert found.timeline.waiting_pods == [0.0] + [1.0] * 10
    assert found.timeline.held_percent == [50.0] * 10 + [0.0]


def test_at_one_instant_who_ends_makes_room_for_who_comes() -> None:
    world = one_card(trace_pod("a", times=(0, 10, 0)), trace_pod("b", times=(10, 20, 10)))
    found = run(world)
    assert found.waits is not None
    assert found.waits.max_s == 0.0
    assert found.waited == {}


def test_the_waiting_go_before_who_comes_at_the_same_instant() -> None:
    world = one_card(
        trace_pod("a", times=(0, 10, 0)),
        trace_pod("waits", times=(2, 12, 2)),
        trace_pod("comes", times=(10, 20, 10)),
    )
    waits = run(world).waits
    assert waits is not None
    assert (waits.max_s, waits.mean_s) == (10.0, 6.0)


def test_a_pod_that_lasts_no_time_is_gone_before_the_next_comes() -> None:
    waits = run(one_card(trace_pod("a", times=(0, 0, 0)), trace_pod("b", times=(0, 5, 0)))).waits
    assert waits is not None
    assert (waits.started, waits.max_s) == (2, 0.0)


def test_a_rest_outlasts_the_room_that_comes_before_its_end() -> None:
    """`b` comes at 0.5 s (16 times the pace); the card is free at 1 s, its rest over at 1.5 s."""
    world = one_card(trace_pod("a", times=(0, 1, 0)), trace_pod("b", times=(8, 10, 8)))
    waits = run(world, compress=16.0).waits
    assert waits is not None
    assert (waits.max_s, waits.end_s) == (1.0, 3.5)


def test_pods_without_an_end_stay_and_who_finds_no_room_never_starts() -> None:
    world = one_card(
        trace_pod("residencies", times=(0, None, 0)),
        trace_pod("ends never either", 1, 500, times=(1, 9, None)),
    )
    found = run(world)
    assert found.waits is not None
    assert (found.waits.started, found.waits.never_started) == (1, 1)
    assert (found.failed_pods, found.used_gpu_milli) == (1, 1000)
    assert sum(found.unscheduled.values()) == found.failed_pods, "counted as the run counts them"
    assert found.completion == CompletionTimes(0, 0.0, 0.0, 0.0, 0.0)
    assert found.gpu_held_percent == 100.0


def test_nobody_started_waited_for_nothing() -> None:
    waits = run(one_card(trace_pod("huge", 8, 1000, times=(3, 9, 3)))).waits
    assert waits is not None
    assert (waits.started, waits.never_started, waits.mean_s, waits.max_s) == (0, 1, 0.0, 0.0)
    assert (waits.mean_held_percent, waits.end_s) == (0.0, 3.0)


def test_compressed_arrivals_come_faster_but_last_as_long() -> None:
    """At 10 times the pace `b` comes at 10 s, while `a` still holds the card until 60 s."""
    world = one_card(trace_pod("a", times=(0, 60, 0)), trace_pod("b", times=(100, 160, 100)))
    calm, pressed = run(world).waits, run(world, compress=10.0).waits
    assert calm is not None
    assert pressed is not None
    assert (calm.max_s, calm.end_s) == (0.0, 160.0)
    assert (pressed.max_s, pressed.end_s) == (50.0, 120.0)


def test_arrivals_decide_which_pod_comes_at_each_time() -> None:
    """At 0 s and 10 s comes the second pod, of 5 s; the first, of 100 s, not at all."""
    world = one_card(trace_pod("a", times=(0, 100, 0)), trace_pod("b", times=(10, 15, 10)))
    found = run_timed(world, FirstFit(), Arrivals(1, [1, 1], [0]), timing=False)
    assert found.completion == CompletionTimes(2, 5.0, 5.0, 5.0, 5.0)
    assert found.waits is not None
    assert (found.waits.end_s, found.waits.max_s) == (15.0, 0.0)


def test_a_share_that_holds_a_whole_card_is_asked_and_held_apart() -> None:
    world = one_card(trace_pod("a", 1, 250, times=(0, 100, 0)))
    waits = run_timed(world, Exclusive(), in_order(world), timing=False).waits
    assert waits is not None
    assert (waits.mean_allocated_percent, waits.mean_held_percent) == (25.0, 100.0)


def test_durations() -> None:
    assert duration_ns(trace_pod("p", times=(0, 30, 10))) == 20 * 10**9
    assert duration_ns(trace_pod("p", times=(0, None, 10))) is None
    assert duration_ns(trace_pod("p", times=(0, 5, None))) is None


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(BadInputError, match="line 2, column deletion_time: 5 is before"):
        check_times([trace_pod("p", times=(0, 5, 10))], "pods.csv")


def test_lists_without_times_are_refused_with_a_way_out() -> None:
    pods = [trace_pod("a", times=(0, 1, 0)), trace_pod("b")]
    with pytest.raises(BadInputError) as caught:
        check_times(pods, "pods.csv")
    assert str(caught.value) == (
        "pods.csv, line 3, column creation_time: is missing: timed mode needs creation_time (and "
        "deletion_time, scheduled_time for pods that end); leave --timed out for lists without "
        "times"
    )
    check_times(pods[:1], "pods.csv")


def test_progress_is_told_every_thousand_arrivals() -> None:
    world = one_card(*[trace_pod("p", 1, 100, times=(0, 0, 0))] * 2001)
    told: list[int] = []
    run_timed(world, FirstFit(), in_order(world), progress=told.append)
    assert told == [1000, 2000]


def test_a_timed_run_on_record_is_decided_alike() -> None:
    pods = [
        trace_pod(f"p{i}", *((1, 500), (1, 1000), (2, 1000))[i % 3], times=(i, i + 5 + i % 7, i))
        for i in range(60)
    ]
    world = scenario(pods, node("a", gpus=2), node("b", gpus=2))
    out = io.BytesIO()
    writer = DecisionsWriter(out)
    recorded = run_timed(world, FirstFit(), in_order(world), timing=False, decisions=writer)
    assert recorded == run(world)
    first, *rest = out.getvalue().splitlines()
    lines = [msgspec.json.decode(line, type=DecisionLine) for line in rest]
    kinds = {type(line.event) for line in lines}
    assert {PodAdded, PodGone, Tick} <= kinds
    verdict = replay(msgspec.json.decode(first, type=Header), lines, built_in().create)
    assert verdict.identical
    assert verdict.decisions > 60
    assert [line.at_ns for line in lines] == sorted(line.at_ns for line in lines)
    assert json.loads(first)["profiles"][0]["policies"][0]["name"] == "first-fit"
