"""Device plugins as a kubelet meets them: over gRPC, on sockets, through its restarts."""

import asyncio
import base64
import json
import os
import random
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.device_manager import StartError
from fakes.device_manager_server import POD_RESOURCES_SOCKET, DeviceManagerServer
from weft.dialects.advertised import AdvertisedAmounts, advertised_cards, amounts_of
from weft.dialects.dialect import UnitSettings
from weft.model import Gpu, ObjectMeta, PodManifest
from weft.model.delivery import (
    VISIBLE,
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
)
from weft.model.manifest import ManifestContainer, ManifestResources, PodSpec
from weft.node.agent.container_grant import ContainerGrant, visible
from weft.node.agent.isolation import AddedMount
from weft.node.agent.node_pods import NodePod
from weft.node.device_plugin.attribution import Attribution, AttributionWorld, answer_of
from weft.node.device_plugin.cdi_files import CdiFiles, specification
from weft.node.device_plugin.device_ids import device_list, gpu_of, preferred_ids
from weft.node.device_plugin.device_plugins import DevicePlugins
from weft.node.device_plugin.kubelet_api import HEALTHY, UNHEALTHY, PodResourcesClient
from weft.node.device_plugin.kubelet_record import FILE, KubeletRecord, KubeletRecordError
from weft.node.devices.reader import GpuDevice

MEM = "aliyun.com/gpu-mem"
TWO = (Gpu(0, 16_160, uuid="GPU-0"), Gpu(1, 32_510, uuid="GPU-1"))


class PlayedMachine:
    """Its GPUs, its pods, and what is advertised."""

    dialects = ("gpushare",)
    units = UnitSettings()

    def __init__(self) -> None:
        self.devices: tuple[GpuDevice, ...] = ()
        self.version = 0
        self.pods: dict[str, NodePod] = {}
        self._change = asyncio.Event()
        self.become(*TWO)

    def become(self, *gpus: Gpu) -> None:
        self.devices = tuple(
            GpuDevice(gpu, numa_node=gpu.index, paths=(f"/dev/nvidia{gpu.index}",)) for gpu in gpus
        )
        self.version += 1
        self._change.set()

    async def changed(self, since: int) -> int:
        while self.version == since:
            self._change.clear()
            await self._change.wait()
        return self.version

    async def known(self, uid: str, within_s: float) -> NodePod | None:
        return self.pods.get(uid)

    async def decided(self) -> None:
        pass

    def amounts(self) -> AdvertisedAmounts:
        gpus = [device.gpu for device in self.devices]
        return amounts_of(advertised_cards(gpus, self.dialects, self.units))

    def served_by_plugins(self, capacity: Mapping[str, int]) -> frozenset[str]:
        return frozenset((MEM,))

    def pod(self, name: str, units: int, gpu: int) -> PodManifest:
        limits = ManifestResources(limits={MEM: units})
        spec = PodSpec(containers=[ManifestContainer("main", resources=limits)])
        meta = ObjectMeta(name=name, namespace="d", uid=f"uid-{name}")
        card = DeliveredCard(gpu, f"GPU-{gpu}", 1024 * units, 0, 40_000, 1000)
        share = DeliveredShare(gpu, f"GPU-{gpu}", 1024 * units, 0)
        part = DeliveredContainer((share,), {"ALIYUN_COM_GPU_MEM_IDX": str(gpu)})
        record = DeliveryRecord(meta.uid, "n", "gpushare", (card,), {"main": part})
        pod = PodManifest(meta, spec)
        self.pods[meta.uid] = NodePod(meta.uid, pod, "share", record)
        return pod


async def grant_of(record: DeliveryRecord, container: str) -> ContainerGrant:
    part = record.containers[container]
    paths = tuple(f"/dev/nvidia{share.gpu}" for share in part.shares)
    return ContainerGrant(env={VISIBLE: visible(part), **part.env}, paths=paths)


class Node:
    def __init__(self, kubelet: DeviceManagerServer, machine: PlayedMachine, folder: Path) -> None:
        self.kubelet, self.machine, self.folder = kubelet, machine, folder
        self.manager = kubelet.manager
        self.wrong: list[str] = []
        self.refused: list[str] = []
        self.lists: list[bool] = []

    async def told_of(self, lists: int) -> None:
        """Return when so many lists and hang-ups were told: the kubelet knows of each before."""
        async with asyncio.timeout(60):
            while len(self.lists) < lists:
                await asyncio.sleep(0.005)

    @asynccontextmanager
    async def agent(self, *, cdi: bool = True) -> AsyncIterator[DevicePlugins]:
        client = PodResourcesClient(self.folder / POD_RESOURCES_SOCKET)
        attribution = Attribution(
            AttributionWorld(
                self.machine,
                KubeletRecord(self.folder),
                client,
                grant_of,
                objection=lambda pod, others: "",
                on_refused=lambda pod, why: self.refused.append(pod.name),
                on_wrong=lambda pod, why: self.wrong.append(pod.name),
                cdi=CdiFiles(self.folder / "cdi") if cdi else None,
            )
        )
        machine = self.machine
        plugins = DevicePlugins(
            machine,
            machine,
            attribution,
            on_registered=lambda: None,
            on_list=lambda resource, listed: self.lists.append(listed),
            folder=self.folder,
            period_s=0.2,  # three without a list are a kubelet that hung up
        )
        task = asyncio.create_task(plugins.run())
        try:
            await self.kubelet.registered(MEM)
            yield plugins
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kubelet = DeviceManagerServer(folder, random.Random(1), folder / "cdi")
        async with kubelet:
            yield Node(kubelet, PlayedMachine(), folder)


