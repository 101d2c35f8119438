"""The plain policies: which node, and which GPU on it."""

import numpy as np
import pytest

from weft.core.engine import Bind, Engine, PodAdded, PodGone
from weft.core.framework import Plugin, Profile
from weft.core.policies.alnair import AlnairCostSaving
from weft.core.policies.catalog import built_in
from weft.model import (
    BadInputError,
    DeviceRule,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    PodRequest,
    Shape,
)


def node(name, *sizes, uuids=(), cpu=64_000, **more):
    gpus = tuple(
        Gpu(index, size, "T4", uuids[index] if uuids else f"{name}-{index}")
        for index, size in enumerate(sizes)
    )
    return Node(name, gpus, cpu, 65_536, **more)


def share(mib=0, milli=0, count=1):
    return GpuRequest(count, GpuMemoryRequest("mib", mib) if mib else GpuMemoryRequest(), milli)


def whole(count=1):
    return GpuRequest(count, whole=True)


def run(policy, nodes, *pods, seed=0, **options):
    """Where each pod goes: (node, GPUs) or None. A pod is a claim or a tuple of claims."""
    engine = Engine([Profile("weft", [built_in().create(policy, **options)])], nodes, seed=seed)
    found = []
    for number, gpu_requests in enumerate(pods):
        shape = Shape(gpu_requests if isinstance(gpu_requests, tuple) else (gpu_requests,))
        uid = f"pod-{number}"
        command = engine.handle(PodAdded(PodRequest(uid, uid, shape)), number)[0]
        if isinstance(command, Bind):
            place = command.placement
            found.append((place.node, [one.gpu for one in place.shares]))
        else:
            engine.handle(PodGone(uid), number)
            found.append(None)
    return found


TWO = [node("a", 16_000, 16_000), node("b", 16_000)]


def test_first_fit_takes_the_first_node_and_gpu():
    assert run("first-fit", TWO, share(9_000), share(1_000), share(9_000), share(9_000)) == [
        ("a", [0]),
        ("a", [0]),
        ("a", [1]),
        ("b", [0]),
    ]


def test_binpack_takes_the_fullest_gpu_anywhere():
    assert run("binpack", TWO, share(4_000), share(9_000), share(2_000), share(14_000)) == [
        ("a", [0]),
        ("a", [0]),
        ("a", [0]),
        ("a", [1]),
    ]


def test_binpack_and_spread_take_whole_cards_by_the_nodes_idle_gpus():
    assert run("binpack", TWO, whole()) == [("b", [0])]
    assert run("spread", TWO, whole()) == [("a", [0])]


def test_spread_takes_the_emptiest_gpu_anywhere_on_the_emptiest_node():
    assert run("spread", TWO, *[share(1_000)] * 4) == [
        ("a", [0]),
        ("b", [0]),
        ("a", [1]),
        ("a", [0]),
    ]


def test_spread_takes_the_last_idle_gpu_of_a_full_node_before_one_in_use():
    nodes = [node("empty", 16_000), node("full", *[16_000] * 8)]
    pods = [share(6_000), *[share(15_000)] * 7, share(1_000)]
    assert run("spread", nodes, *pods) == [("empty", [0]), *[("full", [i]) for i in range(8)]]


def test_exclusive_gives_whole_cards_to_each_claim():
    assert run("exclusive", TWO, share(1_000), (share(1), share(2)), share(1_000)) == [
        ("a", [0]),
        None,
        ("a", [1]),
    ]


def test_exclusive_keeps_the_least_memory_of_the_card():
    nodes = [node("small", 16_000), node("mixed", 16_000, 40_000)]
    assert run("exclusive", nodes, share(20_000), share(20_000)) == [("mixed", [1]), None]


def test_exclusive_splits_a_total_over_idle_cards_only():
    total = GpuRequest(memory=GpuMemoryRequest("mib", 20_000), split=True)
    assert run("exclusive", [node("a", 16_000, 16_000, 16_000)], share(1_000), total, total) == [
        ("a", [0]),
        ("a", [1, 2]),
        None,
    ]


def test_a_split_total_keeps_to_the_accepted_cards():
    total = GpuRequest(memory=GpuMemoryRequest("mib", 20_000), split=True)
    nodes = [node("a", 16_000, 16_000, 16_000)]
    for policy in ("elastic-spread", "binpack"):
        engine = Engine([Profile("weft", [built_in().create(policy)])], nodes)
        shape = Shape((total,), devices=DeviceRule(not_uuids=("a-1",)))
        command = engine.handle(PodAdded(PodRequest("p", "p", shape)), 0)[0]
        assert [one.gpu for one in command.placement.shares] == [0, 2]


