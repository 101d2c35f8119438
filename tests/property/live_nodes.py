"""Changes of nodes in a story: they come and go, for a while or for good, and so do GPUs."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faulty_world import World

MOST_NODES, MOST_GPUS = 5, 5


def goes(world: "World") -> bool:
    """A node is away for a while."""
    here = _here(world)
    if len(here) < 2:
        return False
    world.server.remove("nodes", world.random.choice(here))
    return True


def comes(world: "World") -> bool:
    """One that was away is back."""
    here = _here(world)
    for name in world.gpus:
        if name not in here:
            world.add_node(name)
            return True
    return False


def joins(world: "World") -> bool:
    """A new one; a cluster of many makes the others' turns rare."""
    if len(world.gpus) >= MOST_NODES:
        return False
    world.new_node()
    return True


def leaves(world: "World") -> bool:
    """One leaves for good; the cluster's garbage collection finds its pods after a while."""
    if len(_here(world)) < 2:
        return False
    name = world.random.choice(_here(world))
    del world.gpus[name]
    world.server.remove("nodes", name)
    after_s = world.random.choice((0.1, 5, 20))
    asyncio.get_running_loop().call_later(after_s, world.collect_strays)
    return True


def gains(world: "World") -> bool:
    """One more GPU is told of."""
    return _has_more(world, 1)


def loses(world: "World") -> bool:
    """The last GPU is told of no more, whoever holds it."""
    return _has_more(world, -1)


def _has_more(world: "World", more: int) -> bool:
    here = _here(world)
    name = world.random.choice(here) if here else ""
    count = world.gpus.get(name, 0) + more
    if not name or not 1 <= count <= MOST_GPUS:
        return False
    world.change_gpus(name, count)
    return True


def _here(world: "World") -> list[str]:
    return [node["metadata"]["name"] for node in world.nodes()]
