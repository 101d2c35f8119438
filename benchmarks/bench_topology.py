"""How well connected pods of several GPUs are, and what choosing their GPUs by links costs.

100 equal nodes of each kind of machine at 85 % load; half of the pods ask one GPU, the others 2, 4
or 8 (6, 3, 1), and leave at random. The same arrivals three times: *links*, best-fit that knows
the links; *without*, best-fit that is told of none (the first free GPUs of the node); *first-fit*,
the first node and its first free GPUs. Of the pods of several GPUs the share that got a set as well
connected as any of that node when empty. Time is of `Engine.handle` for these pods, process time,
and of the choice alone for 8 of 16 GPUs. Writes build/bench/topology.json.

    python benchmarks/bench_topology.py [--pods 4000] [--nodes 100] [--seeds 5]
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.core.engine import Bind, Engine, PodAdded, PodGone
from weft.core.framework import Policy, Profile
from weft.core.framework.gpu_sets import GpuSets, gpu_sets
from weft.core.policies.packing import BestFit, FirstFit
from weft.model import GpuRequest, PodRequest, Shape
from weft.model.gpu_links import GpuLinks
from weft.testing import node

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the fakes

from fakes.gpu_links import bridged_pairs, dgx_1, pcie_switches

OUT = Path("build/bench/topology.json")
LOAD = 0.85
SIZES = (1, 2, 4, 8)
WEIGHTS = (10, 6, 3, 1)
MACHINES = {
    "DGX-1 (hybrid cube mesh)": dgx_1(),
    "pairs bridged by NVLink": bridged_pairs(),
    "PCIe switches of two": pcie_switches(8, 2),
    "16 GPUs, PCIe switches of four": pcie_switches(16, 4),
}


class Result(NamedTuple):
    """Per pod of several GPUs: whether it got a best set, and how long its decision took, µs."""

    best: list[bool]
    took_us: list[float]


def play(
    links: GpuLinks, policy: Policy, *, told: bool, nodes: int, pods: int, seed: int
) -> Result:
    gpus, sets = len(links.indexes), gpu_sets(links)
    known = links if told else None
    names = [node(f"n{n:04}", gpus=gpus, cpu_milli=10**6, links=known) for n in range(nodes)]
    engine = Engine([Profile("weft", [policy])], names)
    rng, running, held = random.Random(f"topology {seed}"), list[tuple[str, int]](), 0
    result = Result([], [])
    for number in range(pods):
        count = rng.choices(SIZES, WEIGHTS)[0]
        while running and held + count > LOAD * nodes * gpus:
            uid, left = running.pop(rng.randrange(len(running)))
            engine.handle(PodGone(uid), number)
            held -= left
        uid = str(number)
        request = PodRequest(uid, uid, Shape((GpuRequest(count, whole=True),), 1000))
        begin = time.process_time()
        commands = engine.handle(PodAdded(request), number)
        took = time.process_time() - begin
        bound = next((one for one in commands if isinstance(one, Bind)), None)
        if bound is None:
            engine.handle(PodGone(uid), number)
            continue
        running.append((uid, count))
        held += count
        if count > 1 and number > pods // 5:
            chosen = [share.gpu for share in bound.placement.shares]
            result.best.append(is_best(sets, chosen))
            result.took_us.append(took * 1e6)
    return result


def is_best(sets: GpuSets, chosen: Sequence[int]) -> bool:
    mask = sum(1 << sets.place[gpu] for gpu in chosen)
    whole = (1 << sets.count) - 1
    return bool(sets.quality[mask] >= sets.best(len(chosen))[whole])


def choice_alone_us() -> tuple[float, float]:
    """Median and p99 of choosing 8 of the free GPUs of 16, tables made before."""
    sets, rng, took = gpu_sets(pcie_switches(16, 2)), random.Random(1), []
    for _ in range(3000):
        free = sum(1 << place for place in rng.sample(range(16), rng.randrange(8, 17)))
        candidates = sets.sets(8)
        begin = time.process_time()
        sets.choose(candidates[(candidates & ~free) == 0], free)
        took.append((time.process_time() - begin) * 1e6)
    return float(np.median(took[1:])), float(np.percentile(took[1:], 99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=4_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for machine, links in MACHINES.items():
        for way in ("links", "without", "first-fit"):
            best, took = [], []
            for seed in range(1, options.seeds + 1):
                policy: Policy = FirstFit() if way == "first-fit" else BestFit()
                result = play(
                    links,
                    policy,
                    told=way == "links",
                    nodes=options.nodes,
                    pods=options.pods,
                    seed=seed,
                )
                best.append(100 * float(np.mean(result.best)))
                took += result.took_us
            row = {
                "machine": machine,
                "way": way,
                "best_percent": round(float(np.mean(best)), 1),
                "seeds": [round(one, 1) for one in best],
                "median_us": round(float(np.median(took))),
                "p99_us": round(float(np.percentile(took, 99))),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    median, p99 = choice_alone_us()
    rows.append({"choice_of_8_of_16_us": round(median), "p99_us": round(p99)})
    print(json.dumps(rows[-1]))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
