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
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weft.files.form import Section, place, read_document, read_form
from weft.files.reading import read_text
from weft.model import BadInputError, Gpu
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS, MOST_LETTERS
from weft.model.gpu_links import UNKNOWN_NUMA, GpuLinks, checked_links, nvlink_generation
from weft.model.metric import Metric
from weft.model.nearest import unknown
from weft.node.devices.health import fault_of_xid
from weft.node.devices.reader import (
    DeviceError,
    DeviceUse,
    GpuDevice,
    MigInstance,
    ProcessUse,
    instance_index,
)

# --- the file -------------------------------------------------------------------------------------
# The form of the file that simulates GPUs, and its checks.


API_VERSION = "weft.dev/v1"
KIND = "FakeDevices"

Mib = Annotated[int, Meta(ge=0, le=MOST_GPU_MIB)]
Count = Annotated[int, Meta(ge=1, le=MOST_GPUS)]
Name = Annotated[str, Meta(max_length=MOST_LETTERS)]
Ratio = Annotated[float, Meta(ge=0, le=1)]

_METRICS = frozenset(metric.value for metric in Metric)


class FakePhase(Section, frozen=True):
    """The load of a GPU for some seconds: values by canonical metric name."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)]
    values: dict[str, float]


class FakeMig(Section, frozen=True):
    """MIG instances of one profile."""

    profile: Name
    memory_mib: Annotated[int, Meta(ge=1, le=MOST_GPU_MIB)] = msgspec.field(name="memoryMiB")
    count: Annotated[int, Meta(ge=1, le=14)] = 1


class FakeGpu(Section, frozen=True):
    """One card, or `count` cards alike. `memory_mib` is the total, `reserved_mib` the driver's part
    of it.

    `minor` is the first card's number; the other cards count up from it. `paths` may contain
    {index} and {minor}.
    """

    model: Name
    memory_mib: Annotated[int, Meta(ge=1, le=MOST_GPU_MIB)] = msgspec.field(name="memoryMiB")
    reserved_mib: Mib = msgspec.field(default=0, name="reservedMiB")
    count: Count = 1
    uuid: Name = ""
    minor: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    numa_node: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    pci_bus_id: Name = ""
    paths: tuple[str, ...] = ()
    mig: tuple[FakeMig, ...] = ()
    xids: tuple[Annotated[int, Meta(ge=1, le=10_000)], ...] = ()
    fault: Name = ""
    unplugged: bool = False
    use: tuple[FakePhase, ...] = ()

    def nth(self, number: int) -> "FakeGpu":
        """Return one of the `count` cards, numbered from 0."""
        minor = None if self.minor is None else self.minor + number
        return msgspec.structs.replace(self, count=1, minor=minor)


class FakeProcess(Section, frozen=True):
    """A process on a GPU (index or UUID): given by `pid`, or any process that runs in a `pod` (UID)
    or `cgroup`."""

    gpu: int | str
    memory_mib: Mib = msgspec.field(name="memoryMiB")
    pid: Annotated[int, Meta(ge=1, le=2**22)] | None = None
    pod: Name = ""
    cgroup: str = ""
    sm_ratio: Ratio | None = None


class FakeFile(Section, frozen=True):
    """The whole file that simulates GPUs."""

    api_version: str
    kind: str
    gpus: tuple[FakeGpu, ...] = ()
    processes: tuple[FakeProcess, ...] = ()
    driver_version: Name = "fake"
    shared_paths: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def gpu_links(self) -> GpuLinks | None:
        """The links between the file's cards; None if the file lists none."""
        if not self.links:
            return None
        cards = [card for card in self.gpus for _ in range(card.count)]
        numa = [UNKNOWN_NUMA if card.numa_node is None else card.numa_node for card in cards]
        generation = nvlink_generation(cards[0].model) if cards else 0
        links = GpuLinks(tuple(range(len(cards))), self.links, generation, tuple(numa))
        return checked_links(links, "links")


def read_fake(path: Path) -> FakeFile:
    """Read the file; `BadInputError` names file, field and value if it is wrong."""
    where = str(path)
    empty = f"is empty; write apiVersion: {API_VERSION}, kind: {KIND}, gpus"
    document = read_document(read_text(path), where, API_VERSION, KIND, empty=empty)
    try:
        file = read_form(document, FakeFile)
        _check(file)
    except BadInputError as error:
        raise BadInputError(place(where, error.where), error.problem) from None
    return file


def _check(file: FakeFile) -> None:
    if sum(card.count * (1 + sum(m.count for m in card.mig)) for card in file.gpus) > MOST_GPUS:
        raise BadInputError("gpus", f"are more than {MOST_GPUS}, which no node has; list fewer")
    uuids = [card.uuid for card in file.gpus if card.uuid]
    for at, card in enumerate(file.gpus):
        _check_card(card, f"gpus[{at}]", uuids)
    _ = file.gpu_links  # raises if the links are inconsistent
    for at, process in enumerate(file.processes):
        named = [process.pid is not None, bool(process.pod), bool(process.cgroup)]
        if named.count(True) != 1:
            wrong = "must name exactly one of pid, pod (its UID) and cgroup"
            raise BadInputError(f"processes[{at}]", wrong)


def _check_card(card: FakeGpu, where: str, uuids: list[str]) -> None:
    if card.reserved_mib >= card.memory_mib:
        wrong = f"{card.reserved_mib} must be less than the card's memory ({card.memory_mib})"
        raise BadInputError(f"{where}.reservedMiB", wrong)
    if card.uuid and (card.count > 1 or uuids.count(card.uuid) > 1):
        raise BadInputError(
            f"{where}.uuid", f"{card.uuid!r} is used for several cards; use it once"
        )
    if (mig_mib := sum(m.count * m.memory_mib for m in card.mig)) > card.memory_mib:
        wrong = f"{mig_mib} MiB in all are more than the card has ({card.memory_mib})"
        raise BadInputError(f"{where}.mig", wrong)
    for at, path in enumerate(card.paths):
        try:
            path.format(index=0, minor=0)
        except (KeyError, IndexError, ValueError):
            wrong = f"{path!r} has braces for something else than {{index}} and {{minor}}"
            raise BadInputError(f"{where}.paths[{at}]", wrong) from None
    for at, phase in enumerate(card.use):
        for name, value in phase.values.items():
            field = f"{where}.use[{at}].values.{name}"
            if name not in _METRICS:
                raise BadInputError(field, unknown(name, sorted(_METRICS)))
            if not (math.isfinite(value) and value >= 0):
                raise BadInputError(field, f"{value} is not a valid measurement; write 0 or more")


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
        """Return the file's links between all its cards; None if the file lists none."""
        return self._now().gpu_links

    def shared_paths(self) -> tuple[str, ...]:
        """Return the device nodes that the file lists as shared by all GPUs."""
        return self._now().shared_paths

    def use(self) -> tuple[DeviceUse, ...]:
        """Return each GPU's values at this moment; the memory used is the sum of its processes'
        memory unless the file gives it."""
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
        """Return the file's processes; one given by pod or cgroup only if a process runs in that
        pod or cgroup on this machine."""
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
