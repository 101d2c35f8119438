"""How least stranding counts what openb has not: memory, mixed nodes, MIG, several claims."""

import random

import numpy as np
import pytest

from weft.core.engine import Bind, Engine, PodAdded, PodBound, PolicyInput
from weft.core.framework import Demand, Profile, Query
from weft.core.framework.fragments import TYPICAL_PODS, typical_input
from weft.core.ledger import Ledger
from weft.core.ledger.table import LedgerTable
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.stranding_prices import (
    USUAL_ROUNDS,
    USUAL_SHARPNESS,
    Popularity,
    StrandingPrices,
)
from weft.model import GpuMemoryRequest, GpuRequest, Node, Placement, PodRequest, Shape, Share
from weft.testing import node, shape

CARD = 10_000
HALVES = [shape(milli=500), shape(gpus=1), shape(milli=300), shape(milli=700)]


def _decisions(
    nodes: list[Node], shapes: list[Shape], popular: list[Shape], *, uniform: bool = True
) -> list[tuple[str, tuple[int, ...]] | None]:
    engine = Engine([Profile("weft", [LeastStranding()])], nodes)
    engine.ledger.table.uniform &= uniform
    engine.handle(PolicyInput(TYPICAL_PODS, typical_input(popular)), 0)
    out: list[tuple[str, tuple[int, ...]] | None] = []
    for at, each in enumerate(shapes):
        out.append(None)
        for command in engine.handle(PodAdded(PodRequest(str(at), f"p{at}", each)), at):
            if isinstance(command, Bind):
                placed = command.placement
                out[-1] = placed.node, tuple(sorted(share.gpu for share in placed.shares))
                engine.handle(PodBound(str(at)), at)
    return out


def _first(nodes: list[Node], wanted: Shape, popular: list[Shape] = HALVES, held: object = ()):
    """Node and GPUs of the first pod; `held` are (node, GPU, milli or MiB below 0)."""
    engine = Engine([Profile("weft", [LeastStranding()])], nodes)
    for number, (name, gpu, milli) in enumerate(held):
        share = Share(0, gpu, max(0, -milli), max(0, milli))
        engine.ledger.adopt(Placement(f"old{number}", name, (share,)))
    engine.handle(PolicyInput(TYPICAL_PODS, typical_input(popular)), 0)
    for command in engine.handle(PodAdded(PodRequest("p", "p", wanted)), 0):
        if isinstance(command, Bind):
            placed = command.placement
            return placed.node, tuple(sorted(share.gpu for share in placed.shares))
    return None


def _popularity(
    popular: list[tuple[Shape, int]], table: LedgerTable, card_mib: int = 1
) -> Popularity:
    return Popularity(popular, table.kinds, card_mib, USUAL_ROUNDS)


def _prices(popular: list[tuple[Shape, int]], table: LedgerTable) -> StrandingPrices:
    return StrandingPrices(_popularity(popular, table), table, USUAL_SHARPNESS)


def _random_shapes(seed: int, count: int) -> list[Shape]:
    chance = random.Random(seed)
    kinds = [
        shape(milli=chance.choice((100, 250, 330, 500, 810)), cpu_milli=chance.choice((0, 4000)))
        for _ in range(6)
    ] + [
        shape(gpus=gpus, cpu_milli=4000 * gpus, models=models)
        for gpus, models in ((1, ()), (2, ()), (4, ("V100",)), (8, ()))
    ]
    return [chance.choice([*kinds, shape(cpu_milli=3000)]) for _ in range(count)]


def _nodes_of_one_kind_each() -> list[Node]:
    return [
        node(f"n{at:02}", gpus=gpus, model=model, cpu_milli=64_000)
        for at, (gpus, model) in enumerate([(8, "V100"), (4, "T4"), (2, "T4"), (1, "V100")] * 5)
    ]


def test_nodes_of_one_kind_decide_alike_when_counted_by_kinds() -> None:
    shapes = _random_shapes(3, 220)
    nodes = _nodes_of_one_kind_each()
    assert _decisions(nodes, shapes, shapes) == _decisions(nodes, shapes, shapes, uniform=False)


