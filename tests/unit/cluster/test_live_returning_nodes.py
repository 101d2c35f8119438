"""A node that comes back has its pods still: their GPUs are theirs before anyone decides."""

import asyncio
import random
from typing import Any

import pytest
from led_cluster import led

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.testing import AGENT_BY_NAME

pytestmark = pytest.mark.virtual_time

GPU = '{"gpus":[{"index":0,"memory_mib":16000}]}'


def add_node(server: FakeApiServer) -> None:
    has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": "n", "annotations": {"weft.dev/inventory": GPU, **AGENT_BY_NAME}}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})


def add_pod(server: FakeApiServer, name: str) -> None:
    asks = {"limits": {"weft.dev/gpu-memory": "12000"}}
    spec = {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]}
    server.add("pods", {"metadata": {"name": name}, "spec": spec})


def node_of(server: FakeApiServer, name: str) -> Any:
    return server.get("pods", name)["spec"].get("nodeName")


async def scene() -> None:
    server = FakeApiServer()
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        live = led(client, [Profile("weft", [BestFit()])]).live
        add_node(server)
        add_pod(server, "first")
        await live.start()
        await live.lead(afresh=False)
        await asyncio.sleep(5)
        assert node_of(server, "first") == "n"
        server.remove("nodes", "n")
        await asyncio.sleep(30)
        add_pod(server, "second")
        await asyncio.sleep(30)
        add_node(server)
        await asyncio.sleep(30)
        assert node_of(server, "second") is None
        assert list(live.engine.ledger.table.memory_used) == [12000]
        await live.stop()


async def test_the_pods_of_a_node_that_returns_keep_their_gpus() -> None:
    await scene()


async def restart() -> None:
    """The same, where the process did not know the node when it read the pod."""
    server = FakeApiServer()
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        add_node(server)
        add_pod(server, "first")
        first = led(client, [Profile("weft", [BestFit()])]).live
        await first.start()
        await first.lead(afresh=False)
        await asyncio.sleep(5)
        await first.stop()
        server.remove("nodes", "n")
        add_pod(server, "second")
        live = led(client, [Profile("weft", [BestFit()])]).live
        await live.start()
        await live.lead(afresh=False)
        await asyncio.sleep(30)  # the second one's back-off is over
        add_node(server)
        await asyncio.sleep(30)
        assert node_of(server, "first") == "n"
        assert node_of(server, "second") is None
        await live.stop()


async def test_a_pod_read_before_its_node_is_charged_when_the_node_appears() -> None:
    await restart()
