"""How far pods are, by what they were beside."""

import msgspec

from weft.core.framework.residency import LEAST_LEFT, MOST_SPANS, Residencies
from weft.core.ledger.table import Resident
from weft.testing import placement

S = 1_000_000_000


def here(uid: str, expected_s: int = 1000, node: str = "n0", gpu: int = 0):
    place = placement(uid, node, gpu, memory_mib=100)
    return msgspec.structs.replace(place, application=uid[0], expected_s=expected_s)


def half_beside_anybody(who: Resident, co_residents) -> float:
    return 0.5 if co_residents else 1.0


def left(residencies: Residencies, at_s: int) -> list[float]:
    return [
        residency.left_s(at_s * S, half_beside_anybody) for residency in residencies.on(("n0", 0))
    ]


def test_each_stretch_counts_at_its_own_speed() -> None:
    residencies = Residencies()
    residencies.add(here("a"), 0)
    residencies.add(here("b", 400), 100 * S)
    assert left(residencies, 150) == [1000 - 100 - 25, 400 - 25]
    residencies.now_ns = 200 * S
    residencies.remove("a")
    assert left(residencies, 300) == [400 - 50 - 100]


def test_who_came_is_not_told_again_and_who_moved_begins_anew() -> None:
    residencies = Residencies()
    residencies.add(here("a"), 0)
    residencies.add(here("a"), 500 * S)
    assert left(residencies, 600) == [400]
    residencies.add(here("a", gpu=1), 600 * S)
    assert not residencies.on(("n0", 0))
    assert residencies.on(("n0", 1))[0].left_s(700 * S, half_beside_anybody) == 900


def test_who_says_something_else_of_itself_is_believed_and_has_been_there_as_long() -> None:
    """As a process would that starts anew; a running pod's annotations can be edited."""
    residencies = Residencies()
    residencies.add(here("a"), 0)
    residencies.add(here("b", 400), 100 * S)
    residencies.add(here("a", 2000), 200 * S)
    (b, a) = residencies.on(("n0", 0))
    assert (a.expected_s, a.since_ns, b.since_ns) == (2000, 0, 100 * S)
    assert left(residencies, 300) == [400 - 100, 2000 - 100 - 100]
    assert residencies.expected == 2
    residencies.add(here("a", 0), 300 * S)
    assert residencies.expected == 1


def test_after_a_restart_times_are_those_of_the_bindings() -> None:
    """Whatever the order in which bound pods are told."""
    residencies = Residencies()
    residencies.add(here("b", 400), 100 * S)
    residencies.add(here("a"), 0)
    assert left(residencies, 150) == [400 - 25, 1000 - 100 - 25]


def test_nobody_is_ever_quite_over() -> None:
    residencies = Residencies()
    residencies.add(here("a", 100), 0)
    assert left(residencies, 10_000) == [LEAST_LEFT * 100]


def test_what_is_remembered_of_a_pod_is_bounded() -> None:
    residencies = Residencies()
    residencies.add(here("a", 10_000), 0)
    for number in range(2 * MOST_SPANS):
        residencies.now_ns = (10 * number + 5) * S
        residencies.add(here(f"b{number}", 100), residencies.now_ns)
        residencies.now_ns += 5 * S
        residencies.remove(f"b{number}")
    found = residencies.on(("n0", 0))[0]
    assert len(found.spans) <= MOST_SPANS
    assert abs(found.left_s(residencies.now_ns, half_beside_anybody) - (10_000 - 7.5 * 128)) < 700


def test_pods_that_say_nothing_cost_nothing() -> None:
    residencies = Residencies()
    residencies.add(here("a", 0), 0)
    assert not residencies.expected
    assert residencies.on(("n0", 0))[0].spans == []


def test_who_said_how_long_is_counted_while_there() -> None:
    residencies = Residencies()
    residencies.add(here("a"), 0)
    residencies.add(here("a", gpu=1), 0)
    residencies.add(here("b", 0), 0)
    assert residencies.expected == 1
    residencies.remove("a")
    residencies.remove("a")
    assert residencies.expected == 0


def test_followers_hear_of_gpus_whose_pods_change() -> None:
    residencies = Residencies()
    residencies.add(here("a"), 0)
    changed = residencies.follow()
    assert not changed
    residencies.add(here("a"), 0)
    assert not changed, "nothing new"
    residencies.add(here("a", gpu=1), 0)
    assert changed == {("n0", 0), ("n0", 1)}
