"""Places for gangs of several sizes, beside an exhaustive search on small clusters without GPUs."""

from collections.abc import Sequence

import pytest
from long_form import few_or_many

from fakes.drawn_groups import PRIORITIES, DrawnGroup, GroupWorld, Object, most_places, rooms_left
from fakes.groups_in_weft import places
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import BestFit, FirstFit

WORLDS = few_or_many(60, 3_000)
POLICIES = (FirstFit, BestFit, LeastStranding)
VALUES = {one["metadata"]["name"]: one["value"] for one in PRIORITIES}


def admitted(item: Object) -> Object:
    """As an API server would have it."""
    meta = {**item["metadata"], "uid": item["metadata"]["name"], "resourceVersion": "1"}
    spec = dict(item.get("spec", {}))
    if item["kind"] == "Pod":
        spec["priority"] = VALUES[spec["priorityClassName"]]
    return {**item, "metadata": meta, "spec": spec, "status": item.get("status", {})}


def found(world: GroupWorld, group: DrawnGroup, bound: Sequence[Object]) -> dict[str, str]:
    items = [admitted(group.item)] if group.item else []
    pods = [admitted(pod) for pod in (*bound, *group.waiting)]
    policy = POLICIES[world.seed % len(POLICIES)]
    return places([admitted(node) for node in world.nodes], items, pods, policy)


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_group_has_places_where_an_exhaustive_search_finds_some(seed: int) -> None:
    world = GroupWorld(seed)
    bound = [*world.others, *(pod for group in world.groups for pod in group.bound)]
    for group in world.groups:
        most = most_places(group, world.nodes, rooms_left(world.nodes, bound))
        fits = group.item is not None and most > 0 and most + len(group.bound) >= group.least
        count = len(found(world, group, bound))
        assert bool(count) == fits, f"{group.name}: {count} have places, and {most} could"
        assert not group.alike or count == most * fits
        assert not count or count + len(group.bound) >= group.least
        assert count <= most
