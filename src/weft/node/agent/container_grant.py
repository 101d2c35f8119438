"""Turns a pod's delivery record into a container's environment, device nodes and mounts.

Both ways of delivery use it: NRI (containers by name) and device plugins. `why_refused` refuses a
record

    of another pod or node               an annotation was copied
    with a GPU that does not exist, or   cards were replaced or renumbered
    has another UUID
    with a GPU that is out of service    the container would fail at once
    beyond what may be promised          together with the pods that run here, a GPU would have
                                         more promised than the node's settings allow

The limit comes from the node's settings, not from the record. `NodePods` checks that the record
agrees with the pod's requests and placement (`dialects/delivery.py:why_not_due`).
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
"""Value of NVIDIA_VISIBLE_DEVICES with which NVIDIA's container toolkit does nothing, whatever the
image requests."""
NO_GPU = ("", NONE_VISIBLE, "none")
"""Values of NVIDIA_VISIBLE_DEVICES with which a container sees no GPU."""


class NotGrantedError(WeftError):
    """A container cannot be given its share now; the message says why."""


class ContainerGrant(msgspec.Struct, frozen=True):
    """Additions to a container. `paths` are device nodes, empty if CDI device names (`cdi`) bring
    the GPUs."""

    env: dict[str, str] = {}
    paths: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    mounts: tuple[AddedMount, ...] = ()


NOTHING = ContainerGrant(env={VISIBLE: NONE_VISIBLE})
"""Grant of a container that requests no GPU: it sees none."""


class Granter:
    """Makes grants from delivery records and the node's present GPUs."""

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
        """Return a container's grant, `NOTHING` if the record does not name it; `NotGrantedError`
        says why its share cannot be given."""
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
    """Return NVIDIA_VISIBLE_DEVICES for these shares: UUIDs, or the index of a GPU without UUID."""
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
    """Return why this node must not deliver the record to the pod with this UID; "" if it may.

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
    """Return why this card, added to those in `held`, would promise more of the GPU than allowed;
    "" if it would not.

    A pod alone on its GPU is not checked: it may have been found to hold more than the GPU has.
    """
    on_card = [other for record in held for other in record.cards if other.gpu == card.gpu]
    memory_mib = sum(other.memory_mib for other in on_card)
    milli = sum(other.milli for other in on_card)
    if memory_mib and memory_mib + card.memory_mib > most_mib:
        return (
            f"has {memory_mib:,} MiB promised to pods that run; {card.memory_mib:,} MiB more "
            f"would exceed the limit of {most_mib:,} MiB"
        )
    if milli and milli + card.milli > most_milli:
        return (
            f"has {milli:,} thousandths promised to pods that run; {card.milli:,} more would "
            f"exceed the limit of {most_milli:,}"
        )
    return ""
