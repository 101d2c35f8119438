"""With `lend`, a kept place is closed to pods that fit elsewhere, and open to all others for half
of its time."""

from test_head_of_line import MINUTE, World, gang

from weft.core.engine import PodGone
from weft.core.engine.parked import BACKOFF_MOST_NS
from weft.model.queue_rules import HeadOfLine
from weft.testing import node, pod

HOUR = 60 * MINUTE
RULES = HeadOfLine(5 * MINUTE, 2 * HOUR, 5 * MINUTE, discipline="lend")


def waiting_world(*others: int) -> World:
    """Node a has two GPUs: one is held, the other is kept for a pod of two that waits; other nodes
    have one GPU each, held or free (`others`: 1 for held)."""
    world = World(
        node("a", gpus=2), *(node(f"b{n}", gpus=1) for n, _ in enumerate(others)), rules=RULES
    )
    fillers = [f"holds-{n}" for n, _ in enumerate(others)]
    world.add(*(pod(name, gpus=1) for name in [*fillers, "long", "short"]))
    assert [world.bound[name] for name in ("long", "short")] == ["a", "a"]
    for name, held in zip(fillers, others, strict=True):
        if not held:
            world.tell(PodGone(name))
    world.add(pod("large", gpus=2))
    world.until(6 * MINUTE)
    world.tell(PodGone("short"))
    assert world.kept() == {"a": 1}
    return world


def test_a_pod_that_fits_elsewhere_stays_away_and_one_that_does_not_uses_the_place() -> None:
    world = waiting_world(0)
    world.add(pod("first", gpus=1))
    assert world.bound["first"] == "b0"
    world.add(pod("second", gpus=1))
    assert world.bound["second"] == "a"
    assert world.kept() == {}
    world.tell(PodGone("second"))
    assert world.kept() == {"a": 1}
    world.tell(PodGone("long"))
    assert world.bound["large"] == "a"


def test_without_it_such_a_pod_waits() -> None:
    world = waiting_world(1)
    world.engine.kept_places.lends = False
    world.add(pod("second", gpus=1))
    assert "second" not in world.bound


def test_in_the_second_half_of_its_time_nobody_uses_the_place() -> None:
    world = waiting_world(1)
    world.until(5 * MINUTE + HOUR - 1)
    world.add(pod("early", gpus=1))
    assert world.bound["early"] == "a"
    world.tell(PodGone("early"))
    world.until(5 * MINUTE + HOUR + 1)
    world.add(pod("late", gpus=1))
    assert "late" not in world.bound
    world.tell(PodGone("long"))
    assert world.bound["large"] == "a"
    world.tell(PodGone("large"))
    world.until(world.now_ns + BACKOFF_MOST_NS)
    assert world.bound["late"] == "a"


def test_a_place_that_never_becomes_whole_stands_idle_in_the_second_half() -> None:
    """One reason why it is not the default: by first-fit the later pod would run."""
    world = waiting_world(1)
    world.until(5 * MINUTE + HOUR + 1)
    world.add(pod("late", gpus=1))
    assert "late" not in world.bound
    assert world.kept() == {"a": 1}
    world.until(5 * MINUTE + 2 * HOUR + BACKOFF_MOST_NS)
    assert world.bound["late"] == "a"
    assert "large" not in world.bound


def test_a_pod_that_waits_uses_what_gets_free_there() -> None:
    world = waiting_world(1)
    world.add(pod("second", gpus=1), pod("third", gpus=1))
    assert "third" not in world.bound
    world.tell(PodGone("second"))
    world.until(world.now_ns + BACKOFF_MOST_NS)
    assert world.bound["third"] == "a"


def test_pods_of_several_gpus_use_lent_places_too() -> None:
    world = World(node("a", gpus=4), rules=RULES)
    world.add(pod("long", gpus=1), pod("short", gpus=3))
    world.add(pod("large", gpus=4))
    world.until(6 * MINUTE)
    world.tell(PodGone("short"))
    assert world.kept() == {"a": 3}
    world.add(pod("two", gpus=2))
    assert world.bound["two"] == "a"
    assert world.kept() == {"a": 1}


def test_groups_use_lent_places_and_their_own_are_not_lent() -> None:
    world = waiting_world(1)
    world.add(*gang("pair", 1, at_ns=world.now_ns))
    assert world.bound["pair-0"] == "a"
    world = World(node("a", gpus=2), rules=RULES)
    world.add(pod("long", gpus=1), pod("short", gpus=1), *gang("train", 2))
    world.until(6 * MINUTE)
    world.tell(PodGone("short"))
    assert world.kept() == {"a": 1}
    world.add(pod("second", gpus=1))
    assert "second" not in world.bound
