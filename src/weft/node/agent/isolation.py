"""Adds the environment and mounts that enforce a container's share, by its isolation mode.

`model/agent_offer.py` lists the isolation modes; docs/explanation/isolation.md says what each
enforces, and against whom. GPUs are numbered as CUDA numbers them in the container: by PCI bus, as
`CUDA_DEVICE_ORDER` is set there.
"""

import asyncio
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from weft.files.writing import write_whole
from weft.model import WeftError
from weft.model.agent_offer import HOOK, MIG, MPS, NO_ISOLATION, TIME_SLICING, WITHOUT_AGENT
from weft.model.delivery import DeliveredShare, DeliveryRecord
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.mps_daemon import MpsDaemon
from weft.node.devices.reader import GpuDevice

HOOK_LIBRARY = "/usr/local/vgpu/libvgpu.so"
"""The path of HAMi-core's library in containers, as in HAMi itself."""
HOOK_CACHE = "/usr/local/vgpu/containers"
HOOK_LOCK = "/tmp/vgpulock"
PRELOAD = "/etc/ld.so.preload"
_YOUNG_S = 600.0
_LOOK_AGAIN_S = 60.0
_SAFE = re.compile(r"[^A-Za-z0-9._-]")


class IsolationError(WeftError):
    """The node cannot isolate a container as requested; the text says why."""


class AddedMount(msgspec.Struct, frozen=True):
    """A folder or file of the host, mounted into the container."""

    host: str
    container: str
    read_only: bool = True


class IsolationAdditions(msgspec.Struct, frozen=True):
    """Additions to a container: environment, which overrides the record's, and mounts."""

    env: Mapping[str, str] = {}
    mounts: tuple[AddedMount, ...] = ()


class IsolationOptions(msgspec.Struct, frozen=True):
    """Settings of the isolation modes on a node.

    `default`: the mode of pods that name none; "" means "mig" if all their GPUs are instances, else
    "time-slicing", as on a node without an agent. `hook_library`: HAMi-core's libvgpu.so on the
    host; "" disables `hook`. `folder`: for files mounted into hook containers; the same path on the
    host and for the agent.
    """

    default: str = ""
    hook_library: str = ""
    folder: Path = Path("/run/weft/hook")


