"""Plans to move pods are the smallest there are, and hold when they are played."""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.engine import Bind, Engine, PodAdded, PodSeenBound
from weft.core.engine.making_room import MovablePod, RoomSearch
from weft.core.framework import Profile
from weft.core.policies.best_fit import BestFit
from weft.core.policies.spread import SpreadPolicy
from weft.model import GpuRequest, Node, Placement, PodRequest, Shape
from weft.testing import node


def _pod(uid: str, gpus: int, milli: int, cpu: int = 1_000) -> PodRequest:
    whole = milli == 1000
    return PodRequest(
        uid, uid, Shape((GpuRequest(gpus, milli=0 if whole else milli, whole=whole),), cpu)
    )


def _world(seed: int) -> tuple[list[Node], list[PodRequest], dict[str, Placement], PodRequest]:
    """Nodes on which pods are spread, where they are, and a pod that waits."""
    chance = random.Random(f"room {seed}")
    nodes = [
        node(f"n{n}", gpus=chance.choice((1, 2, 4)), cpu_milli=chance.choice((4_000, 64_000)))
        for n in range(chance.choice((2, 3)))
    ]
    engine = Engine([Profile("weft", [SpreadPolicy()])], nodes)
    pods, places = [], {}
    for number in range(8):
        pod = _pod(f"p{number}", 1, chance.choice((200, 300, 500, 700, 1000)))
        for command in engine.handle(PodAdded(pod), number):
            if isinstance(command, Bind) and command.pod.uid == pod.uid:
                pods.append(pod)
                places[pod.uid] = command.placement
    return nodes, pods, places, _pod("wanted", chance.choice((1, 1, 2)), chance.choice((600, 1000)))


def _engine(nodes: list[Node], places: Iterable[Placement]) -> Engine:
    engine = Engine([Profile("weft", [BestFit()])], nodes)
    for place in places:
        engine.handle(PodSeenBound(place), 0)
    return engine


def _works(
    nodes: list[Node], places: dict[str, Placement], pods: Sequence[PodRequest], went: Sequence[str]
) -> bool:
    """Played on an engine of its own, by events: do all of these find a place without `went`?"""
    engine = _engine(nodes, (place for uid, place in places.items() if uid not in went))
    return all(
        any(isinstance(command, Bind) for command in engine.handle(PodAdded(pod), 1 + at))
        for at, pod in enumerate(pods)
    )


@settings(max_examples=few_or_many(20, 1000), deadline=None)
@given(st.integers(0, 10**6))
def test_no_plan_moves_fewer_pods_and_none_as_small_loses_less(seed: int) -> None:
    nodes, pods, places, wanted = _world(seed)
    chance = random.Random(seed)
    movable = [
        MovablePod(pod, chance.choice((1.0, 5.0, 9.0)), ("b",) if chance.random() < 0.5 else ())
        for pod in pods
        if chance.random() < 0.8
    ]
    engine = _engine(nodes, places.values())
    before = engine.ledger.table.device_cells.copy()
    found = RoomSearch(engine, movable, {"b": 1}).plan(wanted, most_moves=2)
    assert (engine.ledger.table.device_cells == before).all()

    best: tuple[int, float] | None = None
    for count in range(3):
        lost = [
            sum(one.lost_gpu_s for one in some)
            for some in combinations(movable, count)
            if sum(bool(one.budgets) for one in some) <= 1
            and _works(nodes, places, [wanted, *_in_order(some)], [one.request.uid for one in some])
        ]
        if lost:
            best = count, min(lost)
            break
    assert (found and (len(found.moves), found.lost_gpu_s)) == best
    if found is not None:
        assert found.smallest
        went = [move.uid for move in found.moves]
        again = {pod.uid: pod for pod in pods}
        assert _works(nodes, places, [wanted, *(again[uid] for uid in went)], went)
        assert all(move.from_node == places[move.uid].node for move in found.moves)


def _in_order(some: Sequence[MovablePod]) -> list[PodRequest]:
    def milli(pod: PodRequest) -> int:
        (ask,) = pod.shape.gpu_requests
        return ask.count * (1000 if ask.whole else ask.milli)

    return sorted((one.request for one in some), key=lambda pod: (-milli(pod), pod.uid))


def test_two_halves_are_put_together_for_a_whole_gpu() -> None:
    nodes = [node("a", gpus=1), node("b", gpus=1)]
    engine = Engine([Profile("weft", [SpreadPolicy()])], nodes)
    halves = [_pod(name, 1, 500) for name in ("one", "two")]
    for at, half in enumerate(halves):
        engine.handle(PodAdded(half), at)
    search = RoomSearch(engine, [MovablePod(halves[0], 7.0), MovablePod(halves[1], 3.0)])
    plan = search.plan(_pod("wanted", 1, 1000))
    assert plan is not None
    assert [(move.uid, move.from_node, move.to_node) for move in plan.moves] == [("two", "b", "a")]
    assert plan.lost_gpu_s == 3.0
    assert RoomSearch(engine, []).plan(_pod("wanted", 1, 1000)) is None


@pytest.mark.parametrize(("allowed", "moved"), [(0, None), (1, 1)])
def test_a_disruption_budget_is_kept(allowed: int, moved: int | None) -> None:
    engine = Engine([Profile("weft", [SpreadPolicy()])], [node("a", gpus=1), node("b", gpus=1)])
    halves = [_pod(name, 1, 500) for name in ("one", "two")]
    for at, half in enumerate(halves):
        engine.handle(PodAdded(half), at)
    movable = [MovablePod(half, budgets=("d/guard",)) for half in halves]
    plan = RoomSearch(engine, movable, {"d/guard": allowed}).plan(_pod("wanted", 1, 1000))
    assert (plan and len(plan.moves)) == moved


def test_a_search_that_is_cut_off_says_so() -> None:
    engine = Engine([Profile("weft", [SpreadPolicy()])], [node("a", gpus=1), node("b", gpus=1)])
    halves = [_pod(name, 1, 500) for name in ("one", "two")]
    for at, half in enumerate(halves):
        engine.handle(PodAdded(half), at)
    search = RoomSearch(engine, [MovablePod(half) for half in halves], most_trials=1)
    assert search.plan(_pod("wanted", 1, 1000)) is None
    assert search.cut_off
