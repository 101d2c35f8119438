"""How long the extender takes for filter + prioritize of 5,000 node names, request to answer bytes.

In one process, without HTTP: decoding, parsing the pod, asking the engine, encoding. 5,000 nodes of
8 GPUs, 20,000 shared pods on them. Each step asks about another pod (never seen, one of 20 shapes),
the names beginning at another node each time, and then binds it: so that caches meet what a cluster
would show them. The sum of both calls is what counts. Writes build/bench/extender.json; ends with 1
when it is over its limits.

    python benchmarks/bench_extender.py [--nodes 5000] [--pods 600]
"""

import argparse
import asyncio
import gc
import itertools
import json
import random
import statistics
import time
from pathlib import Path

import msgspec

from weft.cluster.control.fault_log import FaultLog
from weft.cluster.control.interface import OnDecision
from weft.cluster.control.leadership import Leadership
from weft.cluster.extender.routes import Route, default_routes, route_profiles
from weft.cluster.extender.service import Extender
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Bind, Command, Engine, Event, PodBound, PodSeenBound
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod
from weft.kube.bind import Bound, Outcome
from weft.kube.clock import SystemClock
from weft.kube.pods import Pod
from weft.model import PodRequest
from weft.testing.builders import node, placement

MEDIAN_MS, P99_MS = 2.0, 10.0
CARD_MIB = 81_920


class Memory:
    """A live cluster whose API server says yes at once."""

    def __init__(self, nodes: int, pods: int) -> None:
        registry, names = built_in(), [f"node-{n:05d}" for n in range(nodes)]
        profiles = [Profile("weft", [registry.create("best-fit")])]
        profiles += route_profiles(default_routes(), registry.create)
        cards = (node(name, gpus=8, memory_mib=CARD_MIB) for name in names)
        self.engine, self.names = Engine(profiles, cards), names
        self.settings, self.ready = DialectSettings(gpushare_unit="MiB"), True
        self.leadership = Leadership(None, here=True)
        self.on_decision: list[OnDecision] = []
        self.faults = FaultLog()
        self.pods = PodView(
            (),
            NodeView(()),
            VolumeView(),
            self.engine.ledger,
            DialectSettings(),
            on_bad=lambda pod, why: None,
            clock=SystemClock(),
        )
        self.shown: dict[str, Pod] = {}
        """Pods by name, as a watch would have shown them before kube-scheduler asks."""
        self._now = itertools.count(1)
        chance = random.Random(1)
        for number in range(pods):
            where, gpu = chance.choice(names), chance.randrange(8)
            size = chance.choice((4096, 8192))
            self.handle(PodSeenBound(placement(f"old-{number}", where, gpu, memory_mib=size)))

    def parse_asked(self, pod: Pod) -> PodRequest:
        return parse_pod(pod, self.settings)

    parse = parse_asked

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self.shown.get(name)

    async def fetch(self, namespace: str, name: str) -> Pod | None:
        return self.shown.get(name)

    def pod_by_uid(self, uid: str) -> Pod | None:
        return self.shown.get(f"p{uid[1:]}")

    def handle(self, event: Event) -> list[Command]:
        return self.engine.handle(event, next(self._now))

    async def bind(self, command: Bind) -> Outcome:
        self.handle(PodBound(command.pod.uid))
        return Bound()


def pod_of(number: int) -> dict[str, object]:
    resources = {"elasticgpu.io/gpu-memory": str(2048 + 1024 * (number % 20)), "cpu": "500m"}
    container = {
        "name": "main",
        "image": "registry.example.com/model:1",
        "resources": {"limits": resources, "requests": resources},
        "env": [{"name": f"V{n}", "value": "x" * 40} for n in range(30)],
    }
    meta = {"name": f"p{number}", "namespace": "ns", "uid": f"u{number}", "resourceVersion": "1"}
    return {"metadata": meta, "spec": {"containers": [container]}, "status": {"phase": "Pending"}}


def bodies(number: int, names: list[str]) -> tuple[bytes, str]:
    asked = {"Pod": pod_of(number), "Nodes": None, "NodeNames": names}
    return msgspec.json.encode(asked), f"u{number}"


async def measure(cluster: Memory, route: Route, pods: int) -> dict[str, list[float]]:
    extender = Extender(cluster)
    took: dict[str, list[float]] = {"filter": [], "prioritize": [], "both": [], "bind": []}
    for number in range(pods):
        turn = number * 37 % len(cluster.names)  # kube-scheduler begins elsewhere each time
        body, uid = bodies(number, cluster.names[turn:] + cluster.names[:turn])
        cluster.shown[f"p{number}"] = msgspec.convert(pod_of(number), Pod)
        at = [time.perf_counter()]
        fits = extender.filter(route, body).body
        at.append(time.perf_counter())
        at.append(time.perf_counter())
        passed = json.loads(fits)["NodeNames"]
        body, _ = bodies(number, passed)
        at[-1] = time.perf_counter()
        scores = extender.prioritize(route, body).body
        at.append(time.perf_counter())
        found = {one["Host"]: int(one["Score"]) for one in json.loads(scores)}
        best = max(passed, key=lambda name: found[name])
        chosen = msgspec.json.encode(
            {"PodName": f"p{number}", "PodNamespace": "ns", "PodUID": uid, "Node": best}
        )
        at.append(time.perf_counter())
        reply = await extender.bind(route, chosen)
        at.append(time.perf_counter())
        assert reply.body == b'{"Error":""}', reply.body
        took["filter"].append(at[1] - at[0])
        took["prioritize"].append(at[3] - at[2])
        took["both"].append(at[1] - at[0] + at[3] - at[2])
        took["bind"].append(at[5] - at[4])
    return took


def summary(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "median_ms": round(statistics.median(seconds) * 1e3, 3),
        "p99_ms": round(cuts[98] * 1e3, 3),
        "max_ms": round(max(seconds) * 1e3, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=600)
    parser.add_argument("--out", type=Path, default=Path("build/bench/extender.json"))
    wish = parser.parse_args()
    found: dict[str, object] = {"nodes": wish.nodes, "pods": wish.pods}
    good = True
    for route in default_routes():
        cluster = Memory(wish.nodes, 4 * wish.nodes)
        gc.collect()
        gc.freeze()
        took = asyncio.run(measure(cluster, route, wish.pods))
        found[route.path] = {name: summary(values) for name, values in took.items()}
        both = summary(took["both"])
        good = good and both["median_ms"] <= MEDIAN_MS and both["p99_ms"] <= P99_MS
        print(route.path, json.dumps(found[route.path]))
    found["limits"] = {"median_ms": MEDIAN_MS, "p99_ms": P99_MS, "held": good}
    wish.out.parent.mkdir(parents=True, exist_ok=True)
    wish.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
