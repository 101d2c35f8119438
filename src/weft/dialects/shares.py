"""Writes a placement's shares as an annotation, reads them back, and makes delivery records.

A GPU request and a card together determine the share, so a system's own annotations need only name
the cards. Weft's own annotation has the full shares; it goes into every Binding next to the
system's annotations, and once more as a copy under another name. It names the pod and the node: an
annotation in a copied manifest is ignored. `evidence.py` decides which of a bound pod's annotations
count.

The annotation also keeps what the pod says about itself (`says`), so that later edits of the pod
have no effect, also after a change of leader.

The delivery record says what each container gets of the shares: its part of a GPU is what it
requests (`part_of`), less than what the pod holds there if containers share one card (gpushare,
Alnair) or an init container borrows another's GPU. Containers of a pod that asks as one (Genius,
Kube-Knots) may each use all that the pod holds.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from weft.model import (
    ContainerRequest,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    Placement,
    PodRequest,
    Shape,
    Share,
)
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPU_MILLI, MOST_LETTERS
from weft.model.delivery import (
    DeliveredCard,
    DeliveredContainer,
    DeliveredShare,
    DeliveryRecord,
)
from weft.model.slowdown_limit import MOST_PERCENT

_KEPT = ("application", "job_class", "expected_s", "slowdown_limit")
_MOST_SHARES = 256  # of one GPU request; a node with a hundred MIG instances is a large one
_MOST_REQUESTS = 256
_Name = Annotated[str, msgspec.Meta(max_length=MOST_LETTERS)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=MOST_PERCENT)]


class SaidByPod(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts that a pod stated about itself when it was bound, as its placement keeps them:
    application, job class, expected seconds, and slowdown limit."""

    application: _Name = ""
    job_class: Literal["", "latency-critical", "batch", "best-effort"] = ""
    expected_s: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    slowdown_limit: Annotated[tuple[tuple[_Name, _Percent], ...], msgspec.Meta(max_length=64)] = ()


def share_on(index: int, gpu_request: GpuRequest, gpu: Gpu) -> Share:
    """Return the share of this card for the GPU request with this index (not for `split` requests,
    whose shares vary)."""
    if gpu_request.whole:
        return Share(index, gpu.index, gpu.memory_mib, gpu.milli, gpu.uuid)
    memory_mib = gpu_request.memory.mib_on(gpu.memory_mib)
    return Share(index, gpu.index, memory_mib, gpu_request.milli, gpu.uuid)


def asked_on(index: int, gpu_request: GpuRequest, gpu: Gpu) -> Share:
    """Return the share of this card that the GPU request with this index asks for; no more than the
    card has."""
    if gpu_request.whole:
        return share_on(index, gpu_request, gpu)
    mib = min(gpu_request.memory.mib_on(gpu.memory_mib), gpu.memory_mib)
    return Share(index, gpu.index, mib, min(gpu_request.milli, gpu.milli), gpu.uuid)


def placement_of(request: PodRequest, node: Node, shares: Sequence[Share]) -> Placement:
    """Return the placement with these shares, and with the pod's CPU, memory and other
    resources."""
    shape = request.shape
    return Placement(
        uid=request.uid,
        node=node.name,
        shares=tuple(shares),
        cpu_milli=shape.cpu_milli,
        memory_mib=shape.memory_mib,
        extended=shape.extended,
        ports=shape.constraints.ports,
        application=shape.application,
        job_class=shape.job_class,
        expected_s=shape.expected_s,
        slowdown_limit=shape.slowdown_limit,
    )


def keeps(placement: Placement, shape: Shape) -> bool:
    """Return True if the placement has the application, job class, expected seconds and slowdown
    limit of this shape."""
    return all(getattr(placement, name) == getattr(shape, name) for name in _KEPT)


def of_container(
    request: PodRequest, container: ContainerRequest, placement: Placement
) -> list[Share]:
    """Return the shares that a container uses: the first `asked.count` shares of its GPU requests,
    or all if these are shared by containers or split."""
    if container.asked is None:
        return []
    shares = [
        s
        for gpu_request in container.gpu_requests
        for s in placement.shares
        if s.gpu_request == gpu_request
    ]
    if request.shared_by_containers or container.asked.split:
        return shares
    return shares[: container.asked.count]


def visible(request: PodRequest, placement: Placement) -> dict[str, dict[str, str]]:
    """Return NVIDIA_VISIBLE_DEVICES by container, as UUIDs; a GPU that several GPU requests share
    is named once."""
    return {
        name: {"NVIDIA_VISIBLE_DEVICES": ",".join(dict.fromkeys(map(identity, held)))}
        for name, held in by_container(request, placement).items()
    }


def by_container(request: PodRequest, placement: Placement) -> dict[str, list[Share]]:
    """Return the shares of each container that asked for a GPU, in the pod's order."""
    return {
        container.name: of_container(request, container, placement)
        for container in request.containers
        if container.asked is not None
    }


