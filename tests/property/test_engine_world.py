"""The engine in a random world: nothing overbooked, nobody forgotten, nobody waits in vain; and a
crash anywhere loses nothing. By every way to decide that ships, and every policy."""

from collections import Counter

import pytest
from drawn_rules import KINDS
from engine_world import KEEPING, kept_by, walk
from long_form import few_or_many
from ways import CHOSEN, DEFAULT, SHIPPED, WAYS, seeds

from weft.core.engine import Bind, Command, Engine, Event, Wake
from weft.core.ledger import audit
from weft.model.queue_rules import Discipline

POINTS = (
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
    "a node gains GPUs",
    "a node loses GPUs",
    "GPUs looked at",
    "typical pods learnt",
    "prices made",
    *(f"pod with {kind}" for kind in (*KINDS, "claim")),
    "a bound pod is relabelled",
    "a bound pod terminates",
    "a bound pod is resized",
)


def count(way: str) -> int:
    """How many walks of this way are taken: of what ships some more."""
    return few_or_many(1, 10 if WAYS[way] in SHIPPED else 4)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_the_engine_agrees_with_the_world(way: str) -> None:
    bound = 0
    for seed in seeds(count(way), first=list(WAYS).index(way)):
        world = walk(seed, WAYS[way])
        bound += world.hits["bound by it"]
        assert world.facts or not audit(world.engine.ledger)
    assert bound or CHOSEN, "a walk that was chosen may meet only pods that fit nowhere"


@pytest.mark.faults
@pytest.mark.parametrize("way", WAYS)
def test_many_walks(way: str) -> None:
    hits: Counter[str] = Counter()
    for seed in seeds(1_400 if WAYS[way] in SHIPPED else 200):
        hits += walk(seed, WAYS[way], mistakes=seed % 4 == 3).hits
    print(f"\n{way}:", *(f"{count} {name};" for name, count in sorted(hits.items())))  # noqa: T201


@pytest.mark.faults
@pytest.mark.parametrize("way", ["profile weft", "auto", "all of config defaults"])
def test_twelve_hours(way: str) -> None:
    hits = walk(seeds(1)[0], WAYS[way], hours=12).hits
    assert hits["prices made"] > 1_000


@pytest.mark.faults
@pytest.mark.parametrize("discipline", KEEPING)
def test_twelve_hours_by_each_discipline_of_the_queue(discipline: Discipline) -> None:
    seed = 1 + 2 * KEEPING.index(discipline)
    assert kept_by(seed).discipline == discipline
    world = walk(seed, DEFAULT, hours=12)
    assert world.hits["places kept"] > 100


@pytest.mark.parametrize("way", ["profile weft", "auto", "all of config defaults", "fgd"])
def test_mistakes_beside_deciding_cost_nobody_a_turn(way: str) -> None:
    """Prices, scores ahead and learning that break off in a third of all tries: told once each, and
    all that must hold does."""
    hits: Counter[str] = Counter()
    for seed in seeds(few_or_many(3, 20)):
        hits += walk(seed, WAYS[way], mistakes=True).hits
    assert hits["mistakes"] > 20
    assert hits["binding bound"]


def test_every_fault_point_is_hit_often() -> None:
    """Fixed seeds, so that the figures stand: where it crashed and what went wrong."""
    hits: Counter[str] = Counter()
    for seed in range(few_or_many(8, 60)):
        hits += walk(seed, SHIPPED[seed % len(SHIPPED)]).hits
    least = few_or_many(1, 20)
    assert {point: hits[point] for point in POINTS if hits[point] < least} == {}


@pytest.mark.parametrize("way", ["profile weft", "auto", "interference"])
def test_the_same_events_lead_to_the_same_commands(way: str) -> None:
    for seed in seeds(few_or_many(1, 12)):
        log: list[tuple[Event, int, list[Command]]] = []
        world = walk(seed, WAYS[way], crashes=False, log=log)
        again = Engine(
            WAYS[way].profiles(seed),
            world.first_nodes,
            seed=seed,
            head_of_line=kept_by(seed),
        )
        replayed = [_decided(again.handle(told, now)) for told, now, _ in log]
        assert replayed == [_decided(commands) for *_, commands in log]
        assert any(isinstance(one, Bind) for commands in replayed for one in commands)


def _decided(commands: list[Command]) -> list[Command]:
    """All but when to go on: work ahead is also of what was only asked, which no replay hears."""
    return [command for command in commands if not isinstance(command, Wake)]
