"""Makes delivery records of bound pods, and checks the record that a pod carries.

Without an admission policy, any user who may write a pod may write its record. So the agent on a
node compares a record with the pod's own requests and with its placement (`why_not_due`).
"""

from collections.abc import Mapping

from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import dialect, parse_pod, read_bound
from weft.dialects.shares import decode, delivered, placement_of, subject_of
from weft.model import BadInputError, Node, Placement, PodManifest, PodRequest, Share
from weft.model.annotations import DELIVERY, PLACEMENT, PLACEMENT_COPY
from weft.model.delivery import (
    NO_DEVICES,
    DeliveredCard,
    DeliveredContainer,
    DeliveryRecord,
)

ENTIRELY = 1000
"""Thousandths of a GPU's memory that may be promised if no memory is lent."""
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def record_of(
    request: PodRequest,
    placement: Placement,
    node: Node,
    env: Mapping[str, dict[str, str]],
    *,
    most_permille: int = ENTIRELY,
) -> DeliveryRecord | None:
    """Return the record for this placement; None for a pod that holds no GPU.

    `env` is the environment by container, as `registry.write` gives it. `most_permille` says how
    much of a GPU's memory the ledger promises to all pods together, in thousandths.
    """
    as_one = dialect(request.dialect).pod_asks_as_one
    return delivered(request, placement, node, env, as_one=as_one, most_permille=most_permille)


def derived_record(
    pod: PodManifest,
    node: Node,
    settings: DialectSettings,
    *,
    most_permille: int = ENTIRELY,
) -> DeliveryRecord | None:
    """Return the record of a bound pod without one, placed by another system's scheduler or an
    older Weft.

    None if the pod asks for no GPU, or if it is unknown which GPU the pod has. Raises
    `BadInputError` for a pod that cannot be read.
    """
    request, placement = read_bound(pod, node, settings)
    if placement is None or not placement.shares:
        return None
    system = dialect(request.dialect)
    env = system.write(request, placement, node, 0).env
    env = system.env_when_bound(pod, request, env)
    return record_of(request, placement, node, env, most_permille=most_permille)


def why_not_due(
    record: DeliveryRecord, pod: PodManifest, node: Node, settings: DialectSettings
) -> str:
    """Return why the pod's requests and its placement on `node` do not allow this record; "" if
    they do.

    The record's GPUs and amounts are compared, but not how much of a card may be promised: the
    node's own settings decide that.
    """
    try:
        request = parse_pod(pod, settings)
        request = dialect(request.dialect).on_node(pod, request, node, settings)[0]
    except BadInputError as error:
        return f"{DELIVERY} is refused: the pod's request cannot be read: {error}"
    if not request.shape.gpu_requests:
        return f"{DELIVERY} is refused: the pod requests no GPU"
    shares, problem = _placed(pod, request, node)
    if not problem:
        placement = placement_of(request, node, shares)
        problem = _beyond(record, record_of(request, placement, node, {}), request)
    return f"{DELIVERY} is refused: {problem}" if problem else ""


def _placed(pod: PodManifest, request: PodRequest, node: Node) -> tuple[tuple[Share, ...], str]:
    """Return the shares that Weft's annotations agree on and "", or no shares and what is wrong."""
    annotations = pod.metadata.annotations or {}
    texts = {name: annotations[name] for name in (PLACEMENT, PLACEMENT_COPY) if name in annotations}
    if PLACEMENT not in texts or len(set(texts.values())) != 1:
        return (), f"{PLACEMENT} is missing, or differs from its copy"
    text = texts[PLACEMENT]
    shares = decode(text, request) if subject_of(text) == (pod.metadata.uid, node.name) else None
    if shares is None:
        return (), f"{PLACEMENT} is damaged, or of another pod or node"
    for index, gpu_request in enumerate(request.shape.gpu_requests):
        own = [share for share in shares if share.gpu_request == index]
        if gpu_request.split:
            total_mib = sum(share.memory_mib for share in own)
            if total_mib > gpu_request.memory.value:
                return (), f"{PLACEMENT} names {total_mib:,} MiB, more than the pod asks for"
        elif len(own) > gpu_request.count:
            asked = f"the pod asks for {gpu_request.count}"
            return (), f"{PLACEMENT} names {len(own)} GPUs, and {asked}"
    return shares, ""


def _beyond(record: DeliveryRecord, due: DeliveryRecord | None, request: PodRequest) -> str:
    """Return what the record gives beyond `due`, the record that the pod should have; "" if
    nothing."""
    if due is None or {_amounts(card) for card in record.cards} != set(map(_amounts, due.cards)):
        return f"it names other GPUs, or other amounts of them, than {PLACEMENT}"
    nothing = DeliveredContainer()
    asked = {name: due.containers.get(name, nothing) for name in record.containers}
    limited = {c.name for c in request.containers if c.asked and c.asked.memory.kind != "none"}
    for name, container in record.containers.items():
        if problem := _beyond_asked(container, asked[name], limited=name in limited):
            return f"container {name} {problem}"
    if all(each.shares == asked[name].shares for name, each in record.containers.items()):
        return ""
    # If the node shows another size of its GPUs than the scheduler saw, containers' parts differ.
    if dialect(request.dialect).pod_asks_as_one:
        return "its containers have other amounts than the pod"
    return _spent_twice(record, request)


def _beyond_asked(container: DeliveredContainer, due: DeliveredContainer, *, limited: bool) -> str:
    """Return what the record grants the container beyond `due`, "" if nothing; `limited`: the
    container requests an amount of memory."""
    own = container.shares
    if [(s.gpu, s.uuid, s.milli) for s in own] != [(s.gpu, s.uuid, s.milli) for s in due.shares]:
        return "has other GPUs, or other amounts of their cores, than it asks for"
    if limited and any(
        d.memory_mib > s.memory_mib == 0 for s, d in zip(own, due.shares, strict=False)
    ):
        return "has no memory limit, although it asks for a part of a GPU"
    visible = container.env.get(_VISIBLE, "")
    named = {name for share in own for name in (share.uuid, str(share.gpu))}
    if visible not in NO_DEVICES and not named.issuperset(visible.split(",")):
        return f"would see GPUs {visible[:80]!r}, which are not those of its share"
    return ""


def _amounts(card: DeliveredCard) -> tuple[int, str, int, int]:
    return card.gpu, card.uuid, card.memory_mib, card.milli


def _spent_twice(record: DeliveryRecord, request: PodRequest) -> str:
    """Return a sentence if containers that run at the same time have more memory of a GPU than
    their pod; else ""."""
    stay = {container.name for container in request.containers if not container.init}
    for card in record.cards:
        together = (
            share.memory_mib
            for name, container in record.containers.items()
            for share in container.shares
            if name in stay and share.gpu == card.gpu
        )
        if sum(together) > card.memory_mib:
            return f"its containers together have more memory of GPU {card.gpu} than the pod"
    return ""
