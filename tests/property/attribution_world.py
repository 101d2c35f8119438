"""A node without NRI in one process: a kubelet, an agent with its lags and crashes, 20 pods.

Chance decides who goes next: pods become known to kubelet and agent in orders of their own, the
kubelet admits them and starts their containers while the agent, or it itself, is restarted and pods
are deleted. Whatever a container starts with is held against its pod's record.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from fakes.device_manager import AdmissionError, FakeDeviceManager, StartError
from weft.dialects.advertised import advertised_cards
from weft.dialects.delivery import record_of
from weft.dialects.dialect import DialectSettings, UnitSettings
from weft.dialects.registry import parse_pod, write
from weft.dialects.resources import slots
from weft.dialects.shares import placement_of, share_on
from weft.model import Gpu, Node, ObjectMeta, PodManifest
from weft.model.delivery import VISIBLE, DeliveryRecord
from weft.model.manifest import ManifestContainer, ManifestResources, PodSpec
from weft.node.agent.container_grant import NOTHING, ContainerGrant, visible, why_refused
from weft.node.agent.node_pods import NodePod
from weft.node.agent.pod_events import PodName
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin.attribution import Attribution, AttributionWorld
from weft.node.device_plugin.cdi_files import CdiFiles
from weft.node.device_plugin.device_ids import device_list
from weft.node.device_plugin.device_plugins import ResourceService
from weft.node.device_plugin.kubelet_record import KubeletRecord
from weft.node.devices.reader import GpuDevice

CARD_MIB = 400 * 1024
OF_EACH_CARD = 30  # device IDs: a kubelet with thousands of them goes the same ways, slowly
NODE = Node("n", tuple(Gpu(i, CARD_MIB, uuid=f"GPU-{i}") for i in range(4)), unit_mib=1024)
DEVICES = tuple(GpuDevice(gpu, paths=(f"/dev/nvidia{gpu.index}",)) for gpu in NODE.gpus)
SETTINGS = DialectSettings(gpushare_unit="GiB")
CARDS = advertised_cards(NODE.gpus, ("gpushare", "elastic", "alnair"), UnitSettings())
SERVED = (
    "aliyun.com/gpu-mem",
    "elasticgpu.io/gpu-core",
    "alnair/vgpu-memory",
    "alnair/vgpu-compute",
)
IDS = {
    resource: frozenset(
        device.ID
        for device in device_list(CARDS, resource, {}).devices
        if int(device.ID.partition("-")[2]) < OF_EACH_CARD
    )
    for resource in SERVED
}
ASKED = (
    {"aliyun.com/gpu-mem": 2},
    {"aliyun.com/gpu-mem": 4},
    {"elasticgpu.io/gpu-core": 1},
    {"elasticgpu.io/gpu-core": 2},
    {"alnair/vgpu-memory": 2, "alnair/vgpu-compute": 1},
)


async def grant_of(record: DeliveryRecord, container: str) -> ContainerGrant:
    """As the agent's own, for these cards."""
    part = record.containers.get(container)
    if part is None:
        return NOTHING
    paths = tuple(f"/dev/nvidia{share.gpu}" for share in part.shares)
    return ContainerGrant(env={VISIBLE: visible(part), **part.env}, paths=paths)


def a_pod(number: int, rng: random.Random) -> tuple[PodManifest, DeliveryRecord]:
    """A pod of some system with its record; most ask for the same."""
    asked = rng.choice(ASKED)

    def container(name: str, restart: str | None = None) -> ManifestContainer:
        limits = asked if rng.random() < 0.8 else {}
        resources = ManifestResources(limits=limits or None)
        return ManifestContainer(name, resources=resources, restart_policy=restart)

    mains = [ManifestContainer("main", resources=ManifestResources(limits=asked))]
    mains += [container(f"more-{i}") for i in range(rng.choice((0, 0, 1, 2)))]
    inits = [container("init")] if rng.random() < 0.3 else []
    inits += [container("sidecar", "Always")] if rng.random() < 0.2 else []
    meta = ObjectMeta(name=f"p{number}", namespace="d", uid=f"u{number}")
    spec = PodSpec(containers=mains, init_containers=inits, node_name="n")
    pod = PodManifest(meta, spec)
    return pod, a_record(pod, rng)


def a_record(pod: PodManifest, rng: random.Random) -> DeliveryRecord:
    """A record that the pod's Binding may carry: cards by chance."""
    request = parse_pod(pod, SETTINGS)
    cards = [rng.choice(NODE.gpus) for _ in request.shape.gpu_requests]
    shares = [
        share_on(i, replace(gpu_request, memory=gpu_request.memory.on_node(1024)), card)
        for i, (gpu_request, card) in enumerate(zip(request.shape.gpu_requests, cards, strict=True))
    ]
    placement = placement_of(request, NODE, shares)
    env = write(request, placement, NODE, 0).env
    record = record_of(request, placement, NODE, env)
    assert record is not None
    return record


class KnownPods:
    """The pods of which the API server has told the agent."""

    def __init__(self) -> None:
        self.pods: dict[str, NodePod] = {}

    async def known(self, uid: str, within_s: float) -> NodePod | None:
        return self.pods.get(uid)


class DisturbedPlugin:
    """The agent's plugin as the kubelet reaches it: things happen before each call."""

    def __init__(self, world: "AttributionStory", resource: str) -> None:
        self._world, self._resource = world, resource

    async def preferred(self, request: plugin.PreferredAllocationRequest):
        return await self._world.service(self._resource).preferred(request)

    async def allocate(self, request: plugin.AllocateRequest):
        await self._world.disturb()
        return await self._world.service(self._resource).allocate(request)

    async def pre_start(self, request: plugin.PreStartContainerRequest):
        await self._world.disturb()
        return await self._world.service(self._resource).pre_start(request)


