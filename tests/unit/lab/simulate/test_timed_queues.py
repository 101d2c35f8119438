"""Teams' queues in timed mode: their orders, limits and what they take back, and their measures by
hand and against a slow count."""

import io
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec import UNSET
from msgspec.structs import replace
from traces import in_order, scenario, trace_pod

from weft.core.engine import Bind
from weft.core.engine.team_queues import charge_of
from weft.core.policies.catalog import built_in
from weft.core.policies.packing import FirstFit
from weft.core.record import DecisionsWriter
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import PolicyRun, QueueTimes
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import TimedPods, TimedRun, run_timed
from weft.model import Code, Node
from weft.model.queue_rules import NO_QUEUES, QueueAmounts, QueueRules, QueueTerms
from weft.model.reason import TEXT
from weft.testing import node

SECOND = 1_000_000_000


def of(queue: str, pod: TracePod) -> TracePod:
    return replace(pod, listed_queue=queue)


def promised(name: str, gpus: float) -> QueueTerms:
    return QueueTerms(name, guarantee=QueueAmounts(gpu_milli=round(1000 * gpus)))


def run(world: Scenario, queues: QueueRules = NO_QUEUES) -> tuple[PolicyRun, TimedPods]:
    times: list[TimedPods] = []
    world = replace(world, queues=queues)
    found = run_timed(world, FirstFit(), in_order(world), timing=False, on_times=times.append)
    return found, times[0]


def seconds(times: Mapping[int, int]) -> dict[int, float]:
    return {number: at / SECOND for number, at in times.items()}


def by_name(found: PolicyRun) -> dict[str, QueueTimes]:
    assert found.queues is not UNSET
    return {queue.queue: queue for queue in found.queues}


FOUR = [
    *(of("a", trace_pod(name, times=(0, 100, 0))) for name in ("a0", "a1", "a2")),
    of("b", trace_pod("b0", times=(1, 101, 1))),
]
"""Three pods of a queue at 0, one of another at 1, each for 100 s."""


def test_queues_take_turns_where_they_are_fair_and_the_oldest_goes_first_where_not() -> None:
    """Two cards, both a's until its first pod ends at 50."""
    world = scenario([of("a", trace_pod("short", times=(0, 50, 0))), *FOUR[1:]], node("n", gpus=2))
    _, oldest = run(world)
    assert seconds(oldest.bound) == {0: 0, 1: 0, 2: 50, 3: 100}
    _, fair = run(world, QueueRules("fair"))
    assert seconds(fair.bound) == {0: 0, 1: 0, 3: 50, 2: 100}


def test_the_queue_below_its_guarantee_goes_first() -> None:
    _, times = run(scenario(FOUR, node("n", gpus=1)), QueueRules("fair", (promised("b", 1),)))
    assert seconds(times.bound) == {0: 0, 3: 100, 1: 200, 2: 300}


def test_a_queue_never_holds_more_than_its_limit() -> None:
    """Two cards, of which one queue may hold one: the other card is idle until the other comes."""
    limited = QueueTerms("a", limits=QueueAmounts(gpu_milli=1000))
    found, times = run(scenario(FOUR, node("n", gpus=2)), QueueRules(queues=(limited,)))
    assert seconds(times.bound) == {0: 0, 3: 1, 1: 100, 2: 200}
    assert found.waited == {TEXT[Code.QUEUE_LIMIT]: 2}


def test_measures_are_by_hand() -> None:
    """One card; a: 0 to 100, b 100 to 200, then the others of a until 400. Use is measured until
    the last start, at 300. b, promised the card, wants it from 1 until it ends, at 200; a has
    nothing promised."""
    queues = by_name(
        run(scenario(FOUR, node("n", gpus=1)), QueueRules("fair", (promised("b", 1),)))[0]
    )
    assert queues["a"] == QueueTimes(
        queue="a",
        pods=3,
        never_started=0,
        wait_mean_s=166.667,
        wait_p99_s=298.0,
        held_percent=66.667,
        guarantee_percent=None,
        wanting_s=0.0,
        held_while_wanting_percent=None,
        preempted=0,
        preempted_gpu_s=0.0,
    )
    assert queues["b"] == QueueTimes(
        queue="b",
        pods=1,
        never_started=0,
        wait_mean_s=99.0,
        wait_p99_s=99.0,
        held_percent=33.333,
        guarantee_percent=100.0,
        wanting_s=199.0,
        held_while_wanting_percent=50.251,  # 100 of 199 s
        preempted=0,
        preempted_gpu_s=0.0,
    )


def test_a_queue_takes_back_what_another_borrows() -> None:
    """Two cards, one promised to each: a has both when b comes at 10. One pod of a goes at 40, and
    its 40 s are lost; it comes anew when the first of all has ended."""
    pods = [
        *(of("a", trace_pod(name, times=(0, 100, 0))) for name in ("a0", "a1")),
        of("b", trace_pod("b0", times=(10, 110, 10))),
    ]
    rules = QueueRules("fair", (promised("a", 1), promised("b", 1)), reclaim=True)
    found, times = run(scenario(pods, node("n", gpus=2)), rules)
    assert seconds(times.bound)[2] == 40
    assert sorted(seconds(times.ended).values()) == [100, 140, 200]
    queues = by_name(found)
    assert (queues["a"].preempted, queues["a"].preempted_gpu_s) == (1, 40.0)
    assert (queues["b"].preempted, queues["b"].preempted_gpu_s) == (0, 0.0)
    assert found.preemption is not UNSET
    assert found.preemption.lost_gpu_s == 40.0
    _, lent = run(replace(scenario(pods, node("n", gpus=2)), preempt=False), rules)
    assert seconds(lent.bound)[2] == 100


