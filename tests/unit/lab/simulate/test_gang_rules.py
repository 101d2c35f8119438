"""Other schedulers' rules for gangs, by hand, and against a slow count of what is held in vain."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec import UNSET
from traces import in_order, scenario, trace_pod

from weft.core.framework import Policy
from weft.core.policies.catalog import built_in
from weft.core.record import DecisionLine, DecisionsWriter, Header, replay
from weft.lab.simulate import gang_rules
from weft.lab.simulate.gang_rules import GANG_RULES, JOIN_NS, VolcanoPlacement
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import TimedPods, run_timed
from weft.model import Gang, Node
from weft.testing import node

import msgspec  # isort: skip


def gang(name: str, *pods: TracePod, least: int = 0) -> list[TracePod]:
    of = Gang("trace", "default", name, least or len(pods))
    return [msgspec.structs.replace(pod, listed_gang=of) for pod in pods]


def lasting(name: str, comes_s: int, lasts_s: int, **more: int) -> TracePod:
    return trace_pod(name, times=(comes_s, lasts_s, 0), **more)


def run(rule: str, world: Scenario) -> tuple[PolicyRun, TimedPods]:
    times: list[TimedPods] = []
    of = GANG_RULES[rule]
    found = run_timed(
        world,
        of.make_policy(),
        in_order(world),
        timing=False,
        on_times=times.append,
        make_run=of.make_run,
    )
    return found, times[0]


def starts_s(times: TimedPods) -> dict[int, float]:
    return {number: at / 1e9 for number, at in sorted(times.bound.items())}


def test_per_pod_holds_what_it_has_and_that_is_wasted() -> None:
    """A card of two is held until 100: the gang's first pod takes the other one at 10, and holds it
    in vain for 90 seconds."""
    world = scenario(
        [lasting("x", 0, 100), *gang("g", lasting("a", 10, 50), lasting("b", 10, 50))],
        node("n", gpus=2),
    )
    found, times = run("per-pod", world)
    assert starts_s(times) == {0: 0, 1: 10, 2: 100}
    assert times.ended[1] == times.ended[2] == 150 * 10**9, "both run from 100 on"
    assert found.gangs is not UNSET
    assert (found.gangs.wasted_gpu_s, found.gangs.wait_mean_s) == (90.0, 90.0)


def test_per_pod_two_gangs_that_hold_half_each_start_again_after_ten_minutes() -> None:
    """On two cards each of two gangs gets one. Ten minutes later the first to give up comes anew,
    behind the other, which then has both."""
    first = gang("g", lasting("a", 0, 50), lasting("b", 1, 50))
    second = gang("h", lasting("c", 0, 50), lasting("d", 1, 50))
    world = scenario([first[0], second[0], first[1], second[1]], node("n", gpus=2))
    found, times = run("per-pod", world)
    join_s = JOIN_NS / 1e9
    assert starts_s(times)[1] == 0
    assert starts_s(times)[3] == join_s
    again = starts_s(times)[0], starts_s(times)[2]
    assert again[0] == join_s + 50
    assert again[0] <= again[1] <= again[0] + 10, "at the latest when its back-off is over"
    assert found.gangs is not UNSET
    assert found.gangs.wasted_gpu_s == 2 * join_s + again[1] - again[0]
    assert found.gangs.never_ran == 0


def test_per_pod_a_gang_that_never_fits_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pods on two cards started again for ever: the run never ended."""
    monkeypatch.setattr(gang_rules, "MOST_RESTARTS", 20)
    three = gang("g", *(lasting(name, 0, 50) for name in "abc"))
    found, times = run("per-pod", scenario([*three, lasting("x", 1, 10)], node("n", gpus=2)))
    assert found.gangs is not UNSET
    assert found.gangs.never_ran == 1
    assert found.gangs.wasted_gpu_s == 21 * 2 * JOIN_NS / 1e9 - 10, "but for x's ten seconds"
    assert 3 in times.ended


@pytest.mark.parametrize("rule", ["kai-like", "volcano-like"])
def test_sessions_take_all_of_a_job_or_nothing_and_then_the_next(rule: str) -> None:
    """A card of two is held until 100. A gang of two waits for it and holds nothing: a later pod
    takes the other card meanwhile, until 60."""
    world = scenario(
        [
            lasting("x", 0, 100),
            *gang("g", lasting("a", 10, 50), lasting("b", 20, 50)),
            lasting("y", 30, 30),
        ],
        node("n", gpus=2, cpu_milli=64_000, host_memory_mib=64_000),
    )
    found, times = run(rule, world)
    assert starts_s(times) == {0: 0, 1: 100, 2: 100, 3: 30}
    assert found.gangs is not UNSET
    assert (found.gangs.wasted_gpu_s, found.gangs.wait_mean_s) == (0.0, 80.0)


@pytest.mark.parametrize("rule", ["kai-like", "volcano-like"])
def test_sessions_go_by_priority_then_age(rule: str) -> None:
    late = msgspec.structs.replace(lasting("late", 2, 10), priority=5)
    world = scenario([lasting("x", 0, 100), lasting("early", 1, 10), late], node("n", gpus=1))
    assert starts_s(run(rule, world)[1]) == {0: 0, 2: 100, 1: 110}


