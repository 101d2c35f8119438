"""Groups parked pods that are alike, with what they wait for and which nodes are worth a try."""

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
"""kube-scheduler's podInitialBackoffSeconds and podMaxBackoffSeconds."""
LEFT_AT_MOST = 256
"""Groups of pods alike of which nobody is parked, and which are known by what they waited for."""
NOWHERE_MIB = 1 << 60
"""More memory than any GPU has: no kind of GPU will do."""

Key = tuple[int, ...]


class IsParked(Protocol):
    """A pod in the queue: `state` says where it waits."""

    state: str


class HasShape(Protocol):
    """An object whose pods have one shape."""

    @property
    def shape(self) -> Shape:
        """Return the shape of each pod."""


K = TypeVar("K", bound=HasShape)
W = TypeVar("W", bound=IsParked)


class FreedNode(NamedTuple):
    """A node with freed capacity: its columns in `NODE_COLUMNS` order, the memory (MiB) and cores
    (thousandths) free on each of its devices, and its row in the layout of this `generation`. It
    may be free only for some pods: `for_whom` tells if for this one, and `by_pod` that pods that
    are alike may differ in that."""

    cells: list[int]
    devices: list[tuple[int, int]]
    generation: int = 0
    row: int = 0
    for_whom: Callable[[Any], bool] | None = None
    by_pod: bool = False

    @classmethod
    def on(cls, ledger: Ledger, row: int) -> "FreedNode":
        """Return the node of this row now."""
        table = ledger.table
        devices = [(state.memory, state.milli) for state in table.states_of(row)]
        return cls(table.cells[:, row].tolist(), devices, ledger.generation, row)

    def could_take(self, need: Need, least_mib: int) -> bool:
        """Return True if one device has what the GPU request needs free, and at least this much
        memory."""
        milli = need.milli
        if self.cells[MAX_MILLI_FREE] < milli or self.cells[MAX_MEMORY_FREE] < least_mib:
            return False
        if not milli or not least_mib:
            return True
        return any(memory >= least_mib and free >= milli for memory, free in self.devices)


class Never(NamedTuple):
    """Nodes that cannot take a shape, whatever else leaves them (its model, a taint), a bit each.

    `generation` is the layout whose rows these are: of another one nothing is known.
    """

    generation: int
    rows: bytes

    def covers(self, freed: FreedNode) -> bool:
        """Return Return True if the node is among them."""
        if self.generation != freed.generation:
            return False
        return bool(self.rows[freed.row >> 3] >> (7 - (freed.row & 7)) & 1)


NOWHERE = Never(-1, b"")


class ParkedGroup(Generic[K, W]):
    """Parked pods of one profile and shape, with what a node must have to be worth a try.

    `heap` may still hold pods that left; `parked` counts those that did not. `never` are the nodes
    that could not take them whatever leaves. `others` are the other demands of a gang whose head
    is parked here.
    """

    __slots__ = ("_least_mib", "demand", "heap", "key", "never", "others", "parked")

    def __init__(self, key: K, demand: Demand) -> None:
        self.key = key
        self.heap: list[tuple[Key, W]] = []
        self.parked = 0
        self.never = NOWHERE
        self.others: list[ParkedGroup[K, W]] = []
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """The group's demand on the kinds of GPU that there are now."""
        self.demand = demand
        self._least_mib = [_least_mib(need) for need in demand.needs]

    def could_fit(self, freed: FreedNode, *, by_requests: bool = False) -> bool:
        """Return False if the node cannot help. Necessary, not sufficient: harvestable memory is
        unknown here; `by_requests` ignores it.
        """
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
        """Return all shapes of its pods."""
        return [self.key.shape, *(other.key.shape for other in self.others)]

    def first(self) -> W | None:
        """Return the pod to be tried first; pods that left are dropped on the way."""
        while self.heap and self.heap[0][1].state != "parked":
            heapq.heappop(self.heap)
        return self.heap[0][1] if self.heap else None

    def first_for(self, freed: FreedNode) -> W | None:
        """Return the first pod for which the node is free."""
        first, whom = self.first(), freed.for_whom
        if first is None or whom is None or whom(first):
            return first
        others = (entry for entry in self.heap if freed.by_pod and entry[1].state == "parked")
        found = min((entry for entry in others if whom(entry[1])), default=None)
        return None if found is None else found[1]

    def tidy(self) -> None:
        """Drop pods that left, once they are most of the heap."""
        if len(self.heap) > 2 * self.parked + 8:
            self.heap = [entry for entry in self.heap if entry[1].state == "parked"]
            heapq.heapify(self.heap)


def fits_without_harvest(group: ParkedGroup[K, W] | None, freed: FreedNode) -> bool:
    """Return True if pods that may borrow could fit the node without borrowing."""
    return group is not None and group.demand.harvests and group.could_fit(freed, by_requests=True)


def _least_mib(need: Need) -> int:
    """Return the least free memory that one GPU must have for the request, over the acceptable
    kinds."""
    if need.gpu_request.split:
        return 0
    return int(need.ask_mib.min(initial=NOWHERE_MIB, where=need.will_do))


class GroupsByRule(Generic[K, W]):
    """Parked groups by the changes to pods and volumes that their rules wait for: an event only
    looks at the groups and terms that it concerns. A woken group is mostly parked again, so its
    empty entry stays for a while; a gang's does not, as its pods may differ by then.
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
        """Remove a group of which no pod is parked any more."""
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
        """Return the groups that may fit since this changed, in the order of their first
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
    """Return the back-off of a pod after its `tries`-th failed try, nanoseconds."""
    return min(BACKOFF_FIRST_NS << min(tries - 1, 10), BACKOFF_MOST_NS)