def test_shares_by_memory_decide_as_shares_of_cores_on_cards_of_one_size() -> None:
    chance = random.Random(9)
    sizes = [chance.choice((100, 250, 330, 500, 810)) for _ in range(150)]
    nodes = [node(f"n{at:02}", gpus=4, memory_mib=CARD) for at in range(6)]
    by_cores = [shape(milli=size, cpu_milli=2000) for size in sizes]
    by_memory = [shape(memory_mib=size * 10, cpu_milli=2000) for size in sizes]
    placed = _decisions(nodes, by_cores, by_cores)
    assert placed == _decisions(nodes, by_memory, by_memory)
    assert None in placed  # until nothing fits any more


def test_memory_is_worth_by_the_size_of_the_card() -> None:
    """5,000 MiB are half of a small card and an eighth of a large one."""
    table = Ledger(
        [node("a", gpus=1, memory_mib=10_000), node("b", gpus=1, memory_mib=40_000)]
    ).table
    popularity = _popularity([(shape(memory_mib=5_000), 1)], table, 25_000)
    small, large = popularity.completion
    assert (small[49], small[50]) == (0, 500)
    assert (large[12], large[13]) == (0, pytest.approx(1000 / 7))  # 12.5 %, rounded up
    held = [("a", 0, -5_000), ("b", 0, -5_000)]
    nodes = [node("a", gpus=1, memory_mib=10_000), node("b", gpus=1, memory_mib=40_000)]
    assert _first(nodes, shape(memory_mib=5_000), [shape(memory_mib=5_000)], held) == ("a", (0,))


def test_each_gpu_of_a_mixed_node_has_the_price_of_its_own_model() -> None:
    nodes = [
        node("a-mixed", gpus=2, model=("T4", "A100")),
        node("b-plain", gpus=2, model=("T4", "T4")),
    ]
    popular = [shape(gpus=1, models=("A100",))] * 3 + [shape(milli=500)]
    table = Ledger(nodes).table
    prices = _prices([(each, 1) for each in popular], table)
    t4, a100, _ = prices.model.tolist()
    assert (t4, a100) == (0.0, 1.0)
    held = [("a-mixed", 0, 500), ("b-plain", 0, 500), ("b-plain", 1, 500)]
    assert _first(nodes, shape(milli=500), popular, held)[1] != (1,)  # the A100 stays


def test_a_slot_on_a_mixed_node_is_of_the_models_that_its_pods_accept() -> None:
    """Two idle T4 beside an A100 are no slot for pods of two A100."""
    nodes = [
        node("a-three", gpus=3, model=("T4", "T4", "A100")),
        node("b-two", gpus=2, model=("A100", "A100")),
    ]
    popular = [shape(gpus=2, models=("A100",))]
    table = Ledger(nodes).table
    prices = _prices([(popular[0], 1)], table)
    idle = prices.devices.idle_by_kind()
    worth = prices.slots.of_kinds(table.cpu_free, idle)
    assert worth[0] == 0 < worth[1]
    taken = prices.slots.of_kinds(table.cpu_free, idle - np.array([[0, 0], [0, 1]]))
    assert taken[1] == 0


def test_a_mig_instance_is_a_gpu_and_its_card_counts_only_by_it() -> None:
    nodes = [node("a-cut", gpus=1, model="A100", mig=2), node("b-plain", gpus=1, model="A100")]
    table = Ledger(nodes).table
    prices = _prices([], table)
    assert prices.devices.shares().tolist() == [0, 1000, 1000, 1000]
    assert prices.devices.idle_by_kind().sum(axis=0).tolist() == [2, 1]


def test_taking_a_card_costs_all_instances_cut_from_it() -> None:
    """One instance is taken rather than the card with both, or another whole card."""
    nodes = [node("a-cut", gpus=1, model="A100", mig=2)]
    policy = LeastStranding()
    ledger = Ledger(nodes)
    query = Query(ledger.table, Demand(shape(milli=500), ledger.table))
    policy.take_table(ledger.table)
    card, instance, _ = policy.score_devices(query).tolist()
    assert card < instance
    assert instance - card == pytest.approx(100 * 1500, abs=3000)  # the other, and half of its own


