"""A living cluster whose pods are edited at random, as far as their owners may: nothing moves.

Of running pods the API server lets users change metadata, images, deadlines, and add tolerations.
Where no admission policy keeps them from it, one of Weft's own marks of a pod is damaged as well.
"""

import asyncio
import json
from collections import Counter
from random import Random
from typing import Any

from led_cluster import led
from live_asks import CARD_MIB, Json, node_of, random_spec
from ways import Way

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LeapingLoop, LoopClock
from fakes.lease import LeaseStub
from weft.cluster.control.live_cluster import EngineCluster
from weft.dialects.catalog import ASKING_LABELS
from weft.model.annotations import (
    APPLICATION,
    CLASS,
    DELIVERY,
    EXPECTED_DURATION,
    GPU_MODEL,
    ISOLATION,
    PLACEMENT,
    PLACEMENT_COPY,
    SLO_MS,
    SOLO_P99_MS,
    SOLO_RATE,
    TOPOLOGY,
)
from weft.testing import AGENT_BY_NAME

NAMESPACE = "d"
RESTART_EVERY = 20
MARKS = (PLACEMENT, PLACEMENT_COPY, DELIVERY)
WORDS = (
    *(APPLICATION, CLASS, EXPECTED_DURATION, GPU_MODEL, ISOLATION, SLO_MS, SOLO_P99_MS, SOLO_RATE),
    *(TOPOLOGY, "gpu-fraction", "gpu-memory", "egpuc.elasticgpu.io/c", "example.com/note"),
)
LABELS = (*sorted(ASKING_LABELS), "genius/priority", "app")
VALUES = (
    *("x", "", "0", "1", "2", "5", "16000", "99999999", "-1", "4" * 40, "(", "none", "required"),
    *("batch", "latency-critical", "best-effort", "mps", "A100", "A100=40, T4=70", "2h", "\ud7ff"),
)
SELF_BOUND: tuple[dict[str, str], ...] = (
    {"weft.dev/gpu-memory": "1"},
    {"weft.dev/gpu-memory": "1", "nvidia.com/gpu": "1"},
    {"nvidia.com/gpu": "1"},
    {},
)
"""Requests of pods whose author names their node himself; one contradicts itself."""


