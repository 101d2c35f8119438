"""FGD's protocol and what it measures, against slow loops."""

import io
from random import Random

import msgspec
import pytest
from traces import in_order, scenario, trace_pod

from weft.core.engine import Bind, PodAdded, PodGone
from weft.core.framework import Demand, Query
from weft.core.framework.fragments import Fragments, NodeShares
from weft.core.policies.fgd import Fgd
from weft.core.policies.packing import BestFit, FirstFit
from weft.core.policies.spreading import Exclusive
from weft.core.record import DecisionLine, DecisionsWriter, Header, records_of
from weft.lab.simulate.arrivals import Arrivals, draw
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.meter import Meter
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.model import PodRequest, Shape
from weft.model.reason import TEXT, Code
from weft.testing import node


def small() -> Scenario:
    """Two cards on two nodes; ten halves, a whole and a pod without GPU."""
    pods = [trace_pod(f"h{i}", 1, 500) for i in range(3)]
    pods += [trace_pod("w", 1, 1000), trace_pod("c", 0, 0, cpu=500), trace_pod("q", 1, 250)]
    nodes = [node(name, gpus=1, model="T4", cpu_milli=4000) for name in "ab"]
    return scenario(pods, *nodes)


def test_a_run_by_hand() -> None:
    """Halves on a, a, b; the whole fits nowhere and is withdrawn; the quarter goes to b."""
    world = small()
    run = run_inflation(world, FirstFit(), in_order(world, seed=9), timing=False)
    assert (run.policy, run.seed, run.pods, run.failed_pods) == ("first-fit", 9, 6, 1)
    assert (run.used_gpu_milli, run.gpu_held_percent) == (1750, 87.5)
    assert run.gpu_allocated_percent == 87.5
    assert run.arrived_percent == 137.5
    assert run.curve == {"25": 25.0, "50": 50.0, "75": 75.0, "125": 75.0, "138": 87.5}
    assert run.unscheduled == {TEXT[Code.NOT_IDLE]: 1}
    assert run.by_model == {"T4": 87.5}
    assert (run.cpu_s, run.wall_s, run.waits) == (None, None, None)


def test_an_isolation_that_recorded_nodes_lack_is_a_reason() -> None:
    """A trace's own nodes say nothing of it and take every pod."""
    isolated = msgspec.structs.replace(trace_pod("p").shape, isolation="mps")
    pods = [msgspec.structs.replace(trace_pod("p"), shape=isolated), trace_pod("q")]
    told = scenario(pods, node("a", gpus=2, isolation=("none", "time-slicing")))
    run = run_inflation(told, FirstFit(), in_order(told), timing=False)
    assert run.unscheduled == {TEXT[Code.NO_ISOLATION]: 1}
    assert run.used_gpu_milli == 1000
    untold = scenario(pods, node("a", gpus=2))
    run = run_inflation(untold, FirstFit(), in_order(untold), timing=False)
    assert (run.failed_pods, run.used_gpu_milli) == (0, 2000)


def test_asked_and_held_differ_where_a_policy_gives_whole_cards() -> None:
    """Two halves hold the two cards; the rest fits nowhere."""
    world = small()
    run = run_inflation(world, Exclusive(), in_order(world), timing=False)
    assert (run.gpu_allocated_percent, run.gpu_held_percent) == (50.0, 100.0)
    assert (run.failed_pods, max(run.curve.values())) == (3, 50.0)


def test_timing_is_measured_where_it_is_wanted() -> None:
    world = small()
    run = run_inflation(world, FirstFit(), in_order(world))
    assert run.cpu_s is not None
    assert run.cpu_s >= 0
    assert run.wall_s is not None


