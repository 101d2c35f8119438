"""Sums up how much more each node and GPU would have free without all pods up to a given priority.
There is one entry for each GPU of which a pod holds a share (one for a pod without GPUs), and
cached sums by priority, updated where the ledger changed."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.framework import Demand
from weft.core.ledger import Holding, Ledger
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Placement

STAYS = 1 << 62
"""The priority of a pod that may not be evicted."""
_PRIORITY, _ROW, _CPU, _MEMORY, _DEVICE, _DEVICE_MEMORY, _MILLI, _HELD, _GUARDED = range(9)
_COLUMNS = 9
_AT_LEAST = 1_024
_KEPT_SUMS = 16
_ANY_NUMBER = 1 << 20

Standing = Callable[[Holding], tuple[int, bool]]
"""Returns a pod's priority (`STAYS` if it may not be evicted), and True if its disruption budget
allows no eviction."""


class FreedByNode(NamedTuple):
    """Amounts that leaving pods would free: thousandths of CPU and MiB of memory by node, [N]; MiB
    of GPU memory, thousandths of GPU and number of leaving pods by GPU, [D]."""

    cpu: Ints
    memory: Ints
    device_memory: Ints
    device_milli: Ints
    device_pods: Ints

    def copied(self) -> "FreedByNode":
        """Return a copy that the caller may change."""
        return FreedByNode(*(column.copy() for column in self))

    def only_on(self, here: Bools, table: LedgerTable) -> "FreedByNode":
        """Return the amounts freed on these nodes alone; `here` is a mask, [N]."""
        devices = here.take(table.device_node)
        return FreedByNode(self.cpu * here, self.memory * here, *(c * devices for c in self[2:]))

    def add(self, table: LedgerTable, placement: Placement, by: int = 1) -> None:
        """Add a leaving pod; `by` -1: remove one."""
        row = table.row_of.get(placement.node)
        if row is None:
            return
        self.cpu[row] += by * placement.cpu_milli
        self.memory[row] += by * placement.memory_mib
        for device, (memory, milli) in by_device(table, row, placement).items():
            self.device_memory[device] += by * memory
            self.device_milli[device] += by * milli
            self.device_pods[device] += by


def by_device(table: LedgerTable, row: int, placement: Placement) -> dict[int, tuple[int, int]]:
    """Return, by device row of the node, the MiB and the thousandths of a GPU that are placed."""
    held: dict[int, tuple[int, int]] = {}
    shares = placement.shares
    if len(shares) == 1:
        device = table.device_row(row, shares[0].gpu)
        return {device: (shares[0].memory_mib, shares[0].milli)} if device >= 0 else held
    for share in shares:
        device = table.device_row(row, share.gpu)
        if device >= 0:
            memory, milli = held.get(device, (0, 0))
            held[device] = memory + share.memory_mib, milli + share.milli
    return held


class LowerPods:
    """Amounts that pods up to a given priority would free on each node and GPU of one ledger.

    `standing` is called for each pod that holds resources, and again after `touch` of its node."""

    def __init__(self, ledger: Ledger, standing: Standing) -> None:
        self._ledger, self._standing = ledger, standing
        self._changed: set[int] | None = None
        self._generation = -1
        self._cells: Ints = np.zeros((_COLUMNS, 0), dtype=np.int64)
        self._of_row: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._priorities: Counter[int] = Counter()
        self._sums: OrderedDict[tuple[int, bool], FreedByNode] = OrderedDict()

    def touch(self, node: str) -> None:
        """Mark a node whose pods' priority or permission to be evicted has changed."""
        row = self._ledger.table.row_of.get(node)
        if row is not None and self._changed is not None:
            self._changed.add(row)

    def priorities(self, below: int) -> list[int]:
        """Return, in rising order, the priorities below `below` of pods that may be evicted."""
        self._refresh()
        return sorted(
            priority for priority, n in self._priorities.items() if n and priority < below
        )

    def freed(self, up_to: int, *, guarded: bool) -> FreedByNode:
        """Return the amounts that all pods of at most this priority would free; `guarded` includes
        those whose budget allows no eviction. Cached: callers must not change it."""
        self._refresh()
        sums = self._sums.get((up_to, guarded))
        if sums is None:
            sums = self._sums[up_to, guarded] = self._summed(up_to, guarded=guarded)
            if len(self._sums) > _KEPT_SUMS:
                self._sums.popitem(last=False)
        self._sums.move_to_end((up_to, guarded))
        return sums

    def _summed(self, up_to: int, *, guarded: bool) -> FreedByNode:
        table, cells = self._ledger.table, self._cells
        chosen = self._chosen(up_to, guarded=guarded)
        on_device = chosen[cells[_HELD].take(chosen) > 0]
        rows = cells[_ROW].take(chosen)
        devices = table.starts.take(cells[_ROW].take(on_device)) + cells[_DEVICE].take(on_device)
        return FreedByNode(
            _sums(rows, cells[_CPU].take(chosen), table.count),
            _sums(rows, cells[_MEMORY].take(chosen), table.count),
            _sums(devices, cells[_DEVICE_MEMORY].take(on_device), table.devices),
            _sums(devices, cells[_MILLI].take(on_device), table.devices),
            np.bincount(devices, minlength=table.devices),
        )

    def _sum_again(self, row: int, entries: Sequence[tuple[int, ...]]) -> None:
        """Recompute the cached sums of this node row."""
        begin, end = self._ledger.table.start[row], self._ledger.table.start[row + 1]
        for (up_to, guarded), sums in self._sums.items():
            sums.cpu[row] = sums.memory[row] = 0
            for column in sums[2:]:
                column[begin:end] = 0
            for entry in entries:
                if entry[_PRIORITY] <= up_to and (guarded or not entry[_GUARDED]):
                    sums.cpu[row] += entry[_CPU]
                    sums.memory[row] += entry[_MEMORY]
                    if entry[_HELD]:
                        device = begin + entry[_DEVICE]
                        sums.device_memory[device] += entry[_DEVICE_MEMORY]
                        sums.device_milli[device] += entry[_MILLI]
                        sums.device_pods[device] += 1

    def single(self, demand: Demand, up_to: int, *, guarded: bool) -> Bools:
        """Return a mask of nodes on which evicting one pod would free enough, by sums, [N]; all
        False if the demand is for several GPUs."""
        table = self._ledger.table
        enough = np.zeros(table.count, dtype=np.bool_)
        if demand.gpus > 1:
            return enough
        chosen, cells = self._chosen(up_to, guarded=guarded), self._cells
        rows = cells[_ROW].take(chosen)
        good = np.ones(len(rows), dtype=np.bool_)
        if demand.cpu_milli:
            good &= table.cpu_free.take(rows) + cells[_CPU].take(chosen) >= demand.cpu_milli
        if demand.memory_mib:
            good &= table.memory_free.take(rows) + cells[_MEMORY].take(chosen) >= demand.memory_mib
        if demand.needs:
            need, good = demand.need, good & (cells[_HELD].take(chosen) > 0)
            rows, chosen, good = rows[good], chosen[good], good[good]
            devices = table.starts.take(rows) + cells[_DEVICE].take(chosen)
            kinds = table.device_kind.take(devices)
            good &= need.will_do.take(kinds)
            if need.whole:
                good &= table.device_pods.take(devices) == 1
            else:
                good &= (
                    table.device_milli_free.take(devices) + cells[_MILLI].take(chosen) >= need.milli
                )
                free = cells[_DEVICE_MEMORY].take(chosen) + table.device_memory_free.take(devices)
                good &= free >= need.ask_mib.take(kinds)
        enough[rows[good]] = True
        return enough

    def _chosen(self, up_to: int, *, guarded: bool) -> Ints:
        """Return the numbers of the entries of pods of at most this priority."""
        goes = self._cells[_PRIORITY] <= up_to
        if not guarded:
            goes &= self._cells[_GUARDED] == 0
        return np.flatnonzero(goes)

    def _refresh(self) -> None:
        ledger = self._ledger
        if self._changed is None:
            self._changed = ledger.follow()
        changed, self._generation, before = self._changed, ledger.generation, self._generation
        then = ledger.rows_then(before) if before >= 0 else None
        if then is None or 4 * len(changed) > ledger.table.count:
            self._build()
            changed.clear()
            return
        if before != ledger.generation:
            self._move(then)
        for row in changed:
            self._renew(row)
        changed.clear()

    def _move(self, then: Ints) -> None:
        """Move entries after the table's rows changed: `then` has the old row of each present row,
        -1 for none."""
        stay = np.flatnonzero(then >= 0)
        of_row = {
            row: self._of_row.pop(before)
            for row, before in zip(stay.tolist(), then[stay].tolist(), strict=True)
            if before in self._of_row
        }
        self._sums.clear()
        for slots in self._of_row.values():
            self._empty(slots)
        self._of_row = of_row
        for row, slots in of_row.items():
            self._cells[_ROW, slots] = row

    def _build(self) -> None:
        entries: list[tuple[int, ...]] = []
        self._of_row, self._free = {}, []
        self._priorities.clear()
        self._sums.clear()
        for row in range(self._ledger.table.count):
            here = list(self._entries(row))
            if here:
                self._of_row[row] = list(range(len(entries), len(entries) + len(here)))
                entries += here
        self._cells = _empty(2 * len(entries) + _AT_LEAST)
        if entries:
            self._cells[:, : len(entries)] = np.array(entries, dtype=np.int64).T
        self._free = list(range(self._cells.shape[1] - 1, len(entries) - 1, -1))
        self._priorities.update(entry[_PRIORITY] for entry in entries)

    def _renew(self, row: int) -> None:
        self._empty(self._of_row.pop(row, []))
        entries = list(self._entries(row))
        while len(self._free) < len(entries):
            self._grow()
        if entries:
            slots = self._of_row[row] = [self._free.pop() for _ in entries]
            self._cells[:, slots] = np.array(entries, dtype=np.int64).T
            self._priorities.update(entry[_PRIORITY] for entry in entries)
        if self._sums:
            self._sum_again(row, entries)

    def _empty(self, slots: list[int]) -> None:
        self._priorities.subtract(self._cells[_PRIORITY, slots].tolist())
        self._cells[_PRIORITY, slots] = STAYS
        self._free += slots

    def _grow(self) -> None:
        had = self._cells.shape[1]
        self._cells = np.concatenate((self._cells, _empty(had + _AT_LEAST)), axis=1)
        self._free += range(self._cells.shape[1] - 1, had - 1, -1)

    def _entries(self, row: int) -> Iterator[tuple[int, ...]]:
        table = self._ledger.table
        for holding in self._ledger.pods_on(table.nodes[row].name):
            priority, guarded = self._standing(holding)
            if priority == STAYS:
                continue
            cpu, memory = holding.placement.cpu_milli, holding.placement.memory_mib
            held, begin = by_device(table, row, holding.placement), table.start[row]
            for device, (device_memory, milli) in (held or {begin: (0, 0)}).items():
                local, one = device - begin, int(bool(held))
                yield priority, row, cpu, memory, local, device_memory, milli, one, int(guarded)
                cpu = memory = 0