def test_random_is_even_repeatable_and_keyed_by_seed_and_pod():
    nodes = [node(name, 16_000, 16_000, 16_000) for name in "abcd"]
    pods = [share(10)] * 400
    first = run("random", nodes, *pods, seed=1)
    assert run("random", nodes, *pods, seed=1) == first
    assert run("random", nodes, *pods, seed=2) != first
    assert run("random", nodes, *pods[:7], seed=1) == first[:7]
    counts = [first.count((name, [gpu])) for name in "abcd" for gpu in range(3)]
    assert sum(counts) == 400
    assert 12 <= min(counts) <= max(counts) <= 60


def test_random_draws_the_gpu_of_each_container():
    nodes = [node("a", *[16_000] * 8)]
    places = run("random", nodes, *[(share(10), share(10))] * 20)
    assert len({tuple(gpus) for _, gpus in places}) > 10


def test_gpushare_leaves_the_node_to_the_tie_break():
    nodes = [node("a", 16_000, rank=2), node("b", 16_000, 16_000, rank=1)]
    assert run("gpushare", nodes, share(9_000), share(9_000), share(1_000), share(9_000)) == [
        ("b", [0]),
        ("b", [1]),
        ("b", [0]),
        ("a", [0]),
    ]


def test_nano_policies_choose_nodes_as_they_are_before():
    nodes = [node("a", 16_000, 16_000), node("b", 16_000)]
    assert run("nano-binpack", nodes, share(milli=400), share(milli=400)) == [
        ("b", [0]),
        ("b", [0]),
    ]
    assert run("nano-spread", nodes, share(milli=400), share(milli=400), share(milli=400)) == [
        ("a", [1]),
        ("a", [0]),
        ("b", [0]),
    ]


def test_nano_ranks_by_memory_where_no_cores_are_asked():
    nodes = [node("a", 16_000, 16_000)]
    assert run("nano-binpack", nodes, share(9_000), share(9_000), share(1_000)) == [
        ("a", [0]),
        ("a", [1]),
        ("a", [0]),
    ]


class TestAlnair:
    NODES = (node("a", 16_160, 16_160, uuids=("GPU-z", "GPU-b")), node("b", 16_160))

    def test_cost_saving_packs_nodes_and_takes_the_first_uuid(self):
        pods = [share(6_000), share(6_000), share(6_000)]
        assert run("alnair-cost-saving", self.NODES, *pods) == [
            ("a", [1]),
            ("a", [1]),
            ("a", [0]),
        ]

    def test_high_performance_spreads_over_nodes(self):
        pods = [share(6_000), share(6_000), share(8_000)]
        assert run("alnair-high-performance", self.NODES, *pods) == [
            ("a", [1]),
            ("b", [0]),
            ("a", [1]),
        ]

    def test_exact_rates_all_nodes_alike(self):
        pods = [share(6_000), share(14_000), share(14_000), share(6_000)]
        for policy in ("alnair-cost-saving", "alnair-high-performance"):
            assert run(policy, self.NODES, *pods, compat="exact") == [
                ("a", [1]),
                ("a", [0]),
                ("b", [0]),
                ("a", [1]),
            ]

    @pytest.mark.parametrize(
        ("raw", "normal"),
        [
            ([0, 0], [100, 100]),
            ([4, 20], [0, 100]),
            ([4, 12, 20], [0, 50, 100]),
            ([-20, -10], [0, 50]),
            ([7, 7], [100, 100]),
        ],
    )
    def test_normalize_score(self, raw, normal):
        assert AlnairCostSaving().normalize(np.array(raw, dtype=np.int64)).tolist() == normal


def test_elastic_binpack_counts_in_a_mix_with_another_policy():
    registry = built_in()
    plugins = [Plugin(registry.create("elastic-binpack"), 3), Plugin(registry.create("best-fit"))]
    engine = Engine([Profile("weft", plugins)], [node("a", 16_000), node("b", 16_000, 16_000)])
    shape = Shape((share(4_000),))
    command = engine.handle(PodAdded(PodRequest("p", "p", shape)), 0)[0]
    assert (command.placement.node, command.placement.shares[0].gpu) == ("b", 1)


@pytest.mark.parametrize(
    "policy", ["elastic-binpack", "alnair-cost-saving", "alnair-high-performance"]
)
def test_compat_has_two_values(policy):
    with pytest.raises(BadInputError, match=f"policy {policy}, option compat: 'lax' is unknown"):
        built_in().create(policy, compat="lax")


@pytest.mark.parametrize("policy", built_in().names())
def test_pods_without_a_gpu_are_placed_by_every_policy(policy):
    shape = Shape((), cpu_milli=1000)
    engine = Engine([Profile("weft", [built_in().create(policy)])], [node("a"), node("b", 16_000)])
    command = engine.handle(PodAdded(PodRequest("p", "p", shape)), 0)[0]
    assert isinstance(command, Bind)
    assert command.placement.shares == ()
