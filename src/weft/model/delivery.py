"""The delivery record: what a Binding promises each container of a pod, for its node to carry out.

It is the value of the annotation `weft.dev/delivery`. With it a container starts without API
server, configuration or an equal version of Weft: all that the node's agent must know stands in it.
"""

import msgspec

from weft.model.ceilings import MOST_GPU_MIB, MOST_GPU_MILLI, MOST_LETTERS

_MOST_CARDS = 1024
_MOST_CONTAINERS = 1024


class DeliveredShare(msgspec.Struct, frozen=True, array_like=True):
    """A container's part of one GPU: `memory_mib` MiB and `milli` thousandths of its cores.

    0 thousandths are none that were asked for, not none at all.
    """

    gpu: int
    uuid: str
    memory_mib: int
    milli: int


class DeliveredCard(msgspec.Struct, frozen=True, array_like=True):
    """What the whole pod is charged on one GPU, and how much of that GPU may be promised in all."""

    gpu: int
    uuid: str
    memory_mib: int
    milli: int
    most_memory_mib: int
    most_milli: int


class DeliveredContainer(msgspec.Struct, frozen=True):
    """One container's shares and the environment that its system's pods expect."""

    shares: tuple[DeliveredShare, ...] = ()
    env: dict[str, str] = {}


class DeliveryRecord(msgspec.Struct, frozen=True):
    """A pod's delivery: whose (UID), where, how isolated, and what each container gets.

    Containers that ask for no GPU are not named. `version` is raised when an older agent could
    misread the record; such an agent refuses it.
    """

    pod: str
    node: str
    dialect: str
    cards: tuple[DeliveredCard, ...]
    containers: dict[str, DeliveredContainer]
    isolation: str = ""
    version: int = 1


def encode_delivery(record: DeliveryRecord) -> str:
    """The annotation's value."""
    return msgspec.json.encode(record).decode()


def decode_delivery(text: str) -> DeliveryRecord:
    """The record in such a value; `ValueError` says what is wrong with it."""
    record = msgspec.json.decode(text, type=DeliveryRecord)
    problem = _problem_of(record)
    if problem:
        raise ValueError(problem)
    return record


def _problem_of(record: DeliveryRecord) -> str:
    """What cannot be true of any pod and node; "" for nothing."""
    if record.version != 1:
        return f"version {record.version} is not known; this agent knows version 1"
    if len(record.cards) > _MOST_CARDS or len(record.containers) > _MOST_CONTAINERS:
        return "it names more GPUs or containers than a node has"
    cards = {card.gpu: card for card in record.cards}
    if len(cards) != len(record.cards):
        return "it names a GPU twice"
    impossible = [card.gpu for card in record.cards if not _possible(card)]
    if impossible:
        return f"GPU {impossible[0]}: amounts that no GPU has"
    for name, container in record.containers.items():
        for share in container.shares:
            if problem := _problem_of_share(share, cards.get(share.gpu)):
                return f"container {name}: GPU {share.gpu}: {problem}"
    return ""


def _problem_of_share(share: DeliveredShare, card: DeliveredCard | None) -> str:
    if card is None or share.uuid != card.uuid:
        return "is not among the pod's"
    if not _possible(share):
        return "amounts that no GPU has"
    if share.memory_mib > card.memory_mib or share.milli > card.milli:
        return "more than the pod has of it"
    return ""


def _possible(share: DeliveredShare | DeliveredCard) -> bool:
    return (
        0 <= share.gpu <= MOST_GPU_MIB
        and 0 <= share.memory_mib <= MOST_GPU_MIB
        and 0 <= share.milli <= MOST_GPU_MILLI
        and len(share.uuid) <= MOST_LETTERS
    )
