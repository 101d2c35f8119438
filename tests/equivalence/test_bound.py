"""The bound is never below the best that trying every placement finds, and proves what it says."""

import random
from fractions import Fraction
from itertools import count as count_from
from pathlib import Path

import msgspec
import pytest
from best_slowly import best_milli
from long_form import few_or_many

from weft.core.policies.packing import FirstFit
from weft.lab.bound.column_generation import SCALE, BoundSearch, Demanded, Found, prove
from weft.lab.bound.of_runs import BoundSettings, RunBounds, SavedBounds
from weft.lab.bound.pricing import dearest
from weft.lab.bound.relaxation import NodeType, Relaxation, relax
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.openb import TracePod
from weft.lab.simulate.scenario import Scenario
from weft.model import DeviceRule, Gpu, GpuMemoryRequest, GpuRequest, Node, Shape

MODELS = ("A10", "H100")


def _nodes(chance: random.Random) -> list[Node]:
    mixed = chance.random() < 0.2
    nodes = []
    for number in range(chance.choice((1, 2, 2, 3))):
        model, sizes = chance.choice(MODELS), {"A10": 24_000, "H100": 80_000}
        gpus = tuple(
            Gpu(at, sizes[one], one)
            for at in range(chance.choice((0, 1, 2, 4)))
            for one in [chance.choice(MODELS) if mixed else model]
        )
        cpu = chance.choice((3_333, 8_000, 16_000))
        nodes.append(Node(f"n{number}", gpus, cpu, chance.choice((16_384, 65_536))))
    return nodes


def _pod(chance: random.Random, by_memory: bool) -> tuple[Shape, int]:
    kind, requests, milli = chance.random(), (), 0
    if kind > 0.45:
        milli = chance.choice((37, 250, 330, 500, 810))
        memory = GpuMemoryRequest("mib", milli * 24) if by_memory else GpuMemoryRequest()
        requests = (GpuRequest(memory=memory, milli=0 if by_memory else milli),)
        if chance.random() < 0.1:
            requests, milli = (msgspec.structs.replace(requests[0], count=2),), 2 * milli
    elif kind > 0.15:
        gpus = chance.choice((1, 1, 2, 4))
        requests, milli = (GpuRequest(gpus, whole=True),), 1000 * gpus
    rule = DeviceRule(models=(chance.choice(MODELS),)) if chance.random() < 0.2 else DeviceRule()
    cpu, memory_mib = chance.choice((0, 777, 1_000, 4_000)), chance.choice((0, 4_096, 30_000))
    return Shape(requests, cpu, memory_mib, devices=rule if requests else DeviceRule()), milli


def _world(seed: int) -> tuple[Scenario, Arrivals, int | None]:
    """A cluster, pods, and how many of them come before the first that first-fit turns away."""
    chance = random.Random(f"bound {seed}")
    nodes, by_memory = _nodes(chance), chance.random() < 0.3
    kinds = [_pod(chance, by_memory) for _ in range(4)]
    pods = [
        TracePod(f"p{at}", shape, 1 if milli else 0, milli)
        for at in range(chance.choice((4, 6, 8)))
        for shape, milli in [chance.choice(kinds)]
    ]
    scenario = Scenario(nodes, pods)
    order = Arrivals(seed, list(range(len(pods))), list(range(len(nodes))))
    run = run_inflation(scenario, FirstFit(), order, timing=False)
    return scenario, order, run.first_failed


def _search(relaxation: Relaxation, demanded: Demanded) -> Found:
    looks = count_from()
    return BoundSearch(relaxation).search(demanded, go_on=lambda *_: next(looks) < 60)


def _demanded(scenario: Scenario, relaxation: Relaxation, must: int | None) -> Demanded:
    pods = [(pod.shape, pod.total_milli) for pod in scenario.pods]
    return Demanded(tuple(relaxation.counts(pods[:must])), tuple(relaxation.counts(pods)))


def test_the_bound_is_never_below_the_best_placement_and_seldom_far_above() -> None:
    gaps, prove_anew = [], random.Random(3)
    for seed in range(few_or_many(20, 2000)):
        scenario, _, failed = _world(seed)
        pods = [(pod.shape, pod.total_milli) for pod in scenario.pods]
        must = len(pods) if failed is None else failed
        best = best_milli(scenario.nodes, pods, must)
        assert best is not None, seed
        relaxation = relax(scenario.nodes, pods)
        demanded = _demanded(scenario, relaxation, must)
        found = _search(relaxation, demanded)
        assert found.bound_milli >= best, seed
        any_prices = [prove_anew.randrange(3000 * SCALE) for _ in relaxation.pieces]
        assert prove(relaxation, demanded, any_prices).bound_milli >= best, seed
        gaps.append(float(found.bound_milli) - best)
    assert sum(gap < 1 for gap in gaps) > len(gaps) / 2  # and often it is the best itself