class UnmovedWorld:
    """Random pods on random nodes, decided by one way; then edits. `hits` counts what was done."""

    def __init__(self, seed: int, way: Way, *, marks: bool) -> None:
        self.random, self.seed, self.way, self.marks = Random(seed), seed, way, marks
        self.hits: Counter[str] = Counter()
        self.server = FakeApiServer()
        self.damaged: dict[str, tuple[str, str]] = {}
        self.live: EngineCluster | None = None
        self._edited: Json = {}

    async def play(self, edits: int) -> Counter[str]:
        """Fill the cluster, then edit so often; `AssertionError` where anything moved."""
        line = MemoryLine(self.server, delay=lambda: 0, lag=lambda: 0)
        async with MemoryClient(line, "weft", clock=LoopClock(), rng=self.random) as client:
            await self._fill(client)
            before = self._held()
            for number in range(1, edits + 1):
                what = self._edit()
                self.hits[what.split(":")[0]] += 1
                while not self._heard():
                    await asyncio.sleep(0.001)
                self._check(before, what)
                if number % RESTART_EVERY == 0:
                    await self._start(client)
                    self._check(before, f"restart after {what}")
                    self.hits["restarts"] += 1
            await asyncio.sleep(5)
            self._check(before, "the end")
            await self._stop()
        return self.hits

    # --- the cluster ---

    async def _fill(self, client: MemoryClient) -> None:
        for number in range(self.random.randint(1, 3)):
            cards = range(self.random.randint(1, 4))
            told = json.dumps({"gpus": [{"index": i, "memory_mib": CARD_MIB} for i in cards]})
            has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
            status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
            meta = {
                "name": f"n{number}",
                "annotations": {"weft.dev/inventory": told, **AGENT_BY_NAME},
            }
            self.server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
        await self._start(client)
        for number in range(self.random.randint(2, 12)):
            spec, labels = random_spec(self.random)
            annotations = {CLASS: "batch"} if self.random.random() < 0.3 else {}
            meta = {"name": f"p{number}", "namespace": NAMESPACE, "labels": labels}
            spec["schedulerName"] = self.random.choice(self.way.pods_names)
            self.server.add(
                "pods", {"metadata": {**meta, "annotations": annotations}, "spec": spec}
            )
        await asyncio.sleep(30)
        for pod in self._pods():
            if not node_of(pod):
                self.server.remove("pods", pod["metadata"]["name"], NAMESPACE)
        for number in range(self.random.randint(0, 2)):
            asks = {"name": "c", "resources": {"limits": self.random.choice(SELF_BOUND)}}
            name = self.random.choice(("default-scheduler", self.way.pods_names[0]))
            spec = {"schedulerName": name, "nodeName": "n0", "containers": [asks]}
            meta = {"name": f"s{number}", "namespace": NAMESPACE}
            self.server.add("pods", {"metadata": meta, "spec": spec})
        await asyncio.sleep(1)

    async def _start(self, client: MemoryClient) -> None:
        await self._stop()
        self.parts = led(
            client,
            self.way.profiles(self.seed),
            names=self.way.pods_names,
            seed=1,
            lease=LeaseStub(lambda _: True),
        )
        self.live = self.parts.live
        await self.live.start()
        await self.live.lead(afresh=False)
        await asyncio.sleep(0.01)

    async def _stop(self) -> None:
        if self.live is not None:
            await self.live.stop()

    def _pods(self) -> list[Json]:
        return self.server.store.all(self.server.kind("pods"))

    # --- what must hold ---

    def _held(self) -> dict[str, Any]:
        """Each pod's charge, and of those that Weft bound what they say of themselves."""
        assert self.live is not None
        held: dict[str, Any] = {}
        for uid, holding in self.live.engine.ledger.holdings.items():
            place = holding.placement
            pod = self.live.pods.by_uid(uid)
            assert pod is not None
            own = pod.metadata.name.startswith("p")
            words = (place.job_class, place.application, place.slowdown_limit) if own else ()
            beside = (place.node, place.cpu_milli, place.memory_mib, place.extended, place.ports)
            held[pod.metadata.name] = (sorted(map(repr, place.shares)), beside, words)
        return held

    def _check(self, before: dict[str, Any], what: str) -> None:
        assert self.live is not None
        now = self._held()
        moved = {name: (before.get(name), now.get(name)) for name in before | now}
        moved = {name: pair for name, pair in moved.items() if pair[0] != pair[1]}
        assert not moved, f"{what}: {moved}"
        assert "POST pods/eviction" not in self.server.requests, what
        assert not self.parts.guard._tasks, what

    # --- edits ---

    def _edit(self) -> str:
        """One edit of one pod; what it was."""
        pod = self.random.choice(self._pods())
        meta = pod["metadata"]
        kinds = ["label", "label", "annotation", "annotation", "owner", "finalizer", "spec", "none"]
        kind = self.random.choice([*kinds, "mark"] if self.marks else kinds)
        change = getattr(self, f"_{kind}")(pod)
        self._edited = self.server.update("pods", meta["name"], change, NAMESPACE)
        return f"{kind}: {meta['name']} {change}"

    def _heard(self) -> bool:
        """True once the cluster knows of the last edit."""
        assert self.live is not None
        meta = self._edited["metadata"]
        known = self.live.pods.by_uid(meta["uid"])
        assert known is not None
        return known.metadata.resource_version == meta["resourceVersion"]

    def _value(self) -> str | None:
        if self.random.random() < 0.2:
            return None
        known = self.random.random() < 0.8
        return self.random.choice(VALUES) if known else str(self.random.getrandbits(80))

    def _label(self, pod: Json) -> Json:
        return {"metadata": {"labels": {self.random.choice(LABELS): self._value()}}}

    def _annotation(self, pod: Json) -> Json:
        return {"metadata": {"annotations": {self.random.choice(WORDS): self._value()}}}

    def _owner(self, pod: Json) -> Json:
        kind = self.random.choice(("Job", "StatefulSet", "DaemonSet", "Node"))
        owner = {"apiVersion": "v1", "kind": kind, "name": "o", "uid": "o", "controller": True}
        return {"metadata": {"ownerReferences": self.random.choice(([], [owner]))}}

    def _finalizer(self, pod: Json) -> Json:
        return {"metadata": {"finalizers": self.random.choice(([], ["example.com/keep"]))}}

    def _spec(self, pod: Json) -> Json:
        image = {**pod["spec"]["containers"][0], "image": f"i{self.random.getrandbits(8)}"}
        tolerated = [{"operator": "Exists"}]
        return {
            "spec": self.random.choice(
                (
                    {"activeDeadlineSeconds": self.random.randint(1, 2**31 - 1)},
                    {"containers": [image]},
                    {"tolerations": tolerated},
                )
            )
        }

    def _none(self, pod: Json) -> Json:
        """All labels go, as `kubectl replace` does with a manifest that has none."""
        return {"metadata": {"labels": None}}

    def _mark(self, pod: Json) -> Json:
        """One of Weft's marks is damaged; the one that was before is as it was."""
        name, marks = pod["metadata"]["name"], pod["metadata"].get("annotations") or {}
        change: dict[str, str | None] = {}
        if name in self.damaged:
            key, text = self.damaged.pop(name)
            change[key] = text
        else:
            key = self.random.choice(MARKS)
            if key in marks:
                text = marks[key]
                self.damaged[name] = key, text
                wrong = (None, "{", "", text.replace("1", "2"), text.replace("0", "1"), text[:-2])
                change[key] = self.random.choice(wrong)
        return {"metadata": {"annotations": change}}


def story(seed: int, way: Way, edits: int, *, marks: bool) -> Counter[str]:
    """One living cluster, and so many edits."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(UnmovedWorld(seed, way, marks=marks).play(edits))
