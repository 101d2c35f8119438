"""One event does so much work and no more: the rest waits for a `Tick`, and is decided alike."""

from random import Random

from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
    Wake,
)
from weft.core.framework import Plugin, Profile
from weft.core.policies.fgd import Fgd
from weft.core.policies.packing import BestFit
from weft.core.policies.spreading import SpreadPolicy
from weft.model import Constraints
from weft.testing import node, placement, pod, shape

MINUTE = 60_000_000_000


def engine_of(turn_looks: int, nodes: int = 4) -> Engine:
    profiles = [
        Profile("weft", [BestFit()]),
        Profile("fgd", [Fgd()]),
        Profile("two", [Plugin(BestFit(), 2), Plugin(SpreadPolicy(), 1)]),
    ]
    return Engine(profiles, [node(f"n{i}", gpus=2) for i in range(nodes)], turn_looks=turn_looks)


def drained(engine: Engine, event: Event, now: int) -> tuple[list[Command], int]:
    """All commands of an event and of the ticks that it asks for, and how many turns that took."""
    commands, turns = engine.handle(event, now), 1
    found = list(commands)
    while any(isinstance(c, Wake) and c.at_ns <= now for c in commands):
        commands, turns = engine.handle(Tick(), now), turns + 1
        found += commands
    return found, turns


def decided(commands: list[Command]) -> list[tuple[str, str]]:
    return [
        (c.pod.uid, c.placement.node if isinstance(c, Bind) else "")
        for c in commands
        if isinstance(c, Bind | Unschedulable)
    ]


def test_in_turns_or_at_once_the_same_is_decided():
    assert sum(play(Random(seed)) for seed in range(few_or_many(5, 12))) > few_or_many(12, 30), (
        "the bound was reached"
    )


def play(dice: Random) -> int:
    """How many events took more than one turn."""
    bounded, free = engine_of(1, nodes=2), engine_of(0, nodes=2)
    taken = 0
    for step in range(80):
        now = step * MINUTE // 4
        kind = dice.choice(["add", "add", "add", "gone", "seen", "node"])
        held = sorted(free.ledger.holdings)
        event: Event = PodAdded(
            pod(
                f"p{step}",
                memory_mib=dice.choice([9_000, 12_000, 100 + step]),
                milli=dice.choice([0, 400]),
                priority=dice.choice([0, 0, 5]),
                scheduler_name=dice.choice(["weft", "fgd", "two"]),
            )
        )
        if kind == "gone" and held:
            event = PodGone(dice.choice(held))
        elif kind == "seen":
            event = PodSeenBound(placement(f"s{step}", f"n{step % 2}", 0, memory_mib=8_000))
        elif kind == "node":
            event = NodesChanged((node(f"n{dice.randrange(3)}", gpus=dice.choice([1, 2])),))
        in_turns, turns = drained(bounded, event, now)
        at_once, _ = drained(free, event, now)
        assert decided(in_turns) == decided(at_once)
        taken += turns > 1
    assert {w.pod.uid: w.state for w in bounded.queue.waiting()} == {
        w.pod.uid: w.state for w in free.queue.waiting()
    }
    return taken


def test_an_event_does_so_much_and_asks_for_a_tick():
    engine = engine_of(2_000, nodes=10)
    for gpu in range(20):
        there = placement(f"h{gpu}", f"n{gpu // 2}", gpu % 2, memory_mib=16_000)
        engine.handle(PodSeenBound(there), 0)
    for number in range(100):
        drained(engine, PodAdded(pod(f"p{number:03}", memory_mib=1_000 + number)), number)
    assert len(engine.queue) == 100
    before, now = engine.assessor.looked, MINUTE
    commands = engine.handle(NodesChanged((node("new", gpus=1, cpu_milli=1),)), now)
    assert 0 < len(decided(commands)) < 20
    assert engine.assessor.looked - before < 2 * 2_000
    assert [c.at_ns for c in commands if isinstance(c, Wake)] == [now]

    # Meanwhile others are only queued, so that many of them do not take a turn each.
    urgent = pod("urgent", memory_mib=20, priority=9)
    commands = engine.handle(PodAdded(urgent), now + 1)
    assert decided(commands) == []
    assert any(isinstance(c, Wake) and c.at_ns == now + 1 for c in commands)
    first = decided(engine.handle(Tick(), now + 2))[0]
    assert first == ("urgent", "new")


