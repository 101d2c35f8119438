"""ResourceClaims: the memory of a cluster's, and the time that one claim's change takes.

Everything from the API's JSON to the ledger: decoding a watch's line, the list-watch's own book,
reading, charging. The memory is the growth of the process; the time is that of the whole way of
one claim that is allocated, and of one that is released, medians and worst of all. Besides, of a
cluster with these claims and without them: a scrape of the scheduler's metrics, and what `weft
status` and `weft inspect` make of the objects once they have read them. Limits: 20 MiB for 5,000
claims, 100 µs of CPU time an event (median); 20 ms that claims add to a scrape, during which
nothing is decided. Writes build/bench/claims.json.

    python benchmarks/bench_claims.py [--claims 5000]
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.reading.claims import ClaimObjects, claim_findings, taken_in
from weft.cluster.reading.promises import promises
from weft.cluster.reading.reading import HowToRead
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.codec import Resource, SkippedObjects
from weft.kube.dra import RESOURCE_CLAIMS, ResourceClaim, ResourceSlice
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, KnownObjects

CARDS, CARD_MIB, MIB, PER_CARD = 8, 80_000, 2**20, 4
MEMORY_MIB, EVENT_US, SCRAPE_MS = 20.0, 100.0, 20.0
REPEATS = 5
DRIVER = "gpu.example.com"
Json = dict[str, Any]


def slice_of(node: str) -> Json:
    """As NVIDIA's driver publishes a node with eight shared cards, attribute by attribute."""
    devices = [
        {
            "name": f"gpu-{i}",
            "allowMultipleAllocations": True,
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{node}-{i}"},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "brand": {"string": "Nvidia"},
                "architecture": {"string": "Hopper"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "driverVersion": {"version": "580.65.6"},
                "cudaDriverVersion": {"version": "13.0.0"},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{i:02x}"},
                "resource.kubernetes.io/pciBusID": {"string": f"0000:{i:02x}:00.0"},
            },
            "capacity": {"memory": {"value": f"{CARD_MIB}Mi"}, "cores": {"value": "100"}},
        }
        for i in range(CARDS)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"slice-{node}", "uid": f"slice-{node}"},
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices},
    }


def claim(number: int, node: str, *, allocated: bool, version: int) -> Json:
    """As kube-scheduler leaves a claim of a template behind, managed fields included."""
    name, card = f"train-{number:05d}-gpu-x7k2p", number // PER_CARD % CARDS
    owner = {"apiVersion": "v1", "kind": "Pod", "name": f"train-{number}", "uid": f"pod-{number}"}
    meta = {
        "name": name,
        "namespace": "ml",
        "uid": f"{number:08x}-0000-4000-8000-000000000000",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-11-26T12:00:00Z",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
        "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
        "ownerReferences": [owner],
        "managedFields": [{"manager": "kube-scheduler", "fieldsV1": {"f:status": {}}}] * 2,
    }
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    consumed = {"memory": f"{CARD_MIB // PER_CARD}Mi", "cores": "25"}
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": node,
        "device": f"gpu-{card}",
        "shareID": f"{number:08x}-1111-4111-8111-111111111111",
        "consumedCapacity": consumed,
    }
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": selector,
        "allocationTimestamp": "2026-11-26T12:00:01Z",
    }
    user = {"resource": "pods", "name": f"train-{number}", "uid": f"pod-{number}"}
    asked = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    status = {"allocation": allocation, "reservedFor": [user]} if allocated else {}
    return {"metadata": meta, "spec": {"devices": {"requests": asked}}, "status": status}


def kube_node(name: str) -> KubeNode:
    """A node with Weft's inventory of the same cards."""
    cards = [{"index": i, "memory_mib": CARD_MIB, "uuid": f"GPU-{name}-{i}"} for i in range(CARDS)]
    marks = {"weft.dev/inventory": json.dumps({"gpus": cards})}
    return msgspec.convert({"metadata": {"name": name, "annotations": marks}}, KubeNode)


