"""Places for groups and places for pods in no group are kept by rules of their own."""

from msgspec.structs import replace
from test_head_of_line import MINUTE, RESERVING, World, full, gang

from weft.testing import node, pod

APART = replace(RESERVING, at_once=1, pods_keep_for_ns=600 * MINUTE, pods_at_once=2)


def test_groups_and_pods_of_several_gpus_take_no_turn_of_each_other() -> None:
    world = World(node("a", gpus=8), rules=APART)
    full(world, *(f"p{n}" for n in range(8)))
    world.add(*gang("one", 2), *gang("two", 2, at_ns=2), *(pod(f"l{n}", gpus=2) for n in range(3)))
    turns = [turn.name for turn in world.engine.kept_places.turns.values()]
    assert turns == ["team/one", "default/l0", "default/l1"]


def test_a_pods_place_is_kept_for_its_own_time_and_a_groups_for_its_own() -> None:
    world = World(node("a", gpus=2), node("b", gpus=2), rules=APART)
    full(world, *"pqrs")
    world.add(*gang("train", 2), pod("large", gpus=2))
    world.until(6 * MINUTE)
    assert len(world.engine.kept_places.kept()) == 2
    world.until(36 * MINUTE)
    (turn,) = world.engine.kept_places.kept()
    assert turn.name == "default/large"
    world.until(600 * MINUTE)
    assert "default/large" in [turn.name for turn in world.engine.kept_places.kept()]
    world.until(602 * MINUTE)
    assert "default/large" not in [turn.name for turn in world.engine.kept_places.kept()]


def test_a_pod_for_which_no_place_would_do_is_tried_again_however_long_places_are_kept() -> None:
    world = World(node("a", gpus=2), rules=APART)
    world.add(pod("never", gpus=3))
    world.until(2 * MINUTE)
    assert world.engine.kept_places.counts["nowhere"] == 1
    world.until(40 * MINUTE)
    assert world.engine.kept_places.counts["nowhere"] == 2
