"""A fake of `pynvml`, nvidia-ml-py's module: cards in Python, which a test breaks and mends.

It answers the calls that Weft makes, with pynvml's names; a card is its own handle. It says by its
name that it is a fake.
"""
# ruff: noqa: N815 - the names are pynvml's, and what they do is NVML's

import queue
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NOT_FOUND, INVALID, TIMEOUT, LOST = 3, 6, 2, 10, 15
_WORDS = {
    NOT_SUPPORTED: "Not Supported",
    NOT_FOUND: "Not Found",
    INVALID: "Invalid Argument",
    TIMEOUT: "Timeout",
    LOST: "GPU is lost",
}
_ANY_INSTANCE = 0xFFFF_FFFF


class FakeNvmlError(Exception):
    """The fake's NVMLError; `value` is its number."""

    def __init__(self, value: int) -> None:
        super().__init__(_WORDS.get(value, f"error {value}"))
        self.value = value


class FakeNvmlMismatchError(Exception):
    """The error of the real module where the driver lacks the newest form of a call."""


class FakeNvmlInstance:
    """A MIG instance of a card, with its own memory and processes."""

    def __init__(self, gi: int, profile: str, total_mib: int, ci: int = 0) -> None:
        self.gi, self.ci, self.profile, self.total_mib = gi, ci, profile, total_mib
        self.reserved_mib, self.used_mib = 0, 0
        self.uuid, self.name = f"MIG-{gi}-{ci}", ""
        self.processes: list[tuple[int, int | None]] = []
        self.error = 0


class FakeNvmlCard:
    """A card. `error` is NVML's number for all that is asked of it; 0: it is well.

    `nvlinks` are the other ends of those that are up, None for a switch; `near` is the PCIe level
    to other cards (UUID), 50 where left out. `gpm` are GPM's values by number, None where the card
    has none. `sm_percent` are processes' samples: (pid, µs, percent); None where the driver has
    none.
    """

    def __init__(self, number: int = 0, name: str = "NVIDIA H100 80GB HBM3") -> None:
        self.uuid, self.name, self.minor = f"GPU-{number + 1}", name, number
        self.bus = f"00000000:{16 * (number + 1):02X}:00.0"
        self.total_mib, self.reserved_mib, self.used_mib = 81_559, 0, 1_000
        self.gpm: dict[int, float] | None = None
        self.mode, self.mig = 0, False
        self.instances: list[FakeNvmlInstance] = []
        self.processes: list[tuple[int, int | None]] = []
        self.clients: list[tuple[int, int | None]] = []
        self.sm_percent: list[tuple[int, int, int]] | None = None
        self.energy_mj: int | None = None
        self.recovery_action: int | None = None
        self.knows_xids = True
        self.nvlinks: list[FakeNvmlCard | None] = []
        self.near: dict[str, int] = {}
        self.error = 0