def test_parts_of_several_gpus_go_where_they_complete() -> None:
    nodes = [node("a", gpus=2, memory_mib=CARD), node("b", gpus=2, memory_mib=CARD)]
    held = [("a", 0, 300), ("a", 1, 300), ("b", 0, 500), ("b", 1, 500)]
    wanted = shape(gpus=2, milli=500)
    assert _first(nodes, wanted, [shape(milli=500), shape(milli=300)], held) == ("b", (0, 1))


def test_parts_of_several_gpus_are_shares_and_no_slots() -> None:
    table = Ledger([node("a", gpus=4)]).table
    two_parts = _popularity([(shape(gpus=2, milli=500), 1)], table)
    assert not two_parts.slots
    assert two_parts.completion[0][50] == 500
    both = Shape((GpuRequest(whole=True), GpuRequest(whole=True)), cpu_milli=1000)
    assert [slot.size for slot in _popularity([(both, 1)], table).slots] == [2]


def test_of_several_requests_the_score_is_the_rise_of_all_steps_together() -> None:
    """Halves for two containers on one GPU cost what one whole GPU costs."""
    nodes = [node("a", gpus=2, memory_mib=CARD), node("b", gpus=1, memory_mib=CARD)]
    twice = Shape((GpuRequest(milli=500), GpuRequest(milli=500)), cpu_milli=1000)
    profile = Profile("weft", [LeastStranding()])
    engine = Engine([profile], nodes)
    together = engine.assess(profile, PodRequest("x", "x", twice)).raw[0]
    alone = engine.assess(profile, PodRequest("y", "y", shape(gpus=1, cpu_milli=1000))).raw[0]
    assert np.abs(together - alone).max() <= 2  # each step is rounded


def test_containers_that_share_one_gpu_decide_as_one_share() -> None:
    nodes = [node(f"n{at}", gpus=2, memory_mib=CARD) for at in range(3)]
    shared = Shape((GpuRequest(memory=GpuMemoryRequest("mib", 3000)),), cpu_milli=1000)
    popular = [shared, shape(gpus=1)]
    assert _first(nodes, shared, popular, [("n1", 0, -7_000)]) == ("n1", (0,))


def test_cpu_only_pods_go_where_no_gpu_is_left_without_cpu() -> None:
    popular = [shape(gpus=1, cpu_milli=10_000, host_memory_mib=10_000)]
    nodes = [
        node("a-tight", gpus=2, cpu_milli=20_000, host_memory_mib=90_000),
        node("b-roomy", gpus=2, cpu_milli=90_000, host_memory_mib=90_000),
        node("c-little-memory", gpus=2, cpu_milli=90_000, host_memory_mib=20_000),
    ]
    wanted = shape(cpu_milli=10_000, host_memory_mib=10_000)
    assert _first(nodes, wanted, popular) == ("b-roomy", ())
    without_gpus = node("d-none", cpu_milli=20_000, host_memory_mib=20_000)
    assert _first([*nodes, without_gpus], wanted, popular) == ("d-none", ())


def test_gpus_and_nodes_out_of_service_are_worth_nothing() -> None:
    popular = [(shape(gpus=2, models=("A100",)), 1), (shape(gpus=1), 1)]
    nodes = [node("a", gpus=2, model="A100"), node("b", gpus=2, model="T4")]
    out = [
        node("c", gpus=2, model="A100", schedulable=False),
        node("d", gpus=2, model="A100", broken=(0, 1)),
    ]
    few, more = (_prices(popular, Ledger(each).table) for each in (nodes, [*nodes, *out]))
    assert few.model.tolist() == more.model.tolist()
    one = np.array([100_000]), np.array([2]), np.array([0])
    assert few.slots.of_one_kind(*one) == more.slots.of_one_kind(*one)
