"""How long one decision takes on a large cluster, through `Engine.handle`.

5,000 and 10,000 nodes of 8 GPUs at 70 % load, arrivals and departures, records kept in memory.
`64` draws pods from 64 shapes, `new` makes every request a new shape. Beside each: the naive way
(`naive.py`: the published formula over every node, dense arrays, nothing kept), timed on the same
states, and the engine's placements compared with it. Writes build/bench/decisions.json.

Policies that read metrics decide on one snapshot of all GPUs, and have no naive counterpart.
Between two decisions the engine gets the ticks that it asks for, as on a cluster (`ticks`,
`tick_most_ms`): policies with prices score there by new ones what they will be asked.

    python benchmarks/bench_decisions.py [--nodes 10000] [--policy best-fit] [--quick]
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np

from naive import NaiveCluster
from weft.core.engine import (
    Bind,
    Engine,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PolicyInput,
    Record,
    SignalsChanged,
    Tick,
    Wake,
)
from weft.core.framework import Profile
from weft.core.framework.fragments import TypicalPods, typical_input
from weft.core.framework.signals import FRESH, snapshot
from weft.core.policies.catalog import built_in
from weft.lab.simulate.openb import shape_of
from weft.model import Gpu, Node, Placement, PodRequest, Shape, Share

LOAD = 0.7
GPUS = 8
NAIVE = ("best-fit", "fgd")
METRICS = ("load-aware", "auto")
OTHERS = ("least-stranding",)


def a_shape(rng: random.Random, cpu_shift: int) -> Shape:
    """30 % whole cards (1 to 8), the rest shares; `cpu_shift` makes a shape new."""
    if rng.random() < 0.3:
        gpus = rng.choice([1, 1, 1, 2, 4, 8])
        return shape_of(4000 * gpus + cpu_shift, 8192 * gpus, gpus, 1000)
    return shape_of(rng.randrange(1000, 9000, 500) + cpu_shift, 4096, 1, rng.randrange(50, 950, 10))


def a_snapshot(names: list[str]) -> SignalsChanged:
    """Every GPU measured: mostly moderate loads, a few that the gate closes."""
    rng = np.random.default_rng(5)
    gpus = [(name, gpu) for name in names for gpu in range(GPUS)]
    fresh = np.full(len(gpus), FRESH, dtype=np.int8)
    values = {
        "sm_active_ratio": rng.random(len(gpus)),
        "dram_active_ratio": rng.random(len(gpus)) / 2,
        "memory_used_mib": rng.random(len(gpus)) * 20_000.0,
        "power_w": rng.random(len(gpus)) * 250,
        "memory_free_mib.last": rng.random(len(gpus)) * 12_000.0 + 2_000.0,
        "power_limit_w": np.full(len(gpus), 250.0),
    }
    columns = {name: (column, fresh) for name, column in values.items()}
    return SignalsChanged(snapshot(1, 0, gpus, columns))


def milli_of(shape: Shape) -> int:
    gpu_request = shape.gpu_requests[0]
    return gpu_request.count * (1000 if gpu_request.whole else gpu_request.milli)


class World:
    """An engine on a loaded cluster, and the churn that keeps it loaded."""

    def __init__(self, policy: str, nodes: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shapes = [a_shape(self.rng, 0) for _ in range(64)]
        self.policy = built_in().create(policy)
        self.profile = Profile("weft", [self.policy])
        self.engine = Engine([self.profile])
        cards = tuple(Gpu(index, 32_510, "V100M32") for index in range(GPUS))
        names = [f"node-{index:05d}" for index in range(nodes)]
        self.engine.handle(
            NodesChanged(tuple(Node(name, cards, 128_000, 800_000) for name in names)), 0
        )
        history = [self.rng.choice(self.shapes) for _ in range(2_000)]
        self.typical = TypicalPods(history)
        self.engine.handle(PolicyInput("fgd", typical_input(history)), 0)
        self.names = names
        self.live: list[tuple[str, int]] = []
        self.used, self.full = 0, LOAD * nodes * GPUS * 1000
        self.seq = 0
        self.records: list[Record] = []
        self.ticks: list[float] = []
        self._load(names)
        if policy in METRICS:
            self.engine.handle(a_snapshot(names), 0)

    def _load(self, names: list[str]) -> None:
        """Fill to the load with random placements: a preloaded ledger, not a preloaded cache."""
        ledger = self.engine.ledger
        while self.used < self.full:
            shape = self.rng.choice(self.shapes)
            name = self.rng.choice(names)
            row = ledger.table.row_of[name]
            begin = ledger.table.start[row]
            gpu_request = shape.gpu_requests[0]
            room = [
                g
                for g in range(GPUS)
                if (
                    ledger.table.state[begin + g].idle
                    if gpu_request.whole
                    else ledger.table.state[begin + g].milli >= gpu_request.milli
                )
            ]
            if len(room) < gpu_request.count:
                continue
            self.seq += 1
            milli, memory = (1000, 32_510) if gpu_request.whole else (gpu_request.milli, 0)
            shares = tuple(Share(0, g, memory, milli) for g in room[: gpu_request.count])
            placement = Placement(str(self.seq), name, shares, shape.cpu_milli, shape.memory_mib)
            if ledger.adopt(placement) and ledger.table.cpu_free[row] >= 0:
                self.live.append((str(self.seq), milli_of(shape)))
                self.used += milli_of(shape)
            else:
                ledger.release(str(self.seq))

    def depart(self) -> list[str]:
        gone = []
        while self.used > self.full:
            at = self.rng.randrange(len(self.live))
            self.live[at], self.live[-1] = self.live[-1], self.live[at]
            uid, milli = self.live.pop()
            self.engine.handle(PodGone(uid), self.seq)
            self.used -= milli
            gone.append(uid)
        return gone

    def arrive(self, shape: Shape) -> tuple[float, Placement | None]:
        self.seq += 1
        pod = PodRequest(str(self.seq), f"pod-{self.seq}", shape)
        begin = time.perf_counter()
        commands = self.engine.handle(PodAdded(pod), self.seq)
        took = time.perf_counter() - begin
        outcome, placement = commands[0], None
        if isinstance(outcome, Bind):
            self.records.append(outcome.record)
            self.engine.handle(PodBound(pod.uid), self.seq)
            self.live.append((pod.uid, milli_of(shape)))
            self.used += milli_of(shape)
            placement = outcome.placement
        else:
            self.engine.handle(PodGone(pod.uid), self.seq)
        while any(isinstance(each, Wake) and each.at_ns <= self.seq for each in commands):
            begin = time.perf_counter()
            commands = self.engine.handle(Tick(), self.seq)
            self.ticks.append(time.perf_counter() - begin)
        return took, placement


def measure(policy: str, nodes: int, kind: str, decisions: int, checks: int) -> dict[str, object]:
    world = World(policy, nodes, seed=1)
    start = [held.placement for held in world.engine.ledger.holdings.values()]
    warm = decisions // 4 if kind == "64" else 5
    times: list[float] = []
    history: list[tuple[list[str], Shape, Placement | None]] = []
    for index in range(decisions + warm):
        gone = world.depart()
        new = kind == "new"
        shape = a_shape(world.rng, world.seq % 997 + 1) if new else world.rng.choice(world.shapes)
        took, placement = world.arrive(shape)
        history.append((gone, shape, placement))
        if index >= warm:
            times.append(took)
    ms = np.array(times) * 1e3
    row: dict[str, object] = {
        "policy": policy,
        "nodes": nodes,
        "gpus": nodes * GPUS,
        "shapes": kind,
        "decisions": len(times),
        "median_ms": round(float(np.median(ms)), 4),
        "p99_ms": round(float(np.percentile(ms, 99)), 4),
    }
    if world.ticks:
        row["ticks"], row["tick_most_ms"] = len(world.ticks), round(max(world.ticks) * 1e3, 4)
    if policy not in NAIVE:
        return row
    naive = naive_times(world, start, history, checks)
    return row | {
        "naive_scan_median_ms": round(float(np.median(naive)) * 1e3, 4),
        "speedup": round(float(np.median(naive) * 1e3 / np.median(ms)), 1),
        "placements_equal_to_naive": len(naive),
    }


def naive_times(
    world: World,
    start: list[Placement],
    history: list[tuple[list[str], Shape, Placement | None]],
    checks: int,
) -> list[float]:
    """Go through the same states the naive way; compare and time `checks` of the decisions."""
    reference = NaiveCluster(len(world.names), GPUS, 128_000, 800_000, world.typical)
    rows = {name: row for row, name in enumerate(world.names)}
    held = {placement.uid: placement for placement in start}
    for first in start:
        reference.charge(first, rows[first.node], 1)
    every = max(1, len(history) // checks)
    times = []
    for index, (gone, shape, placement) in enumerate(history):
        for uid in gone:
            left = held.pop(uid)
            reference.charge(left, rows[left.node], -1)
        if index % every == 0:
            begin = time.perf_counter()
            best = reference.decide(world.policy.name, shape)
            times.append(time.perf_counter() - begin)
            chosen = None
            if placement is not None:
                chosen = (rows[placement.node], tuple(share.gpu for share in placement.shares))
            assert chosen == best, f"{world.policy.name}: {chosen}, the naive scan says {best}"
        if placement is not None:
            held[placement.uid] = placement
            reference.charge(placement, rows[placement.node], 1)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--policy", action="append", choices=[*NAIVE, *OTHERS, *METRICS])
    parser.add_argument("--quick", action="store_true", help="a tenth of the decisions")
    options = parser.parse_args()
    rows = []
    for policy in options.policy or [*NAIVE, *OTHERS, *METRICS]:
        for nodes in options.nodes or [5_000, 10_000]:
            for kind, decisions in (("64", 2_000), ("new", 200)):
                count = decisions // 10 if options.quick else decisions
                checks = 40 if policy == "best-fit" else 10
                rows.append(measure(policy, nodes, kind, count, checks))
                print(json.dumps(rows[-1]), flush=True)
    out = Path("build/bench/decisions.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