def test_the_keys_of_a_run_are_fixed() -> None:
    world = small()
    run = run_inflation(world, FirstFit(), in_order(world), timing=False)
    assert list(msgspec.to_builtins(run)) == [
        "policy",
        "seed",
        "arrived_percent",
        "gpu_allocated_percent",
        "gpu_held_percent",
        "gpu_fragmentation_percent",
        "fragmentation_of_idle_percent",
        "used_gpu_milli",
        "failed_pods",
        "pods",
        "curve",
        "fragmentation_curve",
        "by_model",
        "unscheduled",
        "waits",
        "completion",
        "timeline",
        "waited",
        "first_failed",
        "possible",
        "side_faults",
        "cpu_s",
        "wall_s",
    ]


def random_world(seed: int) -> tuple[Scenario, Arrivals]:
    random = Random(seed)
    nodes = [
        node(
            f"n{i}",
            gpus=random.randint(0, 4),
            model=random.choice(("T4", "V100")),
            cpu_milli=random.choice((4000, 32_000)),
        )
        for i in range(6)
    ] + [node("sure", gpus=4, model="T4", cpu_milli=32_000)]
    pods = [
        trace_pod(
            f"p{i}",
            *random.choice(((0, 0), (1, 250), (1, 500), (1, 1000), (2, 1000))),
            cpu=random.choice((0, 1000, 3000)),
        )
        for i in range(40)
    ]
    world = scenario(pods, *nodes)
    return world, draw(pods, len(nodes), world.capacity_milli, seed, 1.3)


def slow_curve(world: Scenario, order: Arrivals) -> tuple[dict[str, float], int, list[str]]:
    """Means of allocation by whole percent of demand, what is used and who failed; by hand."""
    engine, handle = world.start(BestFit(), order)
    arrived = used = 0
    bins: dict[int, list[float]] = {}
    failed = []
    for at, row in enumerate(order.pod_rows):
        pod = world.pods[row]
        arrived += pod.total_milli
        if isinstance(handle(PodAdded(PodRequest(str(at), pod.name, pod.shape)), at)[0], Bind):
            used += pod.total_milli
        else:
            handle(PodGone(str(at)), at)
            failed.append(pod.name)
        allocation = round(used * 100 / world.capacity_milli, 2)
        bins.setdefault(round(arrived * 100 / world.capacity_milli), []).append(allocation)
    assert used == sum(engine.ledger.table.milli_used)
    return {str(b): round(sum(v) / len(v), 2) for b, v in sorted(bins.items())}, used, failed


