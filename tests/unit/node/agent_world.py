"""A node for tests: a fake API server, a fake container runtime, played GPUs, and the agent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from test_fake_devices import written

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.nri_runtime import FakeRuntime, StartedContainer
from weft.cluster.config.form import Configuration
from weft.host.agent import Composition
from weft.host.agent_process import AgentHosting
from weft.model.annotations import DELIVERY, PLACEMENT, PLACEMENT_COPY, REQUIRED_PLUGINS
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
    encode_delivery,
)
from weft.node.agent.usage import WatchedPod
from weft.node.devices.fake import FakeReader
from weft.node.nri import nri_pb2 as nri
from weft.node.supervisor.delivery_lock import HandedOver

NODE = "n1"
GPUS = """gpus: [{model: A100, memoryMiB: 40000, count: 2, paths: [/dev/null]}]
sharedPaths: [/dev/zero]
"""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
PATIENCE_S = 60.0


class NodeWorld:
    """The node: `api`, `runtime`, `uuids` of its GPUs; `start_agent` and `stop_agent`."""

    def __init__(self, folder: Path, api: FakeApiServer, runtime: FakeRuntime) -> None:
        self.api, self.runtime, self.folder = api, runtime, folder
        self.file = written(folder, GPUS)
        reader = FakeReader(self.file, NODE)
        self.uids: dict[str, str] = {}
        self.uuids = [device.gpu.uuid for device in reader.devices()]
        self._agent: asyncio.Task[None] | None = None
        self._made: Composition | None = None
        self._registrations = 0

    async def start_agent(
        self,
        config: Configuration | None = None,
        *,
        hears_api: bool = True,
        look_s: float = PATIENCE_S,
        handed: HandedOver | None = None,
    ) -> None:
        """Start an agent, and wait until the runtime has it; and, where it can hear the API server,
        until it knows its node. It waits long then for a pod that it will be told of. `look_s`:
        between its looks at who is gone."""
        hosting = AgentHosting(
            NODE,
            str(self.file),
            self.runtime.socket,
            "127.0.0.1",
            0,
            cdi_folder=self.folder / "cdi",
            cri_socket=self.folder / "cri.sock",
            proc=self.folder / "proc",
            handed=handed,
        )
        stop, started = asyncio.Event(), self.runtime.registrations + 1
        composed: asyncio.Future[Composition] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            async with client_of(self.api) as client:
                reader = FakeReader(self.file, NODE)
                made = Composition(config or Configuration(), hosting, reader, client)
                options = msgspec.structs.replace(made.delivery._options, look_s=look_s)
                if hears_api:
                    options = msgspec.structs.replace(options, wait_s=PATIENCE_S)
                made.delivery._options = options
                composed.set_result(made)
                await made.agent.run(stop)

        self._stop, self._agent = stop, asyncio.create_task(run())
        self._made = made = await composed
        await self.runtime.has_plugin(started)
        while hears_api and made.pods.node is None:
            await asyncio.sleep(0.005)

    def watched(self, name: str) -> WatchedPod | None:
        """The pod of this name, as the agent watches what it uses; None until it has heard of
        it."""
        return None if self._made is None else self._made.pods.watched(self.uids[name])

    @property
    def stands_by(self) -> bool:
        """True while the agent waits for another one to end."""
        return self._made is not None and self._made.agent.stands_by

    @property
    def events_wait(self) -> bool:
        """True while the agent does what is more urgent than its events."""
        assert self._made is not None
        return self._made.events.writer._busy()

    @property
    def not_ready(self) -> list[str]:
        """The faults that the agent tells of its parts."""
        assert self._made is not None
        return [problem for check in self._made._checks().values() if (problem := check())]

    async def stop_agent(self) -> None:
        """As SIGTERM does."""
        self._stop.set()
        if self._agent is not None:
            await self._agent
            self._agent = None

    async def kill_agent(self) -> None:
        """At once, as far as one process can."""
        if self._agent is not None:
            self._agent.cancel()
            await asyncio.gather(self._agent, return_exceptions=True)
            self._agent = None

    def record(self, uid: str, *, gpu: int = 0, mib: int = 1000, **change: Any) -> DeliveryRecord:
        """A record of one container `main` with part of a GPU."""
        uuid = self.uuids[gpu] if gpu < len(self.uuids) else "GPU-missing"
        env = {VISIBLE: uuid, "SHARE_MIB": str(mib)}
        record = DeliveryRecord(
            pod=uid,
            node=NODE,
            dialect="weft",
            cards=(DeliveredCard(gpu, uuid, mib, 0, 40_000, 1000),),
            containers={"main": DeliveredContainer((DeliveredShare(gpu, uuid, mib, 0),), env)},
        )
        return msgspec.structs.replace(record, **change)

    def sandbox(
        self, name: str, annotations: dict[str, str] | None = None, namespace: str = "default"
    ) -> nri.PodSandbox:
        """A sandbox of the pod; its UID is `uid-<name>` where the API server has none."""
        return nri.PodSandbox(
            id=f"sandbox-{name}",
            name=name,
            uid=self.uids.get(name, f"uid-{name}"),
            namespace=namespace,
            annotations=annotations or {},
        )

    def bound(self, name: str, record: DeliveryRecord | None = None) -> nri.PodSandbox:
        """The sandbox of a pod that Weft bound here, which says so itself. The API server has the
        pod from now on, if it had none: it asks for what the record's first card says."""
        uid = self.uids.get(name, f"uid-{name}")
        record = record or self.record(uid)
        annotations = self.bound_with(uid, record)
        if name not in self.uids:
            mib = str(record.cards[0].memory_mib)
            self.add_pod(name, {"weft.dev/gpu-memory": mib}, annotations)
        return self.sandbox(name, annotations)

    def bound_with(self, uid: str, record: DeliveryRecord) -> dict[str, str]:
        """The annotations of such a pod's Binding."""
        rows = [[0, card.gpu, card.memory_mib, card.milli, card.uuid] for card in record.cards]
        placement = json.dumps({"pod": uid, "node": NODE, "shares": rows})
        marks = {PLACEMENT: placement, PLACEMENT_COPY: placement, REQUIRED_PLUGINS: "[weft]"}
        return {DELIVERY: encode_delivery(record), **marks}

    def add_pod(
        self,
        name: str,
        limits: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        uid: str = "",
        **more: Any,
    ) -> None:
        """A pod of a ReplicaSet in the API server, with one container `main`; its UID is
        `uid-<name>`, where none is said. `more` is of its metadata."""
        owner = {"kind": "ReplicaSet", "name": "r", "controller": True}
        more = {"ownerReferences": [owner], **more}
        self.api.store.new_uid = lambda: uid or f"uid-{name}"  # type: ignore[method-assign]
        stored = self.api.add(
            "pods",
            {
                "metadata": {"name": name, "annotations": annotations or {}, **more},
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "main", "resources": {"limits": limits or {}}}],
                },
                "status": {"phase": "Pending"},
            },
        )
        self.uids[name] = stored["metadata"]["uid"]

    async def create(
        self, pod: nri.PodSandbox, name: str = "main", env: tuple[str, ...] = ()
    ) -> StartedContainer:
        """Create a container, as the kubelet has it created."""
        container = nri.Container(id=f"{pod.id}-{name}", pod_sandbox_id=pod.id, name=name, env=env)
        return await self.runtime.create(pod, container)

    async def event(self, reason: str) -> str:
        """The note of the first event with this reason, once it is there."""
        while True:
            for event in self.api.store.all(self.api.kind("events")):
                if event["reason"] == reason:
                    return str(event["note"])
            await asyncio.sleep(0.005)


@asynccontextmanager
async def node_world(folder: Path, **how: Any) -> AsyncIterator[NodeWorld]:
    """The node, without an agent yet."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(FakeApiServer())
        api.add("nodes", {"metadata": {"name": NODE}, "status": {"allocatable": {}}})
        how = {"request_timeout_s": 2 * PATIENCE_S, "proc": folder / "proc", **how}
        runtime = await stack.enter_async_context(FakeRuntime(folder / "nri.sock", **how))
        world = NodeWorld(folder, api, runtime)
        try:
            yield world
        finally:
            await world.kill_agent()
