"""Whatever agents wrote is taken off nodes once they are gone, and nothing else."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_accounting import PlayedDevices
from test_fake_devices import written

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_store import ApiRefusal
from fakes.api_time import LoopClock
from weft.dialects import alnair
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.model import BadInputError
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT
from weft.node.agent.accounting import Accounting
from weft.node.agent.cleanup import WAIT_S, Cleanup
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.discovery import Discovery
from weft.node.agent.heartbeat import Heartbeat
from weft.node.containerd.putting_back import RuntimeThere
from weft.node.device_plugin.cdi_files import FILE_PREFIX, CdiFiles
from weft.node.devices.fake import FakeReader

pytestmark = pytest.mark.virtual_time
SYSTEM = "weft-system"
OFFER = AgentOffer("1.0", "by-name", ("none", "mps"), fail_closed=True)
PLAYED = (
    "gpus: [{model: NVIDIA-A100-SXM4-40GB, memoryMiB: 40960, count: 2}]\n"
    "links: ['X NV12', 'NV12 X']"
)
AMOUNTS = {"cpu": "4", "nvidia.com/gpu": "2", "aliyun.com/gpu-mem": "46"}


@asynccontextmanager
async def inside(server: FakeApiServer) -> AsyncIterator[ApiClient]:
    """A client of a pod in Weft's namespace."""
    line = MemoryLine(server, delay=lambda: 0.01, lag=lambda: 0.01)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        client.endpoint = Endpoint(
            "http://memory", FixedCredentials(), namespace=SYSTEM, inside=True
        )
        yield client


def node(server: FakeApiServer, name: str, **metadata: Any) -> dict[str, Any]:
    status = {"capacity": dict(AMOUNTS), "allocatable": dict(AMOUNTS)}
    meta = {"name": name, **metadata}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status}, "")
    return found(server, name)


def found(server: FakeApiServer, name: str) -> dict[str, Any]:
    """All of a node that somebody may have written."""
    there = server.get("nodes", name)
    meta = there["metadata"]
    marks = {key: meta.get(key) or {} for key in ("annotations", "labels")}
    return {**marks, "status": there["status"]}


def agent_pod(server: FakeApiServer, name: str, **metadata: Any) -> None:
    labels = {"app.kubernetes.io/name": "weft-agent"}
    meta = {"name": name, "labels": labels, **metadata}
    server.add("pods", {"metadata": meta, "spec": {"nodeName": "a"}, "status": {}}, SYSTEM)


async def an_agent_works_on(client: ApiClient, name: str, folder: Path) -> None:
    """Writes all that an agent writes through the API server."""
    written(folder, PLAYED)
    reader = FakeReader(folder / "fake.yaml", name)
    watch = DeviceWatch(reader)
    await watch.read()
    await Discovery(client, name, watch, lambda: OFFER).write()
    devices = PlayedDevices(*(device.gpu for device in watch.devices))
    accounting = Accounting(client, name, devices, delivers=lambda: True)
    heartbeat = Heartbeat(client, name, SYSTEM, lambda: True)
    parts = [asyncio.create_task(part.run()) for part in (accounting, heartbeat)]
    await asyncio.sleep(3)
    for part in parts:
        part.cancel()
    await asyncio.gather(*parts, return_exceptions=True)


async def test_everything_is_taken_off_every_node_and_nothing_that_others_wrote(
    tmp_path: Path,
) -> None:
    server = FakeApiServer()
    before = {
        "a": node(server, "a", annotations={"mine": "1"}, labels={"zone": "z"}),
        "b": node(server, "b"),
        "c": node(
            server,
            "c",
            annotations={alnair.NODE_COUNT: "2", "weft.dev/gpu-links": "{}"},
        ),
    }
    async with inside(server) as client:
        for name in ("a", "b"):
            await an_agent_works_on(client, name, tmp_path)
            assert "weft.dev/gpu-memory" in found(server, name)["status"]["capacity"]
            assert server.get("leases", f"weft-agent-{name}", SYSTEM)
        assert await Cleanup(client).run() == 2
        assert {name: found(server, name) for name in before} == before
        for name in ("a", "b"):
            with pytest.raises(ApiRefusal):
                server.get("leases", f"weft-agent-{name}", SYSTEM)
        assert await Cleanup(client).run() == 0


