"""GPUs simulated by a YAML file, for machines without any: `weft agent --devices fake.yaml`.

apiVersion: weft.dev/v1
kind: FakeDevices
gpus:
- model: NVIDIA-A100-SXM4-40GB
  memoryMiB: 40960
  count: 2                      # two alike; what follows holds for each
  numaNode: 0
  paths: ["/dev/fake{minor}"]   # device nodes given to a container
  use:                          # one phase after the other, repeated
  - {seconds: 30, values: {sm_active_ratio: 0.9, power_w: 310}}
  - {seconds: 30, values: {sm_active_ratio: 0.1}}
- model: NVIDIA-A100-SXM4-40GB
  memoryMiB: 40960
  mig: [{profile: 1g.5gb, memoryMiB: 4864, count: 7}]
links: ["X NV12", "NV12 X"]     # one row per card, as in `nvidia-smi topo -m`
processes:
- {gpu: 0, pod: 0c7e…, memoryMiB: 3000, smRatio: 0.5}

The file is read again whenever it changes: `xids: [79]` breaks a card, `unplugged: true` removes
it. A file that is missing or invalid acts like a missing driver: `DeviceError`, until it is fixed.
UUIDs are derived from the node's name and the card's position, so they are the same each time.
"""

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from weft.model import BadInputError, Gpu
from weft.model.gpu_links import GpuLinks
from weft.model.metric import Metric
from weft.node.devices.fake_file import FakeFile, FakeGpu, FakeProcess, read_fake
from weft.node.devices.health import fault_of_xid
from weft.node.devices.mig import instance_index
from weft.node.devices.reader import DeviceError, DeviceUse, GpuDevice, MigInstance, ProcessUse

_FIRST_GPU_INSTANCE = 7  # as the driver numbers the smallest profile


class _Stamp(NamedTuple):
    """Identifies a version of the file."""

    inode: int
    changed_ns: int
    size: int


