"""What one container is given by its pod's record: environment, devices, mounts.

The same whichever way it is delivered: by name through NRI, or through a device plugin.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from weft.model import WeftError
from weft.model.delivery import DeliveredContainer, DeliveryRecord
from weft.node.agent.device_nodes import CdiSpecs
from weft.node.agent.device_watch import DeviceWatch
from weft.node.devices.reader import DeviceError, GpuDevice

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NONE_VISIBLE = "void"
"""NVIDIA's container toolkit then does nothing at all, whatever the image asks for."""


class NotGrantedError(WeftError):
    """A container cannot be given its share now; the message says why."""


class BindMount(NamedTuple):
    """A file or folder of the node in a container."""

    source: str
    destination: str
    read_only: bool = True


class ContainerGrant(msgspec.Struct, frozen=True):
    """`paths` are device nodes; where there are CDI names (`cdi`), these bring the GPUs instead."""

    env: dict[str, str] = {}
    paths: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    mounts: tuple[BindMount, ...] = ()


NOTHING = ContainerGrant(env={VISIBLE: NONE_VISIBLE})
"""What a container is given that asks no GPU of anybody."""


class ShareLimiter(Protocol):
    """Holds containers to their shares, in the modes that this node offers."""

    def grant(
        self, record: DeliveryRecord, container: str, devices: Sequence[GpuDevice]
    ) -> ContainerGrant:
        """What the container gets besides, for its GPUs `devices`: `NotGrantedError` where the
        record's mode is not to be had."""
        ...


class NoIsolation:
    """Nothing besides: `none` and `time-slicing` alone."""

    modes = ("", "none", "time-slicing")

    def grant(
        self, record: DeliveryRecord, container: str, devices: Sequence[GpuDevice]
    ) -> ContainerGrant:
        """Nothing; refused where the record names another mode."""
        if record.isolation not in self.modes:
            raise NotGrantedError(f"isolation {record.isolation[:40]!r} is not offered here")
        return ContainerGrant()


class Granter:
    """Makes grants from records, for the GPUs there are now."""

    def __init__(
        self,
        devices: DeviceWatch,
        isolation: ShareLimiter | None = None,
        cdi: CdiSpecs | None = None,
    ) -> None:
        self._devices, self._isolation = devices, isolation or NoIsolation()
        self._cdi = cdi or CdiSpecs()
        self._shared: tuple[int, tuple[str, ...]] = (0, ())

    async def grant(self, record: DeliveryRecord, container: str) -> ContainerGrant:
        """The container's; `NotGrantedError` says why it cannot be given."""
        part = record.containers.get(container)
        if part is None:
            return NOTHING
        devices = [self._device(share.gpu) for share in part.shares]
        env = {VISIBLE: visible(part), **part.env}
        if not devices:
            return ContainerGrant(env=env)
        besides = self._isolation.grant(record, container, devices)
        names = self._cdi.names_of(devices)
        paths: tuple[str, ...] = besides.paths
        if not names:
            own = (path for device in devices for path in device.paths)
            paths = (*own, *await self._shared_paths(), *paths)
        return ContainerGrant(
            env={**env, **besides.env},
            paths=tuple(dict.fromkeys(paths)),
            cdi=(*names, *besides.cdi),
            mounts=besides.mounts,
        )

    def _device(self, index: int) -> GpuDevice:
        device = self._devices.by_index(index)
        if device is None:
            raise NotGrantedError(f"GPU {index} is not there")
        return device

    async def _shared_paths(self) -> tuple[str, ...]:
        version = self._devices.version
        if self._shared[0] != version:
            try:
                paths = await self._devices.ask(lambda reader: reader.shared_paths())
            except DeviceError as error:
                raise NotGrantedError(str(error)) from error
            self._shared = (version, paths)
        return self._shared[1]


def visible(part: DeliveredContainer) -> str:
    """NVIDIA_VISIBLE_DEVICES for these shares: by UUID, or by index where nobody knows it."""
    return ",".join(share.uuid or str(share.gpu) for share in part.shares) or NONE_VISIBLE
