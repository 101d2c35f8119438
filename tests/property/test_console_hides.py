"""No address of the console tells a viewer a name of pods that they may not list.

Hidden names have a mark in them that nothing else has: an answer with it is a leak, however it came
there. Tokens and rights are reviewed by an API server.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import pytest
from long_form import few_or_many
from original_clusters import FilledCluster
from test_snapshot import claim, from_file, live_story, waiting

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.http.viewers import AUDIENCE, ViewerRights, Viewers
from weft.console.cluster_sources import SnapshotSource
from weft.console.deltas import applied, between
from weft.console.hiding import Hiding
from weft.console.picture import Picture
from weft.console.server import VIEWS, ConsoleServer, static_files
from weft.console.sources import LivingSource, PictureSource
from weft.core.policies.catalog import built_in
from weft.lab.simulate.living import LivingCluster

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
        for namespace in (OWN, *HIDDEN):
            made = claim("data0")
            made["metadata"]["namespace"] = namespace
            server.add("persistentvolumeclaims", made, namespace)

    return fill, [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods]


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


async def check_addresses(source: PictureSource, pods: list[tuple[str, str]]) -> None:
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
        assert (await ask("/api/picture"))[0] == 200
        for namespace, name in pods:
            path = "/api/explain?" + urlencode({"namespace": namespace, "name": name})
            status, said = await ask(path)
            if namespace == OWN:
                assert status == 200, said
                assert MARK not in said, said
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
    asyncio.run(check_addresses(source, pods))


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