def delivered(
    request: PodRequest,
    placement: Placement,
    node: Node,
    env: Mapping[str, dict[str, str]],
    *,
    as_one: bool,
    most_permille: int,
) -> DeliveryRecord | None:
    """Return the delivery record of this placement; None for a pod that holds no GPU.

    `env` is each container's environment; `as_one`: each container may use all that the pod holds.
    `most_permille` is how much of a GPU's memory may be promised to all pods together, in
    thousandths.
    """
    if not placement.shares:
        return None
    gpus = {share.gpu: _gpu_of(node, share) for share in placement.shares}
    parts = by_container(request, placement)
    if not as_one:
        containers = {container.name: container for container in request.containers}
        for name, held in parts.items():
            own = containers[name]
            parts[name] = [part_of(request, own, share, node, gpus[share.gpu]) for share in held]
    return DeliveryRecord(
        pod=placement.uid,
        node=placement.node,
        dialect=request.dialect,
        cards=_cards(placement, gpus, most_permille),
        containers={
            name: DeliveredContainer(_by_gpu(own), env.get(name, {})) for name, own in parts.items()
        },
        isolation=request.shape.isolation,
    )


def part_of(
    request: PodRequest, container: ContainerRequest, share: Share, node: Node, gpu: Gpu
) -> Share:
    """Return the container's part of this share, which the pod holds: what the container itself
    requests of the GPU.

    A pod that ran out of memory before is charged more than it requests. The surplus goes to the
    container that requests most, as a limit at its request would end it again.
    """
    asked = container.asked
    if asked is None or asked.whole or asked.split:
        return share
    memory_mib = _mib_on(asked.memory, node, gpu)
    if memory_mib < share.memory_mib:
        memory = request.shape.gpu_requests[share.gpu_request].memory
        beyond_mib = share.memory_mib - _mib_on(memory, node, gpu)
        if beyond_mib > 0 and container is _hungriest(request, share.gpu_request, gpu):
            # Among containers that share a card that amount; else all of it: init containers have
            # ended.
            memory_mib += beyond_mib if request.shared_by_containers else share.memory_mib
    memory_mib, milli = min(memory_mib, share.memory_mib), min(asked.milli, share.milli)
    if (memory_mib, milli) == (share.memory_mib, share.milli):
        return share
    return Share(share.gpu_request, share.gpu, memory_mib, milli, share.uuid)


def _mib_on(memory: GpuMemoryRequest, node: Node, gpu: Gpu) -> int:
    """Return how many MiB of this GPU are requested; a request in MiB is the same on every GPU."""
    if memory.kind == "mib":
        return memory.value
    return memory.on_node(node.unit_mib).mib_on(gpu.memory_mib)


def _hungriest(request: PodRequest, gpu_request: int, gpu: Gpu) -> ContainerRequest | None:
    """Return the container that requests the most memory of this GPU request; an init container
    only if no other container uses it; None if no container does."""
    most, hungriest = (False, -1), None
    for container in request.containers:
        if container.asked is not None and gpu_request in container.gpu_requests:
            asks = not container.init, asked_on(gpu_request, container.asked, gpu).memory_mib
            if asks > most:
                most, hungriest = asks, container
    return hungriest


def _gpu_of(node: Node, share: Share) -> Gpu:
    """Return the share's GPU; if the node does not show it, one as large as the share."""
    gpus = node.gpus
    if share.gpu < len(gpus) and gpus[share.gpu].index == share.gpu:
        return gpus[share.gpu]
    missing = Gpu(share.gpu, share.memory_mib, uuid=share.uuid, milli=share.milli)
    return next((gpu for gpu in gpus if gpu.index == share.gpu), missing)


