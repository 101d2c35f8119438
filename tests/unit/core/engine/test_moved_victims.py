"""Victims that may move do so for a more important pod, where there is room for them elsewhere."""

from engine_talk import SECOND, one_card, places
from msgspec.structs import replace

from weft.core.engine import (
    BudgetsChanged,
    Command,
    Engine,
    Evict,
    NotEvicted,
    PodAdded,
    PodGone,
    PodSeenBound,
    Tick,
)
from weft.core.explain.sentences import preempted_in_words
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.core.preempt import Budget
from weft.model import Gang, Node, PodMarks, PodRequest
from weft.model.queue_rules import HeadOfLine
from weft.model.request import Constraints
from weft.model.selectors import PodSelector, Requirement
from weft.testing import node, placement, pod

CARD = 16_384


def preempting_on(*nodes: Node, law: bool = False) -> Engine:
    return Engine([Profile("weft", [BestFit()], preempts=True, budgets_are_law=law)], nodes)


def share(name: str, memory_mib: int, priority: int = 0) -> PodRequest:
    return pod(name, memory_mib=memory_mib, priority=priority)


def there(
    engine: Engine, asked: PodRequest, on: str, gpu: int = 0, *, movable: bool = False
) -> None:
    """The API shows the pod bound there; `movable`: it would be made anew, and may move."""
    (asks,) = asked.shape.gpu_requests
    where = placement(asked.uid, on, gpu, memory_mib=asks.memory.value)
    seen = PodSeenBound(
        where, marks=PodMarks("default", {"app": asked.uid}), priority=asked.priority
    )
    engine.handle(replace(seen, movable=asked) if movable else seen, 0)


def asked_to_go(commands: list[Command]) -> dict[str, str]:
    """Victims, and the nodes that have room for them ("": they are ended)."""
    evicted = [each for each in commands if isinstance(each, Evict)]
    return {
        each.placement.uid: each.record.preempted.moves_to
        for each in evicted
        if each.record.preempted
    }


def two_cards() -> Engine:
    """Node a is full: a pod of 10,000 MiB that may move, of priority 5, and on the other card one
    that may not, of priority 1. Node b has room for 10,000, and not for 12,000."""
    engine = preempting_on(node("a", gpus=2), one_card("b"))
    there(engine, share("moves", 10_000, 5), "a", 0, movable=True)
    there(engine, share("ends", CARD, 1), "a", 1)
    there(engine, share("small", 6_000, 9), "b")
    return engine


def test_a_pod_that_may_move_is_found_behind_many_that_fit_nowhere_else() -> None:
    full = [f"n{at:02d}" for at in range(40)]
    engine = preempting_on(*(one_card(name) for name in (*full, "y", "z")))
    for name in full:
        there(engine, share(f"on-{name}", 15_000), name, movable=True)
    there(engine, share("small", 6_000), "y", movable=True)
    there(engine, share("beside", 9_000, 9), "y")
    there(engine, share("stays", 10_000, 9), "z")
    commands = engine.handle(PodAdded(share("high", 7_000, 9)), 0)
    assert asked_to_go(commands) == {"small": "z"}


def test_a_pod_that_may_move_goes_before_a_less_important_one_that_would_end() -> None:
    engine = two_cards()
    commands = engine.handle(PodAdded(share("high", 12_000, 9)), 0)
    assert asked_to_go(commands) == {"moves": "b"}
    (evict,) = (each for each in commands if isinstance(each, Evict))
    assert evict.record.preempted
    assert preempted_in_words(evict.record.preempted) == (
        "moved for default/high (priority 9; this pod has 5); there is room for it on node b"
    )
    assert places(engine.handle(PodGone("moves"), SECOND)) == {"high": "a"}
    assert places(engine.handle(PodAdded(share("anew", 10_000, 5)), SECOND)) == {"anew": "b"}
    assert audit(engine.ledger) == []


def test_without_room_elsewhere_the_least_important_one_ends_as_before() -> None:
    engine = two_cards()
    there(engine, share("more", 4_000, 9), "b")
    commands = engine.handle(PodAdded(share("high", 12_000, 9)), 0)
    assert asked_to_go(commands) == {"ends": ""}


def test_a_pod_that_is_as_important_never_moves_for_another() -> None:
    engine = two_cards()
    assert asked_to_go(engine.handle(PodAdded(share("equal", 12_000, 5)), 0)) == {"ends": ""}


def test_two_move_only_if_there_is_room_for_both() -> None:
    for free, moved in ((16_000, {"one": "b", "two": "b"}), (8_000, {"one": "b", "two": ""})):
        engine = preempting_on(one_card("a"), one_card("b"))
        there(engine, share("one", 8_000, 2), "a", movable=True)
        there(engine, share("two", 8_000, 1), "a", movable=True)
        there(engine, share("fill", CARD - free, 9), "b")
        commands = engine.handle(PodAdded(pod("high", gpus=1, priority=9)), 0)
        assert asked_to_go(commands) == moved


def test_where_one_must_end_the_other_moves_all_the_same() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    there(engine, share("moves", 8_000, 2), "a", movable=True)
    there(engine, share("ends", 8_000, 1), "a")
    there(engine, share("fill", 6_000, 9), "b")
    commands = engine.handle(PodAdded(pod("high", gpus=1, priority=9)), 0)
    assert asked_to_go(commands) == {"moves": "b", "ends": ""}