class AttributionStory:
    """One interleaving. `wrong` are containers that started with what is not their record's."""

    def __init__(self, folder: Path, seed: int, *, cdi: bool, pods: int = 20) -> None:
        self.rng = random.Random(seed)
        self.cdi = CdiFiles(folder / "cdi") if cdi else None
        self.folder = folder
        self.manager = FakeDeviceManager(folder, self.rng, folder / "cdi")
        self.known = KnownPods()
        self.wrong: list[str] = []
        self.started: set[tuple[str, str]] = set()
        self.evicted: set[str] = set()
        self.rejected: set[str] = set()
        self.deleted: set[str] = set()
        self.happened: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        made = [a_pod(number, self.rng) for number in range(pods)]
        self.pods = {pod.metadata.uid: (pod, record) for pod, record in made}
        # Both hear of the pods in the order of their binding, more or less.
        self._to_agent = self._reordered()
        self._to_kubelet = self._reordered()
        self._depth = 0
        self._begin_agent()
        self._register()

    def service(self, resource: str) -> ResourceService:
        return ResourceService(resource, self.agent, lambda resource, listed: None)

    async def pod(self, namespace: str, name: str):
        """The kubelet's pod resources."""
        return await self.manager.pod(namespace, name)

    async def names(self) -> set[tuple[str, str]]:
        """Namespace and name of all its pods."""
        return await self.manager.names()

    async def tell(self) -> None:
        """All of it, to the end."""
        hearing = asyncio.create_task(self._hear_by_and_by())
        while self._to_kubelet:
            await self.disturb()
            await self._admit_next()
        hearing.cancel()
        self._agent_hears(len(self._to_agent))
        for _ in range(3):
            for uid in list(self.manager.pods):
                await self._start_all(uid)
        self.answers += self.agent.counts

    async def _hear_by_and_by(self) -> None:
        """The API server is slow at times, and while the agent waits time passes."""
        while True:
            await asyncio.sleep(self.rng.choice((0.01, 0.1, 0.4)))
            self._agent_hears(1)

    async def disturb(self) -> None:
        """Whatever chance brings, while somebody waits."""
        if self._depth:
            return
        self._depth += 1
        try:
            for _ in range(self.rng.choice((0, 0, 1, 2))):
                await self._something()
        finally:
            self._depth -= 1

    async def _something(self) -> None:
        what = self.rng.choices(("hear", "start", "agent", "kubelet", "delete"), (8, 6, 2, 1, 1))[0]
        self.happened[what] += 1
        if what == "hear":
            self._agent_hears(self.rng.randint(1, 4))
        elif what == "agent":
            self.answers += self.agent.counts
            self._begin_agent()
        elif what == "start" and self.manager.pods:
            await self._start_all(self.rng.choice(sorted(self.manager.pods)))
        elif what == "kubelet" and self._admitting is None:
            self.manager.restart()
            self._register()
        elif what == "delete":
            uid = self.rng.choice(sorted(self.pods))
            if uid != self._admitting:
                self._delete(uid)

    _admitting: str | None = None

    async def _admit_next(self) -> None:
        uid = self._to_kubelet.pop(0)
        if uid in self.deleted:
            return
        self._admitting = uid
        try:
            await self.manager.admit(self.pods[uid][0])
        except AdmissionError:
            self.rejected.add(uid)
        finally:
            self._admitting = None

    async def _start_all(self, uid: str) -> None:
        """The pod's containers, in their order; each may have run before."""
        pod, record = self.pods[uid]
        if uid == self._admitting:
            return
        for slot in slots(pod):
            name = slot.container.name
            if uid not in self.manager.pods or uid in self.evicted:
                return
            if not slot.container.resources.limits:
                continue
            try:
                begun = await self.manager.start(uid, name)
            except StartError:
                return
            own = await grant_of(record, name)
            if not own.env.items() <= begun.env.items() or begun.devices != own.paths:
                self.wrong.append(f"{uid}/{name}: {begun} instead of {own}")
            self.started.add((uid, name))

    def _agent_hears(self, count: int) -> None:
        for uid in self._to_agent[:count]:
            pod, record = self.pods[uid]
            if uid not in self.deleted:
                self.known.pods[uid] = NodePod(uid, pod, "share", record)
        del self._to_agent[:count]

    def _delete(self, uid: str) -> None:
        self.deleted.add(uid)
        self.manager.remove(uid)
        if self.rng.random() < 0.5:
            self.known.pods.pop(uid, None)

    def _begin_agent(self) -> None:
        """A new process: what the last one had in its memory is lost."""
        self.agent = Attribution(
            AttributionWorld(
                self.known,
                KubeletRecord(self.folder),
                self,
                grant_of,
                self._objection,
                on_refused=lambda pod, why: None,  # the kubelet tries again
                on_wrong=self._evict,
                cdi=self.cdi,
            )
        )

    def _objection(self, pod: NodePod, others) -> str:
        assert pod.record is not None
        return why_refused(pod.record, pod.uid, "n", DEVICES, others, 1000)

    def _evict(self, pod: PodName, why: str) -> None:
        self.evicted.add(pod.uid)

    def _register(self) -> None:
        for resource in SERVED:
            self.manager.plugins[resource] = DisturbedPlugin(self, resource)
            self.manager.devices[resource] = IDS[resource]

    def _reordered(self) -> list[str]:
        """The pods' order, some a little later than their neighbours."""
        places = {uid: i + self.rng.random() * 4 for i, uid in enumerate(self.pods)}
        return sorted(places, key=lambda uid: places[uid])
