"""The engine in a random world: nothing overbooked, nobody forgotten, nobody waits in vain; and a
crash anywhere loses nothing."""

from collections import Counter
from random import Random

from engine_world import NAMES, random_world, step
from hypothesis import event, given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.engine import Bind, Command, Engine, Event
from weft.core.ledger import audit


@settings(max_examples=few_or_many(16, 60))
@given(st.randoms(use_true_random=True), st.integers(5, 60))
def test_whatever_happens_the_engine_agrees_with_the_world(random: Random, steps: int) -> None:
    world = random_world(random)
    for _ in range(steps):
        step(world, random)
    for what in world.hits:
        event(what)


def test_every_fault_point_is_hit_often() -> None:
    """Fixed seeds, so that the figures stand: where it crashed and what went wrong."""
    hits: Counter[str] = Counter()
    for seed in range(few_or_many(45, 60)):
        random = Random(seed)
        world = random_world(random)
        for _ in range(70):
            step(world, random)
        hits += world.hits
    points = (
        "binding bound",
        "binding refused",
        "binding seen first",
        "binding thought refused",
        "gone while its binding was on its way",
        "crash before the answer: it was bound",
        "crash before the binding arrived",
        "crash with pods resting",
        "crash with pods parked",
        "crash with bindings on their way",
        "crash with pods on absent nodes",
    )
    assert {point: hits[point] for point in points if hits[point] < 20} == {}


def test_the_same_events_lead_to_the_same_commands() -> None:
    for seed in range(12):
        random = Random(seed)
        world = random_world(random)
        nodes = list(world.nodes.values())
        log: list[tuple[Event, int, list[Command]]] = []
        tell = world.tell

        def record(told: Event, log=log, world=world, tell=tell) -> list[Command]:  # type: ignore[no-untyped-def]
            now, before = world.now, world.engine
            commands: list[Command] = tell(told)
            assert before is world.engine
            log.append((told, now, commands))
            return commands

        world.tell = record  # type: ignore[method-assign]
        world.crash = lambda *_: None  # type: ignore[method-assign]
        for _ in range(60):
            step(world, random)
        again = Engine(list(world.engine.profiles.values()), nodes, seed=7)
        assert [again.handle(told, now) for told, now, _ in log] == [c for _, _, c in log]


def test_pods_of_all_profiles_get_places_in_the_random_world() -> None:
    """The walks above mean something: each profile decides, and pods are really bound."""
    used: Counter[str] = Counter()
    for seed in range(few_or_many(15, 40)):
        random = Random(seed)
        world = random_world(random)
        tell = world.tell

        def watch(told: Event, tell=tell, used=used) -> list[Command]:  # type: ignore[no-untyped-def]
            commands: list[Command] = tell(told)
            used.update(c.record.profile for c in commands if isinstance(c, Bind))
            return commands

        world.tell = watch  # type: ignore[method-assign]
        for _ in range(40):
            step(world, random)
        assert world.facts or not audit(world.engine.ledger)
    assert all(used[name] >= few_or_many(5, 15) for name in NAMES), used
