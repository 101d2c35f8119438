"""Hours beside claims, KAI, Volcano, Koordinator and time slicing, in time that leaps.

Others' holders come and go, processes too. Weft gives nobody what others have had for a while,
evicts nobody for them, and every process' account is the one that each system's rules give. In the
long form two hours of every profile that ships; else half an hour of the default one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from beside_world import BesideWorld
from faulty_world import World
from live_asks import waits
from live_story import STEPS
from long_form import few_or_many
from ways import DEFAULT, SHIPPED, Way, seeds

from fakes.api_time import run

HOURS = few_or_many(0.3, 2.0)
EACH_S = 300  # between two comparisons of accounts
MOST_PENDING, MOST_OTHERS = 15, 12
OWN: tuple[tuple[str, float, Callable[[BesideWorld], bool]], ...] = (
    ("claim", 4, BesideWorld.claim),
    ("claim ends", 4, BesideWorld.claim_ends),
    ("KAI", 3, BesideWorld.kai),
    ("Volcano", 2, BesideWorld.volcano),
    ("Koordinator", 2, BesideWorld.koordinator),
    ("time slicing", 2, BesideWorld.time_slice),
    ("other ends", 9, BesideWorld.other_ends),
)
AS_EVER = {
    "pod added": 8,
    "pod deletion asked": 2,
    "kubelet": 14,
    "node deleted": 0.3,
    "node back": 1,
    "watches cut": 0.5,
    "killed": 0.3,
    "terminated": 0.3,
    "asked why": 1,
    "metrics read": 1,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def story(seed: int, way: Way, hours: float) -> Counter[str]:
    """Play it; what happened how often. Raises AssertionError with what did not hold."""
    steps: list[tuple[str, float, Callable[..., bool]]] = [*OWN]
    steps += [(name, AS_EVER[name], do) for name, _, do in STEPS if name in AS_EVER]
    names, weights, _ = zip(*steps, strict=True)
    doing = {name: do for name, _, do in steps}

    async def play() -> Counter[str]:
        world = BesideWorld(seed, way)
        world.begin()
        loop = asyncio.get_running_loop()
        actors = [loop.create_task(work) for work in (world.keep_alive(), world.kube_scheduler())]
        until, compared = loop.time() + hours * 3600, loop.time()
        while loop.time() < until:
            await asyncio.sleep(world.random.expovariate(1 / world.random.choice((0.5, 10))))
            name = world.random.choices(names, weights)[0]
            world.hits[name] += doing[name](world)
            thin_out(world)
            if loop.time() > compared + EACH_S:
                await agree(world, seed)
                compared = loop.time()
            assert not world.violations, told(world, seed)
        await agree(world, seed)
        for actor in actors:
            actor.cancel()
        for instance in world.instances:
            live = instance.live
            if live is not None and (live.faults.count or live.pods.faults):
                world.violation(f"{instance.name}: faults of its own")
            instance.kill()
        assert not world.violations, told(world, seed)
        return world.hits

    return run(play())


def told(world: World, seed: int) -> str:
    return f"seed {seed}: " + "\n".join(world.violations[:5])


def thin_out(world: BesideWorld) -> None:
    """More come than go."""
    waiting = [pod for pod in world.pods() if waits(pod)]
    for pod in waiting[: len(waiting) - MOST_PENDING]:
        world.remove(pod)
    while len(world.since) and world.others() > MOST_OTHERS:
        world.random.choice((world.other_ends, world.claim_ends))()


async def agree(world: BesideWorld, seed: int) -> None:
    """Nothing new happens for a while, until every account is the restated one."""
    for _ in range(60):
        await asyncio.sleep(1)
        found = world.differences()
        if not found:
            world.hits["accounts compared"] += 1
            return
    raise AssertionError(f"seed {seed}, after a minute: " + "\n".join(found[:8]))


@pytest.mark.parametrize("way", few_or_many([DEFAULT], SHIPPED), ids=lambda way: way.name)
def test_hours_beside_others(way: Way) -> None:
    for seed in seeds(1):
        hits = story(seed, way, HOURS)
        print(f"{way.name}, {HOURS} h, seed {seed}: {dict(sorted(hits.items()))}")  # noqa: T201
        assert hits["bound beside others"] > 5
        assert hits["accounts compared"] >= HOURS * 10
        assert all(hits[name] for name, _, _ in OWN)
