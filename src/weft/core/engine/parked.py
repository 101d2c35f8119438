"""Groups parked pods that are alike (one profile and shape), with the changes that each group waits
for and the nodes that are worth a try."""

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from weft.core.constraints import PodsMoved, waits_for
from weft.core.framework import Demand, Need
from weft.core.ledger import Ledger
from weft.core.ledger.table import CPU_FREE, IDLE, MAX_MEMORY_FREE, MAX_MILLI_FREE, MEMORY_FREE
from weft.model import Shape

BACKOFF_FIRST_NS = 1_000_000_000
BACKOFF_MOST_NS = 10_000_000_000
"""The first and the longest back-off: the defaults of kube-scheduler's podInitialBackoffSeconds and
podMaxBackoffSeconds."""
LEFT_AT_MOST = 256
"""At most this many empty groups are remembered, with the changes that their pods waited for."""
NOWHERE_MIB = 1 << 60
"""Stands for the memory needed by a request that accepts no kind of GPU: more than any GPU has."""

Key = tuple[int, ...]


class IsParked(Protocol):
    """A pod in the queue; `state` says where it waits."""

    state: str


class HasShape(Protocol):
    """The key of a group, whose pods have one shape."""

    @property
    def shape(self) -> Shape:
        """Return the shape of each pod."""


K = TypeVar("K", bound=HasShape)
W = TypeVar("W", bound=IsParked)


class FreedNode(NamedTuple):
    """A node with freed capacity: its columns in `NODE_COLUMNS` order, the memory (MiB) and cores
    (thousandths) free on each of its devices, and its row in the layout of this `generation`. If
    the capacity is free only for some pods, `for_whom` returns True for these; `by_pod`: its answer
    may differ between pods of one group."""

    cells: list[int]
    devices: list[tuple[int, int]]
    generation: int = 0
    row: int = 0
    for_whom: Callable[[Any], bool] | None = None
    by_pod: bool = False

    @classmethod
    def on(cls, ledger: Ledger, row: int) -> "FreedNode":
        """Return the node of this row with its present capacity."""
        table = ledger.table
        devices = [(state.memory, state.milli) for state in table.states_of(row)]
        return cls(table.cells[:, row].tolist(), devices, ledger.generation, row)

    def could_take(self, need: Need, least_mib: int) -> bool:
        """Return True if one device has enough free for the GPU request, and at least `least_mib`
        of memory."""
        milli = need.milli
        if self.cells[MAX_MILLI_FREE] < milli or self.cells[MAX_MEMORY_FREE] < least_mib:
            return False
        if not milli or not least_mib:
            return True
        return any(memory >= least_mib and free >= milli for memory, free in self.devices)


class Never(NamedTuple):
    """Nodes that cannot take a shape even if all pods leave (GPU model, taint), one bit for each
    row.

    `generation` is the layout of nodes that the rows belong to; for any other layout nothing is
    known.
    """

    generation: int
    rows: bytes

    def covers(self, freed: FreedNode) -> bool:
        """Return True if the freed node is known never to take the shape."""
        if self.generation != freed.generation:
            return False
        return bool(self.rows[freed.row >> 3] >> (7 - (freed.row & 7)) & 1)


NOWHERE = Never(-1, b"")


