"""No address of the console tells a viewer a name or UID of pods that they may not list.

Hidden names have a mark in them that nothing else has: an answer with it, or with a hidden pod's
UID, is a leak, however it came there. Tokens and rights are reviewed by an API server.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec.structs import replace
from original_clusters import FilledCluster
from test_snapshot import claim, from_file, live_story, waiting

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.http.viewers import AUDIENCE, ViewerRights, Viewers
from weft.console.cluster_sources import SnapshotSource
from weft.console.deltas import applied, between
from weft.console.hiding import Hiding
from weft.console.picture import Picture, PictureMaker
from weft.console.server import VIEWS, ConsoleServer, static_files
from weft.console.sources import LivingSource, PictureSource, facts_of, queued_in
from weft.console.waiting import WaitingReasons
from weft.core.engine import Engine, PodAdded
from weft.core.explain.queue_rows import QueueRow
from weft.core.explain.renderer import lines_of
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.core.policies.packing import BestFit
from weft.lab.simulate.living import LivingCluster
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.testing import AGENT_BY_NAME, builders

OWN, HIDDEN = "team", ("qz-ml", "qz-web")
MARK = "qz"
USER = "viewer"
Json = dict[str, Any]


def marked_cluster(seed: int) -> tuple[Callable[[FakeApiServer], None], list[tuple[str, str]]]:
    """A way to fill an API server, and every pod's namespace and name."""
    cluster, chance = FilledCluster(seed), random.Random(seed)
    if chance.random() < 0.5:
        cluster.lose_marks()
    pods = [*cluster.pods.values()]
    pods += [waiting(f"w{number}", chance, sorted(cluster.nodes)) for number in range(9)]
    for pod in pods:
        meta = pod["metadata"]
        meta["namespace"] = chance.choice((OWN, *HIDDEN))
        if meta["namespace"] != OWN:
            meta["name"] = f"{MARK}-{meta['name']}"
        elif chance.random() < 0.3:  # it tries to be told of names by its own
            meta.setdefault("annotations", {})["weft.dev/gpu-memory"] = f"{HIDDEN[0]}/x"
        if chance.random() < 0.2:
            meta["deletionTimestamp"] = "2020-01-01T00:00:00Z"

    def fill(server: FakeApiServer) -> None:
        for node in cluster.nodes.values():
            server.add("nodes", node)
        for pod in pods:
            server.add("pods", pod)
        crowd(server)
        for namespace in (OWN, *HIDDEN):
            made = claim("data0")
            made["metadata"]["namespace"] = namespace
            server.add("persistentvolumeclaims", made, namespace)

    names = [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods]
    return fill, [*names, (OWN, "crowded-out")]


