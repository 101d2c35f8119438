"""Every Binding of a pod with a GPU says what each container gets, whichever host writes it."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from led_cluster import led
from live_world import Json, node, pod

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.extender.routes import default_routes
from weft.cluster.extender.service import Extender
from weft.core.framework import Profile
from weft.core.ledger import RequestLimits
from weft.core.policies.packing import BestFit
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.delivery import DeliveryRecord, decode_delivery

pytestmark = pytest.mark.virtual_time

REQUIRED = "required-plugins.noderesource.dev/pod"
WEFT = default_routes()[0]


def offering(name: str = "n", count: int = 2, **offer: Any) -> Json:
    made = node(name, count)
    told = AgentOffer("1", "by-name", **offer)
    made["metadata"]["annotations"]["weft.dev/agent"] = encode_offer(told)
    return made


def asking(name: str, limits: dict[str, str], annotations: Json | None = None) -> Json:
    made = pod(name)
    made["metadata"]["annotations"] = annotations or {}
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


def api(*nodes: Json) -> FakeApiServer:
    """A server with these nodes that gives the next object this UID."""
    server = FakeApiServer()
    for one in nodes:
        server.add("nodes", one)
    server.store.new_uid = lambda: "uid"
    return server


@asynccontextmanager
async def living(server: FakeApiServer, **how: Any) -> AsyncIterator[EngineCluster]:
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        live = led(client, [Profile("weft", [BestFit()])], **how).live
        await live.start()
        await live.lead(afresh=False)
        yield live
        await live.stop()


def marks(server: FakeApiServer, name: str) -> dict[str, str]:
    found = server.get("pods", name, "d")
    assert found["spec"].get("nodeName")
    said: dict[str, str] = found["metadata"]["annotations"]
    return said


def record(server: FakeApiServer, name: str) -> DeliveryRecord:
    return decode_delivery(marks(server, name)["weft.dev/delivery"])


async def bound_by_the_scheduler(made: Json, *nodes: Json) -> dict[str, str]:
    server = api(*nodes)
    async with living(server):
        server.add("pods", made, "d")
        await asyncio.sleep(30)
    return marks(server, made["metadata"]["name"])


async def bound_by_the_extender(made: Json, *nodes: Json) -> dict[str, str]:
    server = api(*nodes)
    made = {**made, "spec": {**made["spec"], "schedulerName": "default-scheduler"}}
    meta = server.add("pods", made, "d")["metadata"]
    async with living(server) as live:
        args = {"PodName": meta["name"], "PodNamespace": "d", "PodUID": meta["uid"], "Node": "n"}
        reply = await Extender(live).bind(WEFT, json.dumps(args).encode())
        assert json.loads(reply.body)["Error"] == ""
    return marks(server, meta["name"])


@pytest.mark.parametrize(
    "limits",
    [
        {"weft.dev/gpu-memory": "4000", "weft.dev/gpu-cores": "20"},
        {"aliyun.com/gpu-mem": "4"},
        {"alnair/vgpu-memory": "4"},
        {"elasticgpu.io/gpu-memory": "4000"},
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"},
        {"nvidia.com/gpu": "2"},
    ],
    ids=lambda limits: next(iter(limits)),
)
async def test_both_hosts_write_the_same_record_for_the_same_decision(
    limits: dict[str, str],
) -> None:
    made = asking("p", limits, {"weft.dev/isolation": "mps", REQUIRED: "[mine]"})
    there = offering(isolation=("none", "mps"), fail_closed=True)
    one = await bound_by_the_scheduler(made, there)
    other = await bound_by_the_extender(made, there)
    assert one["weft.dev/delivery"] == other["weft.dev/delivery"]
    assert one[REQUIRED] == other[REQUIRED] == '["mine","weft"]'
    written = decode_delivery(one["weft.dev/delivery"])
    assert (written.pod, written.node, written.isolation) == ("uid", "n", "mps")
    placed = json.loads(one["weft.dev/placement"])["shares"]
    assert [[c.gpu, c.memory_mib, c.milli] for c in written.cards] == [s[1:4] for s in placed]
    assert [s.gpu for s in written.containers["c"].shares] == [s[1] for s in placed]


async def test_only_nodes_that_fail_closed_make_pods_require_the_agent() -> None:
    made = asking("p", {"weft.dev/gpu-memory": "4000"}, {REQUIRED: "[mine]"})
    said = await bound_by_the_scheduler(made, offering())
    assert said[REQUIRED] == "[mine]"
    assert "weft.dev/delivery" in said
    bare = asking("p", {"cpu": "1"})
    said = await bound_by_the_scheduler(bare, offering(fail_closed=True))
    assert set(said) == set()  # without a GPU there is nothing to deliver


async def test_what_may_be_promised_of_a_card_stands_in_the_record() -> None:
    for limits, most_mib in ((RequestLimits(), 16_000), (RequestLimits(1000, 1500), 24_000)):
        server = FakeApiServer()
        server.add("nodes", offering(count=1))
        async with living(server, limits=limits):
            server.add("pods", asking("p", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9"}), "d")
            await asyncio.sleep(30)
        (card,) = record(server, "p").cards
        assert (card.memory_mib, card.most_memory_mib, card.most_milli) == (9, most_mib, 1000)


async def test_a_pod_waits_for_a_node_that_offers_its_isolation() -> None:
    server = FakeApiServer()
    bare = node("bare")
    bare["status"]["allocatable"]["weft.dev/gpu-memory"] = "32000"
    del bare["metadata"]["annotations"]["weft.dev/agent"]
    server.add("nodes", bare)
    async with living(server) as live:
        extender = Extender(live)
        wish = {"weft.dev/isolation": "mps"}
        made = asking("p", {"weft.dev/gpu-memory": "4000"}, wish)
        server.add("pods", made, "d")
        server.add("pods", asking("q", {"weft.dev/gpu-memory": "4000"}), "d")
        await asyncio.sleep(30)
        assert not server.get("pods", "p", "d")["spec"].get("nodeName")
        assert record(server, "q").isolation == ""
        asked = json.dumps({"Pod": made, "NodeNames": ["bare"]}).encode()
        told = json.loads(extender.filter(WEFT, asked).body)
        reason = {"bare": "node does not offer isolation mps"}
        assert told["FailedAndUnresolvableNodes"] == reason
        server.add("nodes", offering("able", isolation=("none", "mps")))
        await asyncio.sleep(30)
        assert (record(server, "p").node, record(server, "p").isolation) == ("able", "mps")


async def test_a_record_beyond_what_an_object_may_have_is_not_written() -> None:
    """The pod waits and is told why: it would start without its share."""
    server = FakeApiServer()
    server.add("nodes", offering())
    made = asking("p", {"cpu": "1"}, {"note": "x" * 200_000})
    made["metadata"]["labels"] = {"GPU_MEM_REQ": "100"}
    made["spec"]["containers"] = [{"name": f"c{i}"} for i in range(900)]
    async with living(server) as live:
        server.add("pods", made, "d")
        await asyncio.sleep(30)
        assert not server.get("pods", "p", "d")["spec"].get("nodeName")
        assert live.binder.counts["Refused"] > 0