class FakeReader:
    """A `DeviceReader` of a file's GPUs."""

    fake = True

    def __init__(
        self,
        path: Path,
        node_name: str,
        *,
        now_s: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
    ) -> None:
        """Raises `BadInputError` naming file, field and value if the file is wrong."""
        self._path, self._node, self._proc = path, node_name, proc
        self._now_s, self._began_s = now_s, now_s()
        self._stamp = self._stamp_now()
        self._file = read_fake(path)

    def driver_version(self) -> str:
        """Return the file's driver version; `fake` if it has none."""
        return self._now().driver_version

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the file's GPUs that are plugged in, and their instances."""
        return tuple(sorted(self._devices(self._now()), key=lambda device: device.gpu.index))

    def links(self) -> GpuLinks | None:
        """Return the file's links between all its cards."""
        return self._now().gpu_links

    def shared_paths(self) -> tuple[str, ...]:
        """Return the device nodes that the file lists as shared by all GPUs."""
        return self._now().shared_paths

    def use(self) -> tuple[DeviceUse, ...]:
        """Return the file's values at this moment; memory used is the sum of its processes unless
        given."""
        file = self._now()
        held: dict[int, int] = {}
        for process in self._processes(file):
            held[process.index] = held.get(process.index, 0) + process.memory_mib
        cards = {index: card for index, card in _cards(file) if not card.unplugged}
        return tuple(
            DeviceUse(gpu.index, self._values(gpu, cards.get(gpu.index), held.get(gpu.index, 0)))
            for gpu in (device.gpu for device in self.devices())
        )

    def processes(self) -> tuple[ProcessUse, ...]:
        """Return the file's processes; one given by pod or cgroup only if a process of it runs
        here."""
        return tuple(self._processes(self._now()))

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _now(self) -> FakeFile:
        """Return the file's present content."""
        try:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._file = read_fake(self._path)
                self._stamp = stamp
        except BadInputError as error:
            raise DeviceError(str(error)) from error
        return self._file

    def _stamp_now(self) -> _Stamp:
        try:
            status = self._path.stat()
        except OSError as error:
            raise BadInputError(str(self._path), f"cannot be read: {error.strerror}") from None
        return _Stamp(status.st_ino, status.st_mtime_ns, status.st_size)

    def _devices(self, file: FakeFile) -> Iterator[GpuDevice]:
        for index, card in _cards(file):
            if not card.unplugged:
                device = self._device(index, card)
                yield device
                yield from self._instances(device, card)

    def _device(self, index: int, card: FakeGpu) -> GpuDevice:
        minor = index if card.minor is None else card.minor
        fault = card.fault or next(filter(None, map(fault_of_xid, card.xids)), "")
        gpu = Gpu(
            index,
            card.memory_mib - card.reserved_mib,
            card.model,
            card.uuid or f"GPU-{self._uuid(str(index))}",
            in_service=not fault and not card.mig,
        )
        paths = tuple(path.format(index=index, minor=minor) for path in card.paths)
        bus = card.pci_bus_id or f"00000000:{index + 1:02X}:00.0"
        return GpuDevice(gpu, card.reserved_mib, minor, card.numa_node, bus, paths, fault)

    def _instances(self, parent: GpuDevice, card: FakeGpu) -> Iterator[GpuDevice]:
        number = _FIRST_GPU_INSTANCE
        for instance in card.mig:
            for _ in range(instance.count):
                index = instance_index(parent.gpu.index, number)
                gpu = Gpu(
                    index,
                    instance.memory_mib,
                    f"{card.model}-MIG-{instance.profile}",
                    f"MIG-{self._uuid(str(index))}",
                    parent=parent.gpu.index,
                    in_service=not parent.fault,
                )
                yield GpuDevice(
                    gpu,
                    minor=parent.minor,
                    numa_node=parent.numa_node,
                    pci_bus_id=parent.pci_bus_id,
                    paths=parent.paths,
                    fault=parent.fault,
                    mig=MigInstance(instance.profile, number),
                )
                number += 1

    def _uuid(self, which: str) -> uuid.UUID:
        digest = hashlib.sha256(f"{self._node}/{which}".encode()).digest()
        return uuid.UUID(bytes=digest[:16], version=4)

    def _values(self, gpu: Gpu, card: FakeGpu | None, held_mib: int) -> Mapping[str, float]:
        said = self._phase(card) if card is not None else {}
        used = said.get(Metric.MEMORY_USED_MIB.value, float(held_mib))
        reserved = card.reserved_mib if card is not None else 0
        memory = {
            Metric.MEMORY_USED_MIB.value: used,
            Metric.MEMORY_FREE_MIB.value: max(gpu.memory_mib - used, 0.0),
            Metric.MEMORY_RESERVED_MIB.value: float(reserved),
        }
        return memory | said

    def _phase(self, card: FakeGpu) -> dict[str, float]:
        whole_s = sum(phase.seconds for phase in card.use)
        if not whole_s:
            return {}
        left_s = (self._now_s() - self._began_s) % whole_s
        for phase in card.use:
            if left_s < phase.seconds:
                return phase.values
            left_s -= phase.seconds
        return card.use[-1].values

    def _processes(self, file: FakeFile) -> Iterator[ProcessUse]:
        indexes = {device.gpu.uuid: device.gpu.index for device in self._devices(file)}
        plugged = set(indexes.values())
        for process in file.processes:
            index = indexes.get(process.gpu, -1) if isinstance(process.gpu, str) else process.gpu
            pid = self._pid(process)
            if index in plugged and pid is not None:
                yield ProcessUse(index, pid, process.memory_mib, process.sm_ratio)

    def _pid(self, process: FakeProcess) -> int | None:
        """Return the process's id; for a pod or cgroup, the lowest one running in it."""
        if process.pid is not None:
            return process.pid
        # systemd's slices have `_` where a pod's UID has `-`.
        wanted = (process.cgroup,) if process.cgroup else _spellings(process.pod)
        pids = sorted(int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal())
        for pid in pids:
            try:
                text = (self._proc / str(pid) / "cgroup").read_text()
            except OSError:
                continue  # it ended meanwhile
            if any(words in text for words in wanted):
                return pid
        return None


def _spellings(pod: str) -> tuple[str, ...]:
    return (pod, pod.replace("-", "_"))


def _cards(file: FakeFile) -> Iterator[tuple[int, FakeGpu]]:
    """Yield every card with its index; an unplugged card keeps its index."""
    index = 0
    for card in file.gpus:
        for nth in range(card.count):
            yield index, card.nth(nth)
            index += 1
