"""The agent asks the kubelet for what NVIDIA's device plugin gave, and tells it on the node."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from test_discovery import scene

from fakes.device_manager import HeldAnswer
from fakes.device_manager_server import POD_RESOURCES_SOCKET, DeviceManagerServer
from weft.cluster.config.form import Configuration
from weft.host.agent import Composition
from weft.host.agent_process import AgentHosting
from weft.model.annotations import PLUGIN_GPUS
from weft.model.delivery import DeliveryRecord
from weft.model.plugin_gpus import NONE_GIVEN, GivenGpu, PluginGpus, decode_plugin_gpus
from weft.node.agent.discovery import Discovery
from weft.node.agent.node_pods import NodePod, PodOnNode
from weft.node.agent.plugin_gpus import (
    NO_NUMBER,
    SAME_NAME,
    UNKNOWN_GPU,
    PluginGpusWatch,
    admitted,
    read_answer,
    replicas_of,
)
from weft.node.agent.reconciler import ListedContainer
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin.kubelet_api import PodResourcesClient
from weft.node.devices.fake import FakeReader

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
UUIDS = ("GPU-0", "GPU-1", "MIG-2")


def devices(card: str, replicas: int) -> list[str]:
    return [f"{card}::{number}" for number in range(replicas)]


OFFERED = {SHARED: devices("GPU-0", 4) + devices("GPU-1", 4), "nvidia.com/mig-1g.10gb": ["MIG-2"]}


def listed(pod: str, *ids: str, by: str = SHARED, container: str = "c") -> ListedContainer:
    return ListedContainer("d", pod, container, {by: ids})


def read(*containers: ListedContainer, pods: tuple[str, ...] = ("p",)) -> Any:
    names = {f"uid-{name}": ("d", name) for name in pods}
    return read_answer(containers, names, replicas_of(OFFERED), UUIDS)


def told(*containers: ListedContainer, pods: tuple[str, ...] = ("p",)) -> dict[str, Any]:
    answer = read(*containers, pods=pods)
    assert answer.untold == ()
    return {
        uid: [(answer.given.cards[gpu.card], gpu.devices, gpu.replicas) for gpu in gpus]
        for uid, gpus in answer.given.pods.items()
    }


def test_cards_and_replicas_by_the_ids_of_devices() -> None:
    assert told(listed("p", "GPU-0::3")) == {"uid-p": [("GPU-0", 1, 4)]}
    two = listed("p", "GPU-0::0", "GPU-1::2"), listed("p", "GPU-0::1", container="sidecar")
    assert told(*two) == {"uid-p": [("GPU-0", 2, 4), ("GPU-1", 1, 4)]}
    mig = listed("p", "MIG-2", by="nvidia.com/mig-1g.10gb")
    assert told(mig) == {"uid-p": [("MIG-2", 1, 1)]}
    whole = read_answer([listed("p", "GPU-1", by=GPU)], {"u": ("d", "p")}, {"GPU-1": 1}, UUIDS)
    assert whole.given.pods == {"u": (GivenGpu(1, 1, 1),)}


def test_whose_devices_are_not_nvidias_is_not_told() -> None:
    assert told(listed("p", "GPU-0::3", by="example.com/gpu")) == {}
    assert told(listed("another", "GPU-0::3")) == {}
    assert read(listed("another", "GPU-0::3")).given == NONE_GIVEN


@pytest.mark.parametrize(
    ("containers", "kind"),
    [
        ([listed("p", "GPU-7::0")], UNKNOWN_GPU),
        ([listed("p", "GPU-0-1")], UNKNOWN_GPU),  # as HAMi's plugin calls its parts
        ([listed("p", "GPU-0::x")], UNKNOWN_GPU),
        ([listed("p", "GPU-0::0"), listed("p", "GPU-0::1")], SAME_NAME),
        ([listed("p", *devices("GPU-0", 5))], NO_NUMBER),
    ],
)
def test_what_cannot_be_told_is_named(containers: list[ListedContainer], kind: str) -> None:
    answer = read(*containers, listed("q", "GPU-1::0"), pods=("p", "q"))
    (untold,) = answer.untold
    assert (untold.kind, untold.uid) == (kind, "uid-p")
    assert answer.given.pods == {"uid-q": (GivenGpu(1, 1, 4),)}


@given(st.data())
@settings(max_examples=few_or_many(40, 1_000), deadline=None)
def test_random_devices_give_what_a_plain_count_gives(data: Any) -> None:
    replicas = data.draw(st.dictionaries(st.sampled_from(UUIDS), st.integers(1, 6), min_size=1))
    free = [
        each
        for card, count in replicas.items()
        for each in (devices(card, count) if count > 1 else [card])
    ]
    offered = {SHARED: list(free)}
    free = data.draw(st.permutations(free))
    holders: dict[str, list[str]] = {}
    containers = []
    for number in range(data.draw(st.integers(0, 5))):
        pod = f"p{number % 3}"
        size = data.draw(st.integers(0, len(free)))
        taken, free = free[:size], free[size:]
        holders.setdefault(pod, []).extend(taken)
        containers.append(listed(pod, *taken, container=f"c{number}"))
    names = {f"uid-{pod}": ("d", pod) for pod in holders}
    answer = read_answer(containers, names, replicas_of(offered), UUIDS)
    assert answer.untold == ()
    restated = {
        f"uid-{pod}": dict(Counter(each.split("::")[0] for each in ids))
        for pod, ids in holders.items()
        if ids
    }
    cards = answer.given.cards
    assert restated == {
        uid: {cards[gpu.card]: gpu.devices for gpu in gpus}
        for uid, gpus in answer.given.pods.items()
    }
    for gpus in answer.given.pods.values():
        assert all(gpu.replicas == replicas[cards[gpu.card]] for gpu in gpus)


def on_node(name: str, started: str | None = "2026-01-01T00:00:00Z", **asks: str) -> NodePod:
    limits = {key.replace("_", "/"): text for key, text in (asks or {"x": "1"}).items()}
    raw = {
        "metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", "startTime": started},
    }
    return NodePod(f"uid-{name}", msgspec.convert(raw, PodOnNode), "foreign")


SHARES = {"nvidia.com_gpu.shared": "1"}


def test_only_pods_that_the_kubelet_has_admitted_are_told() -> None:
    record = DeliveryRecord("uid-w", "n1", "nvidia", (), {})
    pods = [
        on_node("p", **SHARES),
        on_node("new", None, **SHARES),
        msgspec.structs.replace(on_node("weft", **SHARES), record=record),
        msgspec.structs.replace(on_node("plain", **SHARES), asks="nothing"),
        on_node("hami", **{"nvidia.com_gpu": "1", "nvidia.com_gpumem": "100"}),
        on_node("amd", **{"amd.com_gpu": "1"}),
    ]
    assert admitted(pods) == {"uid-p": ("d", "p")}


class Pods:
    """The node's pods."""

    def __init__(self, *pods: NodePod) -> None:
        self.node_name, self.listeners = "n1", list[Any]()
        self.synced = asyncio.Event()
        self.synced.set()
        self.pods = {pod.uid: pod for pod in pods}

    def take(self, pod: NodePod) -> None:
        self.pods[pod.uid] = pod
        for listen in self.listeners:
            listen(pod.uid)


