"""Grants one container what its pod's record says: environment, devices, mounts; or says why not.

The same whichever way it is delivered: by name through NRI, or through a device plugin. A record
(`why_refused`) cannot be carried out here if it is or names

    another pod's or node's            an annotation that was copied
    a GPU that does not exist, another   the cards were changed, or numbered anew
    out of service                     it would fail at once
    more than may be promised          with what the pods that run here hold already, the card
                                       would have more promised than the node's settings allow

What a record says may be promised of its cards is not believed. Whether its pod asks for all that,
and was placed there, `NodePods` says (`dialects/delivery.py:why_not_due`).
"""

from collections.abc import Iterable, Sequence

import msgspec

from weft.model import WeftError
from weft.model.delivery import VISIBLE, DeliveredCard, DeliveredContainer, DeliveryRecord
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
        """Return the container's; `NotGrantedError` says why it cannot be given."""
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
            raise NotGrantedError(f"GPU {index} does not exist")
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
    """NVIDIA_VISIBLE_DEVICES for these shares: by UUID, or by index if unknown."""
    return ",".join(share.uuid or str(share.gpu) for share in part.shares) or NONE_VISIBLE


# --- whether a record can be carried out ----------------------------------------------------------


def why_refused(
    record: DeliveryRecord,
    pod_uid: str,
    node_name: str,
    devices: Sequence[GpuDevice],
    others: Iterable[DeliveryRecord],
    most_permille: int,
) -> str:
    """Why the pod with this UID must not get this on this node; "" if nothing speaks against it.

    `others` are the records of the other pods that hold their GPUs now. `most_permille`: how much
    of a GPU's memory may be promised, in thousandths.
    """
    if record.pod != pod_uid:
        return f"the record is another pod's, with UID {record.pod[:80]}"
    if record.node != node_name:
        return f"the record is of another node, {record.node[:80]}"
    by_index = {device.gpu.index: device for device in devices}
    held = [other for other in others if other.pod != pod_uid]
    for card in record.cards:
        device = by_index.get(card.gpu)
        problem = "does not exist" if device is None else _of_device(card, device)
        if device is not None and not problem:
            most_mib = device.gpu.memory_mib * most_permille // 1000
            problem = _of_sum(card, held, most_mib, device.gpu.milli)
        if problem:
            return f"GPU {card.gpu} {problem}"
    return ""


def _of_device(card: DeliveredCard, device: GpuDevice) -> str:
    if card.uuid and card.uuid != device.gpu.uuid:
        return f"is {device.gpu.uuid or 'of no known UUID'}; the record says {card.uuid}"
    if not device.gpu.in_service:
        return f"is out of service: {device.fault or 'it is cut into MIG instances'}"
    return ""


def _of_sum(
    card: DeliveredCard, held: Iterable[DeliveryRecord], most_mib: int, most_milli: int
) -> str:
    """Checks whether the card has more promised, by index, than may be.

    A pod that is alone there may have been found to hold more than the card has.
    """
    on_card = [other for record in held for other in record.cards if other.gpu == card.gpu]
    memory_mib = sum(other.memory_mib for other in on_card)
    milli = sum(other.milli for other in on_card)
    if memory_mib and memory_mib + card.memory_mib > most_mib:
        return (
            f"has {memory_mib:,} MiB promised to pods that run; {card.memory_mib:,} more are "
            f"beyond the {most_mib:,} that may be"
        )
    if milli and milli + card.milli > most_milli:
        return (
            f"has {milli:,} thousandths promised to pods that run; {card.milli:,} more are "
            f"beyond the {most_milli:,} that may be"
        )
    return ""