def test_without_queues_there_is_no_word_of_them() -> None:
    pods = [replace(pod, listed_queue="") for pod in FOUR]
    world, file = scenario(pods, node("n", gpus=1)), io.BytesIO()
    writer = DecisionsWriter(file)
    found = run_timed(world, FirstFit(), in_order(world), timing=False, decisions=writer)
    assert found.queues is UNSET
    assert "queues" not in msgspec.json.encode(found).decode()
    assert b'"queue"' not in file.getvalue()
    assert b'"queues"' not in file.getvalue()


def test_the_rules_are_on_record() -> None:
    world, file = scenario(FOUR, node("n", gpus=1)), io.BytesIO()
    world = replace(world, queues=QueueRules("fair", (promised("b", 1),)))
    writer = DecisionsWriter(file)
    run_timed(world, FirstFit(), in_order(world), timing=False, decisions=writer)
    writer.close()
    header = json.loads(file.getvalue().splitlines()[0])
    assert header["queues"]["order"] == "fair"
    assert header["queues"]["queues"][0]["name"] == "b"


def test_pods_without_a_queue_are_in_that_of_their_namespace() -> None:
    pods = [FOUR[3], trace_pod("x", times=(0, 10, 0))]
    found, _ = run(scenario(pods, node("n", gpus=2)))
    assert [queue.queue for queue in found.queues or ()] == ["b", "default"]


# --- against a slow count -------------------------------------------------------------------------


RUNS: list["CountedRun"] = []


class CountedRun(TimedRun):
    """Notes each stay of a pod in a place: its queue, from when to when, and the charge for it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.began_ns: dict[int, int] = {}
        self.stays: list[tuple[str, int, int, int]] = []
        RUNS.append(self)

    def _bind(self, command: Bind) -> None:
        self.began_ns[int(command.pod.uid)] = self.now
        super()._bind(command)

    def _take_place(self, number: int, *, completed: bool = False) -> None:
        placement = self.places[number]
        charge = charge_of(placement, self._node(placement.node)).gpu_milli
        self.stays.append((self.pods[number].queue, self.began_ns[number], self.now, charge))
        super()._take_place(number, completed=completed)


@st.composite
def worlds(draw: st.DrawFn) -> Scenario:
    pods: list[TracePod] = []
    for number in range(draw(st.integers(1, 20))):
        begins, lasts = draw(st.integers(0, 60)), draw(st.integers(0, 90))
        gpus, milli = draw(st.sampled_from([(1, 300), (1, 600), (1, 1000), (2, 1000)]))
        pod = trace_pod(f"p{number}", gpus, milli, times=(begins, begins + lasts, begins))
        pod = replace(pod, priority=draw(st.sampled_from([0, 0, 5])))
        pods.append(of(draw(st.sampled_from(["", "a", "b", "c"])), pod))
    nodes: list[Node] = [node(f"n{i}", gpus=2) for i in range(draw(st.integers(1, 3)))]
    return Scenario(nodes, pods)


@st.composite
def rules(draw: st.DrawFn) -> QueueRules:
    names = sorted(draw(st.sets(st.sampled_from(["a", "b", "c"]))))
    terms = [promised(name, draw(st.integers(0, 2))) for name in names]
    order = draw(st.sampled_from(["priority", "fair"]))
    return QueueRules(order, tuple(terms), reclaim=order == "fair" and draw(st.booleans()))


@settings(max_examples=few_or_many(25, 2_000), deadline=None)
@given(worlds(), rules(), st.sampled_from(["first-fit", "least-stranding"]))
def test_sums_are_those_of_a_slow_count(world: Scenario, queues: QueueRules, policy: str) -> None:
    RUNS.clear()
    world = replace(world, queues=queues)
    decider = built_in().from_spec(policy)
    found = run_timed(world, decider, in_order(world), timing=False, make_run=CountedRun)
    assert found.failed_pods == 0
    assert found.used_gpu_milli == 0
    if found.queues is UNSET:
        assert not queues.queues
        assert not any(pod.listed_queue for pod in world.pods)
        return
    (counted,) = RUNS
    assert sum(queue.pods for queue in found.queues) == len(world.pods)
    first, last = counted.first, counted.busy_until
    if last == first:
        last = counted.now
    held = Counter[str]()
    for queue, began, ended, charge in counted.stays:
        held[queue] += charge * max(0, min(ended, last) - began)
    whole = max(1, last - first) * world.capacity_milli
    for queue in found.queues:
        assert queue.held_percent == round(100 * held[queue.queue] / whole, 3)
    lost = sum(queue.preempted_gpu_s for queue in found.queues)
    total = 0.0 if found.preemption is UNSET else found.preemption.lost_gpu_s
    assert abs(lost - total) < 0.01


@settings(max_examples=few_or_many(15, 500), deadline=None)
@given(worlds())
def test_names_of_queues_without_rules_change_nothing_but_their_measures(world: Scenario) -> None:
    plain = replace(world, pods=[replace(pod, listed_queue="") for pod in world.pods])
    both = [run(world)[0], run(plain)[0]]
    assert replace(both[0], queues=UNSET) == both[1]
