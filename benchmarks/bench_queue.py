"""How much places that are kept for waiting pods cost on a large cluster, through `Engine.handle`.

The cluster of `bench_decisions.py`: nodes of 8 GPUs at 70 % load, here with 5,000 pods of eight
GPUs that wait, of 100 shapes, and pods that say how long they run. The same pods come and go on
engines whose queues differ in their discipline alone, in turns in one process. What is timed, in
ms of CPU: an arrival that finds a place (`decides`), one that leaves (`gone`), and the event at
which a place is kept for a pod, and for a group of 16 unlike pods (`reserves`, `reserves_group`),
after minutes in which pods came and went. Writes build/bench/queue.json.

    python benchmarks/bench_queue.py [--nodes 10000] [--waiting 5000] [--discipline easy] [--quick]
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from bench_decisions import World, milli_of
from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
)
from weft.core.framework import Profile
from weft.core.ledger import FAR
from weft.core.policies.catalog import built_in
from weft.lab.simulate.openb import shape_of
from weft.model import Gang, PodRequest, Shape
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine
from weft.model.request import rounded_s
from weft.model.selectors import PodMarks

SECOND = 1_000_000_000
AFTER_NS, KEPT_NS = 300 * SECOND, 1_800 * SECOND
SHAPES, NAMESPACES, GROUP, PLACES, STEPS = 100, 20, 16, 3, 20
BASE = HeadOfLine(AFTER_NS, KEPT_NS, AFTER_NS, at_once=PLACES)
RULES = {
    "first-fit": NOTHING_KEPT,
    "reserve": BASE,
    "lend": replace(BASE, discipline="lend"),
    "easy": replace(BASE, discipline="easy"),
    "conservative": replace(BASE, discipline="conservative"),
    "shortest": replace(BASE, discipline="shortest"),
}


class QueuedWorld:
    """One engine with the pods of `world`, and as many that wait."""

    def __init__(self, world: World, policy: str, rules: HeadOfLine) -> None:
        self.engine = Engine([Profile("weft", [built_in().create(policy)])], head_of_line=rules)
        self.now_ns, self.took = 0, dict[str, list[float]]()
        self.tell(NodesChanged(tuple(world.engine.ledger.table.nodes)))
        draw = random.Random(1)
        for number, holding in enumerate(world.engine.ledger.holdings.values()):
            said_s = rounded_s(draw.lognormvariate(8, 1.5))
            marks = PodMarks(f"ns-{number % NAMESPACES}")
            held_ns = round(draw.random() * said_s * SECOND)
            placement = replace(holding.placement, expected_s=said_s)
            self.tell(PodSeenBound(placement, held_ns=held_ns, marks=marks))

    def tell(self, event: Event, what: str = "") -> list[Command]:
        """One event, and its Bindings at once; its CPU time counts as `what`."""
        began = time.process_time()
        commands = self.engine.handle(event, self.now_ns)
        if what:
            self.took.setdefault(what, []).append((time.process_time() - began) * 1e3)
        for command in commands:
            if isinstance(command, Bind):
                self.engine.handle(PodBound(command.pod.uid), self.now_ns)
        return commands

    def none_is_due(self) -> None:
        """The first of the line wait on: none has a place kept before `reserves` says so."""
        for turn in self.engine.kept_places.turns.values():
            if not turn.places:
                turn.due_ns = FAR

    def reserves(self, what: str) -> None:
        """The first of the line have waited long enough: a place is kept for one after another."""
        counts, kept = self.engine.kept_places.counts, self.engine.kept_places
        self.none_is_due()
        for turn in [turn for turn in kept.turns.values() if not turn.places]:
            turn.due_ns = self.now_ns
            before = counts["kept"]
            self.engine.queue.wake(turn.waiting.pod.uid, self.now_ns)
            self.tell(Tick(), what)
            if counts["kept"] == before:
                self.took[what].pop()


def of_eight(number: int, draw: random.Random) -> PodRequest:
    """A pod of eight GPUs, of one of `SHAPES` shapes."""
    shape = shape_of(32_000 + number % SHAPES, 65_536, 8, 1000)
    shape = replace(shape, expected_s=rounded_s(draw.choice([1_800, 7_200, 28_800])))
    name, namespace = f"waits-{number}", f"ns-{number % NAMESPACES}"
    return PodRequest(name, name, shape, namespace=namespace, created_ns=number + 1)


def fill(worlds: list[QueuedWorld], count: int) -> None:
    """So many pods wait."""
    draw = random.Random(2)
    pods = [of_eight(number, draw) for number in range(GROUP, count)]
    for world in worlds:
        for pod in pods:
            world.tell(PodAdded(pod))


def group(base: World, worlds: list[QueuedWorld], draw: random.Random, number: int) -> None:
    """A group comes and waits until a place is kept for it, while small pods come and go; then it
    is deleted."""
    gang = Gang("kubernetes", "ns-0", f"train-{number}", least=GROUP, created_ns=1)
    pods = [replace(of_eight(at, draw), gang=gang, priority=1) for at in range(GROUP)]
    for world in worlds:
        for pod in pods:
            world.tell(PodAdded(pod))
    for step in range(STEPS):
        for world in worlds:
            world.none_is_due()
            world.now_ns += AFTER_NS // STEPS
        churn(base, worlds, draw, -1 - number * STEPS - step)
    for world in worlds:
        world.reserves("reserves_group")
        for pod in pods:
            world.tell(PodGone(pod.uid))


def churn(base: World, worlds: list[QueuedWorld], draw: random.Random, seq: int) -> None:
    """One small pod more, and as much less, on each engine in turn."""
    gone = []
    while base.used > base.full:
        at = draw.randrange(len(base.live))
        base.live[at], base.live[-1] = base.live[-1], base.live[at]
        uid, milli = base.live.pop()
        base.used -= milli
        gone.append(uid)
    shape = small(base, draw)
    pod = PodRequest(f"new-{seq}", f"new-{seq}", shape, namespace=f"ns-{seq % NAMESPACES}")
    order = worlds[seq % len(worlds) :] + worlds[: seq % len(worlds)]
    for world in order:
        world.now_ns += SECOND // 10
        for uid in gone:
            world.tell(PodGone(uid, completed=True), "gone")
        world.tell(PodAdded(replace(pod, created_ns=world.now_ns)), "decides")
    base.live.append((pod.uid, milli_of(shape)))
    base.used += milli_of(shape)


def small(base: World, draw: random.Random) -> Shape:
    """The shape of a share, or of one GPU."""
    shape = draw.choice([shape for shape in base.shapes if shape.gpus == 1])
    return replace(shape, expected_s=rounded_s(draw.lognormvariate(8, 1.5)))


def measure(
    policy: str, disciplines: list[str], nodes: int, waiting: int, events: int
) -> list[dict[str, object]]:
    base = World(policy, nodes, seed=1)
    worlds = {name: QueuedWorld(base, policy, RULES[name]) for name in disciplines}
    draw = random.Random(3)
    fill(list(worlds.values()), waiting)
    for number in range(events // 50):
        group(base, list(worlds.values()), draw, number)
    for world in worlds.values():
        world.now_ns += SECOND
        for _ in range(events // 100):
            world.reserves("reserves")
            for turn in world.engine.kept_places.kept()[1:]:
                world.tell(PodGone(turn.waiting.pod.uid))
            world.now_ns += SECOND
        world.reserves("reserves")
    for seq in range(events // 5):
        churn(base, list(worlds.values()), draw, seq)
    for world in worlds.values():
        for what in ("decides", "gone"):
            world.took[what].clear()
    for seq in range(events // 5, events):
        churn(base, list(worlds.values()), draw, seq)
    rows = []
    for name, world in worlds.items():
        row: dict[str, object] = {
            "policy": policy,
            "nodes": nodes,
            "waiting": waiting,
            "discipline": name,
            "places_kept": len(world.engine.kept_places.kept()),
        }
        for what, times in sorted(world.took.items()):
            row[f"{what}_median_ms"] = round(float(np.median(times)), 3)
            row[f"{what}_p99_ms"] = round(float(np.percentile(times, 99)), 3)
        for what in ("decides", "gone"):
            without = np.median(worlds["first-fit"].took[what])
            row[f"{what}_ratio"] = round(float(np.median(world.took[what]) / without), 3)
        rows.append(row)
        print(json.dumps(row))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=5_000)
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--discipline", action="append", default=[], choices=list(RULES))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    nodes, waiting, events = (500, 300, 200) if args.quick else (args.nodes, args.waiting, 1_000)
    rows = []
    disciplines = list(dict.fromkeys(["first-fit", *(args.discipline or RULES)]))
    for policy in args.policy or ["best-fit"]:
        rows += measure(policy, disciplines, nodes, waiting, events)
    path = Path("build/bench/queue.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
