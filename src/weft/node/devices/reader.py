"""The interface of all readers of a machine's GPUs.

Calls block (as NVML's do) and must come from one thread at a time, so each process has one thread
for them. Metrics have the names in `model/metric.py`, the same as values from Prometheus.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from weft.model import Gpu, WeftError
from weft.model.gpu_links import GpuLinks


class DeviceError(WeftError):
    """GPUs cannot be read: no driver, no library, or an invalid file of simulated GPUs."""


class NoDriverError(DeviceError):
    """There is no driver, or it does not answer; it may be installed later."""


class MigInstance(msgspec.Struct, frozen=True):
    """Identifies a MIG instance as NVML and DCGM do: by profile (`1g.5gb`), the number of its GPU
    instance within the card, and of its compute instance within that."""

    profile: str
    gpu_instance: int
    compute_instance: int = 0


class GpuDevice(msgspec.Struct, frozen=True):
    """One GPU or MIG instance of this machine.

    `gpu` is what the node reports: `memory_mib` is the card's size less what the driver reserves
    (`reserved_mib`). `in_service` is False if `fault` gives a reason (such as an XID), and for a
    card that is cut into MIG instances, which cannot be used whole. `minor` is the number in
    /dev/nvidia<minor>, which may differ from the index; an instance has its card's. `paths` are the
    device nodes that a container needs for it, without those shared by all GPUs.
    """

    gpu: Gpu
    reserved_mib: int = 0
    minor: int = 0
    numa_node: int | None = None
    pci_bus_id: str = ""
    paths: tuple[str, ...] = ()
    fault: str = ""
    mig: MigInstance | None = None


class DeviceUse(msgspec.Struct, frozen=True):
    """The use of one GPU or instance now: values by the names of `Metric`."""

    index: int
    values: Mapping[str, float]


class ProcessUse(msgspec.Struct, frozen=True):
    """A process on a GPU: the MiB that it holds there, and its part of SM time (0 to 1) since the
    last reading; None if the driver does not report that."""

    index: int
    pid: int
    memory_mib: int
    sm_ratio: float | None = None


class DeviceReader(Protocol):
    """Reads a machine's GPUs. Every method raises `DeviceError` if nothing can be read.

    `fake` is True if a file simulates the GPUs; programs that show the GPUs must mention it.
    """

    fake: bool

    def driver_version(self) -> str:
        """Return the driver's version; "" if unknown."""
        ...

    def devices(self) -> tuple[GpuDevice, ...]:
        """Return the present GPUs and MIG instances with their health, by index."""
        ...

    def links(self) -> GpuLinks | None:
        """Return how the cards are connected; None if unknown."""
        ...

    def shared_paths(self) -> tuple[str, ...]:
        """Return the device nodes that a container needs besides those of its own GPUs."""
        ...

    def use(self) -> tuple[DeviceUse, ...]:
        """Return the use of each GPU by index; rates cover the time since the last call."""
        ...

    def processes(self) -> tuple[ProcessUse, ...]:
        """Return the processes on every GPU, with the machine's own process ids."""
        ...

    def close(self) -> None:
        """Release all resources; nothing may be read afterwards."""
        ...


def instance_index(card: int, gpu_instance: int, compute_instance: int = 0) -> int:
    """Return the index of a MIG instance among all of a machine's GPUs.

    NVML does not number instances across cards. The index encodes the instance's position, so that
    it stays the same while others are added or removed: GPU instance 7, compute instance 0 of card
    2 has index 3070.
    """
    return 1000 * (card + 1) + 10 * gpu_instance + compute_instance
