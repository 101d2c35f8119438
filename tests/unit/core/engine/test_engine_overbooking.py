"""Which GPUs hold more than they have, whose pod came too late, and why it goes or stays."""

import itertools

import msgspec
from engine_talk import SECOND, engine_of

from weft.core.engine import (
    BindingsRead,
    Command,
    DoubleBooking,
    Engine,
    Evict,
    EvictionWaived,
    NodesChanged,
    NotEvicted,
    PodBinding,
    PodSeenBound,
)
from weft.core.engine.overbooking import RECENT_NS, double_booked, overbooked_gpus
from weft.core.ledger import Ledger
from weft.model import Gpu, Node, Placement
from weft.testing import node, placement

NODE = node("n", gpus=2, memory_mib=16_000)
FIRST, SECOND_ONE, THIRD = 1 * SECOND, 2 * SECOND, 3 * SECOND
Holder = tuple[Placement, PodBinding]


def holder(uid: str, at_ns: int, memory_mib: int, gpu: int = 0, term: int = 0) -> Holder:
    return placement(uid, "n", gpu, memory_mib=memory_mib), PodBinding(uid, at_ns, 0, term)


def ledger_of(*holders: Holder, on: Node = NODE) -> Ledger:
    ledger = Ledger([on])
    for place, _ in holders:
        ledger.adopt(place)
    return ledger


def late(*holders: Holder, on: Node = NODE) -> list[str]:
    """The same whatever the order they are given in: every Weft must choose alike."""
    ledger = ledger_of(*holders, on=on)
    answers = {
        tuple(pod.held.placement.uid for pod in double_booked(ledger, "n", order))
        for order in itertools.permutations(binding for _, binding in holders)
    }
    assert len(answers) == 1
    return list(answers.pop())


def sure(_: str) -> bool:
    """No pod is unsure."""
    return False


def test_only_gpus_that_hold_more_than_they_have_are_found() -> None:
    ledger = Ledger([NODE])
    ledger.adopt(placement("a", "n", 0, memory_mib=10_000))
    ledger.adopt(placement("full", "n", 1, memory_mib=16_000))
    assert overbooked_gpus(ledger, "n", sure) == ()
    ledger.adopt(placement("b", "n", 0, memory_mib=10_000))
    (found,) = overbooked_gpus(ledger, "n", sure)
    assert (found.gpu, found.memory_over_mib, found.holders) == (0, 4_000, ("a", "b"))
    assert str(found) == "GPU 0 holds 4,000 MiB more than it has"
    assert overbooked_gpus(ledger, "nowhere", sure) == ()


def test_a_card_beside_its_instance_is_overbooked() -> None:
    parts = Node("n", (Gpu(0, 16_000), Gpu(1, 8_000, parent=0)))
    shares = [holder("card", FIRST, 1), holder("instance", SECOND_ONE, 1, gpu=1)]
    (found,) = overbooked_gpus(ledger_of(*shares, on=parts), "n", sure)
    assert found.split
    assert set(found.holders) == {"card", "instance"}
    assert late(*shares, on=parts) == ["instance"]


def test_the_later_bound_goes_whatever_its_term_or_name() -> None:
    assert late(holder("z", FIRST, 10_000, term=1), holder("a", SECOND_ONE, 10_000, term=2)) == [
        "a"
    ]


def test_within_one_second_the_newer_term_stays() -> None:
    """The older leader's decision slipped through a pause: it had lost the lease."""
    assert late(holder("a", FIRST, 10_000, term=1), holder("z", FIRST, 10_000, term=2)) == ["a"]
    assert late(holder("a", FIRST, 10_000), holder("z", FIRST, 10_000)) == ["z"]


def test_never_more_goes_than_must() -> None:
    """The third fits beside the first, once the second is gone."""
    held = holder("1", FIRST, 10_000), holder("2", SECOND_ONE, 10_000), holder("3", THIRD, 6_000)
    assert late(*held) == ["2"]
    assert late(held[0], held[2]) == []