def crowd(server: FakeApiServer) -> None:
    """Add a node whose GPU a hidden pod holds, and a pod of the viewer's that waits for it."""
    has = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    inventory = json.dumps({"gpus": [{"index": 0, "memory_mib": 16_000}]})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    labels = {"kubernetes.io/hostname": "crowded"}
    notes = {"weft.dev/inventory": inventory, **AGENT_BY_NAME}
    meta = {"name": "crowded", "labels": labels, "annotations": notes}
    status = {"allocatable": has, "conditions": [ready]}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
    asks = {"name": "c", "resources": {"limits": {"weft.dev/gpu-memory": "15000"}}}
    spec = {"schedulerName": "weft", "containers": [asks], "nodeSelector": labels}
    for namespace, name in ((HIDDEN[0], f"{MARK}-holder"), (OWN, "crowded-out")):
        server.add("pods", {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    uid = server.get("pods", f"{MARK}-holder", HIDDEN[0])["metadata"]["uid"]
    value = json.dumps({"pod": uid, "node": "crowded", "shares": [[0, 0, 15_000, 0, ""]]})
    marks = {"weft.dev/placement": value, "weft.dev/placement-copy": value}
    bound = {"metadata": {"annotations": marks}, "spec": {"nodeName": "crowded"}}
    server.update("pods", f"{MARK}-holder", bound, HIDDEN[0])


@asynccontextmanager
async def asking(source: PictureSource) -> AsyncIterator[Callable[[str], Any]]:
    """A way to get what an address answers a viewer of the namespace `team`."""
    async with FakeApiServer() as api, client_of(api) as client:
        api.access.listers.add((USER, OWN))
        headers = {"Authorization": f"Bearer {api.access.token(USER, AUDIENCE)}"}
        server = ConsoleServer(source, viewers=Viewers(client))
        port = await server.listen("127.0.0.1", 0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:

            async def ask(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    if answer.content_type != "text/event-stream":
                        return answer.status, await answer.text()
                    said = [await answer.content.readline() for _ in range(3)]
                    return answer.status, str(answer.headers) + b"".join(said).decode()

            try:
                yield ask
            finally:
                await server.close()


async def check_addresses(
    source: PictureSource, pods: list[tuple[str, str]], uids: set[str]
) -> None:
    async with asking(source) as ask:
        views = [f"/{view}" for view in sorted(VIEWS)]
        files = [f"/static/{name}" for name in static_files()]
        for path in (
            *views,
            *files,
            "/api/about",
            "/api/picture",
            "/api/history?gpu=n0/0",
            "/api/x",
            "/healthz",
            "/no",
        ):
            status, said = await ask(path)
            assert status in (200, 404)
            assert MARK not in said.lower(), path
            assert [uid for uid in uids if uid in said] == [], path
        assert (await ask("/api/picture"))[0] == 200
        for namespace, name in pods:
            path = "/api/explain?" + urlencode({"namespace": namespace, "name": name})
            status, said = await ask(path)
            if namespace == OWN:
                assert status == 200, said
                assert MARK not in said, said
                assert [uid for uid in uids if uid in said] == [], said
                continue
            nobody = "/api/explain?" + urlencode({"namespace": namespace, "name": f"{name}0"})
            assert status == 404
            assert said == (await ask(nobody))[1].replace(f"{name}0", name)


@pytest.mark.parametrize("seed", range(few_or_many(6, 150)))
def test_no_address_tells_a_name_that_the_viewer_may_not_know(seed: int) -> None:
    fill, pods = marked_cluster(seed)
    state = from_file(live_story(fill).snapshot)
    source = SnapshotSource(state, "x.json")
    picture = source.picture()
    assert set(HIDDEN) & picture.queues.keys()
    full = msgspec.json.encode(picture).decode()
    there = [name for _, name in pods if name in full]
    assert there
    rows: list[Any] = [*picture.pods.values(), *picture.waiting.values()]
    uids = {row.uid for row in rows if row.namespace in HIDDEN}
    explained = asyncio.run(source.explain(OWN, "crowded-out"))
    assert explained is not None
    assert any(uid in line for uid in uids for line in lines_of(explained))
    asyncio.run(check_addresses(source, pods, uids))


@pytest.mark.parametrize("seed", range(few_or_many(1, 20)))
def test_what_lives_and_is_preempted_beside_others_keeps_their_names(seed: int) -> None:
    """Pictures, deltas, events and explanations of the demo, to a viewer of its vision jobs."""
    began_ns = 1_790_000_000 * 10**9
    cluster = LivingCluster(built_in().create("least-stranding"), began_ns, seed)
    now_s = began_ns / 10**9
    source = LivingSource(cluster, "demo", clock=lambda: now_s)
    chance = random.Random(seed)
    seen, shown, names = Picture(0.0), Picture(0.0), set[str]()
    rights = ViewerRights(everywhere=False, namespaces=frozenset({"vision"}))
    hiding = Hiding(rights, b"secret")
    for _ in range(25):
        now_s += chance.uniform(1, 10)
        full = source.picture()
        rows: list[Any] = [*full.pods.values(), *full.waiting.values()]
        names |= {row.name for row in rows if row.namespace != "vision"}
        names |= {pod.gang for pod in rows if pod.gang and pod.namespace != "vision"}
        picture = hiding.picture(full)
        delta = between(seen, picture)
        said = msgspec.json.encode((picture, delta)).decode()
        assert [name for name in names if name in said] == []
        seen, shown = picture, applied(shown, delta)
        assert shown == picture
        check_shares(full, picture)
    assert names
    assert any(pod.name for pod in seen.pods.values()), "there are pods of the viewer's own"


def check_shares(full: Picture, picture: Picture) -> None:
    """Everything but names is there: each share on its GPU, and as many pods that wait."""
    assert picture.gpus == full.gpus
    assert picture.nodes == full.nodes
    assert len(picture.pods) == len(full.pods)
    assert len(picture.waiting) == len(full.waiting)
    held = Counter((pod.node, tuple(pod.shares), pod.kept) for pod in full.pods.values())
    assert Counter((pod.node, tuple(pod.shares), pod.kept) for pod in picture.pods.values()) == held
    own = {uid: pod for uid, pod in full.pods.items() if pod.namespace == "vision"}
    assert {uid: pod for uid, pod in picture.pods.items() if pod.namespace} == own


TEAMS = ("vision", "qz-ml", "qz-none", "shared")


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(TEAMS), st.integers(1, 9)), max_size=8),
    st.lists(st.tuples(st.booleans(), st.sampled_from(TEAMS), st.integers(1, 9)), max_size=8),
    st.booleans(),
)
def test_naming_a_queue_tells_nobody_whether_it_is_there(
    own: list[tuple[bool, str, int]], others: list[tuple[bool, str, int]], configured: bool
) -> None:
    """A viewer sees of the queue that their pod names the same whether others' pods are in
    it, and whether it is configured; and what they see of others does not change by theirs."""
    rights = ViewerRights(everywhere=False, namespaces=frozenset({"vision"}))
    hiding = Hiding(rights, b"secret")
    guarantee = QueueAmounts(gpu_milli=1_000)
    terms = tuple(QueueTerms(name, 7, guarantee) for name in TEAMS[1:])

    def queues(pods: list[tuple[str, bool, str, int]], rules: QueueRules) -> dict[str, QueueRow]:
        cluster = [builders.node(f"n{at}", gpus=4, memory_mib=16_000) for at in range(6)]
        engine = Engine([Profile("weft", [BestFit()])], cluster, queues=rules)
        for number, (namespace, placed, queue, amount) in enumerate(pods):
            asks = {"milli": 100 * amount} if placed else {"gpus": 9}
            one = replace(
                builders.pod(f"{namespace}{number}", **asks), namespace=namespace, queue=queue
            )
            engine.handle(PodAdded(one), 0)
        waiting = WaitingReasons(engine, 0.0).rows(queued_in(engine))
        picture = PictureMaker(engine).picture(0.0, lambda uid: facts_of(engine, uid), waiting)
        full, seen = picture.queues, dict(hiding.picture(picture).queues)
        if not rules.queues:  # of a queue that is not configured a row tells what its pods hold
            for name, row in seen.items():
                members = [each for each in pods if each[2] == name]
                if row.queue and {each[0] for each in members} == {"vision"}:
                    assert row == full[name]
        assert [name for name in seen if "qz" in name and name not in {p[2] for p in mine}] == []
        return seen

    mine = [("vision", *each) for each in own]
    hidden = [("qz-web", *each) for each in others]
    alone, nothing = queues(mine, QueueRules()), QueueRules()
    rules = QueueRules("priority", terms) if configured else nothing
    beside = queues([*mine, *hidden], rules)
    named = {name: row for name, row in beside.items() if row.queue and name != "vision"}
    assert named == {name: row for name, row in alone.items() if name != "vision"}
    without = queues(hidden, rules)
    assert [row for row in beside.values() if not row.queue] == [
        row for row in without.values() if not row.queue
    ]


def test_a_pod_is_not_told_what_others_of_a_queue_hold() -> None:
    hiding = Hiding(ViewerRights(everywhere=False, namespaces=frozenset({"vision"})), b"secret")
    text = "queue {0} holds 3 of at most 4 GPUs; this pod asks for 2"
    change = (
        "raise limits.gpus of queue {0} from 4 to 5 and limits.gpuCores of queue {0} from 1 to 2"
    )
    for shown in (text, change):
        assert hiding.text(shown.format("vision")) == shown.format("vision")
    assert hiding.text(text.format("qz-ml")) == (
        "its queue is at a limit of GPUs; this pod asks for 2"
    )
    assert hiding.text(change.format("qz-ml")) == (
        "raise limits.gpus of its queue and limits.gpuCores of its queue"
    )
