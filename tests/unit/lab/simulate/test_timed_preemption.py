"""Preemption in timed mode: whom a pod ends, what that costs, and when it is off, by hand."""

import io
import json
from collections.abc import Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec import UNSET
from msgspec.structs import replace
from traces import in_order, scenario, trace_pod

from weft.core.policies.catalog import built_in
from weft.core.policies.packing import FirstFit
from weft.core.record import DecisionsWriter
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import PolicyRun, PreemptedWork
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import TimedPods, run_timed
from weft.model import Gang
from weft.testing import node

SECOND = 1_000_000_000


def of(priority: int, pod: TracePod) -> TracePod:
    return replace(pod, priority=priority)


def in_gang(name: str, least: int, *pods: TracePod) -> list[TracePod]:
    gang = Gang("trace", "default", name, least)
    return [replace(pod, listed_gang=gang) for pod in pods]


def run(world: Scenario) -> tuple[PolicyRun, TimedPods]:
    times: list[TimedPods] = []
    found = run_timed(world, FirstFit(), in_order(world), timing=False, on_times=times.append)
    return found, times[0]


def seconds(times: Mapping[int, int]) -> dict[int, float]:
    return {number: at / SECOND for number, at in times.items()}


URGENT_COMES = [
    trace_pod("notebook", times=(0, 100, 0)),
    of(9, trace_pod("urgent", times=(40, 60, 40))),
]


def test_an_urgent_pod_has_the_card_after_the_grace_and_the_other_does_its_work_anew() -> None:
    """One card: a notebook of 100 s from 0 on; at 40 an urgent pod of 20 s. It has the card at 70,
    30 s later, and the notebook again at 90, until 190: 70 s of its work were lost."""
    found, times = run(scenario(URGENT_COMES, node("n", gpus=1)))
    assert seconds(times.bound) == {1: 70, 0: 90}
    assert seconds(times.ended) == {1: 90, 0: 190}
    assert found.preemption == PreemptedWork(1, 70.0)
    assert found.waits is not None
    assert found.waits.mean_s == (30 + 90) / 2


def test_the_grace_is_a_setting() -> None:
    at_once = replace(scenario(URGENT_COMES, node("n", gpus=1)), grace_ns=0)
    found, times = run(at_once)
    assert seconds(times.bound) == {1: 40, 0: 60}
    assert found.preemption == PreemptedWork(1, 40.0)


def test_preemption_can_be_off() -> None:
    found, times = run(replace(scenario(URGENT_COMES, node("n", gpus=1)), preempt=False))
    assert seconds(times.bound) == {0: 0, 1: 100}
    assert found.preemption is UNSET


def test_a_pod_that_ends_within_its_grace_has_lost_nothing() -> None:
    pods = [trace_pod("short", times=(0, 50, 0)), of(9, trace_pod("urgent", times=(40, 60, 40)))]
    found, times = run(scenario(pods, node("n", gpus=1)))
    assert seconds(times.ended) == {0: 50, 1: 70}
    assert found.preemption == PreemptedWork(0, 0.0)


def test_only_the_pod_on_the_card_that_is_needed_goes() -> None:
    """Two cards, each with half of a GPU taken: a whole one needs one of them empty."""
    pods = [
        of(1, trace_pod("low", 1, 700, times=(0, 100, 0))),
        of(2, trace_pod("high", 1, 700, times=(0, 100, 0))),
        of(9, trace_pod("urgent", times=(10, 20, 10))),
    ]
    found, times = run(scenario(pods, node("n", gpus=2)))
    assert seconds(times.ended)[1] == 100
    assert seconds(times.bound)[2] == 40
    assert found.preemption == PreemptedWork(1, 0.7 * 40)


def test_what_is_kept_for_a_pod_is_nobodys_meanwhile_and_counts_as_held_by_nobody() -> None:
    """Two cards: the urgent pod wants both, of which one is free. A small pod that comes while the
    other's pod goes has to wait; the free card, kept, is not held."""
    pods = [
        trace_pod("low", times=(0, 100, 0)),
        of(9, trace_pod("urgent", 2, times=(40, 60, 40))),
        trace_pod("small", times=(50, 60, 50)),
    ]
    found, times = run(scenario(pods, node("n", gpus=2)))
    assert seconds(times.bound) == {1: 70, 0: 90, 2: 90}
    assert found.waits is not None
    # One card until 70, two until 90, when the last one starts.
    assert found.waits.mean_held_percent == round(100 * (70 + 2 * 20) / (2 * 90), 2)


def test_a_gang_that_is_ended_comes_anew_as_one() -> None:
    """A gang of two has both cards; an urgent pod takes one, so that both of it go at 40. It has
    them back when the urgent one has ended, and its work of 2 × 40 s is lost."""
    pods = [
        *in_gang("g", 2, *(trace_pod(name, times=(0, 100, 0)) for name in "ab")),
        of(9, trace_pod("urgent", times=(10, 30, 10))),
    ]
    found, times = run(scenario(pods, node("n", gpus=2)))
    assert seconds(times.bound) == {2: 40, 0: 60, 1: 60}
    assert seconds(times.ended) == {2: 60, 0: 160, 1: 160}
    assert found.preemption == PreemptedWork(2, 80.0)
    assert found.gangs is not UNSET
    assert (found.gangs.preempted_gpu_s, found.gangs.wasted_gpu_s) == (80.0, 0.0)
    assert (found.gangs.wait_mean_s, found.gangs.makespan_s) == (0.0, 160.0)