def _holds(node: NodeType, relaxation: Relaxation, counts: list[int]) -> bool:
    """Tells whether pieces fit a node of one kind of GPU, tried one after another."""
    kind, gpus = node.gpus[0]
    cpu = sum(n * piece.cpu for n, piece in zip(counts, relaxation.pieces, strict=True))
    whole = sum(n * p.gpus for n, p in zip(counts, relaxation.pieces, strict=True) if p.gpus > 1)
    shares = sorted(
        (
            piece.levels[kind]
            for n, piece in zip(counts, relaxation.pieces, strict=True)
            for _ in range(n if piece.gpus == 1 else 0)
        ),
        reverse=True,
    )

    def fits(at: int, free: tuple[int, ...]) -> bool:
        return at == len(shares) or any(
            free[g] >= shares[at]
            and fits(at + 1, tuple(sorted((*free[:g], free[g] - shares[at], *free[g + 1 :]))))
            for g in range(len(free))
        )

    room = gpus - whole
    return cpu <= node.cpu and room >= 0 and fits(0, (relaxation.full[kind],) * room)


@pytest.mark.parametrize("seed", range(few_or_many(6, 50)))
def test_prices_are_feasible_in_the_dual_for_every_configuration_there_is(seed: int) -> None:
    """Each configuration, counted out, is worth no more than the node's price, in fractions; and
    one is worth as much."""
    chance = random.Random(f"dual {seed}")
    gpus = tuple(Gpu(at, 24_000, "A10") for at in range(chance.choice((1, 2, 3))))
    nodes = [Node("n", gpus, chance.choice((3_000, 5_000)), 65_536)]
    pods = [_pod(chance, by_memory=False) for _ in range(5)]
    pods = [(msgspec.structs.replace(one, devices=DeviceRule()), milli) for one, milli in pods]
    relaxation = relax(nodes, pods)
    prices = [chance.randrange(1, 900 * SCALE) for _ in relaxation.pieces]
    prices = [0 if p.is_free else n for p, n in zip(relaxation.pieces, prices, strict=True)]
    (node,), (answer,) = relaxation.node_types, dearest(relaxation, prices)
    price = Fraction(answer.worth, SCALE)
    worths = []

    def each(at: int, counts: list[int]) -> None:
        if at == len(relaxation.pieces):
            worths.append(sum(Fraction(p, SCALE) * n for p, n in zip(prices, counts, strict=True)))
            return
        each(at + 1, [*counts, 0])
        piece, number = relaxation.pieces[at], 1
        if piece.is_free or not piece.nodes[node.node_class]:
            return
        while _holds(node, relaxation, [*counts, number, *[0] * (len(prices) - at - 1)]):
            each(at + 1, [*counts, number])
            number += 1

    each(0, [])
    assert max(worths) == price
    assert sum(prices[piece] * n for piece, n in answer.pieces) == answer.worth


def test_free_rejection_allows_more_than_taking_who_came_first() -> None:
    whole, part = Shape((GpuRequest(whole=True),)), Shape((GpuRequest(milli=600),))
    pods = [TracePod("a", part, 1, 600), TracePod("b", whole, 1, 1000)]
    nodes = [Node("n", (Gpu(0, 16_000),), 8_000, 8_000)]
    relaxation = relax(nodes, [(pod.shape, pod.total_milli) for pod in pods])
    scenario = Scenario(nodes, pods)
    assert _search(relaxation, _demanded(scenario, relaxation, 0)).bound_milli == 1000
    taken = _search(relaxation, _demanded(scenario, relaxation, 1)).bound_milli
    assert 600 <= taken <= 601


def test_a_bound_is_found_again_in_its_file_and_proved_anew(tmp_path: Path) -> None:
    scenario, order, _ = _world(7)
    run = run_inflation(scenario, FirstFit(), order, timing=False)
    saved = SavedBounds(tmp_path, scenario)
    first = RunBounds(scenario, BoundSettings(), saved).of(run, order)
    searched: list[float] = []
    again = RunBounds(
        scenario,
        BoundSettings(),
        SavedBounds(tmp_path, scenario),
        lambda *at: searched.append(at[1]),
    ).of(run, order)
    assert again == first
    assert not searched

    bounds = msgspec.json.decode(saved.path.read_bytes())
    for one in bounds.values():
        one["prices"] = [0 for _ in one["prices"]]  # a lie proves less, never too much
    saved.path.write_bytes(msgspec.json.encode(bounds))
    forged = RunBounds(scenario, BoundSettings(), SavedBounds(tmp_path, scenario)).of(run, order)
    assert forged.percent >= first.percent

    saved.path.write_text("{not JSON")
    anew = RunBounds(scenario, BoundSettings(), SavedBounds(tmp_path, scenario)).of(run, order)
    assert anew == first
    other = Scenario(scenario.nodes, scenario.pods[1:])
    assert SavedBounds(tmp_path, other).path != saved.path