def test_a_pod_moves_only_where_its_own_rules_let_it() -> None:
    engine = two_cards()
    selecting = Constraints(selector=(("disk", "ssd"),))
    picky = share("moves", 10_000, 5)
    picky = replace(picky, shape=replace(picky.shape, constraints=selecting))
    there(engine, picky, "a", 0, movable=True)
    assert asked_to_go(engine.handle(PodAdded(share("high", 12_000, 9)), 0)) == {"ends": ""}


def test_no_budget_is_violated_for_a_move() -> None:
    engine = two_cards()
    guarded = PodSelector(("default",), (Requirement("app", "In", ("moves",)),))
    engine.handle(BudgetsChanged((Budget("default/moves", guarded, 0),)), 0)
    assert asked_to_go(engine.handle(PodAdded(share("high", 12_000, 9)), 0)) == {"ends": ""}


def test_a_move_asks_the_eviction_api_and_who_may_not_go_is_left_alone() -> None:
    engine = two_cards()
    commands = engine.handle(PodAdded(share("high", 12_000, 9)), 0)
    (evict,) = (each for each in commands if isinstance(each, Evict))
    assert evict.record.preempted
    assert evict.record.preempted.law
    again = engine.handle(NotEvicted("moves", "a budget says no"), SECOND)
    assert asked_to_go(again) == {"ends": ""}


def test_a_pod_of_a_gang_that_ends_as_one_is_ended() -> None:
    engine = preempting_on(one_card("a"), one_card("b"), one_card("c"))
    gang = Gang("kubernetes", "default", "g", 2, ends_as_one=True)
    for name, on in (("g0", "a"), ("g1", "b")):
        asked = replace(share(name, CARD, 1), gang=gang)
        where = placement(name, on, 0, memory_mib=CARD)
        engine.handle(PodSeenBound(where, gang=gang, priority=1, movable=asked), 0)
    there(engine, share("fill", 8_000, 9), "c")
    commands = engine.handle(PodAdded(pod("high", gpus=1, priority=9)), 0)
    assert asked_to_go(commands) == {"g0": "", "g1": ""}


def test_for_a_gang_too_pods_move_where_there_is_room() -> None:
    engine = preempting_on(one_card("a"), one_card("b"), one_card("c"))
    there(engine, share("moves", 4_000, 1), "a", movable=True)
    there(engine, share("fill", 12_000, 9), "c")
    gang = Gang("kubernetes", "default", "g", 2)
    out: list[Command] = []
    for name in ("m0", "m1"):
        member = replace(pod(name, memory_mib=14_000, priority=9), gang=gang)
        out += engine.handle(PodAdded(member), 0)
    assert asked_to_go(out) == {"moves": "c"}


def on(disk: str, asked: PodRequest) -> PodRequest:
    selecting = Constraints(selector=(("disk", disk),))
    return replace(asked, shape=replace(asked.shape, constraints=selecting))


def with_a_place_kept_on_b(moves: PodRequest) -> Engine:
    """Node a, the only one for some, is full of a pod that may move, and what is free of b is kept
    for a pod of priority 5, which waits for another one to be gone."""
    ssd = replace(one_card("a"), labels={"disk": "ssd"})
    engine = preempting_on(ssd, one_card("b"))
    there(engine, moves, "a", movable=True)
    there(engine, share("small", 1_000, 1), "b")
    mid = replace(pod("mid", gpus=1, priority=5), created_ns=1)
    out = engine.handle(PodAdded(mid), 0)
    assert asked_to_go(out) == {"small": ""}
    return engine


def test_no_pod_moves_where_only_a_place_is_free_that_is_kept_for_another() -> None:
    """The pod that comes might take that place; the one that goes for it may not."""
    engine = with_a_place_kept_on_b(share("moves", 10_000, 5))
    high = engine.handle(PodAdded(on("ssd", pod("high", gpus=1, priority=9))), 0)
    assert asked_to_go(high) == {"moves": ""}


def test_a_pod_moves_to_a_place_that_is_kept_for_a_less_important_one() -> None:
    engine = with_a_place_kept_on_b(share("moves", 10_000, 7))
    high = engine.handle(PodAdded(on("ssd", pod("high", gpus=1, priority=9))), 0)
    assert asked_to_go(high) == {"moves": "b"}
    assert audit(engine.ledger) == []


def test_no_pod_moves_to_what_is_kept_for_a_gang_that_waits_longer() -> None:
    ssd = replace(one_card("a"), labels={"disk": "ssd"})
    profile = Profile("weft", [BestFit()], preempts=True)
    soon = HeadOfLine(after_ns=SECOND, keep_for_ns=1_000 * SECOND)
    for moves, to in ((share("moves", 10_000, 3), ""), (share("moves", 10_000, 5), "b")):
        hdd = replace(node("b", gpus=2), labels={"disk": "hdd"})
        engine = Engine([profile], [ssd, hdd], head_of_line=soon)
        there(engine, moves, "a", movable=True)
        there(engine, share("long", CARD, 20), "b")
        gang = Gang("kubernetes", "default", "g", 2)
        for name in ("g0", "g1"):
            member = replace(on("hdd", pod(name, gpus=1, priority=3)), gang=gang)
            engine.handle(PodAdded(member), 0)
        engine.handle(Tick(), 20 * SECOND)
        assert [turn.nodes for turn in engine.kept_places.kept()] == [["b"]]
        high = engine.handle(PodAdded(on("ssd", pod("high", gpus=1, priority=9))), 21 * SECOND)
        assert asked_to_go(high) == {"moves": to}