def _cards(
    placement: Placement, gpus: Mapping[int, Gpu], most_permille: int
) -> tuple[DeliveredCard, ...]:
    """Return the pod's charge on each GPU, summed over its GPU requests."""
    cards: dict[int, DeliveredCard] = {}
    for share in sorted(placement.shares, key=lambda share: share.gpu):
        gpu, before = gpus[share.gpu], cards.get(share.gpu)
        memory_mib, milli = share.memory_mib, share.milli
        if before is not None:
            memory_mib, milli = memory_mib + before.memory_mib, milli + before.milli
        # A pod may have been found to hold more than the GPU has; it was promised nevertheless.
        most_mib = max(gpu.memory_mib * most_permille // 1000, memory_mib)
        cards[share.gpu] = DeliveredCard(
            share.gpu, share.uuid, memory_mib, milli, most_mib, max(gpu.milli, milli)
        )
    return tuple(cards.values())


def _by_gpu(shares: Sequence[Share]) -> tuple[DeliveredShare, ...]:
    """Return one share per GPU, in the order in which the container sees the GPUs."""
    parts: dict[int, DeliveredShare] = {}
    for share in shares:
        memory_mib, milli, before = share.memory_mib, share.milli, parts.get(share.gpu)
        if before is not None:
            memory_mib, milli = memory_mib + before.memory_mib, milli + before.milli
        parts[share.gpu] = DeliveredShare(share.gpu, share.uuid, memory_mib, milli)
    return tuple(parts.values())


def find(node: Node, identity: str) -> Gpu | None:
    """Return the GPU with this UUID or index on the node; None if there is none."""
    for gpu in node.gpus:
        if identity and identity in (gpu.uuid, str(gpu.index)):
            return gpu
    return None


def identity(share: Share) -> str:
    """Return the GPU's name for the NVIDIA runtime: its UUID, or its index if unknown."""
    return share.uuid or str(share.gpu)


def from_gpus(
    request: PodRequest, node: Node, gpus: Mapping[str, Sequence[str]]
) -> Placement | None:
    """Return the placement in which each container (by name) has these GPUs, by index or UUID.

    None if a GPU request's GPUs are not all named, or the node lacks one of them.
    """
    shares_of: dict[int, list[Share]] = {}
    # Main containers first: an init container may show fewer GPUs than the GPU request it borrows.
    for container in sorted(request.containers, key=lambda c: c.init):
        indexes, start = gpus.get(container.name, ()), 0
        for index in container.gpu_requests:
            gpu_request = request.shape.gpu_requests[index]
            part, start = indexes[start : start + gpu_request.count], start + gpu_request.count
            cards = [find(node, name) for name in part]
            if len(part) == gpu_request.count and index not in shares_of and not gpu_request.split:
                shares_of[index] = [
                    share_on(index, gpu_request, gpu) for gpu in cards if gpu is not None
                ]
    if any(len(shares_of.get(i, ())) < c.count for i, c in enumerate(request.shape.gpu_requests)):
        return None
    return placement_of(request, node, [s for i in sorted(shares_of) for s in shares_of[i]])


def encode(placement: Placement) -> str:
    """Return the value of `weft.dev/placement`: pod, node, [request, GPU, MiB, milli, UUID] per
    share, and what the pod says of itself."""
    shares = [[s.gpu_request, s.gpu, s.memory_mib, s.milli, s.uuid] for s in placement.shares]
    says = msgspec.to_builtins(said_by(placement))
    value = {"pod": placement.uid, "node": placement.node, "shares": shares, "says": says}
    return json.dumps(value, separators=(",", ":"))


def said_in(text: str) -> SaidByPod | None:
    """Return what the pod says about itself in a value of `weft.dev/placement`; None if the value
    has no such facts, as with older versions of Weft."""
    try:
        return msgspec.convert(json.loads(text)["says"], SaidByPod)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def said_by(placement: Placement) -> SaidByPod:
    """Return what the pod says about itself, as its placement keeps it."""
    return SaidByPod(*(getattr(placement, name) for name in _KEPT))


def saying(placement: Placement, said: SaidByPod) -> Placement:
    """Return the placement with these facts about the pod instead of its own."""
    return placement if said_by(placement) == said else replace(placement, **_words(said))


def _words(said: SaidByPod) -> dict[str, Any]:
    return {name: getattr(said, name) for name in _KEPT}


def subject_of(text: str) -> tuple[str, str] | None:
    """Return the pod (UID) and the node in a value of `weft.dev/placement`; None if it cannot be
    read."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the latter: nested too deeply
        return None
    if not isinstance(value, dict):
        return None
    return str(value.get("pod")), str(value.get("node"))


def decode(text: str, request: PodRequest | None = None) -> tuple[Share, ...] | None:
    """Return the shares in a value of `weft.dev/placement`, whether or not the node has their GPUs;
    None if the value is damaged.

    With a `request`, a share for a GPU request that the pod does not have counts as damage.
    """
    asked = _MOST_REQUESTS if request is None else len(request.shape.gpu_requests)
    try:
        rows = json.loads(text)["shares"]
        if len(rows) > asked * _MOST_SHARES:
            return None
        shares = tuple(Share(*_checked(row, asked)) for row in rows)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    distinct = {(share.gpu_request, share.gpu) for share in shares}
    return shares if len(distinct) == len(shares) else None


def _checked(row: list[object], asked: int) -> tuple[int, int, int, int, str]:
    gpu_request, gpu, memory_mib, milli, uuid = row
    numbers = [n for n in (gpu_request, gpu, memory_mib, milli) if isinstance(n, int) and n >= 0]
    if len(numbers) != 4 or not isinstance(uuid, str):
        raise ValueError(row)
    if max(numbers[1:3]) > MOST_GPU_MIB or numbers[3] > MOST_GPU_MILLI or len(uuid) > MOST_LETTERS:
        raise ValueError(row)
    uuid.encode()  # half a surrogate pair raises ValueError here instead of where it is written
    if numbers[0] >= asked:
        raise ValueError(row)
    return numbers[0], numbers[1], numbers[2], numbers[3], uuid
