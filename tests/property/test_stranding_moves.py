"""Each move of a plan lowers stranded GPUs by most, and the whole holds when it is played."""

import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Bind, Engine, PodAdded, PodGone, PodSeenBound
from weft.core.engine.move_trials import MovablePod
from weft.core.engine.stranding_moves import StrandingSearch
from weft.core.framework import Profile
from weft.core.framework.stranded import stranded_gpus
from weft.core.policies.packing import BestFit
from weft.core.policies.spreading import SpreadPolicy
from weft.model import GpuRequest, Node, Placement, PodRequest, Shape
from weft.testing import node

USUAL = (
    Shape((GpuRequest(milli=500),), 2_000),
    Shape((GpuRequest(whole=True),), 4_000),
    Shape((GpuRequest(2, whole=True),), 8_000),
)


def _pod(uid: str, milli: int, cpu: int) -> PodRequest:
    request = GpuRequest(milli=milli) if milli < 1000 else GpuRequest(whole=True)
    return PodRequest(uid, uid, Shape((request,), cpu))


def _world(seed: int) -> tuple[list[Node], dict[str, PodRequest], dict[str, Placement]]:
    """Nodes over which pods are spread, and where they are."""
    chance = random.Random(f"stranding {seed}")
    nodes = [
        node(f"n{n}", gpus=chance.choice((1, 2, 4)), cpu_milli=chance.choice((6_000, 64_000)))
        for n in range(3)
    ]
    engine = Engine([Profile("weft", [SpreadPolicy()])], nodes)
    pods, places = {}, {}
    for number in range(8):
        pod = _pod(f"p{number}", chance.choice((200, 500, 700, 1000)), chance.choice((500, 3_000)))
        for command in engine.handle(PodAdded(pod), number):
            if isinstance(command, Bind):
                pods[pod.uid], places[pod.uid] = pod, command.placement
    return nodes, pods, places


def _engine(nodes: list[Node], places: Iterable[Placement]) -> Engine:
    engine = Engine([Profile("weft", [BestFit()])], nodes)
    for place in places:
        engine.handle(PodSeenBound(place), 0)
    return engine


def _stranded(engine: Engine) -> int:
    return int(stranded_gpus(engine.ledger.table, USUAL).by.sum())


def _moved(engine: Engine, pod: PodRequest) -> Placement | None:
    """Played by events: it goes, and comes again under the same name."""
    engine.handle(PodGone(pod.uid), 1)
    for command in engine.handle(PodAdded(pod), 1):
        if isinstance(command, Bind):
            return command.placement
    return None


@settings(max_examples=few_or_many(10, 1000), deadline=None)
@given(st.integers(0, 10**6))
def test_each_move_lowers_stranded_gpus_by_most_of_all_moves(seed: int) -> None:
    nodes, pods, places = _world(seed)
    chance = random.Random(seed)
    movable = {
        uid: MovablePod(pod, 1.0, ("b",) if chance.random() < 0.3 else ())
        for uid, pod in pods.items()
        if chance.random() < 0.8
    }
    engine = _engine(nodes, places.values())
    before, held = engine.ledger.table.device_cells.copy(), dict(engine.ledger.holdings)
    found = StrandingSearch(engine, list(movable.values()), USUAL, {"b": 1}).plan(4)
    assert (engine.ledger.table.device_cells == before).all()
    assert engine.ledger.holdings == held
    assert found.lost_gpu_s == len(found.moves)

    now, left = dict(places), 1
    for at in range(len(found.stranded_milli)):
        stranded = _stranded(_engine(nodes, now.values()))
        assert stranded == found.stranded_milli[at]
        drops = {}
        for uid, one in movable.items():
            if any(move.uid == uid for move in found.moves[:at]) or len(one.budgets) > left:
                continue
            played = _engine(nodes, now.values())
            place = _moved(played, one.request)
            if place is not None and place.node != now[uid].node:
                drops[uid] = stranded - _stranded(played), place
        most = max((drop for drop, _ in drops.values()), default=0)
        if at == len(found.moves):
            assert most <= 0 or at == 4
            return
        move = found.moves[at]
        drop, place = drops[move.uid]
        assert (drop, place.node, now[move.uid].node) == (most, move.to_node, move.from_node)
        now[move.uid] = place
        left -= len(movable[move.uid].budgets)


def test_a_move_that_brings_too_little_is_none() -> None:
    nodes = [node("a", gpus=1, cpu_milli=64_000), node("b", gpus=1, cpu_milli=64_000)]
    halves = [_pod("one", 300, 0), _pod("two", 300, 0)]
    engine = Engine([Profile("weft", [SpreadPolicy()])], nodes)
    for half in halves:
        engine.handle(PodAdded(half), 0)
    pods = [MovablePod(half) for half in halves]
    whole = [replace(USUAL[1], cpu_milli=0)]
    found = StrandingSearch(engine, pods, whole).plan(5)
    assert found.stranded_milli == (1400,)  # spread puts it back where it was
    packed = Engine([Profile("weft", [BestFit()])], nodes)
    for holding in engine.ledger.holdings.values():
        packed.handle(PodSeenBound(holding.placement), 0)
    assert StrandingSearch(packed, pods, whole).plan(5).stranded_milli == (1400, 400)
    assert not StrandingSearch(packed, pods, whole, least_milli=1001).plan(5).moves