class ParkedGroup(Generic[K, W]):
    """Parked pods of one profile and shape, with the capacity that a node must have to be worth a
    try.

    `heap` may still hold pods that left the group; `parked` counts the pods that did not. `never`
    are the nodes that could not take the pods even if other pods left. `others` are the other
    demands of a gang whose head is parked here."""

    __slots__ = ("_least_mib", "demand", "heap", "key", "never", "others", "parked")

    def __init__(self, key: K, demand: Demand) -> None:
        self.key = key
        self.heap: list[tuple[Key, W]] = []
        self.parked = 0
        self.never = NOWHERE
        self.others: list[ParkedGroup[K, W]] = []
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """Set the group's demand, resolved for the present kinds of GPU."""
        self.demand = demand
        self._least_mib = [_least_mib(need) for need in demand.needs]

    def could_fit(self, freed: FreedNode, *, by_requests: bool = False) -> bool:
        """Return False if the node cannot help. True does not guarantee a fit: harvestable memory
        is not checked; `by_requests` assumes that there is none."""
        if freed.for_whom is not None:
            of_all = freed._replace(for_whom=None)
            fits = self.could_fit(of_all, by_requests=by_requests)
            return fits and self.first_for(freed) is not None
        if any(other.could_fit(freed, by_requests=by_requests) for other in self.others):
            return True
        demand, cells = self.demand, freed.cells
        lends = demand.harvests and not by_requests
        cpu_lacks = cells[CPU_FREE] < demand.cpu_milli and demand.cpu_milli
        if cpu_lacks or (cells[MEMORY_FREE] < demand.memory_mib and demand.memory_mib):
            return False
        for need, least_mib in zip(demand.needs, self._least_mib, strict=True):
            if need.whole:
                if cells[IDLE] < need.count:
                    return False
            elif not freed.could_take(need, 0 if lends else least_mib):
                return False
        return not self.never.covers(freed)

    def shapes(self) -> list[Shape]:
        """Return all shapes of the group's pods."""
        return [self.key.shape, *(other.key.shape for other in self.others)]

    def first(self) -> W | None:
        """Return the pod to be tried first; entries of pods that left are dropped."""
        while self.heap and self.heap[0][1].state != "parked":
            heapq.heappop(self.heap)
        return self.heap[0][1] if self.heap else None

    def first_for(self, freed: FreedNode) -> W | None:
        """Return the first pod for which the node's capacity is free; None if there is none."""
        first, whom = self.first(), freed.for_whom
        if first is None or whom is None or whom(first):
            return first
        others = (entry for entry in self.heap if freed.by_pod and entry[1].state == "parked")
        found = min((entry for entry in others if whom(entry[1])), default=None)
        return None if found is None else found[1]

    def tidy(self) -> None:
        """Drop entries of pods that left, if they are most of the heap."""
        if len(self.heap) > 2 * self.parked + 8:
            self.heap = [entry for entry in self.heap if entry[1].state == "parked"]
            heapq.heapify(self.heap)


def fits_without_harvest(group: ParkedGroup[K, W] | None, freed: FreedNode) -> bool:
    """Return True if pods that may borrow could fit the node without borrowing."""
    return group is not None and group.demand.harvests and group.could_fit(freed, by_requests=True)


def _least_mib(need: Need) -> int:
    """Return the least free memory, MiB, that a GPU must have for the request, over the acceptable
    kinds."""
    if need.gpu_request.split:
        return 0
    return int(need.ask_mib.min(initial=NOWHERE_MIB, where=need.will_do))


class GroupsByRule(Generic[K, W]):
    """Indexes parked groups by the changes to pods and volumes that their rules wait for, so that
    an event only visits the groups that it concerns. A woken group is mostly parked again, so its
    empty entry is kept for a while, except for gangs, whose pods may differ the next time.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, object], dict[int, None]] = {}
        self._known: dict[K, int] = {}
        self._groups: dict[int, ParkedGroup[K, W]] = {}
        self._keys: dict[int, list[tuple[str, object]]] = {}
        self._left: dict[K, None] = {}
        self._count = 0

    def add(self, group: ParkedGroup[K, W]) -> None:
        """Add a group."""
        self._left.pop(group.key, None)
        number = self._known.get(group.key)
        if number is None:
            waits = [waits_for(shape.constraints) for shape in group.shapes()]
            keys = list(dict.fromkeys(key for each in waits for key in _keys(each)))
            if not keys:
                return
            self._count += 1
            number = self._known[group.key] = self._count
            self._keys[number] = keys
            for key in keys:
                self._numbers.setdefault(key, {})[number] = None
        self._groups[number] = group
        if len(self._left) > LEFT_AT_MOST:
            self._forget(next(iter(self._left)))

    def leave(self, group: ParkedGroup[K, W]) -> None:
        """Remove a group that has no parked pods any more."""
        if (number := self._known.get(group.key)) is None:
            return
        del self._groups[number]
        self._left[group.key] = None
        if group.others:
            self._forget(group.key)

    def _forget(self, left: K) -> None:
        del self._left[left]
        number = self._known.pop(left)
        for key in self._keys.pop(number):
            here = self._numbers[key]
            del here[number]
            if not here:
                del self._numbers[key]

    def waiting_for(self, moved: PodsMoved) -> list[ParkedGroup[K, W]]:
        """Return the groups that may fit after these changes, in the order of their first
        parking."""
        if not self._groups:
            return []
        found: set[int] = set()
        for key in _keys(moved):
            found.update(self._numbers.get(key, ()))
        return [self._groups[number] for number in sorted(found) if number in self._groups]


def _keys(moved: PodsMoved) -> Iterator[tuple[str, object]]:
    return ((kind, key) for kind, keys in moved._asdict().items() for key in keys)


def backoff_ns(tries: int) -> int:
    """Return the back-off of a pod after `tries` failed tries, nanoseconds."""
    return min(BACKOFF_FIRST_NS << min(tries - 1, 10), BACKOFF_MOST_NS)
