"""The part of a kubelet that gives devices to containers, for tests of plugins. It is a fake.

It does what a kubelet does as far as a plugin can tell: it admits one pod after another, allocates
container by container and resource by resource, gives what an init container held to the next
container of its pod, keeps its record in the file that a kubelet keeps it in, calls
PreStartContainer before each start, and forgets every plugin when it restarts. What it lacks are
containers: `start` says with what one would begin, CDI names resolved as a runtime does.

    manager = FakeDeviceManager(folder, random.Random(1))
    manager.plugins["aliyun.com/gpu-mem"] = FakePlugin(service)
    await manager.admit(pod)
    found = await manager.start(uid, "main")

`device_manager_server.py` has the same behind the kubelet's real gRPC interfaces.
"""

import json
import os
import random
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from weft.dialects.resources import amount, slots
from weft.model import PodManifest, WeftError
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin import pod_resources_pb2 as resources
from weft.node.device_plugin.kubelet_record import FILE


class AdmissionError(WeftError):
    """The kubelet does not take the pod: it ends as Failed, and is not tried again."""


class StartError(WeftError):
    """The container is not created now; a kubelet tries again."""


class PluginCalls(Protocol):
    """The calls of the kubelet to a plugin."""

    async def preferred(
        self, request: plugin.PreferredAllocationRequest
    ) -> plugin.PreferredAllocationResponse:
        """GetPreferredAllocation."""
        ...

    async def allocate(self, request: plugin.AllocateRequest) -> plugin.AllocateResponse:
        """Allocate."""
        ...

    async def pre_start(
        self, request: plugin.PreStartContainerRequest
    ) -> plugin.PreStartContainerResponse:
        """PreStartContainer."""
        ...


class HeldAnswer(NamedTuple):
    """The devices that a container holds of one resource, and the plugin's answer about them."""

    ids: frozenset[str]
    answer: plugin.ContainerAllocateResponse


class BegunContainer(NamedTuple):
    """The beginning of a container: `env` and device nodes."""

    env: dict[str, str]
    devices: tuple[str, ...]