@pytest.mark.parametrize("cdi", [True, False], ids=["cdi", "environment"])
async def test_a_pod_starts_with_its_own_share(cdi: bool) -> None:
    async with node() as n, n.agent(cdi=cdi):
        for name, gpu in (("a", 0), ("b", 1), ("c", 0)):
            await n.manager.admit(n.machine.pod(name, 4, gpu))
        for name, gpu in (("c", 0), ("a", 0), ("b", 1)):
            begun = await n.manager.start(f"uid-{name}", "main")
            assert begun.env[VISIBLE] == f"GPU-{gpu}"
            assert begun.devices == (f"/dev/nvidia{gpu}",)
        assert not n.wrong


async def test_ids_are_short_with_numa_nodes_and_of_the_gpu_that_was_promised() -> None:
    async with node() as n, n.agent():
        listed = n.kubelet.listed[MEM]
        assert [device.ID for device in listed][13:17] == ["0-13", "0-14", "1-0", "1-1"]
        assert len(listed) == 15 + 31
        assert listed[20].topology.nodes[0].ID == 1
        taken = set()
        for name in "abcdefg":
            await n.manager.admit(n.machine.pod(name, 2, 1))
        for held in n.manager.held.values():
            taken |= {gpu_of(name) for name in held.ids}
        assert 1 in taken


async def test_a_broken_gpu_recovers() -> None:
    async with node() as n, n.agent():
        n.machine.become(TWO[0], Gpu(1, 32_510, uuid="GPU-1", in_service=False))
        await n.kubelet.until(lambda: len(n.manager.devices[MEM]) == 15)
        health = {device.health for device in n.kubelet.listed[MEM] if device.ID[0] == "1"}
        assert health == {UNHEALTHY}
        n.machine.become(*TWO)
        await n.kubelet.until(lambda: len(n.manager.devices[MEM]) == 46)
        assert {device.health for device in n.kubelet.listed[MEM]} == {HEALTHY}


async def test_a_kubelet_that_restarts_gets_them_again() -> None:
    async with node() as n, n.agent() as plugins:
        await n.manager.admit(n.machine.pod("a", 4, 1))
        for turn in range(3):
            await n.told_of(2 * turn + 1)  # else a restart may end the call that it would tell of
            await n.kubelet.restart()
            await n.kubelet.registered(MEM)
        await n.told_of(3)
        async with asyncio.timeout(60):
            while plugins.registrations < 4:
                await asyncio.sleep(0.005)
        assert n.lists[:3] == [True, False, True]  # who counts by it hears of each restart
        assert (await n.manager.start("uid-a", "main")).env[VISIBLE] == "GPU-1"


async def test_an_agent_that_restarts_between_allocate_and_start() -> None:
    async with node() as n:
        async with n.agent():
            await n.manager.admit(n.machine.pod("a", 4, 1))
            await n.manager.admit(n.machine.pod("b", 4, 0))
        await n.kubelet.until(lambda: not n.manager.devices[MEM])  # nothing while it is away
        with pytest.raises(StartError):
            await n.manager.start("uid-a", "main")
        async with n.agent():
            assert (await n.manager.start("uid-a", "main")).env[VISIBLE] == "GPU-1"
            assert (await n.manager.start("uid-b", "main")).env[VISIBLE] == "GPU-0"


async def test_a_pod_that_is_not_known_yet_is_kept_back_and_then_starts() -> None:
    async with node() as n, n.agent():
        pod = n.machine.pod("a", 4, 1)
        hidden = n.machine.pods.pop("uid-a")
        await n.manager.admit(pod)
        with pytest.raises(StartError, match="is not known yet"):
            await n.manager.start("uid-a", "main")
        n.machine.pods["uid-a"] = hidden
        assert (await n.manager.start("uid-a", "main")).env[VISIBLE] == "GPU-1"