def test_kai_packs_where_volcano_does_not() -> None:
    """A share goes beside another with KAI; Volcano's defaults rate by CPU and memory, and of equal
    nodes the first wins with its first GPU that fits."""
    shares = [
        trace_pod(name, 1, 300, cpu=1000, times=(at, 10_000, 0))
        for at, name in enumerate(("a", "b"))
    ]
    world = scenario(
        [trace_pod("big", 1, 1000, cpu=60_000, times=(0, 10_000, 0)), *shares],
        node("m", gpus=2, cpu_milli=64_000, host_memory_mib=64_000),
        node("n", gpus=1, cpu_milli=64_000, host_memory_mib=64_000),
    )
    places = {
        rule: [holder for _, holder in sorted(_places(rule, world).items())] for rule in GANG_RULES
    }
    assert places["kai-like"][1] == places["kai-like"][2]


def _places(rule: str, world: Scenario) -> dict[str, str]:
    places: dict[str, str] = {}

    def keep(engine: object, name: object) -> None:
        for uid, holding in engine.ledger.holdings.items():  # type: ignore[attr-defined]
            places[uid] = holding.placement.node

    of = GANG_RULES[rule]
    run_timed(world, of.make_policy(), in_order(world), on_holdings=keep, make_run=of.make_run)
    return places


def test_volcano_looks_only_at_what_fits_its_queue() -> None:
    """1.2 × 4 cards: while three are held, jobs that ask for 1.8 cards together are queued. A gang
    of four is not, and the pod behind it goes first."""
    four = gang("g", *(lasting(name, 1, 10) for name in "abcd"))
    held = [lasting(f"h{i}", 0, 100) for i in range(3)]
    world = scenario(
        [*held, *four, lasting("small", 2, 10)],
        node("n", gpus=4, cpu_milli=64_000, host_memory_mib=64_000),
    )
    found, times = run("volcano-like", world)
    assert starts_s(times)[7] == 2
    assert starts_s(times)[3] == 100
    assert found.gangs is not UNSET


@pytest.mark.parametrize("rule", sorted(GANG_RULES))
def test_decisions_of_every_rule_can_be_replayed(rule: str) -> None:
    world = scenario(
        [
            lasting("x", 0, 100),
            *gang("g", lasting("a", 10, 50), lasting("b", 20, 50)),
            trace_pod("y", 1, 500, times=(30, 30, 0)),
        ],
        node("n", gpus=2, cpu_milli=64_000, host_memory_mib=64_000),
    )
    file, of = io.BytesIO(), GANG_RULES[rule]
    writer = DecisionsWriter(file)
    run_timed(world, of.make_policy(), in_order(world), decisions=writer, make_run=of.make_run)
    first, *rest = file.getvalue().splitlines()
    lines = [msgspec.json.decode(line, type=DecisionLine) for line in rest]

    def create(name: str, **options: object) -> Policy:
        own = VolcanoPlacement.name
        return VolcanoPlacement() if name == own else built_in().create(name, **options)

    verdict = replay(msgspec.json.decode(first, type=Header), lines, create)
    assert verdict.identical
    assert verdict.decisions >= 4


# --- against a slow count -------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[TracePod], list[Node]]:
    pods: list[TracePod] = []
    for number, size in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))):
        begins, lasts = draw(st.integers(0, 30)), draw(st.integers(1, 900))
        milli, late = draw(st.sampled_from([300, 500, 1000])), draw(st.integers(0, 5))
        members = [
            trace_pod(f"p{number}-{i}", 1, milli, times=(begins + i * late, lasts, 0))
            for i in range(size)
        ]
        pods += gang(f"g{number}", *members) if size > 1 else members
    nodes = [
        node(f"n{i}", gpus=draw(st.integers(1, 3)), cpu_milli=64_000, host_memory_mib=64_000)
        for i in range(draw(st.integers(2, 3)))
    ]
    return pods, nodes


@settings(max_examples=few_or_many(15, 1_000), deadline=None)
@given(worlds(), st.sampled_from(sorted(GANG_RULES)))
def test_every_gang_that_fits_runs_and_sessions_waste_nothing(
    world: tuple[list[TracePod], list[Node]], rule: str
) -> None:
    """Gangs start together, in any rule; those of sessions hold nothing before. Whoever fits the
    empty cluster has run in the end: but for gangs
    of pods that each go by themselves, nobody blocks another for ever."""
    pods, nodes = world
    scene = Scenario(nodes, pods)
    with pytest.MonkeyPatch.context() as few:
        few.setattr(gang_rules, "MOST_RESTARTS", 20)
        found, times = run(rule, scene)
    gpus = [len(each.gpus) for each in nodes]
    numbers: dict[str, list[int]] = {}
    for number, pod in enumerate(pods):
        numbers.setdefault(pod.gang.key if pod.gang else f"{number}", []).append(number)
    for members in numbers.values():
        room = sum(gpus) * (1000 // pods[members[0]].milli)
        fits = room >= len(members)
        ran = [number in times.ended for number in members]
        gave_up = rule == "per-pod" and len(members) > 1 and not any(ran)
        assert gave_up or ran == [fits] * len(members), (rule, members)
        ends = {times.ended[number] for number in members if number in times.ended}
        assert len(ends) <= 1, "its pods run over the same time"
    if found.gangs is not UNSET and rule != "per-pod":
        assert found.gangs.wasted_gpu_s == 0
