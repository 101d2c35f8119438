"""Bounds, by sums alone, which pods must leave a node before another pod could fit: no set of pods
that makes room is missed, and few are tried in vain.

Sums are of CPU, memory and thousandths of a GPU. A GPU requested as a whole must lose all its
holders, a shared GPU enough of them. Only a trial checks links and policies.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from weft.core.framework.demand import Demand
from weft.core.ledger import Holding
from weft.core.ledger.table import LedgerTable


class NodeShortfall:
    """The shortfall of one node for one demand. `movable` are holdings there that may leave,
    numbered as given: a set of them is a bit mask. `held` are all holdings on the node."""

    def __init__(
        self,
        table: LedgerTable,
        row: int,
        demand: Demand,
        movable: Sequence[Holding],
        held: Sequence[Holding],
    ) -> None:
        self._count = len(movable)
        # A card that is out of use may be usable without its pods: the sums then underestimate.
        self._sums_tell = not table.has_parents and table.usable_gpus[row] == table.gpus[row]
        needs = [demand.cpu_milli, demand.memory_mib, demand.milli if self._sums_tell else 0]
        free = [int(table.cpu_free[row]), int(table.memory_free[row]), int(table.milli_free[row])]
        amounts = [_amounts(holding) for holding in movable]
        # A pod that requests none of a resource fits a node where that resource is overbooked.
        short = [at for at, need in enumerate(needs) if need > 0 and need > free[at]]
        self._lacks = [needs[at] - free[at] for at in short]
        self._frees = [[holding[at] for holding in amounts] for at in short]
        self._table, self._row, self._demand = table, row, demand
        self._movable, self._held = movable, held

    def masks(self, count: int) -> Iterator[int]:
        """Yield each set of `count` pods, as a bit mask, without which the pod might fit."""
        if self._count < count or not self._may_do(count):
            return
        seen: set[int] = set()
        for core in self._cores(count):
            rest = [1 << at for at in range(self._count) if not core >> at & 1]
            for some in combinations(rest, count - core.bit_count()):
                mask = core | sum(some)
                if mask not in seen and self.enough(mask):
                    seen.add(mask)
                    yield mask

    def enough(self, mask: int) -> bool:
        """Return True if the pods of this mask free as much CPU, memory and GPU as the node lacks,
        by sums."""
        return all(
            sum(free for at, free in enumerate(frees) if mask >> at & 1) >= lack
            for frees, lack in zip(self._frees, self._lacks, strict=True)
        )

    def _may_do(self, count: int) -> bool:
        """Return True if the largest `count` holdings free what the node lacks."""
        return all(
            sum(sorted(frees, reverse=True)[:count]) >= lack
            for frees, lack in zip(self._frees, self._lacks, strict=True)
        )

    def _cores(self, count: int) -> list[int]:
        """Return masks of at most `count` pods such that every set that frees the needed GPUs
        contains one of them."""
        if not self._sums_tell or self._demand.mode not in ("node", "device"):
            return [0]
        table, begin = self._table, self._table.start[self._row]
        on: dict[int, int] = dict.fromkeys(range(begin, table.start[self._row + 1]), 0)
        for at, holding in enumerate(self._movable):
            for device in self._devices(holding):
                on[device] |= 1 << at
        if self._demand.need.whole:
            return self._cleared(on, count)
        cores: dict[int, None] = {}
        for device, mask in on.items():
            cores.update(dict.fromkeys(self._thinned(device, mask, count)))
        return list(cores)

    def _devices(self, holding: Holding) -> list[int]:
        rows = [self._table.device_row(self._row, share.gpu) for share in holding.placement.shares]
        return [device for device in dict.fromkeys(rows) if device >= 0]

    def _cleared(self, on: dict[int, int], count: int) -> list[int]:
        """Return masks of the pods to remove so that enough GPUs are idle: all pods of each GPU."""
        may_go = {holding.placement.uid for holding in self._movable}
        stay = (holding for holding in self._held if holding.placement.uid not in may_go)
        stuck = {device for holding in stay for device in self._devices(holding)}
        masks = [
            mask
            for device, mask in on.items()
            if mask and device not in stuck and mask.bit_count() <= count
        ]
        idle = int(self._table.idle[self._row])
        sets: dict[int, None] = {}
        for some in combinations(masks, max(0, self._demand.need.count - idle)):
            core = 0
            for mask in some:
                core |= mask
            if core.bit_count() <= count:
                sets[core] = None
        return list(sets)

    def _thinned(self, device: int, mask: int, count: int) -> Iterator[int]:
        """Yield minimal sets of a shared GPU's holders that free enough of it."""
        table, need = self._table, self._demand.need
        lacks = [need.milli - int(table.device_milli_free[device]), 0]
        if not self._demand.harvests:
            asked = int(need.ask_mib[table.kind_of[device]])
            lacks[1] = asked - int(table.device_memory_free[device])
        frees = {}
        for at in range(self._count):
            if mask >> at & 1:
                frees[1 << at] = self._on(self._movable[at], device)
        needed: list[int] = []
        for size in range(min(count, len(frees)) + 1):
            for some in combinations(frees, size):
                core = sum(some)
                if any(smaller & core == smaller for smaller in needed):
                    continue
                if all(
                    sum(frees[pod][of] for pod in some) >= lack for of, lack in enumerate(lacks)
                ):
                    needed.append(core)
        yield from needed

    def _on(self, holding: Holding, device: int) -> tuple[int, int]:
        """Return the thousandths and MiB of the device that the pod holds."""
        shares = [
            share
            for share in holding.placement.shares
            if self._table.device_row(self._row, share.gpu) == device
        ]
        return sum(share.milli for share in shares), sum(share.memory_mib for share in shares)


def _amounts(holding: Holding) -> tuple[int, int, int]:
    place = holding.placement
    return place.cpu_milli, place.memory_mib, sum(share.milli for share in place.shares)
