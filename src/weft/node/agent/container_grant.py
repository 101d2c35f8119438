"""Grants one container what its pod's record says: environment, devices, mounts.

The same whichever way it is delivered: by name through NRI, or through a device plugin.
"""

import msgspec

from weft.model import WeftError
from weft.model.delivery import VISIBLE, DeliveredContainer, DeliveryRecord
from weft.node.agent.device_nodes import CdiSpecs
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.isolation import AddedMount, IsolationError, NodeIsolation
from weft.node.devices.reader import DeviceError, GpuDevice

NONE_VISIBLE = "void"
"""NVIDIA's container toolkit then does nothing at all, whatever the image asks for."""
NO_GPU = ("", NONE_VISIBLE, "none")
"""Values with which a container sees no GPU."""


class NotGrantedError(WeftError):
    """A container cannot be given its share now; the message says why."""


class ContainerGrant(msgspec.Struct, frozen=True):
    """`paths` are device nodes; where there are CDI names (`cdi`), these bring the GPUs instead."""

    env: dict[str, str] = {}
    paths: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    mounts: tuple[AddedMount, ...] = ()


NOTHING = ContainerGrant(env={VISIBLE: NONE_VISIBLE})
"""The grant of a container that asks no GPU of anybody."""


class Granter:
    """Makes grants from records, for the GPUs there are now."""

    def __init__(
        self,
        devices: DeviceWatch,
        isolation: NodeIsolation,
        cdi: CdiSpecs,
    ) -> None:
        self._devices, self._isolation = devices, isolation
        self._cdi = cdi
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
        try:
            besides = self._isolation.additions(record, container)
        except IsolationError as error:
            raise NotGrantedError(str(error)) from error
        names, paths = self._cdi.names_of(devices), tuple[str, ...]()
        if not names:
            own = (path for device in devices for path in device.paths)
            paths = (*own, *await self._shared_paths())
        return ContainerGrant(
            env={**env, **besides.env},
            paths=tuple(dict.fromkeys(paths)),
            cdi=names,
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