class Fed:
    """A cluster's views, fed line by line as its watches do, without a server."""

    def __init__(self, nodes: list[str]) -> None:
        endpoint = Endpoint("http://none.invalid", FixedCredentials())
        profiles = [Profile("weft", [Fgd()])]
        self.live = EngineCluster(ApiClient(endpoint), profiles, lease=None)
        for name in nodes:
            self.live.nodes.take_node(Added(kube_node(name)))
        self.live._apply_nodes()
        self.metrics = SchedulerMetrics(LeaderParts(self.live))
        self.known: KnownObjects[Any] = KnownObjects()
        self.skips = SkippedObjects()

    def slice(self, body: Json) -> None:
        """A slice came."""
        self.live._claims._take_slice(Added(msgspec.convert(body, ResourceSlice)))

    def line(self, line: bytes) -> None:
        """One line of the watch of claims."""
        event = RESOURCE_CLAIMS.decode_line(line, self.skips)
        for change in self.known.apply(event):
            self.live._claims._take_claim(change)


def line_of(resource: Resource[Any], kind: str, body: Json) -> bytes:
    """A watch's line."""
    assert resource.path
    return msgspec.json.encode({"type": kind, "object": body})


def resident_mib() -> float:
    """Memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MIB


def timed(fed: Fed, lines: list[bytes]) -> list[float]:
    """CPU time of each line, µs."""
    took = []
    for line in lines:
        began = time.process_time()
        fed.line(line)
        took.append((time.process_time() - began) * 1e6)
    return took


def best_ms(work: Callable[[], object]) -> float:
    """CPU time of the quickest of several runs, ms."""
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        took.append((time.process_time() - began) * 1e3)
    return round(min(took), 2)


def looked_at(nodes: list[KubeNode], slices: list[Json], claims: list[Json]) -> int:
    """Evaluate these objects as `weft status` and `weft inspect` do; the number of findings."""
    objects = ClaimObjects(
        [msgspec.convert(each, ResourceSlice) for each in slices],
        (),
        [msgspec.convert(each, ResourceClaim) for each in claims],
    )
    read = taken_in(objects, nodes, ())
    reports, _ = promises(nodes, (), HowToRead(), read)
    assert len(reports) == len(nodes)
    return len(claim_findings(read, ()))


def measured(count: int) -> Json:
    """All of it."""
    names = [f"node-{i:04d}" for i in range(-(-count // (CARDS * PER_CARD)))]
    fed, shown, slices = Fed(names), [kube_node(name) for name in names], []
    for name in names:
        slices.append(slice_of(name))
        fed.slice(slices[-1])
    where = [names[i // (CARDS * PER_CARD)] for i in range(count)]

    def lines(kind: str, version: int, *, allocated: bool) -> list[bytes]:
        bodies = (claim(i, where[i], allocated=allocated, version=version) for i in range(count))
        return [line_of(RESOURCE_CLAIMS, kind, body) for body in bodies]

    came, again = lines("ADDED", 1, allocated=True), lines("MODIFIED", 3, allocated=True)
    released = lines("MODIFIED", 2, allocated=False)
    scrape_without_ms = best_ms(lambda: list(fed.metrics.collect()))
    gc.collect()
    before = resident_mib()
    allocated_us = timed(fed, came)
    gc.collect()
    grown = resident_mib() - before
    held = len(fed.live.engine.ledger.holdings)
    assert held == count, f"{held} of {count} claims hold something"
    assert not fed.live.pods.claims.problems
    scrape_ms = best_ms(lambda: list(fed.metrics.collect()))
    released_us = timed(fed, released)
    assert not fed.live.engine.ledger.holdings
    allocated_us += timed(fed, again)
    claims = [claim(i, where[i], allocated=True, version=1) for i in range(count)]
    return {
        "claims": count,
        "nodes": len(names),
        "memory_mib": round(grown, 1),
        "allocated_us": round(statistics.median(allocated_us), 1),
        "allocated_worst_us": round(max(allocated_us), 1),
        "released_us": round(statistics.median(released_us), 1),
        "released_worst_us": round(max(released_us), 1),
        "scrape_ms": scrape_ms,
        "scrape_without_claims_ms": scrape_without_ms,
        "status_ms": best_ms(lambda: looked_at(shown, slices, claims)),
        "status_without_claims_ms": best_ms(lambda: looked_at(shown, slices, [])),
    }


def main() -> int:
    """Measure, print, write; 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--claims", type=int, default=5_000)
    found = measured(parser.parse_args().claims)
    print(json.dumps(found, indent=1))
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.json").write_text(json.dumps(found, indent=1) + "\n")
    parts = found["claims"] / 5_000
    within = found["memory_mib"] <= MEMORY_MIB * parts
    within &= found["scrape_ms"] - found["scrape_without_claims_ms"] <= SCRAPE_MS * parts
    return 0 if within and max(found["allocated_us"], found["released_us"]) <= EVENT_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
