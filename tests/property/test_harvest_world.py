"""Lending in a random world: within the declared limit, and the borrower goes first."""

from collections import Counter
from functools import cache
from random import Random

import harvest_world
import pytest
from harvest_world import LENDS, S, World, step
from long_form import few_or_many
from ways import FIRST, SHIPPED, WAYS, Way, seeds

from weft.core.engine import Bind, Evict
from weft.core.ledger import RequestLimits

PLAYED = {LENDS.name: LENDS, **WAYS}
LIMITS = (RequestLimits(1_000, 2_000), RequestLimits(1_000, 1_300), RequestLimits(1_000, 3_000))


def walk(
    seed: int,
    steps: int = 150,
    *,
    honest: bool,
    limits: RequestLimits | None = None,
    way: Way = LENDS,
    hours: float = 0,
) -> World:
    """A walk, by its seed; `hours`: so long, instead of so many steps, and nodes come and go."""
    random = Random(seed)
    world = World(random, limits or random.choice(LIMITS), way, honest=honest)
    world.changes = world.changes or bool(hours)
    while world.now < hours * 3600 * S if hours else steps > 0:
        steps -= 1
        step(world)
        if hours:
            del world.log[:]
    return world


@cache
def walked(seed: int) -> World:
    """One of the walks that are looked at twice."""
    return walk(seed, honest=seed % 2 == 0)


@pytest.mark.parametrize("way", PLAYED)
def test_whatever_happens_the_rules_of_lending_hold(way: str) -> None:
    few = few_or_many(1, 10 if PLAYED[way] in (LENDS, *SHIPPED) else 3)
    for seed in seeds(few, first=list(PLAYED).index(way)):
        world = walk(seed, few_or_many(50, 80), honest=seed % 3 == 0, way=PLAYED[way])
        assert any(isinstance(one, Bind) for *_, told in world.log for one in told)


@pytest.mark.faults
@pytest.mark.parametrize("way", PLAYED)
def test_many_walks(way: str) -> None:
    hits: Counter[str] = Counter()
    for seed in seeds(1_400 if PLAYED[way] in (LENDS, *SHIPPED) else 200):
        hits += walk(seed, honest=seed % 3 == 0, way=PLAYED[way]).hits
    print(f"\n{way}:", *(f"{count} {name};" for name, count in sorted(hits.items())))  # noqa: T201


@pytest.mark.faults
@pytest.mark.parametrize("way", ["harvesting", "profile weft", "auto"])
def test_twelve_hours(way: str) -> None:
    hits = walk(FIRST, honest=False, way=PLAYED[way], hours=12).hits
    assert hits["node joins"] > 10


def test_the_walks_reach_what_they_are_about() -> None:
    hits: Counter[str] = Counter()
    for seed in few_or_many((2, 5, 8, 10), range(50)):
        hits += walked(seed).hits
    shipped = sum((walk(seed, honest=True, way=WAYS["auto"]).hits for seed in range(3)), Counter())
    assert shipped["memory is harvested"], "what ships and lends really does"
    points = (
        "a binding refused",
        "a pod grew",
        "memory is idle",
        "memory is harvested",
        "a borrower goes",
        "a pod ran out of memory",
        "a run was seen whole",
        "room for a learnt peak",
    )
    assert {point: hits[point] for point in points if hits[point] < few_or_many(2, 20)} == {}


def test_the_same_events_lead_to_the_same_commands() -> None:
    for seed in range(1, few_or_many(5, 17), 2):  # those that are not honest
        world = walked(seed)
        again = world.start()
        assert [again.handle(told, now) for told, now, _ in world.log] == [
            commands for *_, commands in world.log
        ]


def test_with_the_strict_limit_harvesting_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same events to policies that do not harvest: the same commands, and nobody goes."""
    for seed in range(few_or_many(2, 8)):
        world = walk(seed, honest=False, limits=RequestLimits())
        with monkeypatch.context() as patch:
            patch.setattr(harvest_world.Harvesting, "harvests", False)
            again = world.start()
            for told, now, commands in world.log:
                assert again.handle(told, now) == commands
                assert not any(isinstance(one, Evict) for one in commands)
        assert any(isinstance(one, Bind) for *_, commands in world.log for one in commands)
