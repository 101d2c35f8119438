"""How far pods are, by what they were beside."""

import msgspec

from weft.core.framework.residency import LEAST_LEFT, MOST_SPANS, Residencies
from weft.core.ledger.residents import Resident
from weft.testing import placement

S = 1_000_000_000


def here(uid: str, expected_s: int = 1000, node: str = "n0", gpu: int = 0):
    place = placement(uid, node, gpu, memory_mib=100)
    return msgspec.structs.replace(place, application=uid[0], expected_s=expected_s)


def half_beside_anybody(who: Resident, company) -> float:
    return 0.5 if company else 1.0


def left(stays: Residencies, at_s: int) -> list[float]:
    return [stay.left_s(at_s * S, half_beside_anybody) for stay in stays.on(("n0", 0))]


def test_each_stretch_counts_at_its_own_speed() -> None:
    stays = Residencies()
    stays.came(here("a"), 0)
    stays.came(here("b", 400), 100 * S)
    assert left(stays, 150) == [1000 - 100 - 25, 400 - 25]
    stays.now_ns = 200 * S
    stays.left("a")
    assert left(stays, 300) == [400 - 50 - 100]


def test_who_came_is_not_told_again_and_who_moved_begins_anew() -> None:
    stays = Residencies()
    stays.came(here("a"), 0)
    stays.came(here("a"), 500 * S)
    assert left(stays, 600) == [400]
    stays.came(here("a", gpu=1), 600 * S)
    assert not stays.on(("n0", 0))
    assert stays.on(("n0", 1))[0].left_s(700 * S, half_beside_anybody) == 900


def test_who_says_something_else_of_itself_is_believed_and_has_been_there_as_long() -> None:
    """As a process would that starts anew; a running pod's annotations can be edited."""
    stays = Residencies()
    stays.came(here("a"), 0)
    stays.came(here("b", 400), 100 * S)
    stays.came(here("a", 2000), 200 * S)
    (b, a) = stays.on(("n0", 0))
    assert (a.expected_s, a.since_ns, b.since_ns) == (2000, 0, 100 * S)
    assert left(stays, 300) == [400 - 100, 2000 - 100 - 100]
    assert stays.expected == 2
    stays.came(here("a", 0), 300 * S)
    assert stays.expected == 1


def test_after_a_restart_times_are_those_of_the_bindings() -> None:
    """Whatever the order in which bound pods are told."""
    stays = Residencies()
    stays.came(here("b", 400), 100 * S)
    stays.came(here("a"), 0)
    assert left(stays, 150) == [400 - 25, 1000 - 100 - 25]


def test_nobody_is_ever_quite_over() -> None:
    stays = Residencies()
    stays.came(here("a", 100), 0)
    assert left(stays, 10_000) == [LEAST_LEFT * 100]


def test_what_is_remembered_of_a_pod_is_bounded() -> None:
    stays = Residencies()
    stays.came(here("a", 10_000), 0)
    for number in range(2 * MOST_SPANS):
        stays.now_ns = (10 * number + 5) * S
        stays.came(here(f"b{number}", 100), stays.now_ns)
        stays.now_ns += 5 * S
        stays.left(f"b{number}")
    found = stays.on(("n0", 0))[0]
    assert len(found.spans) <= MOST_SPANS
    assert abs(found.left_s(stays.now_ns, half_beside_anybody) - (10_000 - 7.5 * 128)) < 700


def test_pods_that_say_nothing_cost_nothing() -> None:
    stays = Residencies()
    stays.came(here("a", 0), 0)
    assert not stays.expected
    assert stays.on(("n0", 0))[0].spans == []


def test_who_said_how_long_is_counted_while_there() -> None:
    stays = Residencies()
    stays.came(here("a"), 0)
    stays.came(here("a", gpu=1), 0)
    stays.came(here("b", 0), 0)
    assert stays.expected == 1
    stays.left("a")
    stays.left("a")
    assert stays.expected == 0


def test_followers_hear_of_gpus_whose_pods_change() -> None:
    stays = Residencies()
    stays.came(here("a"), 0)
    changed = stays.follow()
    assert not changed
    stays.came(here("a"), 0)
    assert not changed, "nothing new"
    stays.came(here("a", gpu=1), 0)
    assert changed == {("n0", 0), ("n0", 1)}
