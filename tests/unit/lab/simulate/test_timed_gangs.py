"""Gangs in timed mode: their pods start together, and what they wait and waste is by hand."""

import io
import json
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec import UNSET
from traces import in_order, scenario, trace_pod

from weft.core.policies.catalog import built_in
from weft.core.policies.packing import FirstFit
from weft.core.record import DecisionsWriter
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import GangTimes, PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import TimedPods, run_timed
from weft.model import Gang, Node
from weft.model.queue_rules import HeadOfLine
from weft.testing import node

import msgspec  # isort: skip


def gang(name: str, least: int, *pods: TracePod) -> list[TracePod]:
    of = Gang("trace", "default", name, least)
    return [msgspec.structs.replace(pod, listed_gang=of) for pod in pods]


def run(world: Scenario) -> tuple[PolicyRun, TimedPods]:
    times: list[TimedPods] = []
    found = run_timed(world, FirstFit(), in_order(world), timing=False, on_times=times.append)
    return found, times[0]


def test_a_gang_waits_for_its_last_pod_and_for_room_and_holds_nothing() -> None:
    """Two cards, one held until 100. A gang of two comes at 10 and 30, and starts at 100; a pod
    that comes at 40 takes the card that it does not hold meanwhile."""
    world = scenario(
        [
            trace_pod("first", times=(0, 100, 0)),
            *gang("g", 2, trace_pod("a", times=(10, 60, 10)), trace_pod("b", times=(30, 80, 30))),
            trace_pod("small", times=(40, 60, 40)),
        ],
        node("n", gpus=2),
    )
    found, times = run(world)
    second = 1_000_000_000
    assert times.bound == {0: 0, 3: 40 * second, 1: 100 * second, 2: 100 * second}
    assert times.ended == {3: 60 * second, 0: 100 * second, 1: 150 * second, 2: 150 * second}
    assert found.gangs == GangTimes(
        gangs=1,
        never_ran=0,
        wait_mean_s=70.0,
        wait_p50_s=70.0,
        wait_p95_s=70.0,
        wait_p99_s=70.0,
        wait_max_s=70.0,
        makespan_s=140.0,
        wasted_gpu_s=0.0,
        preempted_gpu_s=0.0,
    )