class FakeNvml:
    """Plays `pynvml`. `samples` and `opened` are what was taken and not given back."""

    NVMLError = FakeNvmlError
    NVMLLibraryMismatchError = FakeNvmlMismatchError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_GPM_METRICS_GET_VERSION, nvmlMemory_v2 = 1, 2
    NVML_ERROR_TIMEOUT, NVML_ERROR_NOT_FOUND = TIMEOUT, NOT_FOUND
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *cards: FakeNvmlCard) -> None:
        self.cards = list(cards)
        self.error, self.old_driver = 0, False
        self.samples, self.opened, self.sets = 0, 1, 0
        self.gpm_asked: list[tuple[int, int]] = []
        self._events: queue.Queue[Any] = queue.Queue()

    def xid(self, card: FakeNvmlCard, number: int, gi: int | None = None) -> None:
        """The card reports an error."""
        instance = _ANY_INSTANCE if gi is None else gi
        self._events.put(
            SimpleNamespace(device=card, eventType=8, eventData=number, gpuInstanceId=instance)
        )

    def all_heard(self) -> bool:
        """True if nobody has yet to hear of an error."""
        return self._events.empty()

    # --- the machine ---

    def nvmlInit(self) -> None:
        self._check(self)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        self._check(self)
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeNvmlCard:
        if index >= len(self.cards):
            raise FakeNvmlError(INVALID)
        self._check(self.cards[index])
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        devices: list[Any] = [each for card in self.cards for each in (card, *card.instances)]
        for device in devices:
            if device.uuid == uuid:
                return device
        raise FakeNvmlError(NOT_FOUND)

    # --- a device ---

    def nvmlDeviceGetName(self, device: Any) -> bytes:
        return str(device.name).encode()

    def nvmlDeviceGetUUID(self, device: Any) -> str:
        return str(device.uuid)

    def nvmlDeviceGetMinorNumber(self, device: Any) -> int:
        return int(device.minor)

    def nvmlDeviceGetPciInfo(self, device: Any) -> Any:
        return SimpleNamespace(busId=device.bus)

    def nvmlDeviceGetMemoryInfo(self, device: Any, version: int = 1) -> Any:
        self._check(device)
        mib, reserved = 1 << 20, device.reserved_mib if version == self.nvmlMemory_v2 else 0
        return SimpleNamespace(
            total=device.total_mib * mib,
            used=device.used_mib * mib,
            free=(device.total_mib - device.reserved_mib - device.used_mib) * mib,
            reserved=reserved * mib,
        )

    def nvmlDeviceGetComputeMode(self, device: Any) -> int:
        return int(device.mode)

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any) -> int:
        return int(self._told(device.energy_mj))

    def nvmlDeviceGetFieldValues(self, device: Any, fields: list[int]) -> Any:
        action = device.recovery_action
        value = SimpleNamespace(uiVal=action)
        return [SimpleNamespace(nvmlReturn=NOT_SUPPORTED if action is None else 0, value=value)]

    def nvmlDeviceGetUtilizationRates(self, device: Any) -> Any:
        self._check(device)
        return SimpleNamespace(gpu=87, memory=12)

    def nvmlDeviceGetPowerUsage(self, device: Any) -> int:
        return 350_000

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> int:
        self._check(one)
        return int(one.near.get(other.uuid, 50))

    def nvmlDeviceGetNvLinkState(self, device: Any, link: int) -> int:
        self._check(device)
        return int(link < len(device.nvlinks))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, device: Any, link: int) -> int:
        self._check(device)
        return 2 if device.nvlinks[link] is None else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Any, link: int) -> Any:
        self._check(device)
        return self.nvmlDeviceGetPciInfo(device.nvlinks[link])

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Any) -> int:
        return 700_000

    def nvmlDeviceGetClockInfo(self, device: Any, clock: int) -> int:
        return {1: 1_980, 2: 2_619}[clock]

    def nvmlDeviceGetTemperature(self, device: Any, sensor: int) -> int:
        raise FakeNvmlError(NOT_SUPPORTED)

    def nvmlDeviceGetEncoderUtilization(self, device: Any) -> list[int]:
        return [25, 1_000]

    # --- MIG ---

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        return [int(device.mig), int(device.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, slot: int) -> FakeNvmlInstance:
        if slot >= len(device.instances):
            raise FakeNvmlError(NOT_FOUND)
        instance: FakeNvmlInstance = device.instances[slot]
        instance.name = f"{device.name} MIG {instance.profile}"
        return instance

    def nvmlDeviceGetGpuInstanceId(self, instance: FakeNvmlInstance) -> int:
        return instance.gi

    def nvmlDeviceGetComputeInstanceId(self, instance: FakeNvmlInstance) -> int:
        return instance.ci

    # --- processes ---

    def nvmlDeviceGetComputeRunningProcesses(self, device: Any) -> Any:
        if self.old_driver:
            raise FakeNvmlMismatchError
        return self.nvmlDeviceGetComputeRunningProcesses_v2(device)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, device: Any) -> Any:
        return [_process(pid, mib) for pid, mib in device.processes]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, device: Any) -> Any:
        if self.old_driver:
            raise FakeNvmlMismatchError
        return [_process(pid, mib) for pid, mib in device.clients]

    def nvmlDeviceGetProcessUtilization(self, device: Any, since_us: int) -> Any:
        samples = [
            SimpleNamespace(pid=pid, timeStamp=at_us, smUtil=percent)
            for pid, at_us, percent in self._told(device.sm_percent)
            if at_us > since_us
        ]
        if not samples:
            raise FakeNvmlError(NOT_FOUND)
        return samples

    # --- GPM ---

    def nvmlGpmQueryDeviceSupport(self, device: Any) -> Any:
        self._told(device.gpm)
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        self.samples += 1
        return SimpleNamespace(number=self.samples, of=None)

    def nvmlGpmSampleGet(self, device: Any, sample: Any) -> Any:
        sample.of = (device, None)
        return sample

    def nvmlGpmMigSampleGet(self, device: Any, gi: int, sample: Any) -> Any:
        sample.of = (device, gi)
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.samples -= 1

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(32)])

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        assert asked.sample1.of == asked.sample2.of
        self.gpm_asked.append((asked.sample1.number, asked.sample2.number))
        gpm = self._told(asked.sample1.of[0].gpm)
        for metric in asked.metrics[: asked.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in gpm else NOT_SUPPORTED
            metric.value = gpm.get(metric.metricId, 0.0)
        return asked

    # --- events ---

    def nvmlEventSetCreate(self) -> str:
        self.sets += 1
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        self.sets -= 1

    def nvmlDeviceGetSupportedEventTypes(self, device: Any) -> int:
        return 0xB if device.knows_xids else 0

    def nvmlDeviceRegisterEvents(self, device: Any, types: int, events: str) -> None:
        if not device.knows_xids:
            raise FakeNvmlError(NOT_SUPPORTED)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        try:
            return self._events.get(timeout=min(timeout_ms / 1_000, 0.02))
        except queue.Empty:
            raise FakeNvmlError(TIMEOUT) from None

    def _check(self, broken: Any) -> None:
        if broken.error:
            raise FakeNvmlError(broken.error)

    def _told(self, value: Any) -> Any:
        if value is None:
            raise FakeNvmlError(NOT_SUPPORTED)
        return value


def _process(pid: int, mib: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib << 20)
