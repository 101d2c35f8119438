"""Lending in a random world: within the declared limit, and the borrower goes first."""

from collections import Counter
from functools import cache
from random import Random

import harvest_world
import pytest
from harvest_world import World, step
from hypothesis import event, given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.engine import Bind, Evict
from weft.core.ledger import RequestLimits

LIMITS = (RequestLimits(1_000, 2_000), RequestLimits(1_000, 1_300), RequestLimits(1_000, 3_000))


def walk(
    seed: int, steps: int = 150, *, honest: bool, limits: RequestLimits | None = None
) -> World:
    random = Random(seed)
    world = World(random, limits or random.choice(LIMITS), honest=honest)
    for _ in range(steps):
        step(world)
    return world


@cache
def walked(seed: int) -> World:
    """One of the walks that are looked at twice."""
    return walk(seed, honest=seed % 2 == 0)


@settings(max_examples=few_or_many(15, 40))
@given(st.randoms(use_true_random=True), st.sampled_from(LIMITS), st.booleans())
def test_whatever_happens_the_rules_of_lending_hold(
    random: Random, limits: RequestLimits, honest: bool
) -> None:
    world = World(random, limits, honest=honest)
    for _ in range(80):
        step(world)
    for what in world.hits:
        event(what)


def test_the_walks_reach_what_they_are_about() -> None:
    hits: Counter[str] = Counter()
    for seed in range(few_or_many(16, 50)):
        hits += walked(seed).hits
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
    assert {point: hits[point] for point in points if hits[point] < few_or_many(4, 20)} == {}


def test_the_same_events_lead_to_the_same_commands() -> None:
    for seed in range(1, few_or_many(9, 17), 2):  # those that are not honest
        world = walked(seed)
        again = world.start()
        assert [again.handle(told, now) for told, now, _ in world.log] == [
            commands for *_, commands in world.log
        ]


def test_with_the_strict_limit_harvesting_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same events to policies that do not harvest: the same commands, and nobody goes."""
    for seed in range(few_or_many(4, 8)):
        world = walk(seed, honest=False, limits=RequestLimits())
        with monkeypatch.context() as patch:
            patch.setattr(harvest_world.Harvesting, "harvests", False)
            again = world.start()
            for told, now, commands in world.log:
                assert again.handle(told, now) == commands
                assert not any(isinstance(one, Evict) for one in commands)
        assert any(isinstance(one, Bind) for *_, commands in world.log for one in commands)
