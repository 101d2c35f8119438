"""A pod that waits, those parked alike, and what a node must have to be worth a try of theirs."""

import heapq
from typing import NamedTuple

from weft.core.framework import Demand, Need, Profile, policy_answers
from weft.core.ledger import Ledger
from weft.core.ledger.table import CPU_FREE, IDLE, MAX_MEMORY_FREE, MAX_MILLI_FREE, MEMORY_FREE
from weft.model import PodRequest, Shape

NOWHERE_MIB = 1 << 60
"""More memory than any GPU has: no kind of GPU will do."""

FIRST = -1 << 62
"""A part of the key of pods that go before all others of their profile."""

Key = tuple[int, ...]


class FreedNode(NamedTuple):
    """A node with freed capacity: its columns in `NODE_COLUMNS` order, the memory (MiB) and cores
    (thousandths) free on each of its devices, and its row in the layout of this `generation`."""

    cells: list[int]
    devices: list[tuple[int, int]]
    generation: int = 0
    row: int = 0

    @classmethod
    def on(cls, ledger: Ledger, row: int) -> "FreedNode":
        """The node of this row now."""
        table = ledger.table
        devices = [(state.memory, state.milli) for state in table.states_of(row)]
        return cls(table.cells[:, row].tolist(), devices, ledger.generation, row)

    def could_take(self, need: Need, least_mib: int) -> bool:
        """True if one device has free what a GPU request asks of it, and so much memory."""
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
        """True if the node is among them."""
        if self.generation != freed.generation:
            return False
        return bool(self.rows[freed.row >> 3] >> (7 - (freed.row & 7)) & 1)


NOWHERE = Never(-1, b"")


class GroupKey:
    """A profile and a shape as a key that is hashed once: a shape may have thousands of parts, and
    one event looks thousands of keys up."""

    __slots__ = ("_hash", "profile", "shape")

    def __init__(self, profile: str, shape: Shape) -> None:
        self.profile, self.shape = profile, shape
        self._hash = hash((profile, shape))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, GroupKey) or self._hash != other._hash:
            return False
        return self.profile == other.profile and self.shape == other.shape


class WaitingPod:
    """A pod in the queue. `tries` counts attempts so far, `state` says where it waits.

    `woken` says that it left its group for a try, `skip_backoff` that what comes at a steady pace
    (GPU metrics) is why: it needs no back-off before the try, nor after it. `parked_in` is the
    group that it was parked in last, `group` that one's key. `faults` counts the tries that broke
    off. `rank` is its priority, smaller is higher, `turn_of` the namespace on whose turn it is
    tried.
    """

    __slots__ = (
        "faults",
        "group",
        "key",
        "parked_in",
        "pod",
        "profile",
        "rank",
        "ready_ns",
        "skip_backoff",
        "state",
        "tries",
        "turn_of",
        "woken",
    )

    def __init__(self, pod: PodRequest, profile: Profile, seq: int) -> None:
        self.pod, self.profile = pod, profile
        self.key: Key = (*policy_answers.queue_key(profile.lead, pod), seq)
        self.rank = profile.lead.rank(pod)
        self.turn_of = pod.namespace
        self.group = GroupKey(profile.name, pod.shape)
        self.tries = self.faults = 0
        self.ready_ns = 0
        self.state = "active"
        self.woken = self.skip_backoff = False
        self.parked_in: ParkedGroup | None = None

    def go_first(self) -> None:
        """Before all others of its profile, in the order in which they came."""
        self.key = (*(FIRST for _ in self.key[:-1]), self.key[-1])
        self.rank = FIRST, FIRST

    @property
    def shape(self) -> Shape:
        """The shape that was assessed for it last; the pod's own before."""
        return self.group.shape


class ParkedGroup:
    """Parked pods of one profile and shape, with what a node must have to be worth a try.

    `heap` may still hold pods that left; `parked` counts those that did not. `never` are the nodes
    that could not take them whatever leaves.
    """

    __slots__ = ("_least_mib", "demand", "heap", "key", "never", "parked")

    def __init__(self, key: GroupKey, demand: Demand) -> None:
        self.key = key
        self.heap: list[tuple[Key, WaitingPod]] = []
        self.parked = 0
        self.never = NOWHERE
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """The group's demand on the kinds of GPU that there are now."""
        self.demand = demand
        self._least_mib = [_least_mib(need) for need in demand.needs]

    def could_fit(self, freed: FreedNode, *, by_requests: bool = False) -> bool:
        """Necessary, not sufficient.

        What could be harvested is not known here; `by_requests`: without it.
        """
        demand, cells = self.demand, freed.cells
        lends = demand.harvests and not by_requests
        if cells[CPU_FREE] < demand.cpu_milli and demand.cpu_milli:
            return False
        if cells[MEMORY_FREE] < demand.memory_mib and demand.memory_mib:
            return False
        for need, least_mib in zip(demand.needs, self._least_mib, strict=True):
            if need.whole:
                if cells[IDLE] < need.count:
                    return False
            elif not freed.could_take(need, 0 if lends else least_mib):
                return False
        return not self.never.covers(freed)

    def first(self) -> WaitingPod | None:
        """The one to be tried first; those that left are dropped on the way."""
        while self.heap and self.heap[0][1].state != "parked":
            heapq.heappop(self.heap)
        return self.heap[0][1] if self.heap else None

    def tidy(self) -> None:
        """Drop pods that left, once they are most of the heap."""
        if len(self.heap) > 2 * self.parked + 8:
            self.heap = [entry for entry in self.heap if entry[1].state == "parked"]
            heapq.heapify(self.heap)


def fits_without_harvest(group: ParkedGroup | None, freed: FreedNode) -> bool:
    """True if pods that may borrow could fit the node without that."""
    return group is not None and group.demand.harvests and group.could_fit(freed, by_requests=True)


def _least_mib(need: Need) -> int:
    """The least memory one GPU must have free for the request, over the kinds that will do."""
    if need.gpu_request.split:
        return 0
    return int(need.ask_mib.min(initial=NOWHERE_MIB, where=need.will_do))
