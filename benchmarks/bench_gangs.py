"""How long one decision for a gang takes on a large cluster, through `Engine.handle`.

The cluster of `bench_decisions.py`: nodes of 8 GPUs at 70 % load, here in racks of 100. Gangs of
256 pods come one after the other and go again; what is timed is the event of the last pod, at which
all get their places, or none does. `whole`: a card each; `node`: eight each, which fit nowhere at
this load; `share`: 300 thousandths; `sizes`: whole cards, two at once, and shares; `rack`: a card
each, all in one rack, of which none has room; `zone`: all in one of ten zones, of which each has.
Writes build/bench/gangs.json.

    python benchmarks/bench_gangs.py [--nodes 10000] [--policy best-fit] [--quick]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from bench_decisions import World
from weft.core.engine import Bind, NodesChanged, PodAdded, PodBound, PodGone
from weft.lab.simulate.openb import shape_of
from weft.model import Gang, PodRequest, Shape

POLICIES = ("best-fit", "fgd", "least-stranding")
SIZE, RACK_NODES, ZONES = 256, 100, 10
ONE = shape_of(4_000, 8_192, 1, 1000)
SHARE = shape_of(2_000, 4_096, 1, 300)
KINDS: dict[str, tuple[list[Shape], str]] = {
    "whole": ([ONE], ""),
    "node": ([shape_of(32_000, 65_536, 8, 1000)], ""),
    "share": ([SHARE], ""),
    "sizes": ([ONE, shape_of(8_000, 16_384, 2, 1000), SHARE], ""),
    "rack": ([ONE], "rack"),
    "zone": ([ONE], "zone"),
}


class Gangs:
    """The loaded cluster in racks, and gangs that come and go."""

    def __init__(self, policy: str, nodes: int) -> None:
        self.world = World(policy, nodes, seed=1)
        known = self.world.engine.ledger.table.nodes
        racked = [
            replace(node, labels={"rack": f"rack-{row // RACK_NODES}", "zone": f"z{row % ZONES}"})
            for row, node in enumerate(known)
        ]
        self.world.engine.handle(NodesChanged(tuple(racked)), 0)

    def comes(self, kind: str) -> tuple[float, float, int]:
        """Seconds of the last pod's event, and of CPU for it, and how many pods got places; then
        all of them go."""
        world, (shapes, key) = self.world, KINDS[kind]
        world.seq += 1
        gang = Gang("kubernetes", "ns", f"g{world.seq}", least=SIZE, topology_key=key)
        pods = [
            PodRequest(f"g{world.seq}-{number}", f"pod-{number}", shapes[number % len(shapes)])
            for number in range(SIZE)
        ]
        pods = [replace(pod, gang=gang) for pod in pods]
        for pod in pods[:-1]:
            world.engine.handle(PodAdded(pod), world.seq)
        begin, cpu = time.perf_counter(), time.process_time()
        commands = world.engine.handle(PodAdded(pods[-1]), world.seq)
        took, used = time.perf_counter() - begin, time.process_time() - cpu
        bound = [command.pod.uid for command in commands if isinstance(command, Bind)]
        for uid in bound:
            world.engine.handle(PodBound(uid), world.seq)
        for pod in pods:
            world.engine.handle(PodGone(pod.uid), world.seq)
        return took, used, len(bound)


def measure(policy: str, nodes: int, decisions: int) -> list[dict[str, object]]:
    gangs, rows = Gangs(policy, nodes), []
    for kind in KINDS:
        gangs.comes(kind)
        found = [gangs.comes(kind) for _ in range(decisions)]
        ms, cpu_ms, bound = np.array(found).T * [[1e3], [1e3], [1]]
        rows.append(
            {
                "policy": policy,
                "nodes": nodes,
                "gang": kind,
                "pods": SIZE,
                "bound": int(bound.min()),
                "decisions": decisions,
                "median_ms": round(float(np.median(ms)), 1),
                "most_ms": round(float(ms.max()), 1),
                "median_cpu_ms": round(float(np.median(cpu_ms)), 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--quick", action="store_true", help="a fifth of the decisions")
    options = parser.parse_args()
    rows = []
    for policy in options.policy or POLICIES:
        for nodes in options.nodes or [10_000]:
            rows += measure(policy, nodes, 4 if options.quick else 20)
    out = Path("build/bench/gangs.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