@pytest.mark.parametrize("seed", range(6))
def test_curves_are_those_of_a_slow_loop(seed: int) -> None:
    world, order = random_world(seed)
    run = run_inflation(world, BestFit(), order, timing=False)
    curve, used, failed = slow_curve(world, order)
    assert run.curve == pytest.approx(curve, abs=0.011)
    assert run.curve.keys() == curve.keys()
    assert (run.used_gpu_milli, run.failed_pods) == (used, len(failed))
    assert sum(run.unscheduled.values()) == len(failed)
    assert list(run.unscheduled.values()) == sorted(run.unscheduled.values(), reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_fragments_at_the_end_are_those_of_a_ledger_laid_out_afresh(seed: int) -> None:
    world, order = random_world(seed)
    engine, handle = world.start(Fgd(), order)
    meter = Meter(engine, world.typical(), world.capacity_milli)
    for at, row in enumerate(order.pod_rows):
        pod = world.pods[row]
        handle(PodAdded(PodRequest(str(at), pod.name, pod.shape)), at)
        if at % 5 == 0:
            meter.fragments_milli()
        if at % 3 == 0:
            handle(PodGone(str(at // 2)), at)
    table = engine.ledger.table
    pattern = Fragments(world.typical(), [kind.model for kind in table.kinds])
    fresh = NodeShares.of_query(pattern, Query(table, Demand(Shape(), table)))
    assert meter.fragments_milli() == pytest.approx(float(fresh.fragments.sum()))
    assert meter.used_milli() == sum(table.milli_used)


def test_an_empty_run_measures_nothing() -> None:
    world = small()
    run = run_inflation(world, FirstFit(), Arrivals(1, [], [0, 1]), timing=False)
    assert (run.pods, run.curve, run.by_model) == (0, {}, {"T4": 0.0})
    assert run.gpu_held_percent == 0.0


def test_a_full_cluster_has_no_idle_gpu_to_be_a_fragment() -> None:
    world = scenario([trace_pod("w")], node("a", gpus=1))
    run = run_inflation(world, FirstFit(), in_order(world), timing=False)
    assert (run.gpu_held_percent, run.fragmentation_of_idle_percent) == (100.0, 0.0)


def test_cards_without_a_model_are_of_an_unknown_one() -> None:
    world = scenario([trace_pod("w")], node("a", gpus=1), node("b", gpus=1, model="T4"))
    run = run_inflation(world, FirstFit(), in_order(world), timing=False)
    assert run.by_model == {"T4": 0.0, "unknown": 100.0}


def test_node_ranks_break_ties() -> None:
    world = scenario([trace_pod("p", 1, 500)], node("a", gpus=1), node("b", gpus=1))
    for ranks, used in (([0, 1], "a"), ([1, 0], "b")):
        engine, handle = world.start(FirstFit(), Arrivals(0, [0], ranks))
        (command,) = handle(PodAdded(PodRequest("p", "p", world.pods[0].shape)), 0)
        assert isinstance(command, Bind)
        assert command.placement.node == used
        assert engine.ledger.table.nodes[0].name == used


def test_progress_is_told_every_thousand_pods() -> None:
    world = scenario([trace_pod("c", 0, 0), trace_pod("g")])
    told: list[int] = []
    order = Arrivals(0, [0] * 2500, [0])
    run_inflation(world, FirstFit(), order, progress=told.append)
    assert told == [1000, 2000]


def test_a_recorded_run_measures_the_same_and_writes_all_it_decided() -> None:
    world, order = random_world(1)
    out = io.BytesIO()
    recorded = run_inflation(world, BestFit(), order, timing=False, decisions=DecisionsWriter(out))
    assert recorded == run_inflation(world, BestFit(), order, timing=False)
    first, *lines = out.getvalue().splitlines()
    header = msgspec.json.decode(first, type=Header)
    assert (header.seed, header.keep_top) == (order.seed, 3)
    records = [r for line in lines for r in msgspec.json.decode(line, type=DecisionLine).records]
    assert len(records) == recorded.pods
    placed = [record for record in records if record.outcome == "placed"]
    assert len(placed) == recorded.pods - recorded.failed_pods
    assert all(1 <= len(record.top) <= 3 for record in placed)
    assert records_of([]) == []


def test_runs_are_plain_values() -> None:
    world, order = random_world(2)
    run = run_inflation(world, BestFit(), order, timing=False)
    assert msgspec.json.decode(msgspec.json.encode(run), type=PolicyRun) == run
    assert isinstance(world.pods[0], TracePod)


def test_a_bin_of_the_fragmentation_curve_ends_before_the_next_pod_is_placed() -> None:
    """One card, two pods of 600 m: nothing placed at 0 %; at 60 and 120 % one holds 600 of it."""
    world = scenario([trace_pod("a", 1, 600), trace_pod("b", 1, 600)])
    run = run_inflation(world, FirstFit(), Arrivals(1, [0, 1], [0]))
    assert run.fragmentation_curve == {"0": 0.0, "60": 40.0, "120": 40.0}


@pytest.mark.parametrize("policy", [Fgd, BestFit])
def test_a_workload_without_any_gpu_pod_runs(policy: type[Fgd] | type[BestFit]) -> None:
    world = scenario([trace_pod("a", 0, 0), trace_pod("b", 0, 0)])
    run = run_inflation(world, policy(), Arrivals(1, [0, 1], [0]))
    assert (run.failed_pods, run.gpu_held_percent) == (0, 0.0)
