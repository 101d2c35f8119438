"""Every policy decides like its slow reference: node and GPU, pod by pod, on random clusters."""

import random

import policies_slowly as slowly
import pytest
from long_form import few_or_many
from placing_slowly import Machine, Reference

from weft.core.engine.engine import Engine
from weft.core.engine.events import Bind, PodAdded, PodBound, PodGone
from weft.core.framework import Profile
from weft.core.framework.fragments import TypicalPods
from weft.core.policies.catalog import built_in
from weft.model import DeviceRule, Gpu, GpuMemoryRequest, GpuRequest, Node, PodRequest, Shape
from weft.model.request import WHOLE_CARD

CLUSTERS = few_or_many(5, 48)
PODS = 16
CARDS = (("T4", 15_360), ("V100", 16_160), ("A10", 23_028))

TYPICAL = TypicalPods(
    [Shape((GpuRequest(milli=500),), 4000)] * 5
    + [Shape((GpuRequest(whole=True),), 8000)] * 3
    + [Shape((GpuRequest(2, whole=True),), 16_000)] * 2
    + [Shape((GpuRequest(milli=230),), 2000, devices=DeviceRule(("T4",)), trace_spec="T4")] * 2
    + [Shape((), 6000)] * 2
)

PAIRS = [
    ("best-fit", {}, slowly.BestFit()),
    ("dot-product", {}, slowly.DotProduct()),
    ("gpu-packing", {}, slowly.GpuPacking()),
    ("gpu-clustering", {}, slowly.GpuClustering()),
    ("random", {}, slowly.Random()),
    ("first-fit", {}, slowly.FirstFit()),
    ("exclusive", {}, slowly.Exclusive()),
    ("binpack", {}, slowly.Binpack()),
    ("spread", {}, slowly.Spread()),
    ("gpushare", {}, slowly.GpuShare()),
    ("smallest-first", {}, slowly.SmallestFirst()),
    ("nano-binpack", {}, slowly.NanoBinpack()),
    ("nano-spread", {}, slowly.NanoSpread()),
    ("alnair-cost-saving", {}, slowly.AlnairCostSaving()),
    ("alnair-cost-saving", {"compat": "exact"}, slowly.AlnairExact()),
    ("alnair-high-performance", {}, slowly.AlnairHighPerformance()),
    ("alnair-high-performance", {"compat": "exact"}, slowly.AlnairExact()),
    ("elastic-binpack", {}, slowly.ElasticBinpack()),
    ("elastic-binpack", {"compat": "exact"}, slowly.ElasticBinpackExact()),
    ("elastic-spread", {}, slowly.ElasticSpread()),
    ("fgd", {"typical": TYPICAL}, slowly.Fgd(TYPICAL)),
]


def a_node(dice: random.Random, number: int) -> Node:
    mixed = dice.random() < 0.3
    card = dice.choice(CARDS)
    gpus = []
    for index in range(dice.choice([0, 1, 1, 2, 2, 3, 4, 6])):
        model, memory = dice.choice(CARDS) if mixed else card
        gpus.append(
            Gpu(
                index,
                memory,
                model,
                f"GPU-{dice.randrange(1 << 32):08x}",
                in_service=dice.random() > 0.04,
            )
        )
    return Node(
        f"n{number}",
        tuple(gpus),
        dice.choice([8000, 32_000, 96_000]),
        65_536,
        rank=dice.randrange(3),
    )


def a_memory(dice: random.Random) -> GpuMemoryRequest:
    return dice.choice(
        [
            GpuMemoryRequest("mib", dice.choice([256, 1000, 4000, 8138, 14_000])),
            GpuMemoryRequest("units", dice.randint(1, 9), unit_mib=1024),
            GpuMemoryRequest("percent", dice.choice([10, 25, 50, 90])),
        ]
    )


def a_claim(dice: random.Random) -> GpuRequest:
    kind = dice.choice(["memory", "memory", "cores", "cores", "both", "whole", "several"])
    if kind == "whole":
        return GpuRequest(dice.choice([1, 1, 2, 3]), WHOLE_CARD, whole=True)
    memory = a_memory(dice) if kind != "cores" else GpuMemoryRequest()
    milli = dice.choice([50, 230, 470, 810, 1000]) if kind in {"cores", "both"} else 0
    count = 2 if kind == "several" else 1
    return GpuRequest(count, memory, milli, headroom_mib=dice.choice([0, 0, 0, 1]))


def a_shape(dice: random.Random) -> Shape:
    gpu_requests = tuple(a_claim(dice) for _ in range(dice.choice([0, 1, 1, 1, 1, 2, 3])))
    if len(gpu_requests) > 1 and dice.random() < 0.3:
        gpu_requests = (gpu_requests[0],) * len(gpu_requests)
    models = dice.sample([model for model, _ in CARDS], 2) if dice.random() < 0.15 else []
    return Shape(
        gpu_requests,
        dice.choice([0, 500, 2000, 6000]),
        dice.choice([0, 1024]),
        devices=DeviceRule(tuple(models)),
    )


def replay(dice: random.Random, policy, reference: Reference) -> None:
    """Pods come, most stay, some go; after each arrival both must have decided alike."""
    nodes = [a_node(dice, number) for number in range(dice.randint(2, 6))]
    shapes = [a_shape(dice) for _ in range(5)]
    engine = Engine([Profile("weft", [policy])], nodes, seed=7)
    machines = [Machine(node) for node in nodes]
    placed: dict[str, tuple] = {}
    for number in range(PODS):
        uid, shape = f"pod-{number}", dice.choice(shapes)
        command = engine.handle(PodAdded(PodRequest(uid, uid, shape)), number)[0]
        wanted = reference.shape(shape)
        expected = reference.decide(machines, wanted, f"7/{uid}/1")
        if expected is None:
            assert not isinstance(command, Bind), (uid, shape, command)
            engine.handle(PodGone(uid), number)
        else:
            assert isinstance(command, Bind), (uid, shape, expected)
            place = command.placement
            got = (place.node, [(share.gpu_request, share.gpu) for share in place.shares])
            machine, chosen = expected
            assert got == (machine.name, chosen), (uid, wanted)
            engine.handle(PodBound(uid), number)
            machine.place(wanted, chosen)
            placed[uid] = (machine, wanted, chosen)
        if placed and dice.random() < 0.3:
            gone = dice.choice(sorted(placed))
            engine.handle(PodGone(gone), number)
            machine, old, chosen = placed.pop(gone)
            machine.place(old, chosen, -1)


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    PAIRS,
    ids=[f"{name}{'-exact' if 'compat' in options else ''}" for name, options, _ in PAIRS],
)
def test_decides_like_the_slow_reference(name, options, reference):
    for number in range(CLUSTERS):
        policy = built_in().create(name, **options)
        replay(random.Random(f"{name}/{number}"), policy, reference)


def test_there_are_a_thousand_clusters_in_the_long_form():
    assert len(PAIRS) * CLUSTERS >= few_or_many(105, 1000)
