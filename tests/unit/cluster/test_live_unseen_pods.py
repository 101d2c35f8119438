"""A pod that kube-scheduler had Weft bind before Weft's own watch ever showed it.

Where it goes before the watch is back, and the history of that is lost, no list can say that it was
deleted: what it holds is free all the same. A list that began before the binding says nothing.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from led_cluster import led

from fakes.api_faults import Fault
from fakes.api_http import Request
from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.cluster.control.live_cluster import EngineCluster
from weft.core.engine import Bind, BindOn
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.testing import AGENT_BY_NAME

pytestmark = pytest.mark.virtual_time

GPU = '{"gpus":[{"index":0,"memory_mib":16000}]}'
BEHIND_S = 60


class Scene:
    """A scheduler whose watches tell what happened a minute late."""

    def __init__(self, server: FakeApiServer, live: EngineCluster) -> None:
        self.server, self.live = server, live

    def add(self, name: str) -> str:
        asks = {"limits": {"weft.dev/gpu-memory": "12000"}}
        spec = {"schedulerName": "other", "containers": [{"name": "c", "resources": asks}]}
        uid: str = self.server.add("pods", {"metadata": {"name": name}, "spec": spec})["metadata"][
            "uid"
        ]
        return uid

    async def bind(self, name: str) -> None:
        """As the extender does it."""
        found = await self.live.fetch("default", name)
        assert found is not None
        for command in self.live.handle(BindOn(self.live.parse_asked(found), "n", "weft")):
            assert isinstance(command, Bind)
            await self.live.bind(command)
        assert self.server.get("pods", name)["spec"]["nodeName"] == "n"

    async def first_list(self) -> Fault:
        """The next list of pods: read, and its answer held up."""
        slow: list[Fault] = []

        def strike(request: Request) -> None:
            is_list = request.path.endswith("/pods") and "watch" not in request.query
            if request.method == "GET" and is_list and not slow:
                slow.append(self.server.fault("delay-answer", path=request.path))

        self.server.on_request = strike
        while not slow or not slow[0].struck.is_set():
            await asyncio.sleep(1)
        return slow[0]


@asynccontextmanager
async def behind() -> AsyncIterator[Scene]:
    server = FakeApiServer()
    has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": "n", "annotations": {"weft.dev/inventory": GPU, **AGENT_BY_NAME}}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: BEHIND_S)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        live = led(client, [Profile("weft", [BestFit()])]).live
        await live.start()
        await live.lead(afresh=False)
        yield Scene(server, live)
        await live.stop()


async def test_what_it_held_is_free_once_a_list_does_not_show_it() -> None:
    async with behind() as scene:
        scene.server.cut_watches()
        uid = scene.add("p")
        await scene.bind("p")
        scene.server.remove("pods", "p")
        scene.server.compact()
        assert uid in scene.live.engine.ledger.holdings
        await asyncio.sleep(3 * BEHIND_S)
        assert uid not in scene.live.engine.ledger.holdings
        assert list(scene.live.engine.ledger.table.memory_used) == [0]


async def test_a_namesake_does_not_hold_it_on() -> None:
    async with behind() as scene:
        scene.server.cut_watches()
        uid = scene.add("p")
        await scene.bind("p")
        scene.server.remove("pods", "p")
        scene.add("p")
        scene.server.compact()
        await asyncio.sleep(3 * BEHIND_S)
        assert uid not in scene.live.engine.ledger.holdings


async def test_a_list_that_was_asked_for_before_the_binding_frees_nothing() -> None:
    async with behind() as scene:
        scene.server.cut_watches()
        scene.add("q")  # from here on, what the watch would resume from is too old
        scene.server.compact()
        slow = await scene.first_list()
        uid = scene.add("p")
        await scene.bind("p")
        slow.gate.set()
        for _ in range(3 * BEHIND_S):
            await asyncio.sleep(1)
            assert uid in scene.live.engine.ledger.holdings
