"""Which GPUs hold more than they have, and whose pod came too late."""

import itertools

from weft.cluster.eviction.overbooking import (
    BoundHolder,
    larger_than_its_card,
    overbooked,
    too_late,
)
from weft.core.ledger import Ledger
from weft.model import Gpu, Node, Share
from weft.testing import node, placement

NODE = node("n", gpus=2, memory_mib=16_000)
FIRST, SECOND, THIRD = "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z"


def holder(uid: str, at: str, memory_mib: int, gpu: int = 0, term: int = 0) -> BoundHolder:
    return BoundHolder(uid, (Share(0, gpu, memory_mib, 0),), at, term)


def late(*holders: BoundHolder) -> list[str]:
    """The same whatever the order they are given in: every Weft must choose alike."""
    answers = {
        tuple(one.uid for one in too_late(NODE, order)) for order in itertools.permutations(holders)
    }
    assert len(answers) == 1
    return list(answers.pop())


def test_only_gpus_that_hold_more_than_they_have_are_found() -> None:
    ledger = Ledger([NODE])
    ledger.adopt(placement("a", "n", 0, memory_mib=10_000))
    ledger.adopt(placement("full", "n", 1, memory_mib=16_000))
    assert overbooked(ledger, "n") == ()
    ledger.adopt(placement("b", "n", 0, memory_mib=10_000))
    (found,) = overbooked(ledger, "n")
    assert (found.gpu, found.memory_over_mib, found.holders) == (0, 4_000, ("a", "b"))
    assert str(found) == "GPU 0 holds 4,000 MiB more than it has"
    assert overbooked(ledger, "nowhere") == ()


def test_a_card_beside_its_instance_is_overbooked() -> None:
    parts = (Gpu(0, 16_000), Gpu(1, 8_000, parent=0))
    ledger = Ledger([Node("n", parts)])
    ledger.adopt(placement("card", "n", 0, memory_mib=1))
    ledger.adopt(placement("instance", "n", 1, memory_mib=1))
    (found,) = overbooked(ledger, "n")
    assert found.split
    assert set(found.holders) == {"card", "instance"}
    shares = [holder("card", FIRST, 1), holder("instance", SECOND, 1, gpu=1)]
    assert [one.uid for one in too_late(Node("n", parts), shares)] == ["instance"]


def test_the_later_bound_goes_whatever_its_term_or_name() -> None:
    assert late(holder("z", FIRST, 10_000, term=1), holder("a", SECOND, 10_000, term=2)) == ["a"]


def test_within_one_second_the_newer_term_stays() -> None:
    """The older leader's decision slipped through a pause: it had lost the lease."""
    assert late(holder("a", FIRST, 10_000, term=1), holder("z", FIRST, 10_000, term=2)) == ["a"]
    assert late(holder("a", FIRST, 10_000), holder("z", FIRST, 10_000)) == ["z"]


def test_never_more_goes_than_must() -> None:
    """The third fits beside the first, once the second is gone."""
    held = holder("1", FIRST, 10_000), holder("2", SECOND, 10_000), holder("3", THIRD, 6_000)
    assert late(*held) == ["2"]
    assert late(held[0], held[2]) == []


def test_who_is_alone_on_a_card_is_nobodys_double() -> None:
    assert late(holder("a", FIRST, 20_000)) == []
    assert larger_than_its_card(NODE, [Share(0, 0, 20_000, 0)])
    assert not larger_than_its_card(NODE, [Share(0, 0, 16_000, 1000)])


def test_what_is_missing_is_said() -> None:
    (found,) = too_late(NODE, [holder("a", FIRST, 10_000), holder("b", SECOND, 9_000)])
    assert (found.gpu, found.lacks_mib, found.beside) == (0, 3_000, ("a",))
