"""Least stranding decides as its formulas, worked out node by node."""

import hashlib
import math
import random

import numpy as np
import pytest
from long_form import few_or_many
from stranding_slowly import SlowStranding, SlowTurnover

from weft.core.engine import Bind, Engine, PodAdded, PodBound, PodGone, PolicyInput
from weft.core.framework import Demand, Profile, Query
from weft.core.framework.fragments import TYPICAL_PODS, typical_input
from weft.core.framework.popularity import POPULAR_PODS
from weft.core.ledger import Ledger
from weft.core.policies.least_stranding import SETTINGS, LeastStranding
from weft.core.policies.stranding_prices import USUAL_ROUNDS, completion_values, exponential
from weft.model import DeviceRule, GpuRequest, Node, PodRequest, Shape
from weft.model.node import Gpu
from weft.testing import node, placement
from weft.testing import shape as shape_of

PODS_PER_PRICES = LeastStranding().prices_every.pods

MODELS = ("A10", "V100", "H100")


def _cluster(chance: random.Random, count: int = 12) -> list[Node]:
    return [
        Node(
            f"n{number:02}",
            tuple(
                Gpu(index, 16_384, model=model, uuid=f"GPU-{number}-{index}")
                for index in range(chance.choice((0, 1, 2, 4, 8)))
            ),
            cpu_milli=chance.choice((16_000, 64_000, 96_000)),
            memory_mib=chance.choice((65_536, 262_144)),
            rank=number,
        )
        for number in range(count)
        for model in [chance.choice(MODELS)]
    ]


def _shape(chance: random.Random) -> Shape:
    kind = chance.random()
    gpus: tuple[GpuRequest, ...] = ()
    if kind > 0.45:
        gpus = (GpuRequest(milli=chance.choice((100, 250, 330, 500, 810, 900))),)
    elif kind > 0.15:
        gpus = (GpuRequest(chance.choice((1, 1, 2, 4, 8)), whole=True),)
    models = tuple(chance.sample(MODELS, 2)) if chance.random() < 0.2 else ()
    return Shape(
        gpus,
        chance.choice((0, 1_000, 4_000, 11_900)),
        memory_mib=chance.choice((0, 4_096, 30_000)),
        devices=DeviceRule(models=models, how="exact") if gpus and models else DeviceRule(),
    )


