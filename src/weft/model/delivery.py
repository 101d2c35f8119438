"""The delivery record: what a Binding promises each container of a pod, for its node to carry out.

It is the value of the annotation `weft.dev/delivery`. It has all that the node's agent must know,
so that a container starts without the API server, configuration or an equal version of Weft.
"""

import msgspec

from weft.model.ceilings import MOST_GPU_MIB, MOST_GPU_MILLI, MOST_LETTERS

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = ("", "none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES with which a container sees no GPU."""

VERSION = 1
MOST_CARDS = 1024
MOST_CONTAINERS = 8192
"""Most containers that fit into an annotation: each takes some forty characters at least."""


class DeliveredShare(msgspec.Struct, frozen=True, array_like=True):
    """A container's part of one GPU: `memory_mib` MiB and `milli` thousandths of its cores.

    An amount of 0 means that the container did not request one: it is limited only by what the
    whole pod has of the GPU (`DeliveredCard`).
    """

    gpu: int
    uuid: str
    memory_mib: int
    milli: int


class DeliveredCard(msgspec.Struct, frozen=True, array_like=True):
    """The whole pod's charge on one GPU, and how much of that GPU may be promised in all.

    If memory is lent, `most_memory_mib` is more than the GPU has.
    """

    gpu: int
    uuid: str
    memory_mib: int
    milli: int
    most_memory_mib: int
    most_milli: int


class DeliveredContainer(msgspec.Struct, frozen=True):
    """One container's shares, one for each GPU in the order in which the container sees them, and
    the environment that its system's pods expect."""

    shares: tuple[DeliveredShare, ...] = ()
    env: dict[str, str] = {}


class DeliveryRecord(msgspec.Struct, frozen=True):
    """A pod's delivery: its UID, node, isolation mode, and what each container gets.

    `cards` are in the order of the GPUs' indexes. Containers that request no GPU are left out.
    `isolation` is the mode that the pod requests by `weft.dev/isolation`, "" if the node chooses.
    Containers of one card may be promised more of it together than `cards` says: init containers
    end before the others begin, and containers of a pod that asks as one (Genius, Kube-Knots) may
    each use all of it. `version` is raised when an older agent could misread the record; such an
    agent refuses it.
    """

    pod: str
    node: str
    dialect: str
    cards: tuple[DeliveredCard, ...]
    containers: dict[str, DeliveredContainer]
    isolation: str = ""
    version: int = VERSION


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(DeliveryRecord)


def encode_delivery(record: DeliveryRecord) -> str:
    """Return the value of the annotation `weft.dev/delivery` for this record."""
    return _ENCODER.encode(record).decode()


def decode_delivery(text: str) -> DeliveryRecord:
    """Return the record in a value of `weft.dev/delivery`; `ValueError` says what is wrong with
    it."""
    try:
        record = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    problem = problem_of(record)
    if problem:
        raise ValueError(problem)
    return record


def problem_of(record: DeliveryRecord) -> str:
    """Return a text on what in the record is impossible for any pod and node; "" if nothing is."""
    if record.version != VERSION:
        return f"version {record.version} is not known; this agent knows version {VERSION}"
    if not record.pod or not record.node:
        return "it names no pod or no node"
    if len(record.cards) > MOST_CARDS or len(record.containers) > MOST_CONTAINERS:
        return (
            f"it names {len(record.cards):,} GPUs and {len(record.containers):,} containers; "
            f"at most {MOST_CARDS:,} and {MOST_CONTAINERS:,} are possible"
        )
    return _problem_of_cards(record.cards) or _problem_of_containers(record)


def _problem_of_cards(cards: tuple[DeliveredCard, ...]) -> str:
    if len({card.gpu for card in cards}) != len(cards):
        return "it names a GPU twice"
    for card in cards:
        if not _possible(card) or card.most_memory_mib < 0 or card.most_milli < 0:
            return f"GPU {card.gpu}: amounts that no GPU has"
        if card.memory_mib > card.most_memory_mib or card.milli > card.most_milli:
            return f"GPU {card.gpu}: the pod has more than may be promised of it"
    return ""


def _problem_of_containers(record: DeliveryRecord) -> str:
    cards = {card.gpu: card for card in record.cards}
    problems = (
        (name, _problem_of_container(container, cards))
        for name, container in record.containers.items()
    )
    return next((f"container {name}: {problem}" for name, problem in problems if problem), "")


def _problem_of_container(container: DeliveredContainer, cards: dict[int, DeliveredCard]) -> str:
    if len({share.gpu for share in container.shares}) != len(container.shares):
        return "it names a GPU twice"
    for share in container.shares:
        if problem := _problem_of_share(share, cards.get(share.gpu)):
            return f"GPU {share.gpu}: {problem}"
    for variable, value in container.env.items():
        if not variable or "=" in variable or "\0" in variable or "\0" in value:
            return f"environment variable {variable[:40]!r}: its name or its value is not allowed"
    return ""


def _problem_of_share(share: DeliveredShare, card: DeliveredCard | None) -> str:
    if card is None or share.uuid != card.uuid:
        return "is not among the pod's GPUs"
    if not _possible(share):
        return "amounts that no GPU has"
    if share.memory_mib > card.memory_mib or share.milli > card.milli:
        return "more than the pod has of it"
    return ""


def _possible(share: DeliveredShare | DeliveredCard) -> bool:
    return (
        0 <= share.gpu < 2**31
        and 0 <= share.memory_mib <= MOST_GPU_MIB
        and 0 <= share.milli <= MOST_GPU_MILLI
        and len(share.uuid) <= MOST_LETTERS
    )
