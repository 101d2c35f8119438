"""The console of a cluster that is followed: what it shows, and when it shows what is past."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cli.console import followed
from weft.cluster.control.server_contact import ServerContact, Silence
from weft.console.deltas import applied, between
from weft.console.picture import Picture
from weft.console.sources import PictureSource
from weft.model import BadInputError
from weft.testing import AGENT_BY_NAME

PATIENCE_S = 30


def a_node(name: str, gpus: int = 2) -> dict[str, Any]:
    cards = [{"index": index, "memory_mib": 16_000} for index in range(gpus)]
    has = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    notes = {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    status = {"allocatable": has, "conditions": [ready]}
    return {"metadata": {"name": name, "annotations": notes}, "spec": {}, "status": status}


def a_pod(name: str, mib: int) -> dict[str, Any]:
    asks = {"limits": {"weft.dev/gpu-memory": str(mib)}}
    containers = [{"name": "c", "resources": asks}]
    return {
        "metadata": {"name": name},
        "spec": {"schedulerName": "weft", "containers": containers},
    }


def bind(server: FakeApiServer, name: str, gpu: int, mib: int, namespace: str = "ml") -> str:
    uid: str = server.get("pods", name, namespace)["metadata"]["uid"]
    value = json.dumps({"pod": uid, "node": "n1", "shares": [[0, gpu, mib, 0, ""]]})
    marks = {"weft.dev/placement": value, "weft.dev/placement-copy": value}
    change = {"metadata": {"annotations": marks}, "spec": {"nodeName": "n1"}}
    server.update("pods", name, change, namespace)
    return uid


class Shown:
    """A console of this server; its picture is kept by deltas, as a browser does."""

    def __init__(self, server: FakeApiServer, source: PictureSource) -> None:
        self.server, self.source = server, source
        self.picture = source.picture()

    async def until(self, wanted: Callable[[Picture], object]) -> Picture:
        """The first picture of which this is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted(self.picture):
                await asyncio.sleep(0.005)
                new = self.source.picture()
                self.picture = applied(self.picture, between(self.picture, new))
                assert self.picture == new
        return self.picture


@asynccontextmanager
async def shown(*pods: dict[str, Any]) -> AsyncIterator[Shown]:
    async with FakeApiServer() as server:
        server.add("nodes", a_node("n1"))
        for pod in pods:
            server.add("pods", pod, "ml")
        async with client_of(server) as client, followed(client, None) as seen:
            yield Shown(server, seen.source)
        assert {word.split()[0] for word in server.requests} <= {"GET", "WATCH", "LIST"}


async def test_it_shows_what_happens_as_it_happens() -> None:
    async with shown(a_pod("first", 4_000)) as console:
        server = console.server
        (row,) = console.picture.waiting.values()
        assert (row.namespace, row.name, row.asks) == ("ml", "first", "4,000 MiB")
        assert console.picture.events == {}, "all this was there before"
        uid = bind(server, "first", 1, 4_000)
        picture = await console.until(lambda new: uid in new.pods)
        assert picture.waiting == {}
        assert picture.gpus["n1/1"].promised_mib == 4_000
        assert picture.pods[uid].shares[0].gpu == 1
        server.add("pods", a_pod("large", 99_000), "ml")
        picture = await console.until(lambda new: new.waiting)
        explained = await console.source.explain("ml", "large")
        assert explained is not None
        (row,) = picture.waiting.values()
        assert row.reason == explained.reason
        server.add("nodes", a_node("n2"))
        await console.until(lambda new: "n2" in new.nodes)
        server.update("nodes", "n2", {"spec": {"unschedulable": True}})
        await console.until(lambda new: new.nodes["n2"].closed)
        server.remove("pods", "first", "ml")
        picture = await console.until(lambda new: not new.pods)
        assert picture.gpus["n1/1"].promised_mib == 0
        told = [(event.kind, event.pod or event.node) for event in picture.events.values()]
        assert told == [
            ("bound", "ml/first"),
            ("waits", "ml/large"),
            ("node came", "n2"),
            ("closed", "n2"),
            ("ended", "ml/first"),
        ]
        assert [event.number for event in picture.events.values()] == [1, 2, 3, 4, 5]


async def test_while_the_api_server_is_away_the_picture_is_of_when_it_was_last_heard() -> None:
    async with shown(a_pod("first", 4_000)) as console:
        server = console.server
        assert console.picture.lost == ""
        server.reachable = False
        server.cut_watches()
        lost = await console.until(lambda new: new.lost)
        later = await console.until(lambda new: new.lost_s > lost.lost_s)
        assert later.at_s == pytest.approx(lost.at_s, abs=0.5), "it does not grow newer"
        assert later.waiting.keys() == lost.waiting.keys()
        uid = bind(server, "first", 0, 4_000)
        server.reachable = True
        back = await console.until(lambda new: not new.lost)
        assert back.lost_s == 0
        assert back.at_s > later.at_s
        await console.until(lambda new: uid in new.pods)


async def test_a_network_that_swallows_packets_is_noticed_though_watches_are_open() -> None:
    async with FakeApiServer() as server, client_of(server) as client:
        server.add("nodes", a_node("n1"))
        async with followed(client, None) as seen:
            live = seen.live
            contact = ServerContact(live, every_s=0.01)
            asking = asyncio.create_task(contact.run())
            assert contact.silence() is None
            server.reachable = False

            async def silence() -> Silence:
                while (found := contact.silence()) is None:
                    await asyncio.sleep(0.005)
                return found

            first = await silence()
            assert all(not feed.watch.last_error for feed in seen.live.feeds), (
                "watches know nothing"
            )
            assert "version" in first.why
            await asyncio.sleep(0.05)
            assert (await silence()).for_s > first.for_s
            server.reachable = True
            async with asyncio.timeout(PATIENCE_S):
                while contact.silence() is not None:
                    await asyncio.sleep(0.005)
            asking.cancel()


async def test_who_may_not_read_is_told_which_rights_are_lacking() -> None:
    async with FakeApiServer() as server, client_of(server) as client:
        server.fault("status", code=403, path="/api/v1/nodes")
        with pytest.raises(BadInputError, match=r"to list /api/v1/nodes.*reader\.yaml"):
            async with followed(client, None):
                pass
