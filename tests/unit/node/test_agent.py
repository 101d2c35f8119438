"""The agent's parts: one that breaks takes no other with it, and all end when it is told to."""

import asyncio
import json
import logging
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agent_world import NODE, NodeWorld, node_world
from test_fake_devices import A100, reader, written

from weft.cluster.config.agent import AgentSettings
from weft.cluster.config.form import Configuration
from weft.host import shell as agent_module
from weft.host.agent import Composition, host
from weft.host.agent_process import AgentHosting, NodeAgent
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.model import WeftError
from weft.node.agent.accounting import ForeignPluginError
from weft.node.agent.agent_metrics import DeliveryMetrics, DeviceMetrics, PartMetrics
from weft.node.agent.delivery import OUTCOMES
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.node_pods import NodePods
from weft.node.devices.fake import FakeReader

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference"


class PlayedPart:
    """Raises what it is given, one at a time, then runs until cancelled."""

    def __init__(self, *faults: Exception | None) -> None:
        self._faults = list(faults)
        self.runs, self.cleaned = 0, 0
        self.steady = asyncio.Event()

    async def run(self) -> None:
        self.runs += 1
        if self._faults:
            fault = self._faults.pop(0)
            if fault is None:
                return
            raise fault
        try:
            self.steady.set()
            await asyncio.Event().wait()
        finally:
            self.cleaned += 1


async def test_a_part_that_breaks_is_started_anew_and_all_clean_up(
    tmp_path: Path,
    monkeypatch,
    caplog,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setattr(agent_module, "_AGAIN_S", 0.001)
    broken, steady, stop = Counter[str](), PlayedPart(), asyncio.Event()
    faulty = PlayedPart(ValueError("a bug"), OSError("no socket"), WeftError("no GPU"), None)
    async with ApiClient(Endpoint("http://127.0.0.1:1", FixedCredentials())) as client:
        devices = DeviceWatch(reader(tmp_path, f"gpus: [{A100}}}]"))
        node = NodeAgent(
            devices,
            NodePods(client, "n1"),
            {"steady": steady},
            {"faulty": faulty},
            broken=broken,
        )
        running = asyncio.create_task(node.run(stop))
        await faulty.steady.wait()
        assert (faulty.runs, steady.runs, broken["faulty"], broken["steady"]) == (5, 1, 4, 0)
        stop.set()
        await running
    assert (faulty.cleaned, steady.cleaned) == (1, 1)
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told[:4] == [
        "faulty failed, and is restarted",
        "faulty: no socket",
        "faulty: no GPU",
        "faulty ended",
    ]


class FailingEnd:
    """Fails while it cleans up."""

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise TimeoutError


async def test_a_part_that_fails_while_it_ends_is_not_started_anew(tmp_path: Path) -> None:
    part = agent_module.Kept("part", FailingEnd(), Counter[str](), logging.getLogger("weft.agent"))
    await part.start()
    await asyncio.sleep(0)
    closing = asyncio.create_task(part.close())
    await asyncio.wait({closing}, timeout=10)
    assert closing.done()


async def test_told_to_stop_before_it_knows_anything_it_ends(tmp_path: Path) -> None:
    async with ApiClient(Endpoint("http://127.0.0.1:1", FixedCredentials())) as client:
        devices = DeviceWatch(reader(tmp_path, f"gpus: [{A100}}}]"))
        stop = asyncio.Event()
        stop.set()
        late = PlayedPart()
        await NodeAgent(devices, NodePods(client, "n1"), {}, {"late": late}).run(stop)
        assert late.runs == 0


async def test_an_agent_is_replaced_without_a_container_in_between(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        for number in range(3):
            await world.start_agent()
            await world.create(world.bound(f"p{number}"))
            await world.stop_agent()
        assert world.runtime.registrations == 3


@asynccontextmanager
async def hosted(
    world: NodeWorld, config: Configuration, url: str
) -> AsyncIterator["asyncio.Task[None]"]:
    """The agent as its command starts it, with the API server there."""
    folder, socket = world.folder, world.runtime.socket
    file = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": url}}
    context = {"name": "c", "context": {"cluster": "c"}}
    text = {"current-context": "c", "clusters": [cluster], "contexts": [context]}
    file.write_text(json.dumps(text))
    hosting = AgentHosting(
        *(NODE, str(world.file), socket, "127.0.0.1", 0, (file,)),
        proc=folder / "proc",
        cdi_folder=folder / "cdi",
        cri_socket=folder / "cri.sock",
    )
    process = asyncio.create_task(host(config, hosting))
    try:
        yield process
    finally:
        world.api.reset()
        world.api.faults.forget()
        process.cancel()
        await asyncio.gather(process, return_exceptions=True)


OWN = Configuration(agent=AgentSettings(own=("nvidia.com/gpu",)))


@pytest.mark.parametrize("config", [Configuration(), OWN], ids=["", "own"])
async def test_an_api_server_that_accepts_and_does_not_answer_delays_nobodys_share(
    tmp_path: Path, config: Configuration
) -> None:
    """As one whose etcd hangs: the process starts, delivers what records say, and ends when told
    to, before its kubelet would kill it."""
    async with node_world(tmp_path) as world:
        world.api.fault("delay", times=1_000_000)
        async with hosted(world, config, world.api.url) as process:
            async with asyncio.timeout(20):  # a request alone is given 15 s, and tried four times
                await world.runtime.has_plugin()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait({process}, timeout=9)
            assert process.done()


@pytest.mark.parametrize("config", [Configuration(), OWN], ids=["", "own"])
async def test_an_api_server_that_is_away_keeps_no_agent_from_starting(
    tmp_path: Path, config: Configuration
) -> None:
    async with (
        node_world(tmp_path) as world,
        hosted(world, config, "http://127.0.0.1:1") as process,
    ):
        there = asyncio.create_task(world.runtime.has_plugin())
        await asyncio.wait({there, process}, return_when=asyncio.FIRST_COMPLETED)
        assert not process.done(), process
        assert there.done()


async def test_another_plugin_that_serves_what_the_agent_should_own_keeps_it_from_starting(
    tmp_path: Path,
) -> None:
    async with node_world(tmp_path) as world:
        served = {"nvidia.com/gpu": "2"}
        world.api.update("nodes", NODE, {"status": {"allocatable": served, "capacity": served}})
        async with hosted(world, OWN, world.api.url) as process:
            with pytest.raises(ForeignPluginError, match="remove that plugin"):
                await process


async def test_the_reference_has_the_metrics_of_delivery(tmp_path: Path) -> None:
    page = (DOCS / "metrics.md").read_text().partition("## The agent")[2].partition("\n## ")[0]
    async with ApiClient(Endpoint("http://127.0.0.1:1", FixedCredentials())) as client:
        file = written(tmp_path, f"gpus: [{A100}}}]")
        hosting = AgentHosting("n1", str(file), tmp_path / "nri.sock", "127.0.0.1", 0)
        made = Composition(Configuration(), hosting, FakeReader(file, "n1"), client)
        metrics = DeliveryMetrics(made.delivery, made.evictions, made.plugin, made.closed)
        families = [*metrics.collect(), *PartMetrics(made.agent.broken).collect()]
        families += DeviceMetrics(made.devices).collect()
        names = {f.name + "_total" * (f.type == "counter") for f in families}
    assert names <= set(re.findall(r"^\| `(\w+)`", page, flags=re.MULTILINE))
    outcomes = re.search(r"`weft_agent_containers_total`.*", page)
    assert outcomes is not None
    assert all(f"`{outcome}`" in outcomes[0] for outcome in OUTCOMES)