def test_pods_that_a_node_can_never_take_are_not_woken_for_it():
    """A selector, or memory on one GPU and cores on another: nobody tries in vain."""
    engine = engine_of(0, nodes=1)
    zone = Constraints(selector=(("zone", "a"),))
    for gpu, (memory_mib, milli) in enumerate([(16_000, 0), (0, 900)]):
        there = placement(f"h{gpu}", "n0", gpu, memory_mib=memory_mib, milli=milli)
        engine.handle(PodSeenBound(there), 0)
    engine.handle(PodSeenBound(placement("goes", "n0", 0, memory_mib=100)), 0)
    asks = {
        "elsewhere": shape(cpu_milli=1),
        "apart": shape(memory_mib=5_000, milli=500),
        "could": shape(memory_mib=400, milli=500),
    }
    for name, one in asks.items():
        full = one if name != "elsewhere" else one.__class__(cpu_milli=1, constraints=zone)
        engine.handle(PodAdded(pod(name, asks=full)), 1)
    tried = decided(engine.handle(PodGone("goes"), MINUTE))
    assert tried == []
    tried = decided(engine.handle(PodGone("h1"), 2 * MINUTE))
    assert [uid for uid, _ in tried] == ["apart", "could"]


def parked(engine: Engine, names: dict[str, int], each: int = 100) -> None:
    """Full nodes, and so many pods of unlike shapes in each namespace, by its pods' priority."""
    for gpu in range(2 * engine.ledger.table.count):
        there = placement(f"h{gpu}", f"n{gpu // 2}", gpu % 2, memory_mib=16_000)
        engine.handle(PodSeenBound(there), 0)
    made = 0
    for namespace, priority in names.items():
        for _ in range(each):
            made += 1
            asks = pod(f"{namespace}{made:04}", memory_mib=1_000 + made, priority=priority)
            drained(engine, PodAdded(replace(asks, namespace=namespace, created_ns=made)), made)


def test_many_pods_of_one_namespace_keep_no_other_waiting():
    """Pods that are woken take turns by namespaces, as those that come meanwhile. A pod costs 300
    looks at least, so that one event's work is for a few of them."""
    engine = engine_of(2_000, nodes=4)
    parked(engine, {"poison": 0})
    honest = [replace(pod(f"well{i}", memory_mib=900 - i), namespace="honest") for i in range(2)]
    drained(engine, PodAdded(replace(honest[0], created_ns=1_000)), 1_000)
    first = engine.handle(NodesChanged((node("new", gpus=2, memory_mib=950),)), MINUTE)
    assert all(uid.startswith("poison") for uid, _ in decided(first)), "the oldest first"
    second = decided(engine.handle(Tick(), MINUTE))
    assert second[0] == ("well0", "new")
    engine.handle(PodAdded(replace(honest[1], created_ns=2_000)), MINUTE)
    assert ("well1", "new") in decided(engine.handle(Tick(), MINUTE))[:2]


def test_turns_are_of_one_priority_and_forgotten_once_nobody_waits():
    engine = engine_of(2_000, nodes=4)
    parked(engine, {"low": 0, "high": 5}, each=20)
    few = NodesChanged((node("new", gpus=1, memory_mib=9),))
    everyone, turns = drained(engine, few, MINUTE)
    order = [uid[:-4] for uid, _ in decided(everyone)]
    assert order == ["high"] * 20 + ["low"] * 20
    assert turns > 3
    assert not engine.queue.active
    assert engine.queue._active._work == {}


def test_nobody_alike_is_overtaken_by_another_namespace():
    """The older one is tried on the turn of the younger one's namespace."""
    engine = engine_of(1, nodes=2)
    parked(engine, {"busy": 0}, each=6)
    engine.handle(NodesChanged((node("new", gpus=1, memory_mib=900),)), MINUTE)
    for number, namespace in enumerate(["busy", "busy", "other"]):
        asks = replace(pod(f"alike{number}", memory_mib=400), namespace=namespace)
        engine.handle(PodAdded(replace(asks, created_ns=1_000 + number)), MINUTE)
    tried = [uid for uid, _ in decided(drained(engine, Tick(), MINUTE)[0])]
    assert [uid for uid in tried if "alike" in uid] == ["alike0", "alike1", "alike2"]
    assert tried.index("alike0") < 5, "it does not wait behind all of its own namespace"
