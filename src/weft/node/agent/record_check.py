"""Refuses a delivery record that cannot be carried out here. Pure: says why in words.

another pod's or node's            an annotation that was copied
a GPU that is not there, another   the cards were changed, or numbered anew
out of service                     it would fail at once
more than may be promised          with what the pods that run here hold already, the card
                                   would have more promised than the record itself allows
"""

from collections.abc import Iterable, Sequence

from weft.model.delivery import DeliveredCard, DeliveryRecord
from weft.node.devices.reader import GpuDevice


def why_refused(
    record: DeliveryRecord,
    pod_uid: str,
    node_name: str,
    devices: Sequence[GpuDevice],
    others: Iterable[DeliveryRecord],
) -> str:
    """Why the pod with this UID must not get this on this node; "" where nothing speaks against it.

    `others` are the records of the other pods that hold their GPUs now.
    """
    if record.pod != pod_uid:
        return f"the record is another pod's, with UID {record.pod[:80]}"
    if record.node != node_name:
        return f"the record is of another node, {record.node[:80]}"
    by_index = {device.gpu.index: device for device in devices}
    held = [other for other in others if other.pod != pod_uid]
    for card in record.cards:
        problem = _of_device(card, by_index.get(card.gpu)) or _of_sum(card, held)
        if problem:
            return f"GPU {card.gpu} {problem}"
    return ""


def _of_device(card: DeliveredCard, device: GpuDevice | None) -> str:
    if device is None:
        return "is not there"
    if card.uuid and device.gpu.uuid and card.uuid != device.gpu.uuid:
        return f"is {device.gpu.uuid}; the record says {card.uuid}"
    if not device.gpu.in_service:
        return f"is out of service: {device.fault or 'it is cut into MIG instances'}"
    return ""


def _of_sum(card: DeliveredCard, held: Iterable[DeliveryRecord]) -> str:
    """Checks whether the card has more promised, by index, than the pod's own record says it may
    have."""
    on_card = [other for record in held for other in record.cards if other.gpu == card.gpu]
    memory_mib = sum(other.memory_mib for other in on_card)
    milli = sum(other.milli for other in on_card)
    if memory_mib + card.memory_mib > card.most_memory_mib:
        return (
            f"has {memory_mib:,} MiB promised to pods that run; {card.memory_mib:,} more are "
            f"beyond the {card.most_memory_mib:,} that may be"
        )
    if milli + card.milli > card.most_milli:
        return (
            f"has {milli:,} thousandths promised to pods that run; {card.milli:,} more are "
            f"beyond the {card.most_milli:,} that may be"
        )
    return ""