def test_pods_beyond_the_least_follow_one_by_one() -> None:
    """One of three is needed, two cards: two start at once, the third when one ends."""
    three = (trace_pod(name, times=(0, 10, 0)) for name in "abc")
    found, times = run(scenario(gang("g", 1, *three), node("n", gpus=2)))
    assert sorted(at // 1_000_000_000 for at in times.bound.values()) == [0, 0, 10]
    assert found.gangs is not UNSET
    assert (found.gangs.wait_mean_s, found.gangs.makespan_s) == (0.0, 20.0)


def test_a_gang_that_never_fits_is_counted_and_wastes_nothing() -> None:
    two = (trace_pod(name, times=(0, 10, 0)) for name in "ab")
    found, _ = run(scenario(gang("g", 2, *two), node("n", gpus=1)))
    assert found.gangs is not UNSET
    assert (found.gangs.gangs, found.gangs.never_ran, found.gangs.wasted_gpu_s) == (1, 1, 0.0)
    assert found.failed_pods == 2


def test_what_is_kept_for_a_gang_is_not_held() -> None:
    """Two cards: one held until 100, three tenths of the other until 50. Both are kept, as far as
    they are free, for a gang of two that comes at 10, from 20 on; it starts at 100."""
    pods = [
        trace_pod("low", times=(0, 100, 0)),
        trace_pod("small", 1, 300, times=(0, 50, 0)),
        *gang("g", 2, trace_pod("a", times=(10, 60, 10)), trace_pod("b", times=(10, 60, 10))),
    ]
    kept = HeadOfLine(10 * 1_000_000_000, 1_000 * 1_000_000_000)
    world = msgspec.structs.replace(scenario(pods, node("n", gpus=2)), head_of_line=kept)
    found, times = run(world)
    assert times.bound[2] == 100 * 1_000_000_000
    assert found.waits is not None
    assert found.waits.mean_held_percent == 100 * (100 + 0.3 * 50) / 200
    assert found.waits.end_s == 150


def test_without_gangs_there_is_no_word_of_them() -> None:
    found, _ = run(scenario([trace_pod("a", times=(0, 1, 0))], node("n")))
    assert found.gangs is UNSET
    assert "gang" not in msgspec.json.encode(found).decode()


def test_decisions_of_a_gang_are_on_record() -> None:
    two = (trace_pod(name, times=(0, 10, 0)) for name in "ab")
    world, file = scenario(gang("g", 2, *two), node("n", gpus=2)), io.BytesIO()
    writer = DecisionsWriter(file)
    run_timed(world, FirstFit(), in_order(world), timing=False, decisions=writer)
    writer.close()
    records = [
        record
        for line in file.getvalue().splitlines()[1:]
        for record in json.loads(line).get("records", [])
        if record.get("node")
    ]
    assert [record["gang"]["found"] for record in records] == [2, 2]


# --- against a slow count -------------------------------------------------------------------------

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=8)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[TracePod], list[Node]]:
    pods: list[TracePod] = []
    for number, size in enumerate(draw(SIZES)):
        least = draw(st.integers(1, size))
        begins, lasts = draw(st.integers(0, 30)), draw(st.integers(0, 40))
        milli = draw(st.sampled_from([300, 500, 1000]))
        late = draw(st.integers(0, 5))
        members = [
            trace_pod(f"p{number}-{i}", 1, milli, times=(begins + i * late, lasts, 0))
            for i in range(size)
        ]
        pods += gang(f"g{number}", least, *members) if size > 1 else members
    nodes = [node(f"n{i}", gpus=draw(st.integers(1, 3))) for i in range(draw(st.integers(1, 3)))]
    return pods, nodes


def _by_gang(pods: list[TracePod]) -> Iterable[tuple[int, list[int]]]:
    rows: dict[str, list[int]] = {}
    for number, pod in enumerate(pods):
        if pod.gang:
            rows.setdefault(pod.gang.key, []).append(number)
    for numbers in rows.values():
        of = pods[numbers[0]].gang
        assert of is not None
        yield of.least, numbers


@settings(max_examples=few_or_many(25, 2_000), deadline=None)
@given(worlds(), st.sampled_from(["first-fit", "least-stranding", "binpack"]))
def test_sums_are_those_of_a_slow_count(
    world: tuple[list[TracePod], list[Node]], policy: str
) -> None:
    """Weft's gangs hold nothing before they run, by construction; waits are counted again from
    when each pod came and was bound."""
    pods, nodes = world
    scene, times = Scenario(nodes, pods), list[TimedPods]()
    found = run_timed(
        scene, built_in().from_spec(policy), in_order(scene), timing=False, on_times=times.append
    )
    waits, never = [], 0
    for least, numbers in _by_gang(pods):
        came = sorted(times[0].created[number] for number in numbers)[least - 1]
        bound = sorted(times[0].bound[n] for n in numbers if n in times[0].bound)
        if len(bound) < least:
            assert not bound, "a gang has places for fewer than it needs"
            never += 1
        else:
            waits.append((bound[least - 1] - came) / 1e9)
            assert bound[0] == bound[least - 1], "those that it needs start together"
    if found.gangs is UNSET:
        assert not waits
        assert not never
        return
    assert found.gangs.wasted_gpu_s == found.gangs.preempted_gpu_s == 0
    assert (found.gangs.never_ran, found.gangs.gangs) == (never, len(waits) + never)
    assert found.gangs.wait_mean_s == (round(sum(waits) / len(waits), 3) if waits else 0.0)
