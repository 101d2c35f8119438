"""Plans to move pods are the smallest there are, and hold when they are played."""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from itertools import count as count_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Bind, Engine, Event, PodAdded, PodGone, PodSeenBound
from weft.core.engine.making_room import RoomSearch
from weft.core.engine.move_trials import MovablePod
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.core.policies.spreading import SpreadPolicy
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
    nodes: list[Node],
    places: dict[str, Placement],
    wanted: PodRequest,
    moved: Sequence[PodRequest],
    *,
    waits: bool,
) -> bool:
    """Played on an engine of its own, by events: each goes and comes again, one after the other.
    Does every one find a place, and the wanted pod, which waits all along or comes at the end?"""
    engine, bound, now = _engine(nodes, places.values()), set(), count_from(1, 10**12)

    def tell(event: Event) -> None:
        commands = engine.handle(event, next(now))  # past any back-off
        bound.update(command.pod.uid for command in commands if isinstance(command, Bind))

    def come(pod: PodRequest) -> None:
        tell(PodAdded(pod))

    if waits:
        come(wanted)
    for pod in moved:
        tell(PodGone(pod.uid))
        come(again := replace(pod, uid=f"{pod.uid} again"))
        if again.uid not in bound:
            return False
    if not waits:
        come(wanted)
    return wanted.uid in bound


@settings(max_examples=few_or_many(12, 1000), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_no_plan_moves_fewer_pods_and_none_as_small_loses_less(seed: int, waits: bool) -> None:
    nodes, pods, places, wanted = _world(seed)
    chance = random.Random(seed)
    movable = [
        MovablePod(pod, chance.choice((1.0, 5.0, 9.0)), ("b",) if chance.random() < 0.5 else ())
        for pod in pods
        if chance.random() < 0.8
    ]
    engine = _engine(nodes, places.values())
    before = engine.ledger.table.device_cells.copy()
    found = RoomSearch(engine, movable, {"b": 1}, waits=waits).plan(wanted, most_moves=2)
    assert (engine.ledger.table.device_cells == before).all()

    def works(some: Sequence[MovablePod]) -> bool:
        return _works(nodes, places, wanted, [one.request for one in some], waits=waits)

    best: tuple[int, float] | None = None
    for count in range(3):
        lost = [
            sum(one.lost_gpu_s for one in some)
            for some in combinations(movable, count)
            if sum(bool(one.budgets) for one in some) <= 1 and any(map(works, permutations(some)))
        ]
        if lost:
            best = count, min(lost)
            break
    assert (found and (len(found.moves), found.lost_gpu_s)) == best
    if found is not None:
        assert found.smallest
        again = {one.request.uid: one for one in movable}
        assert works([again[move.uid] for move in found.moves])
        assert all(move.from_node == places[move.uid].node for move in found.moves)


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