def _empty(slots: int) -> Ints:
    cells = np.zeros((_COLUMNS, slots), dtype=np.int64)
    cells[_PRIORITY] = STAYS
    return cells


def _sums(at: Ints, amounts: Ints, length: int) -> Ints:
    sums = np.bincount(at, weights=amounts, minlength=length)  # exact: far below 2^53
    return sums.astype(np.int64)


def could_fit(table: LedgerTable, demand: Demand, freed: FreedByNode) -> Bools:
    """Return a mask of nodes that would have enough free for the demand, [N]. Necessary, not
    sufficient."""
    fits = np.ones(table.count, dtype=np.bool_)
    if demand.cpu_milli:
        fits &= table.cpu_free + freed.cpu >= demand.cpu_milli
    if demand.memory_mib:
        fits &= table.memory_free + freed.memory >= demand.memory_mib
    for need in demand.needs:
        good = np.asarray(table.serving(), dtype=np.bool_).copy()
        if demand.device_accepts is not None:
            good &= demand.device_accepts
        kinds = table.device_kind
        good &= need.will_do.take(kinds)
        # An overbooked GPU, or one with an occupied MIG instance, may become usable when pods
        # leave.
        usable = table.device_usable != 0
        if need.whole:
            good &= (table.device_pods <= freed.device_pods) | ~usable
        elif not need.gpu_request.split:
            good &= (table.device_milli_free + freed.device_milli >= need.milli) | ~usable
            if not demand.harvests:
                enough = table.device_memory_free + freed.device_memory >= need.ask_mib.take(kinds)
                good &= enough | ~usable
        least = 1 if need.gpu_request.split else need.count
        fits &= np.bincount(table.device_node[good], minlength=table.count) >= least
    return fits