class NodeIsolation:
    """The node's isolation modes, and what each adds to a container. `mps` is None if MPS is
    off."""

    def __init__(
        self, options: IsolationOptions, watch: DeviceWatch, mps: MpsDaemon | None = None
    ) -> None:
        self._options, self._watch, self._mps = options, watch, mps
        self._adders: Mapping[str, Callable[[_Container], IsolationAdditions]] = {
            NO_ISOLATION: lambda container: IsolationAdditions(),
            TIME_SLICING: lambda container: IsolationAdditions(),
            MPS: self._mps_additions,
            HOOK: self._hook_additions,
            MIG: self._mig_additions,
        }

    def offered(self) -> tuple[str, ...]:
        """Return the isolation modes that a container can have on this node now."""
        modes = [*WITHOUT_AGENT]
        if self._mps is not None and self._mps.ready:
            modes.append(MPS)
        if self._has_hook():
            modes.append(HOOK)
        if any(device.mig is not None and not device.fault for device in self._watch.devices):
            modes.append(MIG)
        return tuple(modes)

    def additions(self, record: DeliveryRecord, container: str) -> IsolationAdditions:
        """Return the additions for this container of the record's pod; `IsolationError` if it
        cannot be isolated."""
        held = record.containers.get(container)
        if held is None or not held.shares:
            return IsolationAdditions()
        subject = _Container(record.pod, container, self._parts(held.shares))
        mode = record.isolation or self._options.default or _usual(subject)
        adder = self._adders.get(mode)
        if adder is None:
            modes = ", ".join(self.offered())
            raise IsolationError(f"{mode!r} is not an isolation mode of this agent: {modes}")
        return adder(subject)

    def prune(self, pods: Collection[str], now_s: float) -> None:
        """Remove the files of containers whose pod's UID is not in `pods`; `now_s` is Unix time.

        New files are kept: their pod may not be known to the caller yet.
        """
        names = {_SAFE.sub("_", pod) for pod in pods}
        for folder in self._cache_root().glob("*"):
            pod = folder.name.partition("@")[0]
            if pod not in names and now_s - folder.stat().st_mtime > _YOUNG_S:
                shutil.rmtree(folder, ignore_errors=True)

    def _parts(self, shares: Sequence[DeliveredShare]) -> "tuple[_Part, ...]":
        """Return the container's part of each of its GPUs, in the order in which CUDA numbers the
        GPUs."""
        parts: dict[int, _Part] = {}
        for share in shares:
            device = self._watch.by_index(share.gpu)
            if device is None:
                raise IsolationError(f"GPU {share.gpu} is not on this node now")
            before = parts.get(share.gpu, _Part(device, 0, 0))
            parts[share.gpu] = _Part(
                device, before.memory_mib + share.memory_mib, before.milli + share.milli
            )
        return tuple(
            sorted(parts.values(), key=lambda p: (p.device.pci_bus_id, p.device.gpu.index))
        )

    # --- the modes ---

    def _mig_additions(self, container: "_Container") -> IsolationAdditions:
        for part in container.parts:
            if part.device.mig is None:
                raise IsolationError(
                    f"GPU {part.device.gpu.index} is not a MIG instance, but the pod requests mig"
                )
        return IsolationAdditions()

    def _mps_additions(self, container: "_Container") -> IsolationAdditions:
        if self._mps is None:
            raise IsolationError("MPS is off on this node")
        if not self._mps.ready:
            raise IsolationError(f"MPS is not available: {self._mps.problem}")
        for part in container.parts:
            if part.device.mig is not None:
                index = part.device.gpu.index
                raise IsolationError(f"GPU {index} is a MIG instance; MPS runs on whole cards here")
        env = {**self._mps.client_env(), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        limits = [f"{i}={p.memory_mib}M" for i, p in enumerate(container.parts) if p.memory_mib]
        if limits:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        if percent := _percent(container.parts):
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
        pipe, shm = str(self._mps.pipe), str(self._mps.shm)
        mounts = [AddedMount(pipe, pipe, read_only=False)]
        if self._mps.options.own_shm:
            mounts.append(AddedMount(shm, "/dev/shm", read_only=False))
        return IsolationAdditions(env, tuple(mounts))

    def _hook_additions(self, container: "_Container") -> IsolationAdditions:
        library = self._options.hook_library
        if not self._has_hook():
            raise IsolationError(f"HAMi-core's library is missing: {library or 'no path is set'}")
        env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        for i, part in enumerate(container.parts):
            if part.memory_mib:
                env[f"CUDA_DEVICE_MEMORY_LIMIT_{i}"] = f"{part.memory_mib}m"
        if percent := _percent(container.parts):
            env["CUDA_DEVICE_SM_LIMIT"] = str(percent)
        env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{HOOK_CACHE}/vgpu.cache"
        try:
            preload, lock, cache = self._hook_files(container)
        except OSError as error:
            raise IsolationError(f"the hook's files cannot be written: {error}") from error
        return IsolationAdditions(
            env,
            (
                AddedMount(library, HOOK_LIBRARY),
                AddedMount(str(preload), PRELOAD),
                AddedMount(str(lock), HOOK_LOCK, read_only=False),
                AddedMount(str(cache), HOOK_CACHE, read_only=False),
            ),
        )

    def _has_hook(self) -> bool:
        library = self._options.hook_library
        return bool(library) and Path(library).is_file()

    def _cache_root(self) -> Path:
        return self._options.folder / "containers"

    def _hook_files(self, container: "_Container") -> tuple[Path, Path, Path]:
        """Return the file that loads the library, the lock shared by all containers, and this
        container's own folder; create them if needed."""
        folder = self._options.folder
        preload, lock = folder / "ld.so.preload", folder / "lock"
        name = "@".join(_SAFE.sub("_", part) for part in (container.pod, container.name))
        cache = self._cache_root() / name
        for each in (lock, cache):
            each.mkdir(parents=True, exist_ok=True)
            each.chmod(0o1777)  # containers may run as any user
        if not preload.exists():
            write_whole(preload, f"{HOOK_LIBRARY}\n".encode())
        return preload, lock, cache


class HookCleaner:
    """Removes files left by containers with isolation mode "hook". Run `run()` as a task.

    `pods` returns the UIDs of the node's pods; None while they are unknown.
    """

    def __init__(
        self, isolation: NodeIsolation, pods: Callable[[], Collection[str] | None]
    ) -> None:
        self._isolation, self._pods = isolation, pods

    async def run(self) -> None:
        """Remove periodically until cancelled."""
        while True:
            pods = self._pods()
            if pods is not None:
                self._isolation.prune(pods, time.time())
            await asyncio.sleep(_LOOK_AGAIN_S)


class _Part(msgspec.Struct, frozen=True):
    """A container's part of one GPU; 0 for an amount that was not requested."""

    device: GpuDevice
    memory_mib: int
    milli: int


class _Container(msgspec.Struct, frozen=True):
    """The container to isolate; `pod` is the UID."""

    pod: str
    name: str
    parts: tuple[_Part, ...]


def _usual(container: _Container) -> str:
    instances = all(part.device.mig is not None for part in container.parts)
    return MIG if instances else TIME_SLICING


def _percent(parts: Sequence[_Part]) -> int:
    """Return the percentage of cores that the container may use on each of its GPUs: the smallest
    requested; 0 if no cores were requested."""
    asked = [part.milli for part in parts if part.milli]
    return min(100, -(-min(asked) // 10)) if asked else 0
