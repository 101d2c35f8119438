"""Changes of nodes in the world of lending: they come and go, and so do GPUs and their pods."""

from typing import TYPE_CHECKING

from weft.core.engine import BindFailed, NodesChanged
from weft.model import Node
from weft.testing import node

if TYPE_CHECKING:
    from harvest_world import World

CARD = 10_000


def change(world: "World") -> None:
    """One joins, leaves, gains or loses a GPU; pods that are left without theirs go after."""
    names = [one.name for one in world.nodes]
    new = next(name for name in "abcdef" if name not in names)
    kinds = ["node joins"] * (len(names) < 4) + ["node leaves"] * (len(names) > 1)
    what = world.random.choice([*kinds, "node gains a GPU", "node loses a GPU"])
    one = world.random.choice(world.nodes)
    count = len(one.gpus) + (1 if what == "node gains a GPU" else -1)
    if what == "node joins":
        _tell_of(world, node(new, gpus=world.random.randint(1, 2), memory_mib=CARD))
    elif what == "node leaves":
        world.nodes.remove(one)
        world.tell(NodesChanged(removed=(one.name,)))
    elif 1 <= count <= 3:
        _tell_of(world, node(one.name, gpus=count, memory_mib=CARD))
    else:
        return
    world.hits[what] += 1
    _collect(world)


def _tell_of(world: "World", one: Node) -> None:
    world.nodes = [*(other for other in world.nodes if other.name != one.name), one]
    world.tell(NodesChanged((one,)))


def _collect(world: "World") -> None:
    there = set(world.gpus)
    for uid, place in list(world.flying.items()):
        if uid in world.flying and (place.node, place.shares[0].gpu) not in there:
            del world.flying[uid]
            world.order.remove(uid)
            world.tell(BindFailed(uid))
    for uid, pod in list(world.bound.items()):
        if (pod.placement.node, pod.placement.shares[0].gpu) not in there:
            world.gone(uid)
