"""How long a decision takes that ends pods of lower priority, on a full cluster.

10,000 nodes of 8 GPUs, filled with shares and whole cards of five priorities until nothing fits;
then pods of a higher one come, each fits nowhere, and victims are chosen (and end). Writes
build/bench/preemption.json.

    python benchmarks/bench_preemption.py [--nodes 10000] [--pods 400] [--movable 30] [--gang 256]
        [--rules] [--uneven]

`--movable`: so many percent of the pods may move, and on two GPUs of a hundred a share is free.
`--gang`: gangs of so many pods alike come, `--pods` in all; what is timed is the event of the last
pod of each, which decides for all of them.
`--rules`: pods are of 200 applications, each evenly spread over 20 zones. Those that come have
bench_pod_rules' rules: spread by zone, apart by node, near another application by zone.
`--uneven`: each pod's application is drawn, so that zones have more and less of it.
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from bench_decisions import GPUS, a_shape
from bench_pod_rules import HOST, ZONE, ZONES, labels_of, rules_of
from weft.core.engine import Engine, Evict, PodAdded, PodGone, PodSeenBound
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.model import Constraints, Gang, Gpu, Node, Placement, PodMarks, PodRequest, Share
from weft.testing import shape

CARD_MIB = 16_384
APPS = 200
FREE = 0.01
"""The part of shares, on GPUs with several, that nobody holds where pods may move."""


def filled(
    nodes: int, policy: str, rng: random.Random, movable: int = 0, *, uneven: bool = False
) -> Engine:
    """A cluster on which every GPU is held by two to five shares, or as a whole; of the pods so
    many percent may move, if any, and then some room is free."""
    apps = random.Random(9) if uneven else None
    cluster = [
        Node(
            f"n{at:05d}",
            tuple(Gpu(g, CARD_MIB, "T4", f"GPU-{at}-{g}") for g in range(GPUS)),
            64_000,
            262_144,
            labels={ZONE: f"zone-{at % ZONES}", HOST: f"n{at:05d}"},
        )
        for at in range(nodes)
    ]
    engine = Engine([Profile("weft", [built_in().create(policy)], preempts=True)], cluster)
    number, in_zone = 0, [0] * ZONES
    for at, each in enumerate(cluster):
        for gpu in range(GPUS):
            parts = rng.choice((1, 2, 3, 5))
            for part in range(parts):
                number += 1
                if movable and part and rng.random() < FREE:
                    continue
                share = Share(0, gpu, CARD_MIB // parts, 1000 // parts, each.gpus[gpu].uuid)
                place = Placement(f"p{number}", each.name, (share,), 500, 1_024)
                in_zone[at % ZONES] += 1
                app = apps.randrange(APPS) if apps else in_zone[at % ZONES] % APPS
                labels = labels_of(app)
                marks, priority = PodMarks("default", labels), rng.choice((1, 1, 2, 5, 8))
                seen = PodSeenBound(place, number, marks=marks, priority=priority)
                if movable and rng.random() * 100 < movable:
                    asked = shape(memory_mib=share.memory_mib, milli=share.milli)
                    anew = PodRequest(place.uid, place.uid, asked, priority=priority)
                    seen = replace(seen, movable=anew)
                engine.handle(seen, 0)
    return engine


def a_pod(rng: random.Random, at: int, *, rules: bool) -> PodRequest:
    """One that comes."""
    pod = PodRequest(f"new{at}", f"new{at}", a_shape(rng, at % 97), priority=rng.choice((3, 9)))
    if not rules:
        return pod
    asked = Constraints(pods=rules_of(at % APPS, APPS))
    return replace(pod, shape=replace(pod.shape, constraints=asked), labels=labels_of(at % APPS))


def gangs_of(size: int, count: int, rng: random.Random, *, rules: bool) -> list[list[PodRequest]]:
    """Pods alike that come together; each alone if the size is 1."""
    made = []
    for at in range(count // size):
        first = a_pod(rng, at, rules=rules)
        alike = [replace(first, uid=f"new{at}-{n}", name=f"new{at}-{n}") for n in range(size)]
        gang = Gang("kubernetes", "default", f"g{at}", least=size)
        made.append([replace(pod, gang=gang) for pod in alike] if size > 1 else [first])
    return made


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pods", type=int, default=400)
    parser.add_argument("--policy", default="least-stranding")
    parser.add_argument("--movable", type=int, default=0)
    parser.add_argument("--gang", type=int, default=1)
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--uneven", action="store_true")
    chosen = parser.parse_args()
    rng = random.Random(0)
    engine = filled(chosen.nodes, chosen.policy, rng, chosen.movable, uneven=chosen.uneven)
    took_ms, used_ms, ended, moved, found = [], [], 0, 0, 0
    for at, pods in enumerate(gangs_of(chosen.gang, chosen.pods, rng, rules=chosen.rules)):
        for pod in pods[:-1]:
            engine.handle(PodAdded(pod), at)
        began, busy = time.perf_counter(), time.process_time()
        commands = engine.handle(PodAdded(pods[-1]), at)
        took_ms.append(1e3 * (time.perf_counter() - began))
        used_ms.append(1e3 * (time.process_time() - busy))
        evicted = [c for c in commands if isinstance(c, Evict)]
        moved += sum(bool(c.record.preempted and c.record.preempted.moves_to) for c in evicted)
        victims = [c.placement.uid for c in evicted]
        ended += len(victims)
        found += bool(victims)
        for uid in victims:
            engine.handle(PodGone(uid), at)
    result = {
        "nodes": chosen.nodes,
        "pods": chosen.pods,
        "movable": chosen.movable,
        "gang": chosen.gang,
        "rules": chosen.rules,
        "uneven": chosen.uneven,
        "preempt": found,
        "ended": ended - moved,
        "moved": moved,
        "first_ms": round(took_ms[0], 1),
        "p50_ms": round(float(np.percentile(took_ms[1:], 50)), 1),
        "p99_ms": round(float(np.percentile(took_ms[1:], 99)), 1),
        "p99_cpu_ms": round(float(np.percentile(used_ms[1:], 99)), 1),
        "most_ms": round(max(took_ms[1:]), 1),
    }
    print(json.dumps(result))
    out = Path("build/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "preemption.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
