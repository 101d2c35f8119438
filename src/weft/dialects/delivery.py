"""Makes the delivery record of a pod: what each container gets, and what the pod is charged.

A container's part of a GPU is what it asks of it. Where a whole GPU request is its alone, or it
asks as one with the pod's other containers, that is all the pod holds of the GPU; where containers
share one card (gpushare, Alnair) or an init container borrows another's GPU, it is less. What the
pod is charged beyond all it asks, since it ran out of memory before, goes to the container that
asks most: a limit at what it asked would end it again.
"""

from collections.abc import Mapping

from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import dialect, read_bound
from weft.dialects.shares import asked_on, of_container
from weft.model import (
    ContainerRequest,
    Gpu,
    Node,
    Placement,
    PodManifest,
    PodRequest,
    Share,
)
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
)

ENTIRELY = 1000
"""Thousandths of a GPU's memory that may be promised where none is lent."""


def record_of(
    request: PodRequest,
    placement: Placement,
    node: Node,
    env: Mapping[str, dict[str, str]],
    *,
    most_permille: int = ENTIRELY,
) -> DeliveryRecord | None:
    """The record for this placement; None for a pod that holds no GPU.

    `env` is the environment by container, as `registry.write` gives it. `most_permille` says how
    much of a GPU's memory the ledger promises to all pods together, in thousandths.
    """
    if not placement.shares:
        return None
    gpus = {share.gpu: _gpu_of(node, share) for share in placement.shares}
    containers = {}
    for container in request.containers:
        if container.asked is not None:
            parts = _parts(request, container, placement, node, gpus)
            containers[container.name] = DeliveredContainer(parts, env.get(container.name, {}))
    return DeliveryRecord(
        pod=placement.uid,
        node=placement.node,
        dialect=request.dialect,
        cards=_cards(placement, gpus, most_permille),
        containers=containers,
        isolation=request.shape.isolation,
    )


def derived_record(
    pod: PodManifest,
    node: Node,
    settings: DialectSettings,
    *,
    most_permille: int = ENTIRELY,
) -> DeliveryRecord | None:
    """The record of a bound pod that carries none: an original's scheduler placed it, or an older
    Weft did.

    None where it asks for no GPU, or nobody says which of the node's it has. Raises
    `BadInputError` for a pod that cannot be read.
    """
    request, placement = read_bound(pod, node, settings)
    if placement is None or not placement.shares:
        return None
    system = dialect(request.dialect)
    env = system.write(request, placement, node, 0).env
    env = system.env_when_bound(pod, request, env)
    return record_of(request, placement, node, env, most_permille=most_permille)


def _gpu_of(node: Node, share: Share) -> Gpu:
    """The share's GPU; one that the node does not show is as large as the share."""
    gpus = node.gpus
    if share.gpu < len(gpus) and gpus[share.gpu].index == share.gpu:
        return gpus[share.gpu]
    missing = Gpu(share.gpu, share.memory_mib, uuid=share.uuid, milli=share.milli)
    return next((gpu for gpu in gpus if gpu.index == share.gpu), missing)


def _cards(
    placement: Placement, gpus: Mapping[int, Gpu], most_permille: int
) -> tuple[DeliveredCard, ...]:
    """What the pod is charged on each GPU. Several GPU requests may meet on one."""
    cards: dict[int, DeliveredCard] = {}
    for share in sorted(placement.shares, key=lambda share: share.gpu):
        gpu, before = gpus[share.gpu], cards.get(share.gpu)
        memory_mib, milli = share.memory_mib, share.milli
        if before is not None:
            memory_mib, milli = memory_mib + before.memory_mib, milli + before.milli
        # What a pod was found to hold may be more than there is; it was promised all the same.
        most_mib = max(gpu.memory_mib * most_permille // 1000, memory_mib)
        cards[share.gpu] = DeliveredCard(
            share.gpu, share.uuid, memory_mib, milli, most_mib, max(gpu.milli, milli)
        )
    return tuple(cards.values())


def _parts(
    request: PodRequest,
    container: ContainerRequest,
    placement: Placement,
    node: Node,
    gpus: Mapping[int, Gpu],
) -> tuple[DeliveredShare, ...]:
    """The container's part of each GPU that it sees, in that order."""
    parts: dict[int, DeliveredShare] = {}
    entirely = dialect(request.dialect).pod_asks_as_one
    for share in of_container(request, container, placement):
        if entirely:
            memory_mib, milli = share.memory_mib, share.milli
        else:
            memory_mib, milli = _part(request, container, share, node, gpus[share.gpu])
        before = parts.get(share.gpu)
        if before is not None:
            memory_mib, milli = memory_mib + before.memory_mib, milli + before.milli
        parts[share.gpu] = DeliveredShare(share.gpu, share.uuid, memory_mib, milli)
    return tuple(parts.values())


def _part(
    request: PodRequest, container: ContainerRequest, share: Share, node: Node, gpu: Gpu
) -> tuple[int, int]:
    """What the container gets of the pod's share of this GPU: MiB and thousandths."""
    asked = container.asked
    if asked is None or asked.whole or asked.split:
        return share.memory_mib, share.milli
    memory_mib = asked.memory.on_node(node.unit_mib).mib_on(gpu.memory_mib)
    if memory_mib < share.memory_mib:
        memory = request.shape.gpu_requests[share.gpu_request].memory
        beyond_mib = share.memory_mib - memory.on_node(node.unit_mib).mib_on(gpu.memory_mib)
        if beyond_mib > 0 and container is _hungriest(request, share.gpu_request, gpu):
            memory_mib += beyond_mib
    return min(memory_mib, share.memory_mib), min(asked.milli, share.milli)


def _hungriest(request: PodRequest, gpu_request: int, gpu: Gpu) -> ContainerRequest:
    """The container that asks the most of this GPU request, one that stays before one that ends."""

    def asks(container: ContainerRequest) -> tuple[bool, int]:
        assert container.asked is not None
        return not container.init, asked_on(gpu_request, container.asked, gpu).memory_mib

    using = [
        container
        for container in request.containers
        if container.asked is not None and gpu_request in container.gpu_requests
    ]
    return max(using, key=asks)
