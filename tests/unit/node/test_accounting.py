"""The node's GPU resources are true, and stay so; what is somebody else's is left alone."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.dialects.dialect import UnitSettings
from weft.dialects.nvidia import GPU
from weft.model import Gpu
from weft.model.annotations import ADVERTISES
from weft.node.agent.accounting import (
    Accounting,
    AccountingSettings,
    ForeignPluginError,
    advertised_unasked,
    dialects_with_resources,
)
from weft.node.devices.reader import GpuDevice

pytestmark = pytest.mark.virtual_time
GPUSHARE = AccountingSettings(dialects=("gpushare",))


class PlayedDevices:
    """Stands for the machine's GPUs."""

    def __init__(self, *gpus: Gpu) -> None:
        self.devices: tuple[GpuDevice, ...] = ()
        self.version = 0
        self._change = asyncio.Event()
        self.become(*gpus)

    def become(self, *gpus: Gpu) -> None:
        self.devices = tuple(GpuDevice(gpu) for gpu in gpus)
        self.version += 1
        self._change.set()

    async def changed(self, since: int) -> int:
        while self.version == since:
            self._change.clear()
            await self._change.wait()
        return self.version


class World:
    def __init__(self, server: FakeApiServer, client: MemoryClient, devices: PlayedDevices) -> None:
        self.server, self.client, self.devices = server, client, devices

    @property
    def status(self) -> dict[str, Any]:
        return self.server.get("nodes", "n")["status"]

    @asynccontextmanager
    async def agent(self, settings: AccountingSettings) -> AsyncIterator[Accounting]:
        accounting = Accounting(self.client, "n", self.devices, settings, delivers=lambda: True)
        task = asyncio.create_task(accounting.run())
        await asyncio.sleep(3)
        yield accounting
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def patches(self) -> int:
        return sum(n for (method, _), n in self.client.answers.items() if method == "PATCH")


@asynccontextmanager
async def world(*gpus: Gpu, status: dict[str, Any] | None = None) -> AsyncIterator[World]:
    server = FakeApiServer()
    there = {"capacity": {"cpu": "4", "pods": "110"}, "allocatable": {"cpu": "4"}}
    server.add("nodes", {"metadata": {"name": "n"}, "spec": {}, "status": status or there}, "")
    line = MemoryLine(server, delay=lambda: 0.01, lag=lambda: 0.01)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        yield World(server, client, PlayedDevices(*gpus))


TWO = (Gpu(0, 16_160), Gpu(1, 32_510))


async def test_the_sums_are_written_once() -> None:
    async with world(*TWO) as w, w.agent(GPUSHARE) as accounting:
        assert w.status["capacity"]["aliyun.com/gpu-mem"] == "46"
        assert w.status["allocatable"]["aliyun.com/gpu-count"] == "2"
        assert w.status["capacity"]["pods"] == "110"
        await asyncio.sleep(600)
        assert w.patches() == 1
        assert accounting.counts == {"changed": 1, "put-back": 0, "failed": 0}


async def test_all_systems_with_resources_but_nvidias_by_default() -> None:
    unasked = ("weft", "elastic", "gpushare", "alnair", "hami")
    assert advertised_unasked() == unasked
    assert set(dialects_with_resources()) > set(unasked)
    async with world(*TWO) as w, w.agent(AccountingSettings()):
        assert w.status["capacity"]["elasticgpu.io/gpu-core"] == "200"
        assert w.status["capacity"]["alnair/vgpu-memory"] == "48"
        assert "nvidia.com/gpu" not in w.status["capacity"]
        assert "elasticgpu.com/gpu-core" not in w.status["capacity"]


async def test_a_broken_card_is_capacity_and_not_allocatable() -> None:
    async with world(*TWO) as w, w.agent(GPUSHARE):
        w.devices.become(TWO[0], Gpu(1, 32_510, in_service=False))
        await asyncio.sleep(3)
        assert w.status["capacity"]["aliyun.com/gpu-mem"] == "46"
        assert w.status["allocatable"]["aliyun.com/gpu-mem"] == "15"
        w.devices.become(*TWO)
        await asyncio.sleep(3)
        assert w.status["allocatable"]["aliyun.com/gpu-mem"] == "46"