def test_a_gang_ends_others_for_all_its_pods_at_once() -> None:
    gang = trace_pod("c", times=(10, 60, 10)), trace_pod("d", times=(10, 70, 10))
    pods = [
        *(trace_pod(name, times=(0, 1000, 0)) for name in "ab"),
        *(of(9, pod) for pod in in_gang("g", 2, *gang)),
    ]
    found, times = run(scenario(pods, node("n", gpus=2)))
    assert seconds(times.bound) == {2: 40, 3: 40, 0: 90, 1: 100}
    assert found.preemption == PreemptedWork(2, 80.0)


def test_what_is_left_of_a_gang_does_not_wait_for_pods_that_have_done_their_work() -> None:
    """Two cards: one pod of a gang ends at 20, the other is ended for an urgent one, and comes
    anew without the first."""
    pods = [
        *in_gang("g", 2, trace_pod("a", times=(0, 20, 0)), trace_pod("b", times=(0, 200, 0))),
        of(9, trace_pod("urgent", 2, times=(30, 40, 30))),
    ]
    _, times = run(scenario(pods, node("n", gpus=2)))
    assert seconds(times.bound) == {0: 0, 2: 60, 1: 70}
    assert seconds(times.ended)[1] == 270


def test_without_priorities_nobody_is_ended_and_there_is_no_word_of_it() -> None:
    pods = [trace_pod(name, times=(at, at + 100, at)) for at, name in enumerate("abc")]
    world = scenario(pods, node("n", gpus=1))
    file = io.BytesIO()
    writer = DecisionsWriter(file)
    found = run_timed(world, FirstFit(), in_order(world), timing=False, decisions=writer)
    assert found.preemption is UNSET
    assert "preempt" not in msgspec.json.encode(found).decode()
    assert b"preempts" not in file.getvalue()


def test_victims_are_on_the_record() -> None:
    world, file = scenario(URGENT_COMES, node("n", gpus=1)), io.BytesIO()
    writer = DecisionsWriter(file)
    run_timed(world, FirstFit(), in_order(world), timing=False, decisions=writer)
    writer.close()
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert lines[0]["profiles"][0]["preempts"] is True
    records = [record for line in lines[1:] for record in line.get("records", [])]
    (gone,) = [record for record in records if record.get("preempted")]
    assert gone["preempted"]["pod"] == "default/urgent"


def test_pods_that_stay_for_ever_are_ended_by_nobody() -> None:
    world = scenario(URGENT_COMES, node("n", gpus=1))
    found = run_inflation(world, FirstFit(), in_order(world), timing=False)
    assert found.failed_pods == 1


# --- whatever comes -------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> Scenario:
    pods: list[TracePod] = []
    for number in range(draw(st.integers(1, 14))):
        size = draw(st.sampled_from([1, 1, 1, 2, 3]))
        begins, lasts = draw(st.integers(0, 60)), draw(st.integers(0, 90))
        gpus, milli = draw(st.sampled_from([(1, 300), (1, 600), (1, 1000), (2, 1000)]))
        priority = draw(st.integers(0, 2))
        members = [
            of(
                priority,
                trace_pod(f"p{number}-{i}", gpus, milli, times=(begins, begins + lasts, begins)),
            )
            for i in range(size)
        ]
        pods += in_gang(f"g{number}", size, *members) if size > 1 else members
    nodes = [node(f"n{i}", gpus=draw(st.integers(2, 3))) for i in range(draw(st.integers(3, 4)))]
    return replace(Scenario(nodes, pods), grace_ns=draw(st.sampled_from([0, 30])) * SECOND)


@settings(max_examples=few_or_many(25, 2_000), deadline=None)
@given(worlds(), st.sampled_from(["first-fit", "least-stranding", "binpack"]))
def test_nobody_is_lost_and_each_does_all_its_work_in_one_go(world: Scenario, policy: str) -> None:
    times: list[TimedPods] = []
    found = run_timed(
        world,
        built_in().from_spec(policy),
        in_order(world),
        timing=False,
        on_times=times.append,
    )
    assert found.failed_pods == 0
    assert found.used_gpu_milli == 0
    assert times[0].ended.keys() == set(range(len(world.pods)))
    for number, pod in enumerate(world.pods):
        lasts = ((pod.deleted_s or 0) - (pod.scheduled_s or 0)) * SECOND
        assert times[0].ended[number] - times[0].bound[number] >= lasts
        if not pod.gang:
            assert times[0].ended[number] - times[0].bound[number] == lasts
    if world.preempts:
        assert found.preemption is not UNSET
        assert (found.preemption.preempted > 0) or found.preemption.lost_gpu_s == 0


@settings(max_examples=few_or_many(15, 500), deadline=None)
@given(worlds())
def test_the_highest_priority_waits_as_if_it_came_alone_but_for_graces(world: Scenario) -> None:
    """Without a grace, pods of the highest priority have places when they would have them if no
    others came: of single pods of one size, since which card is free decides otherwise."""
    alike = [replace(pod, listed_gang=None) for pod in world.pods]
    shape = trace_pod("x").shape
    alike = [replace(pod, shape=shape, gpus=1, milli=1000) for pod in alike]
    top = max(pod.priority for pod in alike)
    world = replace(world, pods=alike, grace_ns=0)
    alone = replace(world, pods=[pod for pod in alike if pod.priority == top])
    bound = [sorted(run(each)[1].bound.items()) for each in (world, alone)]
    mine = [at for number, at in bound[0] if alike[number].priority == top]
    assert mine == [at for _, at in bound[1]]