def test_who_is_alone_on_a_card_is_nobodys_double() -> None:
    assert late(holder("a", FIRST, 20_000)) == []


def test_what_is_missing_is_said() -> None:
    holders = holder("a", FIRST, 10_000), holder("b", SECOND_ONE, 9_000)
    (pod,) = double_booked(ledger_of(*holders), "n", [binding for _, binding in holders])
    assert pod.why == DoubleBooking(0, ("a",), lacks_mib=3_000, card_mib=16_000, card_milli=1_000)


# --- the engine's rule ---


def booked(*holders: Holder, on: Node = NODE) -> Engine:
    engine = engine_of(on)
    for place, binding in holders:
        engine.handle(PodSeenBound(place, binding.bound_ns), 0)
    return engine


TWICE = holder("first", FIRST, 10_000), holder("later", SECOND_ONE, 10_000)


def read_of(*holders: Holder, shrunk: bool = False, **changed: int) -> BindingsRead:
    """The bindings of the holders; `changed` is otherwise of the last one."""
    bindings = [binding for _, binding in holders]
    bindings[-1] = msgspec.structs.replace(bindings[-1], **changed)
    return BindingsRead("n", tuple(bindings), shrunk)


def excuses(commands: list[Command]) -> list[str]:
    assert not [command for command in commands if isinstance(command, Evict)]
    return [command.excuse for command in commands if isinstance(command, EvictionWaived)]


def evicted(commands: list[Command]) -> list[str]:
    return [command.placement.uid for command in commands if isinstance(command, Evict)]


def test_the_later_of_two_is_evicted_and_the_record_says_why() -> None:
    (command,) = booked(*TWICE).handle(read_of(*TWICE), 5)
    assert isinstance(command, Evict)
    assert command.placement.uid == "later"
    why = DoubleBooking(0, ("first",), lacks_mib=4_000, card_mib=16_000, card_milli=1_000)
    assert command.record.double_booked == why
    assert (command.record.outcome, command.record.node) == ("asked-to-leave", "n")


def test_only_what_was_read_counts_and_only_where_the_ledger_has_it() -> None:
    engine = booked(*TWICE)
    assert engine.handle(read_of(TWICE[1]), 5) == []  # the first is on its way out
    nowhere = BindingsRead("m", read_of(*TWICE).bindings)
    assert engine.handle(nowhere, 5) == []
    assert engine.handle(read_of(TWICE[0], holder("unknown", SECOND_ONE, 10_000)), 5) == []


def test_who_was_not_let_go_is_asked_again() -> None:
    """The others are not asked in its place: every Weft picks the same pod."""
    engine = booked(*TWICE)
    for now_ns in (1, 2):
        assert evicted(engine.handle(read_of(*TWICE), now_ns)) == ["later"]
        engine.handle(NotEvicted("later", "a budget"), now_ns)


def test_what_a_smaller_node_explains_is_left_alone() -> None:
    why = "shrunk-node"
    assert excuses(booked(*TWICE).handle(read_of(*TWICE, shrunk=True), 5)) == [why]
    engine = booked(*TWICE)
    engine.handle(NodesChanged((node("n", gpus=2, memory_mib=9_000),)), 1)
    why = "larger-card"
    assert excuses(engine.handle(read_of(*TWICE), 5)) == [why]


def test_who_has_run_for_long_is_left_alone() -> None:
    engine = booked(*TWICE)
    assert excuses(engine.handle(read_of(*TWICE, held_ns=RECENT_NS + 1), 5)) == ["long-ago"]
    assert evicted(engine.handle(read_of(*TWICE, held_ns=RECENT_NS), 5)) == ["later"]


def test_who_nobody_says_when_it_was_bound_came_first_and_stays() -> None:
    undated = holder("first", 0, 10_000), holder("later", 0, 10_000)
    assert excuses(booked(*undated).handle(read_of(*undated), 5)) == ["undated"]