async def test_someone_elses_change_is_put_back() -> None:
    async with world(*TWO) as w, w.agent(GPUSHARE) as accounting:
        w.server.update("nodes", "n", {"status": {"capacity": {"aliyun.com/gpu-mem": "4k"}}}, "")
        await asyncio.sleep(3)
        assert w.status["capacity"]["aliyun.com/gpu-mem"] == "46"
        w.server.update("nodes", "n", {"status": {"allocatable": {"aliyun.com/gpu-mem": "?"}}}, "")
        await asyncio.sleep(3)
        assert w.status["allocatable"]["aliyun.com/gpu-mem"] == "46"
        assert accounting.counts["put-back"] == 2


async def test_quantities_are_compared_not_their_spelling() -> None:
    async with world(Gpu(0, 16_000)) as w, w.agent(AccountingSettings(dialects=("elastic",))):
        same = {"elasticgpu.io/gpu-memory": "16k"}  # as the API server shows it
        w.server.update("nodes", "n", {"status": {"capacity": same}}, "")
        await asyncio.sleep(60)
        assert w.patches() == 1


async def test_a_node_that_is_made_anew_gets_them_again() -> None:
    async with world(*TWO) as w, w.agent(GPUSHARE):
        w.server.remove("nodes", "n", "")
        await asyncio.sleep(5)
        w.server.add("nodes", {"metadata": {"name": "n"}, "spec": {}, "status": {}}, "")
        await asyncio.sleep(5)
        assert w.status["capacity"]["aliyun.com/gpu-mem"] == "46"


async def test_after_a_restart_the_agent_knows_its_own_and_drops_what_is_switched_off() -> None:
    async with world(*TWO) as w:
        async with w.agent(AccountingSettings(dialects=("gpushare", "alnair"))):
            assert w.status["capacity"]["alnair/vgpu-compute"] == "200"
        async with w.agent(GPUSHARE):
            assert w.status["capacity"]["aliyun.com/gpu-mem"] == "46"
            assert "alnair/vgpu-compute" not in w.status["capacity"]
            assert "alnair/vgpu-memory" not in w.status["allocatable"]


async def test_a_system_that_another_plugin_serves_is_left_alone(caplog) -> None:
    served = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2", "alnair/vgpu-memory": "0"}
    status = {"capacity": served, "allocatable": served}
    async with world(*TWO, status=status) as w, w.agent(AccountingSettings()) as accounting:
        assert w.status["capacity"]["aliyun.com/gpu-mem"] == "30"
        assert w.status["capacity"]["alnair/vgpu-memory"] == "48"
        assert "gpushare" not in accounting.dialects
        assert "is served by another device plugin" in caplog.text


@pytest.mark.parametrize(
    ("allocatable", "why"),
    [("2", "nvidia.com/gpu is served"), ("0", "remembers a removed device plugin")],
)
async def test_own_refuses_while_another_plugin_serves_it(allocatable: str, why: str) -> None:
    settings = AccountingSettings(dialects=(), own=("nvidia.com/gpu",))
    amounts = {"capacity": {GPU: "2"}, "allocatable": {GPU: allocatable}}
    async with world(*TWO, status=amounts) as w:
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(10):
                await Accounting(w.client, "n", w.devices, settings, delivers=lambda: True).run()
        assert caught.group_contains(ForeignPluginError, match=why)
        assert w.patches() == 0


async def test_own_is_advertised_where_nobody_serves_it() -> None:
    settings = AccountingSettings(dialects=(), own=(GPU,))
    async with world(*TWO) as w, w.agent(settings):
        assert w.status["capacity"]["nvidia.com/gpu"] == "2"
    both = AccountingSettings(dialects=("hami",), own=("nvidia.com/gpu",))
    async with world(*TWO) as w, w.agent(both):
        assert w.status["capacity"]["nvidia.com/gpu"] == "20"


async def test_what_a_kubelet_remembers_of_a_plugin_that_is_gone_is_nobodys() -> None:
    """The Node was made anew while no agent ran: our marker is lost, the capacity is not."""
    status = {"capacity": {"aliyun.com/gpu-mem": "46"}, "allocatable": {"aliyun.com/gpu-mem": "0"}}
    async with world(*TWO, status=status) as w, w.agent(GPUSHARE):
        assert w.status["allocatable"]["aliyun.com/gpu-mem"] == "46"


async def test_they_stay_while_the_agent_is_away() -> None:
    async with world(*TWO) as w:
        async with w.agent(GPUSHARE):
            pass
        assert w.status["capacity"]["aliyun.com/gpu-mem"] == "46"
        assert ADVERTISES in w.server.get("nodes", "n")["metadata"]["annotations"]