async def test_one_node_alone(tmp_path: Path) -> None:
    server = FakeApiServer()
    before = {name: node(server, name) for name in ("a", "b")}
    async with inside(server) as client:
        for name in before:
            await an_agent_works_on(client, name, tmp_path)
        untouched = found(server, "b")
        assert await Cleanup(client, "a").run() == 1
        assert found(server, "a") == before["a"]
        assert found(server, "b") == untouched
        assert server.get("leases", "weft-agent-b", SYSTEM)
        assert await Cleanup(client, "no-node").run() == 0


async def test_an_agents_own_account_cleans_its_node_and_leaves_the_heartbeat_it_may_not_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeApiServer()
    before = node(server, "a")
    async with inside(server) as client:
        await an_agent_works_on(client, "a", tmp_path)
        server.fault("status", method="GET", path="leases", code=403, times=2 * int(WAIT_S))
        assert await Cleanup(client, "a").run() == 1
        assert found(server, "a") == before
        assert server.get("leases", "weft-agent-a", SYSTEM)
        assert "node a: its heartbeat Lease cannot be deleted: " in caplog.text
        with pytest.raises(BadInputError, match=r"403"):  # all nodes' need all rights
            await Cleanup(client).run()


async def test_agents_that_are_ending_are_waited_for_and_what_they_still_wrote_is_taken_off(
    tmp_path: Path,
) -> None:
    server = FakeApiServer()
    before = node(server, "a")
    agent_pod(server, "weft-agent-x", deletionTimestamp="2026-01-01T00:00:00Z")
    async with inside(server) as client:
        cleaning = asyncio.create_task(Cleanup(client).run())
        await asyncio.sleep(20)
        await an_agent_works_on(client, "a", tmp_path)
        assert not cleaning.done()
        server.remove("pods", "weft-agent-x", SYSTEM)
        assert await cleaning == 1
    assert found(server, "a") == before


async def test_a_dead_nodes_agent_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    server = FakeApiServer()
    before = node(server, "a")
    async with inside(server) as client:
        await an_agent_works_on(client, "a", tmp_path)
        agent_pod(server, "weft-agent-x", deletionTimestamp="2026-01-01T00:00:00Z")
        assert await Cleanup(client).run() == 1
    assert found(server, "a") == before


async def test_an_agent_that_is_to_stay_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    server = FakeApiServer()
    node(server, "a")
    async with inside(server) as client:
        await an_agent_works_on(client, "a", tmp_path)
        agent_pod(server, "weft-agent-x")
        full = found(server, "a")
        with pytest.raises(BadInputError, match=r"weft-system/weft-agent-x is an agent on node a"):
            await Cleanup(client).run()
        assert found(server, "a") == full


async def test_what_is_refused_for_a_while_is_tried_again_and_then_said(tmp_path: Path) -> None:
    server = FakeApiServer()
    before = node(server, "a")
    async with inside(server) as client:
        await an_agent_works_on(client, "a", tmp_path)
        server.fault("status", method="PATCH", path="nodes/a", code=403, times=5)
        assert await Cleanup(client).run() == 1
        assert found(server, "a") == before
        await an_agent_works_on(client, "a", tmp_path)
        server.fault("status", method="PATCH", path="nodes/a", code=403, times=2 * int(WAIT_S))
        with pytest.raises(BadInputError, match=r"node a: .*403"):
            await Cleanup(client).run()


async def test_cdi_files_go_a_minute_after_they_were_used_and_with_the_agent(
    tmp_path: Path,
) -> None:
    files = CdiFiles(tmp_path)
    old, fresh = (tmp_path / f"{FILE_PREFIX}{name}.json" for name in ("old", "fresh"))
    other = tmp_path / "nvidia.json"
    for path in (old, fresh, other):
        path.write_bytes(msgspec.json.encode({}))
    os.utime(old, (0, 0))
    task = asyncio.create_task(files.run())
    await asyncio.sleep(0.1)
    assert sorted(tmp_path.iterdir()) == sorted((fresh, other))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert list(tmp_path.iterdir()) == [other]


