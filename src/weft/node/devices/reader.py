"""The contract of whatever reads a machine's GPUs.

Calls block (NVML's do): a host asks from a thread of its own.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from weft.model import Gpu, WeftError


class DeviceError(WeftError):
    """GPUs cannot be read: no driver, no library, or a broken description."""


class GpuDevice(msgspec.Struct, frozen=True):
    """One GPU or MIG instance of this machine.

    `gpu` is what the node reports of it; its `memory_mib` is the card's size less what the driver
    reserves (`reserved_mib`). `minor` is the number in /dev/nvidia<minor>, which need not be the
    index. `paths` are the device nodes that a container needs to use it, those that all GPUs share
    not among them. `fault` says why it is out of service (an XID, say), "" for a healthy one.
    """

    gpu: Gpu
    reserved_mib: int = 0
    minor: int = 0
    numa_node: int | None = None
    pci_bus_id: str = ""
    paths: tuple[str, ...] = ()
    fault: str = ""


class DeviceUse(msgspec.Struct, frozen=True):
    """What one GPU does now: values by the canonical metric names of telemetry (`Metric`)."""

    index: int
    values: Mapping[str, float]


class ProcessUse(msgspec.Struct, frozen=True):
    """A process on a GPU: MiB it holds there, and its share of SM time (0 to 1) since the last
    reading; None where the driver does not say."""

    index: int
    pid: int
    memory_mib: int
    sm_ratio: float | None = None


class DeviceReader(Protocol):
    """Reads a machine's GPUs. Every method raises `DeviceError` where nothing can be read."""

    def driver_version(self) -> str:
        """The driver's version; "" where it is not known."""
        ...

    def devices(self) -> tuple[GpuDevice, ...]:
        """The GPUs and MIG instances there are now, by index; with their health."""
        ...

    def use(self) -> tuple[DeviceUse, ...]:
        """What each GPU does."""
        ...

    def processes(self) -> tuple[ProcessUse, ...]:
        """The processes on every GPU."""
        ...

    def close(self) -> None:
        """Give back what was taken; nothing is read afterwards."""
        ...
