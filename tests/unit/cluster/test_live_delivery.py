"""No pod is bound where the kubelet would start it without its share."""

import asyncio
import random

import pytest
from led_cluster import led
from live_world import Json, node, pod

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.testing import AGENT_BY_NAME

pytestmark = pytest.mark.virtual_time

ALNAIR, ELASTIC = "alnair/vgpu-memory", "elasticgpu.io/gpu-memory"


def advertising(name: str, **resources: str) -> Json:
    made = node(name)
    del made["metadata"]["annotations"]["weft.dev/agent"]
    made["status"]["allocatable"] |= resources
    return made


def asking(name: str, resource: str) -> Json:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"limits": {resource: "4"}}
    return made


def bound_to(server: FakeApiServer, name: str) -> str:
    found: str = server.get("pods", name, "d")["spec"].get("nodeName") or ""
    return found


async def test_a_pod_goes_only_where_its_resource_is_advertised_or_delivered_by_name() -> None:
    server = FakeApiServer()
    server.add("nodes", advertising("elastic", **{ELASTIC: "32000"}))
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        live = led(client, [Profile("weft", [BestFit()])]).live
        await live.start()
        await live.lead(afresh=False)
        for name, resource in (("e", ELASTIC), ("a", ALNAIR), ("g", "aliyun.com/gpu-mem")):
            server.add("pods", asking(name, resource), "d")
        await asyncio.sleep(30)
        assert [bound_to(server, name) for name in "eag"] == ["elastic", "", ""]
        server.add("nodes", advertising("alnair", **{ALNAIR: "32"}))
        await asyncio.sleep(30)
        assert [bound_to(server, name) for name in "ag"] == ["alnair", ""]
        marks = {"metadata": {"annotations": AGENT_BY_NAME}}
        server.update("nodes", "elastic", marks)
        await asyncio.sleep(30)
        assert bound_to(server, "g") == "elastic"
        await live.stop()


async def test_pods_that_are_bound_where_nothing_delivers_are_charged_all_the_same() -> None:
    server = FakeApiServer()
    server.add("nodes", advertising("elastic", **{ELASTIC: "32000"}))
    server.add("pods", asking("g", "aliyun.com/gpu-mem"), "d")
    marks = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"}
    change = {"spec": {"nodeName": "elastic"}, "metadata": {"annotations": marks}}
    server.update("pods", "g", change, "d")
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        live = led(client, [Profile("weft", [BestFit()])], gpushare_unit="GiB", lease=None).live
        await live.start()
        assert live.engine.ledger.table.memory_used[0] == 0
        assert live.engine.ledger.table.memory_used[1] > 4000
        await live.stop()