class FakeDeviceManager:
    """One kubelet's. `plugins` and the healthy `devices` of each are by resource.

    `pods` are those in its hands, by UID. Where it may choose it takes IDs by chance; now and then
    not those that a plugin prefers, as a kubelet that aligns NUMA nodes does not.
    """

    def __init__(self, folder: Path, rng: random.Random, cdi_folder: Path | None = None) -> None:
        self.plugins: dict[str, PluginCalls] = {}
        self.devices: dict[str, frozenset[str]] = {}
        self.pods: dict[str, PodManifest] = {}
        self.held: dict[tuple[str, str, str], HeldAnswer] = {}
        self._folder, self._rng, self._cdi_folder = folder, rng, cdi_folder
        self._specifications: dict[str, tuple[int, dict[str, Any]]] = {}

    # --- a pod's life ---

    async def admit(self, pod: PodManifest) -> None:
        """Allocate for all its containers, init containers first. `AdmissionError`."""
        uid = pod.metadata.uid
        self.pods[uid] = pod
        reusable: dict[str, set[str]] = {}
        try:
            for slot in slots(pod):
                name = slot.container.name
                for resource in self._shuffled(slot.container.resources.limits or {}):
                    size = amount(slot, resource)
                    if resource in self.devices and size:
                        ids = await self._allocate(uid, name, resource, size, reusable)
                        if slot.role == "init":
                            reusable.setdefault(resource, set()).update(ids)
                        else:
                            reusable.get(resource, set()).difference_update(ids)
                self._write_record()  # after each container
        except WeftError as error:
            self.remove(uid)
            raise AdmissionError(f"UnexpectedAdmissionError: {error}") from error

    async def start(self, uid: str, container: str) -> BegunContainer:
        """Starts the container, and says what it begins with. `StartError`: it is not created."""
        mine = {key: held for key, held in self.held.items() if key[:2] == (uid, container)}
        for (_, _, resource), held in mine.items():
            if resource not in self.plugins:
                raise StartError(f"endpoint not found in cache for {resource}")
            request = plugin.PreStartContainerRequest(devices_ids=self._shuffled(held.ids))
            try:
                await self.plugins[resource].pre_start(request)
            except WeftError as error:
                raise StartError(f"PreStartContainer of {resource}: {error}") from error
        env: dict[str, str] = {}
        devices: list[str] = []
        names: list[str] = []
        for _, answer in mine.values():
            env |= dict(answer.envs)
            devices += [device.host_path for device in answer.devices]
            names += [device.name for device in answer.cdi_devices]
        for name in names:
            self._inject(name, env, devices)
        return BegunContainer(env, tuple(dict.fromkeys(devices)))

    def remove(self, uid: str) -> None:
        """The pod has ended: its devices are free. The record is written when it is due again."""
        self.pods.pop(uid, None)
        for key in [key for key in self.held if key[0] == uid]:
            del self.held[key]

    def restart(self) -> None:
        """The plugins are forgotten, their devices too; who holds what is known from the record."""
        self._write_record()
        self.plugins.clear()
        self.devices.clear()

    # --- pod resources ---

    async def pod(self, namespace: str, name: str) -> resources.PodResources | None:
        """One pod and its containers' devices, as the interface `v1` tells them."""
        for uid, pod in self.pods.items():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                return self._told(uid, pod)
        return None

    async def names(self) -> set[tuple[str, str]]:
        """Namespace and name of all pods."""
        return {(pod.metadata.namespace, pod.metadata.name) for pod in self.pods.values()}

    async def listed(self) -> list[resources.PodResources]:
        """All pods."""
        return [self._told(uid, pod) for uid, pod in self.pods.items()]

    def _told(self, uid: str, pod: PodManifest) -> resources.PodResources:
        """Init containers are left out; each ID comes by itself."""
        answer = resources.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
        for slot in slots(pod):
            if slot.role != "init":
                container = answer.containers.add(name=slot.container.name)
                for resource in slot.container.resources.limits or {}:
                    held = self.held.get((uid, slot.container.name, resource))
                    for device_id in sorted(held.ids if held is not None else ()):
                        container.devices.add(resource_name=resource, device_ids=[device_id])
        return answer

    # --- devices ---

    async def _allocate(
        self, uid: str, container: str, resource: str, size: int, reusable: Mapping[str, set[str]]
    ) -> frozenset[str]:
        known = self.held.get((uid, container, resource))
        if known is not None:
            return known.ids
        ids = self._shuffled(reusable.get(resource, ()))[:size]
        used = {name for key, held in self.held.items() if key[2] == resource for name in held.ids}
        available = sorted(self.devices[resource] - used)
        if len(available) + len(ids) < size:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {size}, Available: {len(available)}"
            )
        if len(ids) < size:
            ids = await self._preferred(resource, available, ids, size)
        asked = plugin.ContainerAllocateRequest(devices_ids=self._shuffled(ids))
        response = await self.plugins[resource].allocate(
            plugin.AllocateRequest(container_requests=[asked])
        )
        held = HeldAnswer(frozenset(ids), response.container_responses[0])
        self.held[uid, container, resource] = held
        return held.ids

    async def _preferred(
        self, resource: str, available: list[str], must: list[str], size: int
    ) -> list[str]:
        asked = plugin.ContainerPreferredAllocationRequest(
            available_deviceIDs=self._shuffled([*available, *must]),
            must_include_deviceIDs=must,
            allocation_size=size,
        )
        request = plugin.PreferredAllocationRequest(container_requests=[asked])
        response = await self.plugins[resource].preferred(request)
        preferred = list(response.container_responses[0].deviceIDs)
        if self._rng.random() < 0.5:
            return preferred
        return [*must, *self._shuffled(set(available) - set(must))][:size]

    def _shuffled(self, names: Iterable[str]) -> list[str]:
        shuffled = sorted(names)
        self._rng.shuffle(shuffled)
        return shuffled

    def _write_record(self) -> None:
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": sorted(held.ids)},
                "AllocResp": b64encode(held.answer.SerializeToString()).decode(),
            }
            for (uid, container, resource), held in self.held.items()
        ]
        data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
        beside = self._folder / f".{FILE}"
        beside.write_text(json.dumps({"Data": data, "Checksum": 0}))
        beside.replace(self._folder / FILE)

    # --- the container runtime ---

    def _inject(self, name: str, env: dict[str, str], devices: list[str]) -> None:
        """Adds what a CDI name brings, from the specifications that there are now."""
        for path, stamp in _specifications_in(self._cdi_folder or self._folder):
            if self._specifications.get(path, (0, {}))[0] != stamp:
                self._specifications[path] = stamp, _devices_in(Path(path))
            edits = self._specifications[path][1].get(name)
            if edits is not None:
                env |= dict(each.split("=", 1) for each in edits.get("env", ()))
                devices += [node["path"] for node in edits.get("deviceNodes", ())]
                return
        raise StartError(f"unresolvable CDI devices {name}")


def _specifications_in(folder: Path) -> list[tuple[str, int]]:
    """The folder's files of CDI specifications in the order of their names, and when written."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted((e.path, e.stat().st_mtime_ns) for e in entries if e.name.endswith(".json"))


def _devices_in(path: Path) -> dict[str, Any]:
    """The edits of each device in a CDI specification, by qualified name."""
    spec = json.loads(path.read_text())
    return {f"{spec['kind']}={d['name']}": d["containerEdits"] for d in spec["devices"]}
