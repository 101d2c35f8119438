"""Finds where a shape fits: every assignment of every GPU request, tried one by one.

Loops over plain values, no cleverness: the answer that `weft.core.framework` must give, only
slower.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from fakes.reference import GpuAccount, ReferenceAccount, ReferenceLedger, related
from weft.model import GpuRequest, Shape

Assignment = tuple[tuple[int, ...], ...]
"""For each GPU request that is not `split`, the indexes of its GPUs."""


def fitting_nodes(ledger: ReferenceLedger, shape: Shape) -> list[str]:
    """Names of the nodes on which a pod of this shape can be placed now, sorted."""
    return sorted(name for name in ledger.nodes if fits_on(ledger.account(name), shape))


def fits_on(account: ReferenceAccount, shape: Shape) -> bool:
    """True if a pod of this shape can be placed on this node now."""
    node = account.node
    if not node.schedulable or shape.node_name not in ("", node.name):
        return False
    if shape.unit_mib and node.unit_mib not in (0, shape.unit_mib):
        return False
    cpu, memory = shape.cpu_milli, shape.memory_mib  # nothing may always be asked
    if (cpu and account.cpu_free < cpu) or (memory and account.memory_free < memory):
        return False
    if any(n and account.extended_free.get(name, 0) < n for name, n in shape.extended):
        return False
    if not shape.gpu_requests:
        return bool(node.gpus) or not shape.needs_gpu_node
    return node.isolates(shape.isolation) and next(assignments(account, shape), None) is not None


def assignments(account: ReferenceAccount, shape: Shape) -> Iterator[Assignment]:
    """Every way to give the requests distinct GPUs each, that leaves enough for `split` ones."""
    good = _accepted(account, shape)
    fixed = [gpu_request for gpu_request in shape.gpu_requests if not gpu_request.split]
    options = [list(itertools.combinations(good, gpu_request.count)) for gpu_request in fixed]
    for chosen in itertools.product(*options):
        if _holds(account, fixed, chosen) and _splits_fit(account, shape, fixed, chosen):
            yield chosen


def fewest_gpus(account: ReferenceAccount, shape: Shape) -> int | None:
    """The fewest GPUs over which the shape's only request, a `split` one, spreads; None: none."""
    (gpu_request,) = shape.gpu_requests
    good = _accepted(account, shape)
    free = {index: account.gpus[index].memory_free for index in good}
    return _least_spread(
        account, gpu_request, [i for i in good if _has_milli(account, gpu_request, i)], free
    )


def _accepted(account: ReferenceAccount, shape: Shape) -> list[int]:
    """GPUs in service, not blocked by a MIG relative, of an accepted model and UUID."""
    rule = shape.devices
    return [
        index
        for index, entry in account.gpus.items()
        if entry.usable
        and rule.accepts_model(entry.gpu.model)
        and rule.accepts_uuid(entry.gpu.uuid)
    ]


def _holds(
    account: ReferenceAccount, gpu_requests: Sequence[GpuRequest], chosen: Sequence[Sequence[int]]
) -> bool:
    memory: Counter[int] = Counter()
    milli: Counter[int] = Counter()
    for gpu_request, indexes in zip(gpu_requests, chosen, strict=True):
        for index in indexes:
            entry = account.gpus[index]
            if not _takes(entry, gpu_request):
                return False
            memory[index] += charged_mib(entry, gpu_request)
            milli[index] += entry.gpu.milli if gpu_request.whole else gpu_request.milli
    return (
        _apart(account, memory)
        and all(memory[index] <= account.gpus[index].memory_free for index in memory)
        and all(milli[index] <= account.gpus[index].milli_free for index in milli)
        and _headroom_left(account, gpu_requests, chosen, memory)
    )


def charged_mib(entry: GpuAccount, gpu_request: GpuRequest) -> int:
    """A GPU request's part of this card."""
    return entry.gpu.memory_mib if gpu_request.whole else _asked_mib(entry, gpu_request)


def _asked_mib(entry: GpuAccount, gpu_request: GpuRequest) -> int:
    return gpu_request.memory.on_node(entry.unit_mib).mib_on(entry.gpu.memory_mib)


def _takes(entry: GpuAccount, gpu_request: GpuRequest) -> bool:
    """A card must be as large as is asked of it (overcommit or not), and idle for `whole`."""
    needed_mib = max(charged_mib(entry, gpu_request), _asked_mib(entry, gpu_request))
    large = needed_mib + gpu_request.headroom_mib <= entry.gpu.memory_mib
    return large and (entry.idle or not gpu_request.whole)


def _headroom_left(
    account: ReferenceAccount,
    gpu_requests: Sequence[GpuRequest],
    chosen: Sequence[Sequence[int]],
    memory: Counter[int],
) -> bool:
    return all(
        memory[index] + gpu_request.headroom_mib <= account.gpus[index].memory_free
        for gpu_request, indexes in zip(gpu_requests, chosen, strict=True)
        for index in indexes
    )


def _apart(account: ReferenceAccount, indexes: Counter[int]) -> bool:
    """No card together with a MIG instance cut from it."""
    held = [account.gpus[index].gpu for index in indexes]
    return not any(related(first, second) for first in held for second in held)


def _splits_fit(
    account: ReferenceAccount,
    shape: Shape,
    fixed: Sequence[GpuRequest],
    chosen: Sequence[Sequence[int]],
) -> bool:
    """At most one GPU request is `split`: it gets what the others leave."""
    splits = [gpu_request for gpu_request in shape.gpu_requests if gpu_request.split]
    if not splits:
        return True
    (split,) = splits
    free = {index: account.gpus[index].memory_free for index in account.gpus}
    taken: set[int] = set()
    for gpu_request, indexes in zip(fixed, chosen, strict=True):
        for index in indexes:
            free[index] -= charged_mib(account.gpus[index], gpu_request)
            taken.add(index)
    good = [
        index
        for index in _accepted(account, shape)
        if _has_milli(account, split, index, _milli_of(fixed, chosen, index))
        and not any(related(account.gpus[index].gpu, account.gpus[t].gpu) for t in taken)
    ]
    return _least_spread(account, split, good, free) is not None


def _milli_of(fixed: Sequence[GpuRequest], chosen: Sequence[Sequence[int]], index: int) -> int:
    return sum(
        1000 if gpu_request.whole else gpu_request.milli
        for gpu_request, indexes in zip(fixed, chosen, strict=True)
        if index in indexes
    )


def _has_milli(
    account: ReferenceAccount, gpu_request: GpuRequest, index: int, taken: int = 0
) -> bool:
    return account.gpus[index].milli_free - taken >= gpu_request.milli


def _least_spread(
    account: ReferenceAccount, gpu_request: GpuRequest, good: Sequence[int], free: dict[int, int]
) -> int | None:
    for count in range(max(1, gpu_request.count), len(good) + 1):
        for some in itertools.combinations(good, count):
            room = sum(free[index] for index in some)
            if room >= gpu_request.memory.value and _apart(account, Counter(some)):
                return count
    return None
