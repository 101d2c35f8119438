"""Turns what containers ask into the pod's GPU requests, and says which each container uses.

Main containers and sidecars (init containers that restart Always) run together: each holds its own
GPU request. An init container ends before the main containers start, so it borrows their GPU
requests, and these grow to whatever it needs beyond them: the pod holds the larger of the two,
never the sum. A container uses the first `asked.count` GPUs of its GPU requests, in their order.

Invariant: at no moment of the pod's life do the containers that run use more of a GPU than the
GPU requests hold. Memory of different kinds (MiB beside a percentage) can't be compared before the
card is known; such an init container holds a GPU request of its own, which is more than needed,
never less.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from weft.dialects.resources import ContainerSlot, Role, names_any, peak
from weft.model import BadInputError, ContainerRequest, GpuMemoryRequest, GpuRequest
from weft.model.ceilings import MOST_ASKING
from weft.model.request import WHOLE_CARD

FULL_MILLI = 1000


class ContainerRequests(NamedTuple):
    """The pod's GPU requests, and each container's use of them."""

    gpu_requests: tuple[GpuRequest, ...] = ()
    containers: tuple[ContainerRequest, ...] = ()


def whole_cards(count: int) -> GpuRequest:
    """`count` idle cards, all of each."""
    return GpuRequest(count=count, memory=WHOLE_CARD, milli=FULL_MILLI, whole=True)


def asks_of(
    slots: Sequence[ContainerSlot],
    names: Iterable[str],
    ask: Callable[[ContainerSlot], GpuRequest | None],
) -> list[GpuRequest | None]:
    """Each container's request as `ask` reads it; None where it names none of these resources."""
    wanted = frozenset(names)
    asking = [names_any(slot.container, wanted) for slot in slots]
    _check_asking(sum(asking))
    return [ask(slot) if yes else None for slot, yes in zip(slots, asking, strict=True)]


def _check_asking(asking: int) -> None:
    if asking > MOST_ASKING:
        most = f"Weft places {MOST_ASKING} of a pod at most: make several pods of it"
        raise BadInputError("spec.containers", f"{asking:,} containers ask for GPUs; {most}")


def per_container(
    slots: Sequence[ContainerSlot], asks: Sequence[GpuRequest | None]
) -> ContainerRequests:
    """Every container on GPUs of its own (Elastic, HAMi, NVIDIA, Weft): one ask per slot.

    GPU requests come in this order: main containers as written, sidecars, then what init containers
    need beyond the main containers.
    """
    _check_asking(sum(ask is not None for ask in asks))
    gpu_requests: list[GpuRequest] = []
    uses: list[tuple[int, ...]] = [()] * len(slots)
    for role in ("main", "sidecar"):
        for i, (slot, ask) in enumerate(zip(slots, asks, strict=True)):
            if slot.role == role and ask is not None:
                uses[i] = (len(gpu_requests),)
                gpu_requests.append(ask)
    # What init containers may borrow: the main containers' GPU requests, and each other's.
    pool = [uses[i][0] for i, slot in enumerate(slots) if slot.role == "main" and uses[i]]
    for i, (slot, ask) in enumerate(zip(slots, asks, strict=True)):
        if slot.role == "init" and ask is not None:
            uses[i] = _borrow(gpu_requests, pool, ask)
    return ContainerRequests(tuple(gpu_requests), _requests(slots, asks, uses))


def one_card(
    slots: Sequence[ContainerSlot], asks: Sequence[GpuRequest | None], most_milli: int = FULL_MILLI
) -> ContainerRequests:
    """One card serves the whole pod (gpushare, Alnair): a single GPU request for the pod's peak.

    Asks must be of one card and one kind of memory; cores are held at `most_milli`.
    """
    requested = [ask for ask in asks if ask is not None]
    if not requested:
        return ContainerRequests((), _requests(slots, asks, [()] * len(slots)))
    memory: list[tuple[Role, int]] = []
    milli: list[tuple[Role, int]] = []
    for slot, ask in zip(slots, asks, strict=True):
        memory.append((slot.role, ask.memory.value if ask else 0))
        milli.append((slot.role, ask.milli if ask else 0))
    # The kind is that of a container which asks memory: one that asks cores only has none.
    kind = max((ask.memory for ask in requested), key=lambda m: m.value)
    gpu_request = GpuRequest(
        memory=GpuMemoryRequest(kind.kind, peak(memory), kind.unit_mib, kind.half_up),
        milli=min(peak(milli), most_milli),
    )
    uses = [(0,) if ask else () for ask in asks]
    return ContainerRequests((gpu_request,), _requests(slots, asks, uses))