@pytest.mark.parametrize("setting", [*SETTINGS, "learnt"])
@pytest.mark.parametrize("seed", range(few_or_many(1, 40)))
def test_each_pod_is_placed_as_the_formulas_say(setting: str, seed: int) -> None:
    """Pods come; where capacity is learnt to come back, some of them end too."""
    chance = random.Random(f"{setting} {seed}")
    nodes = _cluster(chance, few_or_many(12, 40) // (3 if setting == "learnt" else 1))
    kinds = [_shape(chance) for _ in range(14)]
    every = few_or_many(60, PODS_PER_PRICES)
    count = 300 if setting == "learnt" else every + few_or_many(30, 60)
    shapes = [chance.choice(kinds) for _ in range(count)]
    policy = LeastStranding(setting=setting, pods_per_prices=every)  # type: ignore[arg-type]
    engine = Engine([Profile("weft", [policy])], nodes)
    engine.handle(PolicyInput(TYPICAL_PODS, typical_input(shapes)), 0)
    counted = [(shape, shapes.count(shape)) for shape in dict.fromkeys(shapes)]
    slow = SlowStranding(nodes, counted, *SETTINGS.get(setting, SETTINGS["inflation"]))
    turnover, placed = SlowTurnover(), {}
    for at, shape in enumerate(shapes):
        if at % every == 0:
            turnover.seen = at
            turnover.settle()
            slow.f, slow.pack = _constants(setting, turnover.comes_back)
            slow.refresh()
        if setting == "learnt" and placed and chance.random() < 0.15:
            gone = chance.choice(list(placed))
            slow.end(shapes[gone], placed.pop(gone))
            turnover.frees(gone)
            engine.handle(PodGone(str(gone)), at)
        expected = slow.place(shape)
        bound = [
            (
                command.placement.node,
                tuple(sorted(share.gpu for share in command.placement.shares)),
            )
            for command in engine.handle(PodAdded(PodRequest(str(at), f"p{at}", shape)), at)
            if isinstance(command, Bind)
        ]
        if expected is None:
            assert not bound
            engine.handle(PodGone(str(at)), at)
            continue
        assert bound == [expected]
        placed[at] = expected
        on_gpus = next(bool(node.gpus) for node in nodes if node.name == expected[0])
        turnover.takes(at, shape.cpu_milli + 1 if on_gpus else 0)
        engine.handle(PodBound(str(at)), at)
    assert len(placed) > 20
    assert setting != "learnt" or 0 < turnover.comes_back < 1


def _constants(setting: str, part: float) -> tuple[float, float]:
    if setting != "learnt":
        return SETTINGS[setting]
    (f_fixed, pack_fixed), (f_living, pack_living) = SETTINGS["inflation"], SETTINGS["living"]
    return (1 - part) * f_fixed + part * f_living, (1 - part) * pack_fixed + part * pack_living


def test_nodes_are_asked_alike_one_by_one_and_together() -> None:
    """A table rebuilt from the same nodes, where nothing is kept, decides alike."""
    chance = random.Random(5)
    nodes = _cluster(chance)
    kinds = [_shape(chance) for _ in range(10)]
    profile = Profile("weft", [LeastStranding()])
    engine = Engine([profile], nodes)
    for at in range(60):
        shape = chance.choice(kinds)
        for command in engine.handle(PodAdded(PodRequest(str(at), f"p{at}", shape)), at):
            if isinstance(command, Bind):
                engine.handle(PodBound(str(at)), at)
    kept = [engine.assess(profile, PodRequest("x", "x", shape)).raw[0].tolist() for shape in kinds]
    engine.assessor.forget()
    anew = [engine.assess(profile, PodRequest("x", "x", shape)).raw[0].tolist() for shape in kinds]
    assert kept == anew


def test_a_share_is_worth_what_completes_it() -> None:
    halves = completion_values({50: 1.0}, USUAL_ROUNDS)
    assert halves[49] == 0
    assert halves[50] == halves[99] == 500
    assert halves[100] == 1000
    mixed = completion_values({30: 1.0, 70: 1.0}, USUAL_ROUNDS)
    assert np.all(np.diff(mixed) >= 0)
    assert mixed[30] + mixed[70] == pytest.approx(1000, abs=5)  # together they fill a GPU
    assert completion_values({}, USUAL_ROUNDS).tolist() == [0.0] * 100 + [1000.0]


def test_prices_have_the_same_bits_on_every_processor() -> None:
    """A golden vector: processors with AVX-512 drew another figure for the same pods."""
    sizes = {7: 4.0, 20: 5.0, 25: 8.0, 33: 0.5, 50: 9.0, 70: 2.0}
    bits = hashlib.sha256(completion_values(sizes, USUAL_ROUNDS).tobytes()).hexdigest()
    assert bits == "e7968368c1bacc5584cd5ea0c08dcaed810afe638f59e38dde104baf2585ce27"
    for power in np.linspace(-60, 0, 601).tolist():
        assert exponential(power) == pytest.approx(math.exp(power), rel=1e-8)
    assert exponential(-1e9) == exponential(-700.0) > 0


def test_the_example_in_its_header() -> None:
    """Node a's cards have 500 and 1000 thousandths free, b's 300 and 1000."""
    ledger = Ledger([node(name, gpus=2, cpu_milli=24_000) for name in "ab"])
    assert ledger.reserve(placement("p", "a", 0, milli=500))
    assert ledger.reserve(placement("q", "b", 0, milli=700))
    policy = LeastStranding(setting="inflation")
    of_500, of_300, whole = shape_of(milli=500), shape_of(milli=300), shape_of(gpus=1)
    popular = [(of_500, 2), (of_300, 1), (whole, 1), (shape_of(gpus=2), 1)]
    policy.take_input(POPULAR_PODS, popular)

    def costs(asked: Shape) -> list[int]:
        scores = policy.score_devices(Query(ledger.table, Demand(asked, ledger.table)))
        assert scores is not None
        return [round(-score / 100) for score in scores.tolist()]

    assert costs(of_300) == [483, 340, 338, 339]
    assert costs(of_500)[0] == min(costs(of_500))
    assert policy._prices is not None
    (worth,) = policy._prices.popularity.completion.reshape(1, -1)
    assert [round(worth[part]) for part in (20, 30, 50, 70)] == [0, 333, 477, 666]
