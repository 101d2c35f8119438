"""A node that is closed takes no pod from the moment its watch says so."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from led_cluster import led
from live_world import Json, node, pod

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.cluster.control.live_cluster import EngineCluster
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.kube.bind import BindOptions

pytestmark = pytest.mark.virtual_time

Scene = Callable[[FakeApiServer, EngineCluster], Any]
HARD = {"key": "gpu", "value": "broken", "effect": "NoSchedule"}
BURST = 160
CORDON = {"spec": {"unschedulable": True}}


@asynccontextmanager
async def cluster(server: FakeApiServer, **binding: int) -> AsyncIterator[EngineCluster]:
    """A leading process whose API server answers at once, in time that leaps."""
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        profiles = [Profile("weft", [BestFit()])]
        live = led(client, profiles, binding=BindOptions(**binding)).live
        await live.start()
        await live.lead(afresh=False)
        yield live
        await live.stop()


def on(server: FakeApiServer, name: str) -> str:
    found: str = server.get("pods", name, "d")["spec"].get("nodeName") or ""
    return found


def tolerates(taint: Json) -> Json:
    return {"tolerations": [{"key": taint["key"], "operator": "Exists"}]}


def cordoned(server: FakeApiServer) -> None:
    server.update("nodes", "n", CORDON)


def tainted(server: FakeApiServer) -> None:
    server.update("nodes", "n", {"spec": {"taints": [HARD]}})


def deleted(server: FakeApiServer) -> None:
    server.remove("nodes", "n")


def not_ready(server: FakeApiServer) -> None:
    conditions = [{"type": "Ready", "status": "False"}]
    server.update("nodes", "n", {"status": {"conditions": conditions}})


CLOSINGS = [cordoned, tainted, deleted, not_ready]


@pytest.mark.parametrize("close", CLOSINGS)
async def test_a_pod_made_right_after_a_node_was_closed_does_not_go_there(
    close: Callable[[FakeApiServer], None],
) -> None:
    server = FakeApiServer()
    server.add("nodes", node())
    async with cluster(server):
        await asyncio.sleep(5)
        close(server)
        server.add("pods", pod("late"), "d")
        await asyncio.sleep(60)
        assert on(server, "late") == ""


@pytest.mark.parametrize("close", CLOSINGS)
async def test_pods_in_hand_when_a_node_is_closed_do_not_go_there(
    close: Callable[[FakeApiServer], None],
) -> None:
    """Neither those still to be decided, though their watch was first, nor those decided and not
    yet bound."""

    server = FakeApiServer()
    server.add("nodes", node(count=BURST))
    async with cluster(server, in_flight=1) as live:
        await asyncio.sleep(5)
        for number in range(BURST):
            server.add("pods", pod(f"p{number}"), "d")
        seen, decided = live.pods.pods, live.engine.ledger.holdings
        while not decided:
            await asyncio.sleep(0)
        close(server)
        while open_to_all(live):
            await asyncio.sleep(0)
        assert len(decided) <= len(seen) < BURST
        was = [name for _, name in seen if on(server, name)]
        assert len(was) < len(decided)
        await asyncio.sleep(60)
        now = [name for _, name in seen if on(server, name)]
        assert len(now) - len(was) <= 1  # one binding was under way
        assert len(live.engine.ledger.holdings) == len(now)


def open_to_all(live: EngineCluster) -> bool:
    told = live.engine.ledger.table.nodes[0]
    return told.schedulable and not told.taints


async def test_a_pod_that_tolerates_what_closed_the_node_goes_there() -> None:
    server = FakeApiServer()
    server.add("nodes", node())
    async with cluster(server):
        await asyncio.sleep(5)
        tainted(server)
        server.add("pods", pod("residencies", tolerations=[{"operator": "Exists"}]), "d")
        await asyncio.sleep(0.01)
        assert on(server, "residencies") == "n"


async def test_a_node_that_opens_again_takes_who_waited() -> None:
    server = FakeApiServer()
    server.add("nodes", node())
    async with cluster(server):
        await asyncio.sleep(5)
        cordoned(server)
        server.add("pods", pod("waits"), "d")
        await asyncio.sleep(5)
        assert on(server, "waits") == ""
        server.update("nodes", "n", {"spec": {"unschedulable": False}})
        await asyncio.sleep(1)
        assert on(server, "waits") == "n"


async def test_one_taint_in_place_of_another_lets_in_who_tolerates_the_new_one() -> None:
    server = FakeApiServer()
    server.add("nodes", node())
    tainted(server)
    other = {**HARD, "key": "other"}
    async with cluster(server):
        server.add("pods", pod("waits", **tolerates(other)), "d")
        await asyncio.sleep(5)
        assert on(server, "waits") == ""
        server.update("nodes", "n", {"spec": {"taints": [other]}})
        await asyncio.sleep(1)
        assert on(server, "waits") == "n"


async def test_a_node_closed_and_opened_at_once_is_open() -> None:
    server = FakeApiServer()
    server.add("nodes", node())
    async with cluster(server):
        await asyncio.sleep(5)
        cordoned(server)
        server.update("nodes", "n", {"spec": {"unschedulable": False}})
        server.add("pods", pod("a"), "d")
        await asyncio.sleep(5)
        assert on(server, "a") == "n"


async def test_an_older_word_of_the_node_does_not_open_it() -> None:
    """An event that the consumer comes to late is not how the node is by then."""

    server = FakeApiServer()
    server.add("nodes", node(count=90))
    async with cluster(server) as live:
        await asyncio.sleep(5)
        for number in range(60):
            server.add("pods", pod(f"p{number}"), "d")
        server.update("nodes", "n", {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(0)
        cordoned(server)
        while open_to_all(live):
            await asyncio.sleep(0)
        await asyncio.sleep(5)
        assert not open_to_all(live)
        assert live.engine.ledger.table.nodes[0].labels == {"a": "b"}
