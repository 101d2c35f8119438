"""The contract of whatever reads a machine's GPUs.

Calls block (NVML's do) and come from one thread at a time: a host has one thread for them.
Metrics have the names of `model/metric.py`, so that what is read here and what Prometheus says of
the same GPU are one thing.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from weft.model import Gpu, WeftError
from weft.model.gpu_links import GpuLinks


class DeviceError(WeftError):
    """GPUs cannot be read: no driver, no library, or a broken description."""


class NoDriverError(DeviceError):
    """There is no driver, or it does not answer: it may be installed later."""


class MigInstance(msgspec.Struct, frozen=True):
    """Names a MIG instance as NVML and DCGM do: its profile (`1g.5gb`), and the numbers of its GPU
    instance within the card and of its compute instance within that."""

    profile: str
    gpu_instance: int
    compute_instance: int = 0


class GpuDevice(msgspec.Struct, frozen=True):
    """One GPU or MIG instance of this machine.

    `gpu` is what the node reports of it: `memory_mib` is the card's size less what the driver
    reserves (`reserved_mib`), and `in_service` is False where `fault` says why (an XID, say), and
    for a card that is cut into MIG instances, which nobody can use whole. `minor` is the number in
    /dev/nvidia<minor>, which need not be the index; an instance has its card's. `paths` are the
    device nodes that a container needs for it, less those that all GPUs share.
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
    """A process on a GPU: MiB it holds there, and its share of SM time (0 to 1) since the last
    reading; None where the driver does not say."""

    index: int
    pid: int
    memory_mib: int
    sm_ratio: float | None = None


class DeviceReader(Protocol):
    """Reads a machine's GPUs. Every method raises `DeviceError` where nothing can be read.

    `fake` is True where a file plays the GPUs: whoever shows them says so.
    """

    fake: bool

    def driver_version(self) -> str:
        """The driver's version; "" where it is not known."""
        ...

    def devices(self) -> tuple[GpuDevice, ...]:
        """The GPUs and MIG instances there are now, by index; with their health."""
        ...

    def links(self) -> GpuLinks | None:
        """How the cards are connected; None where that is not known."""
        ...

    def shared_paths(self) -> tuple[str, ...]:
        """Device nodes that a container needs beside those of its GPUs, whichever they are."""
        ...

    def use(self) -> tuple[DeviceUse, ...]:
        """The use of each GPU, since the last call where it is a rate; by index."""
        ...

    def processes(self) -> tuple[ProcessUse, ...]:
        """The processes on every GPU, with the machine's own process ids."""
        ...

    def close(self) -> None:
        """Give back what was taken; nothing is read afterwards."""
        ...
