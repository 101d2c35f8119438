"""Refuses a delivery record that cannot be carried out here. Pure: says why in words.

another pod's or node's            an annotation that was copied
a GPU that is not there, another   the cards were changed, or numbered anew
out of service                     it would fail at once
more than may be promised          with what the pods that run here hold already, the card
                                   would have more promised than the node's settings allow
What a record says may be promised of its cards is not believed. Whether its pod asks for all that,
and was placed there, `NodePods` says (`dialects/delivery.py:why_not_due`).
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
    most_permille: int,
) -> str:
    """Why the pod with this UID must not get this on this node; "" where nothing speaks against it.

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
        problem = "is not there" if device is None else _of_device(card, device)
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
