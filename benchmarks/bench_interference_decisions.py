"""How long a decision by predicted interference takes: 5,000 nodes of 8 GPUs, 200 applications.

70 % of the GPUs hold one or two pods of random applications; pods arrive, each is placed and
another goes. `16 wait`: every GPU is taken, and sixteen others wait for a place. Through
`Engine.handle`; writes build/bench/interference-decisions.json.

    python benchmarks/bench_interference_decisions.py [--nodes 5000] [--decisions 1000]
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np

from weft.core.engine import Bind, Engine, PodAdded, PodBound, PodGone, PolicyInput
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, PodRequest, Shape, Share
from weft.model.interference_table import INTERFERENCE, interference, to_input

GPUS, CLASSES, CARD_MIB = 8, 200, 16_384
BUSY, PAIRS = 0.7, 0.4


def predictions(seed: int) -> object:
    """Random log slowdowns between 0 and ln 2, bounds above them."""
    rng = np.random.default_rng(seed)
    mean = rng.random((1, CLASSES + 1, CLASSES + 1)) * np.log(2)
    upper = mean + rng.random(mean.shape) * 0.2
    names = [f"app-{number}" for number in range(CLASSES)]
    tier = np.full(mean.shape, 2, dtype=np.int8)
    return to_input(interference(1, ["V100"], names, (mean, upper, tier)))


def a_pod(rng: random.Random, number: int) -> PodRequest:
    gpu_request = GpuRequest(memory=GpuMemoryRequest("mib", 4096))
    kind = rng.randrange(CLASSES)
    job_class = ("", "best-effort", "latency-critical")[kind % 3]
    shape = Shape((gpu_request,), 1000, 1024, application=f"app-{kind}", job_class=job_class)
    return PodRequest(f"new-{number}", f"new-{number}", shape, created_ns=number)


def loaded(policy: str, nodes: int, busy: float, rng: random.Random) -> tuple[Engine, list[str]]:
    cards = tuple(Gpu(index, CARD_MIB, "V100") for index in range(GPUS))
    cluster = [Node(f"node-{at:05d}", cards, 128_000, 800_000) for at in range(nodes)]
    engine = Engine([Profile("weft", [built_in().create(policy)])], cluster)
    engine.handle(PolicyInput(INTERFERENCE, predictions(3)), 0)
    held: list[str] = []
    for node in cluster:
        for gpu in range(GPUS):
            if rng.random() < busy:
                for _ in range(2 if rng.random() < PAIRS else 1):
                    pod = a_pod(rng, -len(held))
                    uid = f"old-{len(held)}"
                    place = Placement(
                        uid,
                        node.name,
                        (Share(0, gpu, 4096, 0),),
                        1000,
                        1024,
                        application=pod.shape.application,
                        job_class=pod.shape.job_class,
                    )
                    engine.ledger.adopt(place)
                    held.append(uid)
    return engine, held


def measure(policy: str, nodes: int, decisions: int, waiting: int) -> dict[str, float]:
    rng = random.Random(5)
    engine, held = loaded(policy, nodes, 1.0 if waiting else BUSY, rng)
    for number in range(waiting):
        engine.handle(PodAdded(a_pod(rng, -1 - number)), 0)
    took, placed = [], 0
    for number in range(decisions):
        pod = a_pod(rng, number)
        begin = time.perf_counter()
        outcome = engine.handle(PodAdded(pod), number)
        took.append(time.perf_counter() - begin)
        for command in outcome:
            if isinstance(command, Bind):
                engine.handle(PodBound(command.pod.uid), number)
                held.append(command.pod.uid)
                placed += 1
        at = rng.randrange(len(held))
        held[at], held[-1] = held[-1], held[at]
        engine.handle(PodGone(held.pop()), number)
    late = sorted(took[len(took) // 5 :])
    return {
        "median_us": 1e6 * late[len(late) // 2],
        "p99_us": 1e6 * late[int(0.99 * len(late))],
        "placed": placed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--decisions", type=int, default=2000)
    asked = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for policy in ("interference", "coscheml", "lucid", "fgd"):
        for waiting in (0, 16) if policy == "interference" else (0,):
            name = f"{policy}, {waiting} wait" if waiting else policy
            found[name] = measure(
                policy, asked.nodes, asked.decisions // (4 if waiting else 1), waiting
            )
            print(name, {key: round(value) for key, value in found[name].items()}, flush=True)
    out = Path("build/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "interference-decisions.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
