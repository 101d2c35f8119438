"""Picks the pod to evict from a GPU that Weft assigned twice. A pure function of its arguments. The
ledger never books beyond a GPU's size, but it charges facts: a pod that another scheduler bound, or
one that a paused Weft bound after another had taken over. The choice follows from API objects
alone, so that every Weft process, also a new one, picks the same pod:

    1. when it was bound: the PodScheduled condition's time, which the API server writes at the
       Binding, in whole seconds. (When it was *decided* would say the opposite: the decision that
       slipped through a pause is the older one, and landed later.)
    2. in one second: the higher term (`weft.dev/term`) stays; a lower one had lost the lease.
    3. then by UID: arbitrary, but everybody's answer.

In this order each pod stays if it fits with those that stay, as if the API server had checked GPUs
at each Binding. So no more pods are evicted than necessary. Only pods whose placement Weft wrote,
unchanged since their Binding, are considered. A node that became smaller is no double booking, and
pods that have run for long stay.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from weft.core.ledger import Holding, Ledger
from weft.model import Gpu, Node, Share

RECENT_NS = 600 * 1_000_000_000
"""Only a pod bound so recently is evicted. A double booking is seen within seconds, or by the next
leader; what shows up later was rather made by nodes that changed."""


Excuse = Literal["", "shrunk-node", "larger-card", "undated", "long-ago"]
"""Why a pod that was booked twice stays all the same; "": it goes."""


class OverbookedGpu(msgspec.Struct, frozen=True, gc=False):
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


class PodBinding(msgspec.Struct, frozen=True, gc=False):
    """The binding of a pod that Weft placed, as the API has it now.

    `bound_ns` is when, nanoseconds since 1970 (0: nobody says), and `held_ns` how long ago that
    was; `term` is the leader's that decided.
    """

    uid: str
    bound_ns: int = 0
    held_ns: int = 0
    term: int = 0


class DoubleBooking(msgspec.Struct, frozen=True, gc=False):
    """The reason to evict: so much of the GPU is missing `beside` the pods (UIDs) bound before."""

    gpu: int
    beside: tuple[str, ...]
    lacks_mib: int = 0
    lacks_milli: int = 0
    card_mib: int = 0
    card_milli: int = 0


class DoubleBookedPod(NamedTuple):
    """A pod, bound `held_ns` ago, that does not fit beside those bound before it; `excuse` says why
    it stays anyway."""

    held: Holding
    why: DoubleBooking
    excuse: Excuse = ""
    held_ns: int = 0


def overbooked_gpus(
    ledger: Ledger, name: str, unsure: Callable[[str], bool]
) -> tuple[OverbookedGpu, ...]:
    """Return the GPUs of this node that hold more than they have. `unsure` pods (UIDs) may hold
    less, or be elsewhere on the node."""
    table = ledger.table
    row = table.row_of.get(name)
    if row is None:
        return ()
    overbooked = []
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
            certain = not any(map(unsure, holders))
            overbooked.append(
                OverbookedGpu(
                    name, gpu.index, max(0, memory), max(0, milli), tuple(holders), split, certain
                )
            )
    return tuple(overbooked)


def double_booked(
    ledger: Ledger, name: str, bindings: Iterable[PodBinding]
) -> list[DoubleBookedPod]:
    """Return those of a node's pods that do not fit beside those bound before them, in that
    order."""
    row = ledger.table.row_of.get(name)
    if row is None:
        return []
    cards = {gpu.index: gpu for gpu in ledger.table.nodes[row].gpus}
    permille = max(ledger.limits)
    staying: dict[int, list[tuple[str, Share]]] = {}
    late = []
    for binding in sorted(bindings, key=lambda bound: (bound.bound_ns, -bound.term, bound.uid)):
        holding = ledger.holdings.get(binding.uid)
        if holding is None or holding.placement.node != name:
            continue
        conflict = _does_not_fit(holding.placement.shares, cards, staying, permille)
        if conflict is not None:
            late.append(DoubleBookedPod(holding, conflict))
            continue
        for share in holding.placement.shares:
            staying.setdefault(share.gpu, []).append((binding.uid, share))
    return late


def first_overbooked(
    ledger: Ledger, name: str, bindings: Iterable[PodBinding], *, shrunk: bool
) -> DoubleBookedPod | None:
    """Return the first of a node's pods that does not fit beside those bound before it, if there is
    one.

    `shrunk`: the node has shown larger or more GPUs than now.
    """
    by_uid = {binding.uid: binding for binding in bindings}
    late = double_booked(ledger, name, by_uid.values())
    if not late:
        return None
    first = late[0]
    holdings = (ledger.holdings[uid] for uid in (first.held.placement.uid, *first.why.beside))
    binding = by_uid[first.held.placement.uid]
    excuse: Excuse = ""
    if shrunk:
        excuse = "shrunk-node"
    elif any(_larger_than_its_card(ledger, holding) for holding in holdings):
        excuse = "larger-card"
    elif not binding.bound_ns:
        excuse = "undated"
    elif binding.held_ns > RECENT_NS:
        excuse = "long-ago"
    return first._replace(excuse=excuse, held_ns=binding.held_ns)


def _larger_than_its_card(ledger: Ledger, holding: Holding) -> bool:
    """Return True if one share alone is more than its card has: then the card is not what it
    was."""
    node: Node = ledger.table.nodes[ledger.table.row_of[holding.placement.node]]
    cards = {gpu.index: gpu for gpu in node.gpus}
    return any(
        share.gpu not in cards
        or share.memory_mib > cards[share.gpu].memory_mib
        or share.milli > cards[share.gpu].milli
        for share in holding.placement.shares
    )


def _does_not_fit(
    shares: Sequence[Share],
    cards: dict[int, Gpu],
    staying: dict[int, list[tuple[str, Share]]],
    permille: int,
) -> DoubleBooking | None:
    for index in sorted({share.gpu for share in shares}):
        gpu = cards.get(index)
        if gpu is None:
            continue  # a GPU that is gone is nobody's second booking
        residents = staying.get(index, [])
        together = [share for _, share in residents] + [s for s in shares if s.gpu == index]
        memory = sum(share.memory_mib for share in together) - _limit(gpu, permille)
        milli = sum(share.milli for share in together) - gpu.milli
        relatives = [
            uid
            for other in cards.values()
            if other.index == gpu.parent or other.parent == gpu.index
            for uid, _ in staying.get(other.index, [])
        ]
        beside = tuple(dict.fromkeys([uid for uid, _ in residents] + relatives))
        if beside and (memory > 0 or milli > 0 or relatives):
            return DoubleBooking(
                index, beside, max(0, memory), max(0, milli), gpu.memory_mib, gpu.milli
            )
    return None


def _limit(gpu: Gpu, permille: int) -> int:
    return gpu.memory_mib * permille // 1000