async def test_the_kubelet_is_asked_and_the_node_tells(tmp_path: Path) -> None:
    """Over gRPC, and through restarts of the plugin and the agent."""
    async with (
        scene(tmp_path, "gpus: [{model: A, memoryMiB: 1000, count: 2}]") as made,
        DeviceManagerServer(tmp_path, random.Random(1)) as kubelet,
    ):
        reading = asyncio.create_task(made.watch.run())
        await made.watch.changed(0)
        uuids = [device.gpu.uuid for device in made.watch.devices]
        offered = {SHARED: frozenset(devices(uuids[0], 3) + devices(uuids[1], 3))}
        kubelet.manager.devices.update(offered)
        source, pods = PodResourcesClient(tmp_path / POD_RESOURCES_SOCKET), Pods()

        def agent() -> tuple[PluginGpusWatch, Discovery]:
            client = made.discovery._client
            asks = PluginGpusWatch(client, pods, source, frozenset, lambda: uuids)
            tells = Discovery(client, "n1", made.watch, lambda: None, given=lambda: asks.given)
            return asks, tells

        def text() -> str:
            return str(made.metadata().get("annotations", {}).get(PLUGIN_GPUS, ""))

        asks, tells = agent()
        news: list[PluginGpus | None] = []
        asks.listeners.append(lambda: news.append(asks.given))
        await tells.write()
        assert text() == ""
        pods.take(on_node("p", **SHARES))
        kubelet.manager.pods["uid-p"] = pods.pods["uid-p"].manifest
        kubelet.manager.held["uid-p", "c", SHARED] = HeldAnswer(
            frozenset({f"{uuids[1]}::2"}), plugin.ContainerAllocateResponse()
        )
        await asks.look()
        await asks.look()
        assert len(news) == 1
        await tells.write()
        said = text()
        given = decode_plugin_gpus(said)
        (gpu,) = given.pods["uid-p"]
        assert (given.cards[gpu.card], gpu.devices, gpu.replicas) == (uuids[1], 1, 3)
        kubelet.manager.devices.clear()  # the plugin restarts
        await asks.look()
        assert len(news) == 1
        asks, tells = agent()  # so does the agent, and has not asked yet
        await tells.write()
        assert text() == said
        await asks._remember()
        await asks.look()
        await tells.write()
        assert text() == said
        pods.pods.clear()
        await asks.look()
        await tells.write()
        assert text() == ""
        await source.close()
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def test_a_new_pod_is_told_at_once_and_a_kubelet_that_is_away_is_asked_again(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, "gpus: [{model: A, memoryMiB: 1000, count: 1}]") as made:
        pods = Pods()
        source = PodResourcesClient(tmp_path / POD_RESOURCES_SOCKET)
        client = made.discovery._client
        asks = PluginGpusWatch(client, pods, source, frozenset, lambda: ["GPU-0"], period_s=0.05)
        told, lost = asyncio.Event(), asyncio.Event()
        asks.listeners.append(lambda: told.set() if asks.given != NONE_GIVEN else lost.set())
        asking = asyncio.create_task(asks.run())
        async with asyncio.timeout(60):
            await lost.wait()  # nobody has such devices yet: the kubelet is not asked
            assert asks.failures == 0
            pods.take(on_node("p", **SHARES))
            while not asks.failures:
                await asyncio.sleep(0.01)
            assert asks.given == NONE_GIVEN
            async with DeviceManagerServer(tmp_path, random.Random(1)) as kubelet:
                answer = plugin.ContainerAllocateResponse()
                kubelet.manager.devices[SHARED] = frozenset(devices("GPU-0", 2))
                held = kubelet.manager.held
                held["uid-p", "c", SHARED] = HeldAnswer(frozenset({"GPU-0::1"}), answer)
                kubelet.manager.pods["uid-p"] = pods.pods["uid-p"].manifest
                await told.wait()
                await source.close()
        assert asks.given == PluginGpus(("GPU-0",), {"uid-p": (GivenGpu(0, 1, 2),)})
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


async def test_an_agent_beside_a_kubelet_asks_it(tmp_path: Path) -> None:
    async with scene(tmp_path, "gpus: [{model: A, memoryMiB: 1000, count: 1}]") as made:
        socket = tmp_path / "pod-resources.sock"
        socket.touch()
        file = str(tmp_path / "fake.yaml")
        hosting = AgentHosting("n1", file, socket, "127.0.0.1", 0, pod_resources=socket)
        reader = FakeReader(tmp_path / "fake.yaml", "n1")
        agent = Composition(Configuration(), hosting, reader, made.discovery._client)
        assert agent.plugin_gpus is not None
        assert agent._parts()["plugin-gpus"] is agent.plugin_gpus
        assert agent.discovery._given() is None
        agent.plugin_gpus.given = NONE_GIVEN
        assert agent.discovery._given() == NONE_GIVEN
