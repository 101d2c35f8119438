"""A snapshot says what the live cluster says: its ledger, and every pod's explanation."""

import asyncio
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from long_form import few_or_many
from original_clusters import FilledCluster

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock, run
from weft.cli.policies import registry
from weft.cluster.config.form import Configuration
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import captured, snapshot_of
from weft.cluster.snapshot.file import decode, encode, lean
from weft.cluster.snapshot.form import ClusterSnapshot
from weft.cluster.snapshot.state import SnapshotState, snapshot_state
from weft.core.explain.explanation import Explanation
from weft.core.explain.renderer import lines_of
from weft.core.ledger import Holding
from weft.host.plan import reading_cluster
from weft.kube.client import ApiClient
from weft.model import Node

SEEDS = range(few_or_many(4, 300))
Json = dict[str, Any]
ASKS = (
    {"weft.dev/gpu-memory": "9000"},
    {"weft.dev/gpu-memory": "90000"},
    {"nvidia.com/gpu": "2"},
    {"aliyun.com/gpu-mem": "6"},
    {"elasticgpu.io/gpu-memory": "700", "elasticgpu.io/gpu-core": "20"},
    {"cpu": "1"},
    {"cpu": "900"},
    {"volcano.sh/vgpu-memory": "3000"},
)


class Seen(NamedTuple):
    """A cluster's knowledge: what is held, its nodes, and each pod explained."""

    holdings: dict[str, Holding]
    nodes: dict[str, Node]
    explained: dict[str, Explanation | None]


class LiveStory(NamedTuple):
    """The live cluster's answers, and the snapshot taken of it."""

    live: Seen
    snapshot: ClusterSnapshot
    requests: dict[str, int]


async def seen(parts: LeaderParts) -> Seen:
    live = parts.live
    explain = Explainer(live, parts.guard, None, clock=lambda: 0.0).explain
    keys = sorted(live.pods.pods)
    texts = {f"{space}/{name}": await explain(space, name) for space, name in keys}
    return Seen(dict(live.engine.ledger.holdings), dict(live.nodes.nodes), texts)


def make(client: ApiClient) -> LeaderParts:
    return reading_cluster(Configuration(), registry(), client)


def from_file(snapshot: ClusterSnapshot) -> SnapshotState:
    return snapshot_state(decode(encode(snapshot), "x.json"), make)


def live_story(fill: Callable[[FakeApiServer], None]) -> LiveStory:
    """Let a cluster follow what `fill` puts on the API server, and take a snapshot of it."""

    async def told() -> LiveStory:
        server = FakeApiServer()
        fill(server)
        line = MemoryLine(server, delay=lambda: 0.0, lag=lambda: 0.0)
        async with MemoryClient(line, "live", clock=LoopClock(), rng=random.Random(1)) as client:
            parts = make(client)
            live = parts.live
            await live.start()
            await TypicalInput(live).count()
            live.leadership.begin()
            said = await seen(parts)
            server.requests.clear()
            found = await captured(client, Configuration())
            snapshot = snapshot_of(found, Configuration(), client.clock.wall())
            requests = dict(server.requests)
            await live.stop()
            return LiveStory(said, snapshot, requests)

    return run(told())


def random_story(seed: int) -> LiveStory:
    cluster, chance = FilledCluster(seed), random.Random(seed)
    if chance.random() < 0.5:
        cluster.lose_marks()

    def fill(server: FakeApiServer) -> None:
        for one in cluster.nodes.values():
            server.add("nodes", one)
        for one in cluster.pods.values():
            server.add("pods", one)
        for number in range(6):
            server.add("pods", waiting(f"w{number}", chance, sorted(cluster.nodes)))
        for number in range(2):
            server.add("persistentvolumeclaims", claim(f"data{number}"), "ml")

    return live_story(fill)


def claim(name: str) -> Json:
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": {"volumeName": ""}}


def waiting(name: str, chance: random.Random, nodes: list[str]) -> Json:
    """A pod that waits, perhaps for what no node is or has."""
    spec: Json = {
        "schedulerName": chance.choice(("weft", "weft", "weft", "default-scheduler")),
        "priority": chance.choice((0, 100)),
        "containers": [{"name": "main", "resources": {"limits": chance.choice(ASKS)}}],
    }
    if chance.random() < 0.3:
        spec["nodeSelector"] = {"pool": chance.choice(("red", "blue"))}
    if chance.random() < 0.3:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": nodes[:1]}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if chance.random() < 0.3:
        source = {"claimName": chance.choice(("data0", "lacking"))}
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": source}]
    if chance.random() < 0.2:
        spec["schedulingGates"] = [{"name": "quota"}]
    owner = {"kind": "StatefulSet", "name": "db", "controller": True}
    marks = {"weft.dev/application": "bert"} if chance.random() < 0.3 else {}
    meta = {"name": name, "namespace": "ml", "ownerReferences": [owner], "annotations": marks}
    return {"metadata": meta, "spec": spec}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_explains_each_pod_as_the_live_cluster_did(seed: int) -> None:
    story = random_story(seed)
    state = from_file(story.snapshot)
    again = asyncio.run(seen(state.parts))
    assert again.nodes == story.live.nodes
    assert again.holdings == story.live.holdings
    assert again.explained == story.live.explained
    assert not [request for request in story.requests if "secret" in request]
    assert {name.split()[0] for name in story.requests} == {"GET"}


def renamed(plain: Any, hidden: Any) -> Iterator[tuple[str, str]]:
    """Each text of one document that is another in the other."""
    if isinstance(plain, dict):
        for (key, value), (new_key, new_value) in zip(plain.items(), hidden.items(), strict=True):
            yield from renamed(key, new_key)
            yield from renamed(value, new_value)
    elif isinstance(plain, list):
        for value, new_value in zip(plain, hidden, strict=True):
            yield from renamed(value, new_value)
    elif plain != hidden and isinstance(plain, str):
        yield plain, hidden


def told(said: Seen) -> list[str]:
    """All explanations as people read them."""
    return [line for one in said.explained.values() if one for line in lines_of(one)]


@pytest.mark.parametrize("seed", SEEDS)
def test_without_names_the_same_is_held_and_said(seed: int) -> None:
    """Hashed names lead where the names led: put them in, and each sentence is the same."""
    plain = random_story(seed).snapshot
    hidden = decode(encode(anonymous(plain)), "x.json")
    names = dict(renamed(lean(plain), lean(hidden)))
    before, after = (asyncio.run(seen(from_file(one).parts)) for one in (plain, hidden))

    def hashed(line: str) -> str:
        # A system's name ("gpushare's ml/p1") is nobody's, though an object may have it too.
        words = r"[\w.-]+\b(?!'s )"
        return re.sub(words, lambda word: names.get(word[0], word[0]), line)

    assert sorted(told(after)) == sorted(map(hashed, told(before)))
    for uid, holding in before.holdings.items():
        mine, theirs = holding.placement, after.holdings[names[uid]].placement
        assert theirs.node == names[mine.node]
        assert [(s.gpu, s.memory_mib, s.milli) for s in theirs.shares] == [
            (s.gpu, s.memory_mib, s.milli) for s in mine.shares
        ]
