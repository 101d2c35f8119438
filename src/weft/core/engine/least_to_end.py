"""Finds the place for a waiting gang or pod for which the least running work has to end.

On each node the cheapest GPUs come first: a free GPU costs nothing, any other GPU what is held of
it, in thousandths; lacking CPU and memory cost their part of the node. The cheapest room for as
many pods as the gang needs is taken, in one topology domain if it requires one; among equals on
nodes with fewer GPUs, so that larger nodes stay whole. The engine then places the gang there, on
trial, without the pods that would have to end. If that fails (rules about other pods, unequal
shares), it is tried without any pods of these nodes, and then of twice as many nodes. If no nodes
have enough room when each pod counts as large as the largest, nodes with room for the smallest are
tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.core.engine import deciding, gang_search
from weft.core.engine.assessment import Assessment
from weft.core.engine.gangs import GangMembers
from weft.core.engine.queue import WaitingPod
from weft.core.framework.demand import Demand, Need
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Placement

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine

ROUNDS = 4
"""The number of regions to try, each with twice the room of the one before."""
MOST_ROOM = 512
"""The most pods for which room is counted on one GPU or node."""


class _Wanted(NamedTuple):
    """A request for room for `pods` pods.

    `most`: at least this many of the cheapest entries are returned (None: all). `waits_s`: the wait
    for each GPU, [D]."""

    pods: int
    most: int | None
    waits_s: Ints | None


class _Room(NamedTuple):
    """Room for one more pod per entry, the cheapest first: the node's row, the cost, and the GPUs
    (device rows) that have to be freed; [n], [n], and [n, GPUs of a pod]."""

    rows: Ints
    costs: Ints
    devices: Ints

    def at(self, chosen: Ints) -> _Room:
        return _Room(self.rows[chosen], self.costs[chosen], self.devices[chosen])


def find(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod] | None,
    nodes: Sequence[str],
    now_ns: int,
    waits_s: Ints | None = None,
) -> list[Placement] | None:
    """Find places for as many of the gang's pods as it needs, or for the pod: on these nodes if
    given and possible, else anywhere. None if there would be none even if all pods ended. If
    `waits_s` (the wait for each GPU, [D]) is given, whole GPUs that are free first are preferred,
    and among these the ones where the least has to end."""
    rows = [row for node in nodes if (row := engine.ledger.table.row_of.get(node)) is not None]
    claim, before = _Claim(head, members, waits_s), engine.journal.seq
    try:
        return (_find(engine, claim, rows, now_ns) if rows else None) or _find(
            engine, claim, None, now_ns
        )
    finally:
        engine.journal.back_to(before)


class _Claim:
    """A request for places: for `head` alone, or for pods of its gang."""

    def __init__(
        self,
        head: WaitingPod,
        members: GangMembers[WaitingPod] | None,
        waits_s: Ints | None,
    ) -> None:
        self.members, self.needed, self.waits_s = members, 1, waits_s
        self.largest, self.topology_key = head, ""
        self.smallest: WaitingPod | None = None
        self.placed: Collection[str] = ()
        if members is not None:
            self.largest = max(members.waiting.values(), key=gang_search.size)
            smallest = min(members.waiting.values(), key=gang_search.size)
            if gang_search.size(smallest) != gang_search.size(self.largest):
                self.smallest = smallest
            self.placed, self.needed = members.placed, members.least - len(members.placed)
            self.topology_key = "" if members.placed else members.topology_key()

    def places(
        self, engine: Engine, inside: Bools, gone: Sequence[str], now_ns: int
    ) -> list[Placement]:
        """Return places on the nodes `inside`, found as if the pods `gone` were gone; [] if there
        are too few."""
        if self.members is not None:
            found = gang_search.try_without(engine, self.members, inside, gone, now_ns)
            return _enough(self.members, found) if found.chosen else []
        pod, profile, tries = self.largest.pod, self.largest.profile, self.largest.tries
        with engine.trial(gone):
            known = gang_search.within(engine.assess(profile, pod), inside)
            row = deciding.best_row(known, profile, f"{engine.seed}/{pod.uid}/{tries}")
            if row < 0:
                return []
            return [deciding.choose_place(engine, self.largest, known, row, now_ns).placement]


def _find(
    engine: Engine, claim: _Claim, only: list[int] | None, now_ns: int
) -> list[Placement] | None:
    table, holdings = engine.ledger.table, engine.ledger.holdings
    needed = max(1, claim.needed)
    stay = _kept_for_others(engine, claim.largest)
    stay += [holdings[uid].placement for uid in claim.placed if uid in holdings]
    stays, held = {place.uid for place in stay}, _held(table, stay)
    most = None if only is not None or claim.topology_key else needed << ROUNDS

    def room_for(waiting: WaitingPod) -> _Room:
        known = engine.assess(waiting.profile, waiting.pod)
        room = _room(table, known, held, _Wanted(needed, most, claim.waits_s))
        return room if only is None else room.at(np.flatnonzero(np.isin(room.rows, only)))

    room = room_for(claim.largest)
    cheapest = _cheapest_domain(table, claim.topology_key, room, needed)
    if cheapest is not None:
        regions = _regions(engine, cheapest, needed, stays)
    elif claim.smallest is not None:
        small = _in_domains_of(table, claim.topology_key, room, room_for(claim.smallest))
        cheapest = _cheapest_domain(table, claim.topology_key, small, needed)
        if cheapest is None:
            return None
        room = _in_domains_of(table, claim.topology_key, cheapest, room)
        regions = _wider(engine, room.rows[:needed], cheapest.rows, needed, stays)
    else:
        return None
    if claim.members is not None:
        regions = islice(regions, gang_search.most_tries(claim.members))
    for rows, gone in regions:
        inside: Bools = np.zeros(table.count, dtype=np.bool_)
        inside[rows] = True
        if places := claim.places(engine, inside, gone, now_ns):
            return places
    return None


def _enough(members: GangMembers[WaitingPod], found: gang_search.GangPlaces) -> list[Placement]:
    """Return as many of the found places as the gang needs to start."""
    chosen = [(place.placed.pod.gang, place.placement) for place in found.chosen]
    for count in range(max(1, members.least - len(members.placed)), len(chosen)):
        if members.would_do([gang for gang, _ in chosen[:count] if gang]):
            return [placement for _, placement in chosen[:count]]
    return [placement for _, placement in chosen]


def _kept_for_others(engine: Engine, head: WaitingPod) -> list[Placement]:
    """Return kept places that are closed to the gang. Places of nominated pods are not among them:
    these pods start soon, and end as running pods do."""
    closed = engine.kept_places.closed_to(head.pod, head.key[-1])
    return [place for turn in closed for place in turn.places]


def _held(table: LedgerTable, places: Iterable[Placement]) -> Bools:
    """Return a mask of the GPUs in these places, which do not become free, [D]."""
    held: Bools = np.zeros(table.devices, dtype=np.bool_)
    for place in places:
        if (row := table.row_of.get(place.node)) is not None:
            devices = (table.device_row(row, share.gpu) for share in place.shares)
            held[[device for device in devices if device >= 0]] = True
    return held


# --- room, and what it costs ----------------------------------------------------------------------


def _room(table: LedgerTable, known: Assessment, held: Bools, wanted: _Wanted) -> _Room:
    demand, needed, waits_s = known.demand, wanted.pods, wanted.waits_s
    need, per_pod = _largest(demand), demand.gpus
    if need is not None:
        devices, ends = _gpus(table, demand, need, held, needed)
        rows, costs = table.device_node.take(devices), ends
        if waits_s is not None and need.whole:
            costs = np.where(ends > 0, np.maximum(waits_s.take(devices), 1), 0)
        some = per_pod < int(table.gpus.max(initial=0))
        if some or not need.whole:  # otherwise each pod takes a whole node
            order = (rows * (costs.max(initial=0) + 1) + costs) * (ends.max(initial=0) + 1) + ends
            order = np.argsort(order, kind="stable")
            devices, ends, costs, rows = (each[order] for each in (devices, ends, costs, rows))
        counts = np.bincount(rows, minlength=table.count)
        position = np.arange(len(rows)) - (np.cumsum(counts) - counts).take(rows)
        full = position < (counts // per_pod * per_pod).take(rows)
        grouped = devices[full].reshape(-1, per_pod)
        ends, costs = (each[full].reshape(-1, per_pod) for each in (ends, costs))
        rows = rows[full][::per_pod]
        ends = ends.sum(axis=1)
        costs = ends if waits_s is None else costs.max(axis=1)
    else:
        rows = np.repeat(np.arange(table.count), min(needed, MOST_ROOM))
        costs, grouped = np.zeros(len(rows), dtype=np.int64), np.zeros((len(rows), 0), np.int64)
        ends = costs
    nth = np.arange(len(rows)) - np.searchsorted(rows, rows, side="left") + 1
    fits = known.declared.take(rows) == 0
    for asked, free, total in (
        (demand.cpu_milli, table.cpu_free, table.cpu_total),
        (demand.memory_mib, table.memory_free, table.memory_total),
    ):
        if asked:
            costs = costs + _lacking(nth, asked, free.take(rows), total.take(rows))
            fits &= nth * asked <= total.take(rows)
    kept = np.flatnonzero(fits)
    if wanted.most is not None and len(kept) > (most := wanted.most):
        kept = kept[costs[kept] <= np.partition(costs[kept], most)[most]]
    keys = (rows, table.gpus.take(rows), ends, costs)
    order = kept[np.lexsort([key[kept] for key in keys])]
    return _Room(rows[order], costs[order], grouped[order])


def _lacking(nth: Ints, asked: int, free: Ints, total: Ints) -> Ints:
    """Return the thousandths of the node that the nth pod needs beyond what is free and what
    earlier pods needed."""
    free = np.maximum(free, 0)
    lacks, before = np.maximum(nth * asked - free, 0), np.maximum((nth - 1) * asked - free, 0)
    return np.asarray((lacks - before) * 1000 // np.maximum(total, 1))


def _largest(demand: Demand) -> Need | None:
    return max(demand.needs, key=lambda need: (need.whole, need.milli), default=None)


def _gpus(
    table: LedgerTable, demand: Demand, need: Need, held: Bools, needed: int
) -> tuple[Ints, Ints]:
    """Return the device rows that a pod may have, each repeated for every pod that it has room for,
    and for each entry how much of the GPU running pods have to free, in thousandths."""
    usable = (table.device_usable != 0) & need.will_do.take(table.device_kind)
    if demand.device_accepts is not None:
        usable &= demand.device_accepts
    used_milli = _milli(table) - table.device_milli_free
    used_mib = table.device_memory_total - table.device_memory_free
    parts = used_mib * 1000 // np.maximum(table.device_memory_total, 1)
    used = np.clip(np.maximum(used_milli, parts), 0, 1000)
    if need.whole:
        devices = np.flatnonzero(usable & ((table.device_idle != 0) | ~held))
        ends = np.maximum(used.take(devices), 1)
        return devices, np.where(table.device_idle.take(devices) != 0, 0, ends)
    free, most = _shares(table, need, usable, needed * need.count)
    most = np.where(held, free, most)
    devices = np.repeat(np.arange(table.devices), most)
    nth = np.arange(len(devices)) - np.searchsorted(devices, devices, side="left")
    part = max(1, need.milli)
    size = np.where(nth < free.take(devices), 0, np.minimum(part, used.take(devices) + 1))
    return devices, size


def _shares(table: LedgerTable, need: Need, usable: Bools, wanted: int) -> tuple[Ints, Ints]:
    """Return for each GPU, [D], how many shares it has room for now, and how many if it were
    free."""
    most: Ints = np.full(table.devices, min(wanted, MOST_ROOM), dtype=np.int64)
    free = most
    if need.milli:
        free = np.minimum(free, np.maximum(table.device_milli_free, 0) // need.milli)
        most = np.minimum(most, _milli(table) // need.milli)
    ask_mib = np.maximum(need.ask_mib.take(table.device_kind), 1)
    free = np.minimum(free, np.maximum(table.device_memory_free, 0) // ask_mib)
    most = np.minimum(most, table.device_memory_total // ask_mib)
    return np.where(usable, free, 0), np.where(usable, most, 0)


def _milli(table: LedgerTable) -> Ints:
    milli = np.array([kind.milli for kind in table.kinds], dtype=np.int64)
    return milli.take(table.device_kind) if table.devices else table.device_kind


def _cheapest_domain(table: LedgerTable, key: str, room: _Room, needed: int) -> _Room | None:
    """Return the room in the topology domain where as many pods as needed cost the least; all room
    if the gang has no topology key. None if there is too little."""
    if not key:
        return room if len(room.rows) >= needed else None
    numbers = table.labels.domains(key).of_node.take(room.rows)
    best: tuple[int, int] | None = None
    for number in np.unique(numbers[numbers > 0]).tolist():
        costs = room.costs[numbers == number]
        if len(costs) >= needed:
            best = min(best or (1 << 62, 0), (int(costs[:needed].sum()), number))
    return None if best is None else room.at(np.flatnonzero(numbers == best[1]))


def _in_domains_of(table: LedgerTable, key: str, some: _Room, room: _Room) -> _Room:
    """Return the room in the topology domains that `some` is in; all room without a key."""
    if not key:
        return room
    numbers = table.labels.domains(key).of_node
    return room.at(np.flatnonzero(np.isin(numbers.take(room.rows), numbers.take(some.rows))))


# --- on trial -------------------------------------------------------------------------------------


def _regions(
    engine: Engine, room: _Room, needed: int, stays: set[str]
) -> Iterator[tuple[Ints, list[str]]]:
    """Yield rows to search, and the pods to ignore there: first the pods on the needed GPUs, then
    all pods."""
    first = room.at(np.arange(needed))
    yield np.unique(first.rows), _holders(engine, first, stays)
    yield from _wider(engine, first.rows[:0], room.rows, needed, stays)


def _wider(
    engine: Engine, beside: Ints, ordered: Ints, needed: int, stays: set[str]
) -> Iterator[tuple[Ints, list[str]]]:
    """Yield rows to search (the rows `beside` and the first of the `ordered` rows, twice as many
    each time), and the pods to ignore there: all except `stays`."""
    for turn in range(ROUNDS):
        count = min(len(ordered), needed << turn)
        rows = np.union1d(beside, ordered[:count])
        names = (engine.ledger.table.nodes[row].name for row in rows.tolist())
        there = (held for name in names for held in engine.ledger.pods_on(name))
        yield rows, [held.placement.uid for held in there if held.placement.uid not in stays]
        if count == len(ordered):
            return


def _holders(engine: Engine, room: _Room, stays: set[str]) -> list[str]:
    table = engine.ledger.table
    wanted = {*room.devices[room.costs > 0].ravel().tolist()}
    found = []
    for row in np.unique(room.rows[room.costs > 0]).tolist():
        for holding in engine.ledger.pods_on(table.nodes[row].name):
            place = holding.placement
            devices = {table.device_row(row, share.gpu) for share in place.shares}
            if place.uid not in stays and devices & wanted:
                found.append(place.uid)
    return found


def in_words(places: Sequence[Placement]) -> str:
    """Name what is waited for, such as `8 GPUs`, `shares of 2 GPUs` or `3 places`."""
    shares = [share for place in places for share in place.shares]
    if not shares:
        return "1 place" if len(places) == 1 else f"{len(places):,} places"
    count = "1 GPU" if len(shares) == 1 else f"{len(shares):,} GPUs"
    return count if all(share.milli >= 1000 for share in shares) else f"shares of {count}"
