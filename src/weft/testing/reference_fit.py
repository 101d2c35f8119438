"""Where does a shape fit? Every assignment of every claim, tried one by one.

Loops over plain values, no cleverness: the answer that `weft.core.framework` must give, only
slower.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from weft.model import GpuRequest, Shape
from weft.testing.reference import GpuAccount, ReferenceAccount, ReferenceLedger, related

Assignment = tuple[tuple[int, ...], ...]
"""For each claim that is not `split`, the indexes of its GPUs."""


def fitting_nodes(ledger: ReferenceLedger, shape: Shape) -> list[str]:
    """Names of the nodes on which a pod of this shape can be placed now, sorted."""
    return sorted(name for name in ledger.nodes if fits_on(ledger.account(name), shape))


def fits_on(account: ReferenceAccount, shape: Shape) -> bool:
    """Whether a pod of this shape can be placed on this node now."""
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
    if not shape.claims:
        return bool(node.gpus) or not shape.needs_gpu_node
    return next(assignments(account, shape), None) is not None


def assignments(account: ReferenceAccount, shape: Shape) -> Iterator[Assignment]:
    """Every way to give the claims distinct GPUs each, that also leaves room for `split` ones."""
    good = _accepted(account, shape)
    fixed = [claim for claim in shape.claims if not claim.split]
    options = [list(itertools.combinations(good, claim.count)) for claim in fixed]
    for chosen in itertools.product(*options):
        if _holds(account, fixed, chosen) and _splits_fit(account, shape, fixed, chosen):
            yield chosen


def fewest_gpus(account: ReferenceAccount, shape: Shape) -> int | None:
    """On how few GPUs the shape's only claim, a `split` one, can be spread; None: it cannot."""
    (claim,) = shape.claims
    good = _accepted(account, shape)
    free = {index: account.gpus[index].memory_free for index in good}
    return _least_spread(account, claim, [i for i in good if _has_milli(account, claim, i)], free)


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
    account: ReferenceAccount, claims: Sequence[GpuRequest], chosen: Sequence[Sequence[int]]
) -> bool:
    memory: Counter[int] = Counter()
    milli: Counter[int] = Counter()
    for claim, indexes in zip(claims, chosen, strict=True):
        for index in indexes:
            entry = account.gpus[index]
            if not _takes(entry, claim):
                return False
            memory[index] += charged_mib(entry, claim)
            milli[index] += entry.gpu.milli if claim.whole else claim.milli
    return (
        _apart(account, memory)
        and all(memory[index] <= account.gpus[index].memory_free for index in memory)
        and all(milli[index] <= account.gpus[index].milli_free for index in milli)
        and _headroom_left(account, claims, chosen, memory)
    )


def charged_mib(entry: GpuAccount, claim: GpuRequest) -> int:
    """What a claim takes of this card."""
    return entry.gpu.memory_mib if claim.whole else _asked_mib(entry, claim)


def _asked_mib(entry: GpuAccount, claim: GpuRequest) -> int:
    return claim.memory.on_node(entry.unit_mib).mib_on(entry.gpu.memory_mib)


def _takes(entry: GpuAccount, claim: GpuRequest) -> bool:
    """A card must be as large as is asked of it (overcommit or not), and idle for `whole`."""
    asked = max(charged_mib(entry, claim), _asked_mib(entry, claim))
    large = asked + claim.headroom_mib <= entry.gpu.memory_mib
    return large and (entry.idle or not claim.whole)


def _headroom_left(
    account: ReferenceAccount,
    claims: Sequence[GpuRequest],
    chosen: Sequence[Sequence[int]],
    memory: Counter[int],
) -> bool:
    return all(
        memory[index] + claim.headroom_mib <= account.gpus[index].memory_free
        for claim, indexes in zip(claims, chosen, strict=True)
        for index in indexes
    )


def _apart(account: ReferenceAccount, indexes: Counter[int]) -> bool:
    """No card together with a MIG instance cut from it."""
    held = [account.gpus[index].gpu for index in indexes]
    return not any(related(one, other) for one in held for other in held)


def _splits_fit(
    account: ReferenceAccount,
    shape: Shape,
    fixed: Sequence[GpuRequest],
    chosen: Sequence[Sequence[int]],
) -> bool:
    """At most one claim is `split`: it gets what the others leave."""
    splits = [claim for claim in shape.claims if claim.split]
    if not splits:
        return True
    (split,) = splits
    free = {index: account.gpus[index].memory_free for index in account.gpus}
    taken: set[int] = set()
    for claim, indexes in zip(fixed, chosen, strict=True):
        for index in indexes:
            free[index] -= charged_mib(account.gpus[index], claim)
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
        1000 if claim.whole else claim.milli
        for claim, indexes in zip(fixed, chosen, strict=True)
        if index in indexes
    )


def _has_milli(account: ReferenceAccount, claim: GpuRequest, index: int, taken: int = 0) -> bool:
    return account.gpus[index].milli_free - taken >= claim.milli


def _least_spread(
    account: ReferenceAccount, claim: GpuRequest, good: Sequence[int], free: dict[int, int]
) -> int | None:
    for count in range(max(1, claim.count), len(good) + 1):
        for some in itertools.combinations(good, count):
            room = sum(free[index] for index in some)
            if room >= claim.memory.value and _apart(account, Counter(some)):
                return count
    return None