def fewest_holders(table: LedgerTable, demand: Demand, freed: FreedByNode) -> Ints:
    """Return, for each node, the smallest number of leaving pods that hold as many GPUs as the pod
    requests, [N]; a huge number if those GPUs cannot be emptied. The search begins with the nodes
    that have the lowest number."""
    if not demand.needs:
        return np.zeros(table.count, dtype=np.int64)
    held, nodes = freed.device_pods, table.device_node
    if demand.gpus == 1:
        fewest = np.full(table.count, STAYS, dtype=np.int64)
        np.minimum.at(fewest, nodes[held > 0], held[held > 0])
        return fewest
    stays = np.where(table.device_pods > held, STAYS >> 8, held)  # cannot be emptied
    in_order = np.lexsort((stays, nodes))
    place = np.arange(len(in_order)) - table.starts.take(nodes[in_order])
    first = place < demand.gpus
    sums = np.zeros(table.count, dtype=np.int64)
    np.add.at(sums, nodes[in_order][first], stays[in_order][first])
    return sums


def room_without(table: LedgerTable, demand: Demand, freed: FreedByNode) -> Ints:
    """Return an upper bound of how many pods of this demand fit on each node once `freed` is free,
    [N]."""
    room = np.full(table.count, _ANY_NUMBER, dtype=np.int64)
    if demand.cpu_milli:
        room = np.minimum(room, (table.cpu_free + freed.cpu) // demand.cpu_milli)
    if demand.memory_mib:
        room = np.minimum(room, (table.memory_free + freed.memory) // demand.memory_mib)
    for need in demand.needs:
        kinds = table.device_kind
        good = need.will_do.take(kinds) & np.asarray(table.serving(), dtype=np.bool_)
        if need.whole or need.gpu_request.split:
            shares = (table.device_pods <= freed.device_pods).astype(np.int64)
        else:
            shares = np.full(table.devices, _ANY_NUMBER, dtype=np.int64)
            if need.milli:
                shares = (table.device_milli_free + freed.device_milli) // need.milli
            ask = need.ask_mib.take(kinds)
            free = table.device_memory_free + freed.device_memory
            shares = np.minimum(shares, np.where(ask > 0, free // np.maximum(ask, 1), shares))
        sums = np.zeros(table.count, dtype=np.int64)
        np.add.at(sums, table.device_node[good], shares[good])
        room = np.minimum(room, sums // need.count)
    return np.maximum(room, 0)


def held_on(ledger: Ledger, node: str, uids: Iterable[str]) -> Iterator[Holding]:
    """Return the holdings of these pods on this node."""
    for uid in uids:
        holding = ledger.holdings.get(uid)
        if holding is not None and holding.placement.node == node:
            yield holding
