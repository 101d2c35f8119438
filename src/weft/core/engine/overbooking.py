"""Picks the pod to evict from a GPU that Weft assigned twice. A pure function of its arguments. The
ledger never reserves more than a GPU has, but it charges every bound pod: also one that another
scheduler bound, or that a paused Weft process bound after another one had taken over. The choice
follows from API objects alone, so that every Weft process, also a new one, picks the same pod:

    1. when it was bound: the PodScheduled condition's time, which the API server writes at the
       Binding, in whole seconds. (The time of the decision would be misleading: a decision that a
       pause delayed is older, but was bound later.)
    2. within one second: the higher term (`weft.dev/term`); a leader of a lower one had lost the
       Lease.
    3. then by UID: arbitrary, but the same in every process.

In this order each pod stays if it fits with the pods that stay, as if the API server had checked
GPUs at each Binding. So no more pods are evicted than necessary. Only pods whose placement Weft
wrote, unchanged since their Binding, are considered. Pods on a node that became smaller, and pods
that have run for a long time, are not evicted.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from weft.core.ledger import Holding, Ledger
from weft.model import Gpu, Node, Share

RECENT_NS = 600 * 1_000_000_000
"""Only a pod bound this recently is evicted. A double booking is noticed within seconds, or by the
next leader; one that shows up later is more likely due to nodes that changed."""


Excuse = Literal["", "shrunk-node", "larger-card", "undated", "long-ago"]
"""The reason why a double-booked pod is not evicted; "" if it is."""


class OverbookedGpu(msgspec.Struct, frozen=True, gc=False):
    """A GPU whose pods hold more than it has: by how much, and the UIDs of these pods.

    `split`: pods hold both the card and a MIG instance of it. `certain`: all its pods are known to
    hold what they are charged; otherwise the excess is the most that it may be.
    """

    node: str
    gpu: int
    memory_over_mib: int
    milli_over: int
    holders: tuple[str, ...]
    split: bool = False
    certain: bool = True

    def __str__(self) -> str:
        over, parts = [], []
        if self.memory_over_mib > 0:
            over.append(f"{self.memory_over_mib:,} MiB")
        if self.milli_over > 0:
            over.append(f"{self.milli_over:,} thousandths of its cores")
        if over:
            holds = "holds" if self.certain else "may hold up to"
            parts.append(f"{holds} {' and '.join(over)} more than it has")
        if self.split:
            held = "is held" if self.certain else "may be held"
            parts.append(f"{held} together with the card of which it is a MIG instance")
        return f"GPU {self.gpu} {' and '.join(parts)}"


class PodBinding(msgspec.Struct, frozen=True, gc=False):
    """The binding of a pod that Weft placed, as the API has it now.

    `bound_ns` is the time of the binding, nanoseconds since 1970 (0: unknown), `held_ns` the time
    since then; `term` is the term of the leader that decided.
    """

    uid: str
    bound_ns: int = 0
    held_ns: int = 0
    term: int = 0


class DoubleBooking(msgspec.Struct, frozen=True, gc=False):
    """The reason to evict a pod: this much of the GPU is lacking for it `beside` the pods (UIDs)
    bound before it."""

    gpu: int
    beside: tuple[str, ...]
    lacks_mib: int = 0
    lacks_milli: int = 0
    card_mib: int = 0
    card_milli: int = 0


class DoubleBookedPod(NamedTuple):
    """A pod, bound `held_ns` ago, that does not fit beside the pods bound before it; `excuse` is
    the reason why it is nevertheless not evicted ("": it is evicted)."""

    held: Holding
    why: DoubleBooking
    excuse: Excuse = ""
    held_ns: int = 0


def overbooked_gpus(
    ledger: Ledger, name: str, unsure: Callable[[str], bool]
) -> tuple[OverbookedGpu, ...]:
    """Return the GPUs of this node that are charged more than they have. `unsure` pods (UIDs) may
    hold less, or be elsewhere on the node."""
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
    """Return the pods of a node that do not fit beside the pods bound before them, in the order of
    binding."""
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
    """Return the first of a node's pods that does not fit beside the pods bound before it; None if
    all fit.

    `shrunk`: the node had larger or more GPUs before.
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
    """Return True if one of the pod's shares is more than its GPU has, so that this is not the GPU
    that was assigned, or if that GPU is gone."""
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
            continue  # no double booking: the GPU is gone
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
