"""The machine's GPUs through NVML: a `DeviceReader`.

A card's constant facts are read once, its presence and health at each reading. A card that no
longer answers stays known and is out of service. If NVML as a whole fails (the driver is being
replaced), it is opened again at the next reading.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from weft.model import BadInputError, Gpu
from weft.model.gpu_links import (
    MOST_LINKED,
    SELF,
    UNKNOWN_NUMA,
    GpuLinks,
    checked_links,
    nvlink_generation,
)
from weft.model.metric import Metric
from weft.node.devices.health import CardHealth, CardSigns
from weft.node.devices.nvml_counters import NvmlCounters
from weft.node.devices.nvml_library import MIB, ask, library, model_of, running, text
from weft.node.devices.reader import (
    DeviceError,
    DeviceUse,
    GpuDevice,
    MigInstance,
    NoDriverError,
    ProcessUse,
    instance_index,
)
from weft.node.devices.xid_watch import XidWatch

_DRIVER = "proc/driver/nvidia/version"
_RECOVERY_ACTION = 230
"""NVML's number of the field in which drivers since 570 report the action that a card needs to
recover; the field's value 0 means none."""


class NvmlReader:
    """A `DeviceReader`. `open_library` returns NVML or a fake; `root` is the root of the file
    system."""

    fake = False

    def __init__(
        self,
        open_library: Callable[[], Any] = library,
        *,
        root: Path = Path("/"),
        now_s: Callable[[], float] = time.monotonic,
        on_late_driver: Callable[[], None] | None = None,
    ) -> None:
        """Raises `DeviceError` if there is no NVML or no driver.

        With `on_late_driver` the driver may be installed later: until then each reading raises
        `DeviceError`. `on_late_driver` is called if a driver was installed whose library this
        process cannot see before a restart, as in a container created earlier.
        """
        self._open, self._root, self._now_s = open_library, root, now_s
        self._on_late_driver = on_late_driver
        self._had_driver = self._in_kernel()
        self._nvml: Any = None if on_late_driver is not None else open_library()
        self._xids: XidWatch | None = None
        self._known: dict[int, GpuDevice] = {}
        self._health: dict[str, CardHealth] = {}
        self._counters: dict[str, NvmlCounters] = {}
        self._seen_us: dict[int, int] = {}

    def driver_version(self) -> str:
        """Return the version as shown by nvidia-smi."""
        nvml = self._ready()
        return text(ask(nvml, nvml.nvmlSystemGetDriverVersion) or "")

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return every card that NVML counts, and its MIG instances."""
        nvml = self._ready()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._let_go()
            raise DeviceError(f"NVML says: {error}") from error
        handles = [ask(nvml, lambda i=i: nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]  # type: ignore[misc]
        self._hear(handles)
        devices: list[GpuDevice] = []
        for index, handle in enumerate(handles):
            devices += self._card(index, handle)
        self._known = {device.gpu.index: device for device in devices}
        return tuple(sorted(devices, key=lambda device: device.gpu.index))

    def links(self) -> GpuLinks | None:
        """Return the links that `nvidia-smi topo -m` shows between the cards read last; None for
        fewer than 2 or more than `MOST_LINKED` cards, or if not all links can be read."""
        nvml = self._ready()
        cards = [device for device in self._known.values() if device.gpu.parent is None]
        handles = [
            ask(nvml, lambda i=card.gpu.index: nvml.nvmlDeviceGetHandleByIndex(i))  # type: ignore[misc]
            for card in cards
        ]
        return None if None in handles else read_links(nvml, list(zip(cards, handles, strict=True)))

    def shared_paths(self) -> tuple[str, ...]:
        """Return the device nodes shared by all GPUs, such as /dev/nvidiactl."""
        return shared_paths(self._root)

    def use(self) -> tuple[DeviceUse, ...]:
        """Return memory, load and power of each device that answers."""
        return tuple(
            DeviceUse(device.gpu.index, self._memory(handle) | self._load(device, card))
            for device, handle, card in self._answering()
        )

    def processes(self) -> tuple[ProcessUse, ...]:
        """Return the processes on every device, including clients of MPS."""
        return tuple(
            process
            for device, handle, _ in self._answering()
            for process in self._processes(device, handle)
        )

    def close(self) -> None:
        """Shut NVML down for this process."""
        self._let_go()

    # --- the library ---

    def _ready(self) -> Any:
        if self._nvml is None:
            try:
                self._nvml = self._open()
            except NoDriverError:
                if self._on_late_driver is not None and self._in_kernel() > self._had_driver:
                    self._on_late_driver()
                raise
        return self._nvml

    def _in_kernel(self) -> bool:
        """Return True if the kernel has loaded a driver; containers see that too."""
        return (self._root / _DRIVER).exists()

    def _let_go(self) -> None:
        nvml, self._nvml = self._nvml, None
        if self._xids is not None:
            self._xids.close()
        self._xids = None
        for counters in self._counters.values():
            counters.close()
        self._counters.clear()
        if nvml is not None:
            ask(nvml, nvml.nvmlShutdown)

    # --- cards and instances ---

    def _hear(self, handles: list[Any]) -> None:
        """Record which cards reported errors since the last reading."""
        answering = [(i, handle) for i, handle in enumerate(handles) if handle is not None]
        if self._xids is None or len(answering) > self._xids.cards:  # one was plugged in
            if self._xids is not None:
                self._xids.close()
            self._xids = XidWatch(self._nvml, answering)
        for event in self._xids.take():
            handle = handles[event.card] if event.card < len(handles) else None
            known = self._known.get(event.card)
            # At the first reading no card is known yet, and a lost one no longer answers.
            uuid = known.gpu.uuid if known is not None else self._uuid(handle)
            if uuid:
                self._health_of(uuid).heard(event, self._now_s(), self._signs(handle))

    def _uuid(self, handle: Any) -> str:
        nvml = self._nvml
        return text(ask(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)) or "") if handle else ""

    def _health_of(self, uuid: str) -> CardHealth:
        return self._health.setdefault(uuid, CardHealth())

    def _card(self, index: int, handle: Any) -> Iterator[GpuDevice]:
        """Yield the card and its instances; if the card does not answer, as last known."""
        nvml = self._nvml
        try:
            if handle is None:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)  # raises NVML's reason
            card = self._read_card(index, handle)
        except nvml.NVMLError as error:
            yield from self._silent(index, f"NVML says: {error}")
            return
        health = self._health_of(card.gpu.uuid)
        health.answers(self._now_s(), self._signs(handle))
        mode = ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
        instances = bool(mode and mode[0])
        fault = health.fault()
        gpu = replace(card.gpu, in_service=not fault and not instances)
        yield replace(card, gpu=gpu, fault=fault)
        if instances:
            yield from self._instances(card, handle, health)

    def _silent(self, index: int, problem: str) -> Iterator[GpuDevice]:
        """Yield the last known facts of a card that does not answer; nothing for one never seen."""
        for device in self._known.values():
            if index in (device.gpu.index, device.gpu.parent):
                if device.gpu.parent is None:
                    self._health_of(device.gpu.uuid).silent()
                yield replace(device, gpu=replace(device.gpu, in_service=False), fault=problem)

    def _read_card(self, index: int, handle: Any) -> GpuDevice:
        nvml = self._nvml
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        known = self._known.get(index)
        if known is not None and known.gpu.uuid == uuid:
            # A card off its bus still returns its name from cache; this call reaches the card
            # itself.
            nvml.nvmlDeviceGetMemoryInfo(handle)
            return known
        total, reserved = self._size(handle)
        minor = ask(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle))
        minor = index if minor is None else minor
        bus = text(nvml.nvmlDeviceGetPciInfo(handle).busId)
        model = model_of(text(nvml.nvmlDeviceGetName(handle)))
        return GpuDevice(
            Gpu(index, total - reserved, model, uuid),
            reserved,
            minor,
            numa_node(self._root, bus),
            bus,
            card_paths(minor),
        )

    def _size(self, handle: Any) -> tuple[int, int]:
        """Return the memory in MiB, and the part of it that the driver reserves."""
        nvml = self._nvml
        memory = ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
        if memory is None:  # drivers before 510
            return nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB, 0
        return memory.total // MIB, -(-memory.reserved // MIB)

    def _instances(self, card: GpuDevice, handle: Any, health: CardHealth) -> Iterator[GpuDevice]:
        for instance, mig in self._migs(handle):
            fault = health.fault(mig.gpu_instance)
            total, reserved = self._size(instance)
            name = model_of(text(self._nvml.nvmlDeviceGetName(instance)))
            profile = name.rpartition("MIG-")[2]
            gpu = Gpu(
                instance_index(card.gpu.index, mig.gpu_instance, mig.compute_instance),
                total - reserved,
                name,
                text(self._nvml.nvmlDeviceGetUUID(instance)),
                parent=card.gpu.index,
                in_service=not fault,
            )
            paths = instance_paths(self._root, card.minor, mig.gpu_instance, mig.compute_instance)
            named = replace(mig, profile=profile)
            yield replace(card, gpu=gpu, reserved_mib=reserved, paths=paths, fault=fault, mig=named)

    def _migs(self, handle: Any) -> Iterator[tuple[Any, MigInstance]]:
        """Yield the card's MIG instances: each one's handle, and its numbers without a profile."""
        nvml = self._nvml
        most = ask(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0
        for slot in range(most):
            mig = ask(nvml, lambda i=slot: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i))  # type: ignore[misc]
            if mig is not None:
                yield (
                    mig,
                    MigInstance(
                        "",
                        nvml.nvmlDeviceGetGpuInstanceId(mig),
                        nvml.nvmlDeviceGetComputeInstanceId(mig),
                    ),
                )

    def _signs(self, handle: Any) -> CardSigns:
        nvml = self._nvml
        if handle is None:
            return CardSigns()
        energy = ask(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        fields = ask(nvml, lambda: nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION]))
        action = fields[0] if fields is not None and fields[0].nvmlReturn == 0 else None
        return CardSigns(
            None if energy is None else energy / 1_000,
            None if action is None else action.value.uiVal == 0,
        )

    # --- what they do ---

    def _answering(self) -> Iterator[tuple[GpuDevice, Any, Any]]:
        """Yield each device that answers, with its handle and its card's handle."""
        nvml = self._ready()
        if not self._known:
            self.devices()
        cards: dict[int, Any] = {}
        for index, device in sorted(self._known.items()):
            if device.gpu.parent is None:
                handle = ask(nvml, lambda i=index: nvml.nvmlDeviceGetHandleByIndex(i))  # type: ignore[misc]
                cards[index] = handle
                if handle is not None:
                    yield device, handle, handle
            elif (card := cards.get(device.gpu.parent)) is not None:
                uuid = device.gpu.uuid
                handle = ask(nvml, lambda u=uuid: nvml.nvmlDeviceGetHandleByUUID(u))  # type: ignore[misc]
                if handle is not None:
                    yield device, handle, card

    def _memory(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        memory = ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
        reserved = 0 if memory is None else memory.reserved
        memory = memory or ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        if memory is None:
            return {}
        return {
            Metric.MEMORY_USED_MIB.value: memory.used / MIB,
            Metric.MEMORY_FREE_MIB.value: memory.free / MIB,
            Metric.MEMORY_RESERVED_MIB.value: reserved / MIB,
        }

    def _load(self, device: GpuDevice, card: Any) -> dict[str, float]:
        counters = self._counters.get(device.gpu.uuid)
        if counters is None:
            instance = device.mig.gpu_instance if device.mig is not None else None
            counters = self._counters[device.gpu.uuid] = NvmlCounters(self._nvml, card, instance)
        return counters.sample() | counters.meters()

    def _processes(self, device: GpuDevice, handle: Any) -> Iterator[ProcessUse]:
        nvml, index = self._nvml, device.gpu.index
        held: dict[int, int] = {}
        for kind in ("Compute", "MPSCompute", "Graphics"):
            for process in running(nvml, handle, kind):
                mib = (process.usedGpuMemory or 0) // MIB
                held[process.pid] = max(held.get(process.pid, 0), mib)
        ratios = self._sm_ratios(index, handle) if device.mig is None else None
        for pid, mib in sorted(held.items()):
            yield ProcessUse(index, pid, mib, None if ratios is None else ratios.get(pid, 0.0))

    def _sm_ratios(self, index: int, handle: Any) -> dict[int, float] | None:
        """Return each process's part of SM time since the last reading; None if not supported."""
        nvml, since = self._nvml, self._seen_us.get(index, 0)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except nvml.NVMLError as error:
            return {} if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_FOUND else None
        except AttributeError:
            return None
        sums: dict[int, list[int]] = {}
        for sample in samples:
            if sample.timeStamp > since:
                sums.setdefault(sample.pid, []).append(min(sample.smUtil, 100))
        self._seen_us[index] = max([since, *(sample.timeStamp for sample in samples)])
        return {pid: sum(shares) / len(shares) / 100 for pid, shares in sums.items()}


# --- links between cards --------------------------------------------------------------------------


_PCIE = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names of NVML_TOPOLOGY_*; 0 means two GPUs of one board, which share a PCIe switch."""
_MOST_NVLINKS = 18
_SWITCH = 2


def read_links(nvml: Any, cards: Sequence[tuple[GpuDevice, Any]]) -> GpuLinks | None:
    """Return the links of these cards, each with its handle; None for fewer than 2 or more than
    `MOST_LINKED` cards, or if NVML does not report all links."""
    if not 1 < len(cards) <= MOST_LINKED:
        return None
    ends = [_nvlink_ends(nvml, handle) for _, handle in cards]
    buses = [_bus(device.pci_bus_id) for device, _ in cards]
    rows = []
    for first, (_, handle) in enumerate(cards):
        words = []
        for other, (_, other_handle) in enumerate(cards):
            switched = min(ends[first].count(""), ends[other].count(""))
            nvlinks = ends[first].count(buses[other]) + switched
            words.append(SELF if first == other else _path(nvml, handle, other_handle, nvlinks))
        rows.append(" ".join(words))
    numa = tuple(
        UNKNOWN_NUMA if device.numa_node is None else device.numa_node for device, _ in cards
    )
    generation = nvlink_generation(cards[0][0].gpu.model) if any("NV" in row for row in rows) else 0
    indexes = tuple(device.gpu.index for device, _ in cards)
    try:
        return checked_links(GpuLinks(indexes, tuple(rows), generation, numa), "NVML")
    except BadInputError:  # a link that only one end reports, or an unknown path
        return None


def _nvlink_ends(nvml: Any, handle: Any) -> list[str]:
    """Return the other end of each active NVLink: a device's bus, "" for a switch."""
    ends = []
    for link in range(_MOST_NVLINKS):
        if not ask(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkState(handle, link)):  # type: ignore[misc]
            continue
        kind = ask(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))  # type: ignore[misc]
        if kind == _SWITCH:
            ends.append("")
            continue
        remote = ask(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))  # type: ignore[misc]
        if remote is not None:
            ends.append(_bus(text(remote.busId)))
    return ends


