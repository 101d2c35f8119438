"""Makes the delivery record of a pod: what each container gets, and what the pod is charged.

A container's part of a GPU is what it asks of it (`shares.part_of`), less than what the pod holds
there where containers share one card (gpushare, Alnair) or an init container borrows another's GPU.
Containers of a pod that asks as one (Genius, Kube-Knots) may each use all that it holds.
"""

from collections.abc import Mapping, Sequence

from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import dialect, read_bound
from weft.dialects.shares import of_container, part_of
from weft.model import (
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
    as_one = dialect(request.dialect).pod_asks_as_one
    containers = {}
    for container in request.containers:
        if container.asked is not None:
            held = of_container(request, container, placement)
            parts = (
                held
                if as_one
                else [part_of(request, container, s, node, gpus[s.gpu]) for s in held]
            )
            containers[container.name] = DeliveredContainer(
                _by_gpu(parts), env.get(container.name, {})
            )
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
    """The pod's charge on each GPU. Several GPU requests may meet on one."""
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


def _by_gpu(shares: Sequence[Share]) -> tuple[DeliveredShare, ...]:
    """One share a GPU, in the order in which the container sees them."""
    parts: dict[int, DeliveredShare] = {}
    for share in shares:
        memory_mib, milli, before = share.memory_mib, share.milli, parts.get(share.gpu)
        if before is not None:
            memory_mib, milli = memory_mib + before.memory_mib, milli + before.milli
        parts[share.gpu] = DeliveredShare(share.gpu, share.uuid, memory_mib, milli)
    return tuple(parts.values())
