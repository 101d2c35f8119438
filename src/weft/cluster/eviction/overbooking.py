"""GPUs on which more is held than they have, and whose pod came too late. Pure.

The ledger never books beyond a GPU's size, but it charges facts: a pod that someone else bound, or
one that a paused Weft bound after another had taken over. Who has to go is decided from API objects
alone, so that every Weft, also one that has just started, picks the same pod:

    1. when it was bound: the PodScheduled condition's time, which the API server writes at the
       Binding, in whole seconds. (When it was *decided* would say the opposite: the decision that
       slipped through a pause is the older one, and landed later.)
    2. in one second: the higher term (`weft.dev/term`) stays; a lower one had lost the lease.
    3. then by UID: arbitrary, but everybody's answer.

In this order each pod stays if it fits beside those that stay: what a careful API server would
have answered, had it known GPUs. So never more goes than must.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from weft.core.ledger import Ledger
from weft.model import Gpu, Node, Share

"""Annotation of pods that Weft bound: the number of the leader's term that decided."""


class Overbooked(msgspec.Struct, frozen=True, gc=False):
    """A GPU that holds more than it has: by how much, and the UIDs of its pods.

    `split` is a card that is held together with a MIG instance of it. `certain`: all its pods are
    known to be there, with what is charged for them; else it is the most that there may be.
    """

    node: str
    gpu: int
    memory_over_mib: int
    milli_over: int
    holders: tuple[str, ...]
    split: bool = False
    certain: bool = True

    def __str__(self) -> str:
        parts = []
        if self.memory_over_mib > 0:
            parts.append(f"{self.memory_over_mib:,} MiB")
        if self.milli_over > 0:
            parts.append(f"{self.milli_over:,} thousandths of its cores")
        if self.split:
            parts.append("a MIG instance beside its card")
        holds = "holds" if self.certain else "may hold up to"
        return f"GPU {self.gpu} {holds} {' and '.join(parts)} more than it has"


class BoundHolder(msgspec.Struct, frozen=True, gc=False):
    """A pod that Weft placed: when and in which term it was bound, and what it holds."""

    uid: str
    shares: tuple[Share, ...]
    bound_at: str = ""
    term: int = 0


class LatecomerPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that does not fit beside those bound before it: where, and what is missing there."""

    uid: str
    gpu: int
    lacks_mib: int
    lacks_milli: int
    beside: tuple[str, ...]


def overbooked(
    ledger: Ledger, name: str, unsure: Callable[[str], bool] = lambda uid: False
) -> tuple[Overbooked, ...]:
    """The GPUs of this node that hold more than they have. `unsure` pods (UIDs) may hold less, or
    be elsewhere on the node."""
    table = ledger.table
    row = table.row_of.get(name)
    if row is None:
        return ()
    found = []
    for offset, gpu in enumerate(table.nodes[row].gpus):
        device = table.start[row] + offset
        pods = table.pods[device]
        if not pods:
            continue
        memory = table.memory_used[device] - _limit(gpu, max(ledger.limits))
        milli = table.milli_used[device] - gpu.milli
        parent = table.parents[device]
        split = parent >= 0 and bool(table.pods[parent])
        if memory > 0 or milli > 0 or split:
            holders = ledger.occupants(name, gpu.index)
            if split and gpu.parent is not None:
                holders += ledger.occupants(name, gpu.parent)
            over = max(0, memory), max(0, milli)
            certain = not any(map(unsure, holders))
            found.append(Overbooked(name, gpu.index, *over, tuple(holders), split, certain))
    return tuple(found)


def too_late(
    node: Node, holders: Iterable[BoundHolder], overcommit_permille: int = 1000
) -> list[LatecomerPod]:
    """The pods that do not fit beside those bound before them, in the order of their binding."""
    cards = {gpu.index: gpu for gpu in node.gpus}
    kept: dict[int, list[tuple[str, Share]]] = {}
    found = []
    for holder in sorted(holders, key=lambda one: (one.bound_at, -one.term, one.uid)):
        late = _does_not_fit(holder, cards, kept, overcommit_permille)
        if late is not None:
            found.append(late)
            continue
        for share in holder.shares:
            kept.setdefault(share.gpu, []).append((holder.uid, share))
    return found


def larger_than_its_card(node: Node, shares: Sequence[Share]) -> bool:
    """Whether one share alone is more than its card has: then the card is not what it was."""
    cards = {gpu.index: gpu for gpu in node.gpus}
    return any(
        share.gpu not in cards
        or share.memory_mib > cards[share.gpu].memory_mib
        or share.milli > cards[share.gpu].milli
        for share in shares
    )


def _does_not_fit(
    holder: BoundHolder,
    cards: dict[int, Gpu],
    kept: dict[int, list[tuple[str, Share]]],
    permille: int,
) -> LatecomerPod | None:
    for index in sorted({share.gpu for share in holder.shares}):
        gpu = cards.get(index)
        if gpu is None:
            continue  # a GPU that is gone is nobody's second booking
        there = kept.get(index, [])
        shares = [share for _, share in there] + [s for s in holder.shares if s.gpu == index]
        memory = sum(share.memory_mib for share in shares) - _limit(gpu, permille)
        milli = sum(share.milli for share in shares) - gpu.milli
        relatives = [
            uid
            for other in cards.values()
            if other.index == gpu.parent or other.parent == gpu.index
            for uid, _ in kept.get(other.index, [])
        ]
        beside = [uid for uid, _ in there] + relatives
        if beside and (memory > 0 or milli > 0 or relatives):
            uids = tuple(dict.fromkeys(beside))
            return LatecomerPod(holder.uid, index, max(0, memory), max(0, milli), uids)
    return None


def _limit(gpu: Gpu, permille: int) -> int:
    return gpu.memory_mib * permille // 1000