def _path(nvml: Any, first: Any, other: Any, nvlinks: int) -> str:
    if nvlinks:
        return f"NV{nvlinks}"
    level = ask(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(first, other))
    return _PCIE.get(max(level, 10), "") if level is not None else ""


def _bus(address: str) -> str:
    """Return the PCI address in lower case, its domain shortened to four digits if possible: NVML
    uses four or eight."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"


# --- facts from the machine's files ---------------------------------------------------------------


SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def shared_paths(root: Path) -> tuple[str, ...]:
    """Return the existing device nodes that every container with a GPU needs."""
    return tuple(f"/dev/{name}" for name in SHARED if (root / "dev" / name).exists())


def card_paths(minor: int) -> tuple[str, ...]:
    """Return the card's device node."""
    return (f"/dev/nvidia{minor}",)


def instance_paths(
    root: Path, minor: int, gpu_instance: int, compute_instance: int
) -> tuple[str, ...]:
    """Return the card's device node and the capability nodes of its instance."""
    gpu = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
    files = (gpu / "access", gpu / f"ci{compute_instance}" / "access")
    minors = [_device_minor(file) for file in files]
    caps = [f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in minors if cap is not None]
    return (*card_paths(minor), *caps)


def numa_node(root: Path, pci_bus_id: str) -> int | None:
    """Return the NUMA node of the device on this bus; None if there is only one, or it is
    unknown."""
    # NVML's domain has eight digits, the kernel's four.
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        text = (root / f"sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text()
        node = int(text)
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _device_minor(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "DeviceFileMinor" and value.strip().isdecimal():
            return int(value)
    return None
