"""A pod that is edited while Weft decides about it: what is bound is what it asks for now."""

import asyncio
import json
import random

import pytest
from led_cluster import led

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from fakes.lease import LeaseStub
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.testing import AGENT_BY_NAME

pytestmark = pytest.mark.virtual_time

GPU = '{"gpus":[{"index":0,"memory_mib":16000}]}'
EACH = "genius/gpu-memory-each"


async def shares(refused: int) -> list[int]:
    """The MiB that are bound for a pod that first asks 8000, then 2000; both states come at once.

    The first `refused` bindings are held back, as by a leader whose lease runs out.
    """
    server = FakeApiServer()
    has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": "n", "annotations": {"weft.dev/inventory": GPU, **AGENT_BY_NAME}}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
    asked = 0

    def may_bind(_: float) -> bool:
        nonlocal asked
        asked += 1
        return asked > refused

    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 1)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        live = led(client, [Profile("weft", [BestFit()])], lease=LeaseStub(may_bind)).live
        await live.start()
        await live.lead(afresh=False)
        await asyncio.sleep(1)
        labels = {"genius/gpu-number": "1", EACH: "8000"}
        spec = {"schedulerName": "weft", "containers": [{"name": "c"}]}
        server.add("pods", {"metadata": {"name": "p", "labels": labels}, "spec": spec})
        server.update("pods", "p", {"metadata": {"labels": {EACH: "2000"}}})
        await asyncio.sleep(30)
        bound = server.get("pods", "p")
        assert bound["spec"]["nodeName"] == "n"
        marks = json.loads(bound["metadata"]["annotations"]["weft.dev/placement"])
        await live.stop()
        return [share[2] for share in marks["shares"]]


@pytest.mark.parametrize("refused", [0, 1, 2])
async def test_a_binding_carries_the_version_that_was_decided_about(refused: int) -> None:
    assert await shares(refused) == [2000]