async def test_an_api_server_that_refuses_is_asked_again() -> None:
    async with world(*TWO) as w:
        w.server.fault("status", method="PATCH", code=403, times=2)
        async with w.agent(GPUSHARE) as accounting:
            await asyncio.sleep(30)
            assert w.status["capacity"]["aliyun.com/gpu-mem"] == "46"
            assert accounting.counts["failed"] == 2


PLUGINS = AccountingSettings(dialects=("gpushare",), device_plugins=True, by_name=False)


async def test_after_a_kubelets_restart_its_resources_are_there_before_it_says_so_itself() -> None:
    memory = "aliyun.com/gpu-mem"
    nothing = {"capacity": {memory: "0"}, "allocatable": {memory: "0"}}
    async with world(*TWO) as w, w.agent(PLUGINS) as accounting:
        accounting.kubelet_has(memory, True)
        await asyncio.sleep(3)
        assert w.status["allocatable"][memory] == "46"
        accounting.kubelet_has(memory, False)  # it ends, and comes again
        w.server.update("nodes", "n", {"status": nothing}, "")
        await asyncio.sleep(3)
        assert w.status["allocatable"][memory] == "0"  # it takes no pod that asks for some
        accounting.kubelet_has(memory, True)
        await asyncio.sleep(0.5)
        w.server.update("nodes", "n", {"status": nothing}, "")
        assert w.status["allocatable"][memory] == "0"  # it is still reading the list
        await asyncio.sleep(2)
        assert w.status["allocatable"][memory] == w.status["capacity"][memory] == "46"


async def test_what_the_kubelet_says_of_its_devices_later_stands() -> None:
    memory = "aliyun.com/gpu-mem"
    async with world(*TWO) as w, w.agent(PLUGINS) as accounting:
        accounting.kubelet_has(memory, True)
        await asyncio.sleep(20)
        w.server.update("nodes", "n", {"status": {"allocatable": {memory: "7"}}}, "")
        await asyncio.sleep(60)
        assert w.status["allocatable"][memory] == "7"


async def test_device_plugins_tell_what_they_can_and_the_rest_is_withheld() -> None:
    plugins = AccountingSettings(
        dialects=("gpushare", "elastic"), device_plugins=True, by_name=False
    )
    large = tuple(Gpu(index, 81_559) for index in range(8))
    async with world(*large) as w, w.agent(plugins) as accounting:
        amounts = accounting.amounts().capacity
        served = accounting.served_by_plugins(amounts)
        assert served == {"aliyun.com/gpu-mem", "elasticgpu.io/gpu-core"}
        # Nobody could deliver it: a pod that asks for it must not start here.
        assert "elasticgpu.io/gpu-memory" not in w.status["capacity"]
        assert w.status["capacity"]["aliyun.com/gpu-count"] == "8"
        assert "aliyun.com/gpu-mem" not in w.status["capacity"]  # the kubelet will write it
    by_name = AccountingSettings(
        dialects=("elastic",), device_plugins=True, units=UnitSettings(promised_permille=1500)
    )
    async with world(*large) as w, w.agent(by_name):
        assert w.status["capacity"]["elasticgpu.io/gpu-memory"] == str(8 * (81_559 * 3 // 2))


async def test_nothing_is_advertised_while_nobody_delivers() -> None:
    delivers = [True]
    async with world(Gpu(0, 16_384), Gpu(1, 16_384)) as w:
        accounting = Accounting(w.client, "n", w.devices, GPUSHARE, delivers=lambda: bool(delivers))
        task = asyncio.create_task(accounting.run())
        await asyncio.sleep(3)
        assert w.status["allocatable"]["aliyun.com/gpu-mem"] == "32"
        delivers.clear()
        accounting.nudge()
        await asyncio.sleep(3)
        assert w.status == {"capacity": {"cpu": "4", "pods": "110"}, "allocatable": {"cpu": "4"}}
        w.devices.become(Gpu(0, 16_384))
        await asyncio.sleep(3)
        assert "aliyun.com/gpu-mem" not in w.status["allocatable"]
        delivers.append(True)
        accounting.nudge()
        await asyncio.sleep(3)
        assert w.status["allocatable"]["aliyun.com/gpu-mem"] == "16"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