def pod_wide(
    slots: Sequence[ContainerSlot], gpu_requests: Sequence[GpuRequest]
) -> ContainerRequests:
    """The pod asks as one (Genius, Kube-Knots): every container uses all the GPU requests."""
    every = tuple(range(len(gpu_requests)))
    shared = gpu_requests[0] if gpu_requests else None
    uses = [every] * len(slots)
    return ContainerRequests(tuple(gpu_requests), _requests(slots, [shared] * len(slots), uses))


def _requests(
    slots: Sequence[ContainerSlot],
    asks: Sequence[GpuRequest | None],
    uses: Sequence[tuple[int, ...]],
) -> tuple[ContainerRequest, ...]:
    return tuple(
        ContainerRequest(slot.container.name, ask, use, init=slot.role == "init")
        for slot, ask, use in zip(slots, asks, uses, strict=True)
    )


def _borrow(gpu_requests: list[GpuRequest], pool: list[int], ask: GpuRequest) -> tuple[int, ...]:
    """GPU requests that serve this init container; grown or added to where they are too small."""
    order = sorted(pool, key=lambda i: _size(gpu_requests[i]), reverse=True)
    taken, missing = _take_whole(gpu_requests, order, ask.count)
    if missing <= 0:
        return taken  # idle cards, distinct from one another: anything fits on them
    if ask.whole:
        return _become_whole(gpu_requests, pool, order, taken, missing)
    fits: list[tuple[int, GpuRequest]] = []
    for i in order:
        together = _larger(gpu_requests[i], ask)
        if together == gpu_requests[i]:
            return (i,)
        if together is not None:
            fits.append((i, together))
    if fits:
        index, gpu_requests[index] = fits[0]
        return (index,)
    return (_add(gpu_requests, pool, ask),)


def _take_whole(
    gpu_requests: list[GpuRequest], order: list[int], count: int
) -> tuple[tuple[int, ...], int]:
    taken: list[int] = []
    for i in order:
        if gpu_requests[i].whole and count > 0:
            taken.append(i)
            count -= gpu_requests[i].count
    return tuple(taken), count


def _become_whole(
    gpu_requests: list[GpuRequest],
    pool: list[int],
    order: list[int],
    taken: tuple[int, ...],
    missing: int,
) -> tuple[int, ...]:
    used = list(taken)
    for i in order:
        if not gpu_requests[i].whole and gpu_requests[i].count <= missing:
            gpu_requests[i] = whole_cards(gpu_requests[i].count)
            used.append(i)
            missing -= gpu_requests[i].count
    if missing > 0:
        used.append(_add(gpu_requests, pool, whole_cards(missing)))
    return tuple(used)


def _add(gpu_requests: list[GpuRequest], pool: list[int], gpu_request: GpuRequest) -> int:
    gpu_requests.append(gpu_request)
    pool.append(len(gpu_requests) - 1)
    return pool[-1]


def _size(gpu_request: GpuRequest) -> tuple[bool, bool, int, int, int]:
    memory, milli, count = gpu_request.memory, gpu_request.milli, gpu_request.count
    return gpu_request.whole, memory.kind == "whole", memory.value, milli, count


def _larger(a: GpuRequest, b: GpuRequest) -> GpuRequest | None:
    """The least shared GPU request that serves either of the two; None where that is undecided."""
    memory = _larger_memory(a.memory, b.memory)
    if memory is None or a.whole or b.whole:
        return None
    return replace(a, count=max(a.count, b.count), memory=memory, milli=max(a.milli, b.milli))


def _larger_memory(a: GpuMemoryRequest, b: GpuMemoryRequest) -> GpuMemoryRequest | None:
    if a.kind == "none":
        return b
    if b.kind == "none" or a == b:
        return a
    if "whole" in (a.kind, b.kind):
        return WHOLE_CARD
    if replace(a, value=0) != replace(b, value=0):
        return None
    return a if a.value >= b.value else b