async def test_a_guess_that_proves_wrong_does_not_start() -> None:
    """The agent knew one pod, the kubelet gave the devices to another."""
    async with node() as n, n.agent(cdi=False):
        n.machine.pod("a", 4, 1)
        other = n.machine.pod("b", 4, 0)
        hidden = n.machine.pods.pop("uid-b")
        n.manager.pods["uid-a"] = n.machine.pods["uid-a"].manifest  # lingers in its hands
        await n.manager.admit(other)
        n.machine.pods["uid-b"] = hidden
        with pytest.raises(StartError, match="was given 'GPU-1', its record says 'GPU-0'"):
            await n.manager.start("uid-b", "main")
        assert n.wrong == ["b"]


async def test_a_kubelet_that_was_asked_too_often_is_asked_again() -> None:
    """The kubelet answers questions for pod resources 10 times at once and 100 times a second."""
    async with node() as n, n.agent(cdi=False):
        pods = [n.machine.pod(f"p{number}", 1, number % 2) for number in range(24)]
        for number in reversed(range(24)):
            await n.manager.admit(pods[number])
        for number in range(24):
            begun = await n.manager.start(f"uid-p{number}", "main")
            assert begun.env[VISIBLE] == f"GPU-{number % 2}"
        assert not n.wrong


async def test_what_is_not_the_kubelets_record_is_not_believed(tmp_path: Path) -> None:
    record = KubeletRecord(tmp_path)
    assert record.held() == ()
    wrong = (b"", b"{}", b'{"Data": {"PodDeviceEntries": [{"AllocResp": 4}]}}')
    deep, no_text = b'{"Data":' * 50_000, b'{"Data": {"PodDeviceEntries": [{"PodUID": "\xff"}]}}'
    for text in (*wrong, deep, no_text):
        (tmp_path / FILE).write_bytes(text)
        with pytest.raises(KubeletRecordError, match=FILE):
            record.held()


def test_the_record_of_a_real_kubelet(tmp_path: Path) -> None:
    """As kubelet 1.36 writes it, with NUMA nodes and resources of others."""
    answer = answer_of(ContainerGrant(env={"A": "1"})).SerializeToString()
    text = (
        '{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r/x",'
        '"DeviceIDs":{"0":["0-1","0-2"],"1":["1-7"]},"AllocResp":"'
        + base64.b64encode(answer).decode()
        + '"}],"RegisteredDevices":{"r/x":["0-1"]}},"Checksum":1234}'
    )
    (tmp_path / FILE).write_text(text)
    (held,) = KubeletRecord(tmp_path).held()
    assert (held.pod, held.container, held.resource) == ("u", "c", "r/x")
    assert held.ids == {"0-1", "0-2", "1-7"}
    assert held.answer.envs["A"] == "1"


def test_a_hundred_thousand_ids_fit_into_what_a_kubelet_takes() -> None:
    units = UnitSettings(gpushare_unit="MiB")
    cards = advertised_cards([Gpu(i, 12_500) for i in range(8)], ("gpushare",), units)
    listed = device_list(cards, MEM, dict.fromkeys(range(8), 0))
    assert len(listed.devices) == 100_000
    assert listed.ByteSize() < 4 << 20


def test_preferred_ids() -> None:
    available = [f"{gpu}-{n}" for gpu in (0, 1, 2) for n in range(4 + gpu)]
    assert preferred_ids(available, [], 3, (2,)) == ["2-0", "2-1", "2-2"]
    assert preferred_ids(available, [], 5, ()) == [f"1-{n}" for n in range(5)]  # the tightest
    assert preferred_ids(available, ["0-3"], 3, ()) == ["0-3", "0-0", "0-1"]
    assert preferred_ids(available, [], 7, (0,))[:4] == [f"0-{n}" for n in range(4)]
    assert len(set(preferred_ids(available, [], 15, ()))) == 15
    assert preferred_ids(["odd", "1-0"], [], 2, (1,)) == ["1-0", "odd"]
    assert [gpu_of(name) for name in ("GPU-abc", "1-x", "12-3")] == [-1, -1, 12]


def test_a_cdi_file_brings_environment_devices_and_mounts(tmp_path: Path) -> None:
    files = CdiFiles(tmp_path)
    name = files.new_name()
    mounts = (AddedMount("/opt/lib.so", "/opt/lib.so"), AddedMount("/run/mps", "/mps", False))
    grant = ContainerGrant(env={"A": "b=c"}, paths=("/dev/nvidia0",), mounts=mounts)
    files.write(name, grant)
    (path,) = tmp_path.glob("*.json")
    spec: dict[str, Any] = json.loads(path.read_text())
    edits = spec["devices"][0]["containerEdits"]
    assert f"{spec['kind']}={spec['devices'][0]['name']}" == name
    assert edits["env"] == ["A=b=c"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia0"}]
    assert edits["mounts"][0]["options"][0] == "ro"
    assert edits["mounts"][1]["options"][0] == "rw"
    assert path.read_bytes() == specification(name, grant)
    assert files.forget_all_but(()) == 0  # it is fresh
    os.utime(path, (0, 0))
    assert files.forget_all_but((name,)) == 0
    assert files.forget_all_but(()) == 1