DROP_IN = "/etc/containerd/conf.d/99-weft.toml"


def configured_node(server: FakeApiServer, name: str) -> None:
    offer = msgspec.structs.replace(OFFER, drop_in=DROP_IN)
    node(server, name, annotations={AGENT: encode_offer(offer)})


async def test_a_runtime_that_an_agent_configured_is_put_back_by_a_pod_on_its_node() -> None:
    """Marks that say it was configured go last: until then all can be done once more."""
    server = FakeApiServer()
    for name in ("a", "b"):
        configured_node(server, name)
    node(server, "c", annotations={AGENT: encode_offer(OFFER)})
    template = {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "cleanup"}]}}
    async with inside(server) as client:
        runtimes = RuntimeThere(client, template)
        cleaning = asyncio.create_task(Cleanup(client, runtimes=runtimes).run())
        while len(pods := server.store.all(server.kind("pods"))) < 2:
            await asyncio.sleep(0.1)
        assert {pod["spec"]["nodeName"] for pod in pods} == {"a", "b"}
        assert all(pod["metadata"]["labels"] == {"x": "y"} for pod in pods)
        assert AGENT in found(server, "a")["annotations"]
        for pod in pods:
            server.update(
                "pods", pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, SYSTEM
            )
        assert await cleaning == 3
        assert server.store.all(server.kind("pods")) == []
        assert all(AGENT not in found(server, name)["annotations"] for name in "abc")


@pytest.mark.parametrize("anew", [False, True], ids=["", "by a Job that began anew"])
async def test_a_pod_that_took_the_nodes_marks_off_itself_is_waited_for_and_deleted_too(
    anew: bool,
) -> None:
    server = FakeApiServer()
    configured_node(server, "a")
    async with inside(server) as client:
        runtimes = RuntimeThere(client, {"spec": {"containers": []}})
        cleaning = asyncio.create_task(Cleanup(client, runtimes=runtimes).run())
        while not (pods := server.store.all(server.kind("pods"))):
            await asyncio.sleep(0.1)
        server.update("nodes", "a", {"metadata": {"annotations": {AGENT: None}}})
        await asyncio.sleep(5)  # of the loop's own time: it looks each second
        assert not cleaning.done()
        if anew:
            cleaning.cancel()
            again = RuntimeThere(client, {"spec": {"containers": []}})
            cleaning = asyncio.create_task(Cleanup(client, runtimes=again).run())
        name = pods[0]["metadata"]["name"]
        server.update("pods", name, {"status": {"phase": "Succeeded"}}, SYSTEM)
        assert await cleaning == 1
        assert server.store.all(server.kind("pods")) == []


async def test_a_pod_that_could_not_put_it_back_is_named() -> None:
    server = FakeApiServer()
    configured_node(server, "a")
    async with inside(server) as client:
        runtimes = RuntimeThere(client, {"spec": {"containers": []}})
        cleaning = asyncio.create_task(Cleanup(client, wait_s=5, runtimes=runtimes).run())
        while not (pods := server.store.all(server.kind("pods"))):
            await asyncio.sleep(0.1)
        name = pods[0]["metadata"]["name"]
        server.update("pods", name, {"status": {"phase": "Failed"}}, SYSTEM)
        with pytest.raises(
            BadInputError, match=f"node a: pod .* failed: kubectl logs -n .* {name}"
        ):
            await cleaning
        assert AGENT in found(server, "a")["annotations"]


async def test_from_afar_it_is_said_where_a_runtime_is_put_back() -> None:
    server = FakeApiServer()
    configured_node(server, "a")
    async with inside(server) as client:
        with pytest.raises(BadInputError, match=f"node a: {DROP_IN} stays on the node: run weft"):
            await Cleanup(client, wait_s=1).run()
