"""Pods waiting: to be tried (active), for their back-off to end, or for something to change.

    added ──▶ ACTIVE ──fits──▶ (out)
                │ ▲
          fails │ │ back-off over
                ▼ │
             PARKED ──an event that could help──▶ BACKING OFF
             FAULTY ──any change──▶ BACKING OFF, longer each time
Pods of one profile and shape fit alike, so only the first of each parked group is woken.
When it gets a place or leaves before its turn, the next one is. Until it was tried nobody else is
woken: it will meet whatever changes. And nobody overtakes: before a pod takes a place, those alike
that came before it are tried (`defers`), whether they back off, are parked or wait for their turn.

Active pods are tried by their policy's order, as long as one event's work is enough for all of
them. While it is not, they take turns: the highest priority first, and of equals the namespace that
had the least work so far; within a namespace it stays the policy's order. So nobody's many pods
keep another waiting.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from weft.core.constraints import PodsMoved, waits_for
from weft.core.engine.decision_faults import fault_backoff_ns
from weft.core.framework import Demand, Need, Profile
from weft.core.framework import policy as ask
from weft.core.ledger import Ledger
from weft.core.ledger.table import CPU_FREE, IDLE, MAX_MEMORY_FREE, MAX_MILLI_FREE, MEMORY_FREE
from weft.model import PodRequest, Shape

BACKOFF_FIRST_NS = 1_000_000_000
BACKOFF_MOST_NS = 10_000_000_000
"""kube-scheduler's podInitialBackoffSeconds and podMaxBackoffSeconds."""
LEFT_AT_MOST = 256
"""Groups of pods alike of which nobody is parked, and which are known by what they waited for."""
NOWHERE_MIB = 1 << 60
"""More memory than any GPU has: no kind of GPU will do."""

FIRST = -1 << 62
"""A part of the key of pods that go before all others of their profile."""

Key = tuple[int, ...]
Heap = list[tuple[Key, "WaitingPod"]]


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
        self.key: Key = (*ask.queue_key(profile.lead, pod), seq)
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


class ActivePods:
    """Heaps by profile; while there are turns, by profile and rank, and by namespace in these.

    Entries of pods that are not active any more are skipped when they surface.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, Heap] = {}
        self._turns: dict[str, dict[tuple[int, int], dict[str, Heap]]] | None = None
        self._work: dict[str, int] = {}

    def __bool__(self) -> bool:
        return any(_head(heap) is not None for heap in self._all())

    def push(self, waiting: WaitingPod, turn_of: str | None = None) -> None:
        """One more, on its own namespace's turn or on that of another (`turn_of`)."""
        waiting.turn_of = waiting.pod.namespace if turn_of is None else turn_of
        if self._turns is not None and not self._has_turn(waiting.turn_of):
            self._catch_up(waiting.turn_of)
        heapq.heappush(self._heap_of(waiting), (waiting.key, waiting))

    def pop(self) -> WaitingPod | None:
        """The next one, taken out; None when there is none."""
        if self._turns is not None:
            return self._pop_by_turns()
        best: Heap | None = None
        best_key: tuple[int, ...] | None = None
        for heap in self._heaps.values():
            if (head := _head(heap)) is not None:
                key = (-head.pod.priority, *_came(head))
                if best_key is None or key < best_key:
                    best, best_key = heap, key
        return None if best is None else heapq.heappop(best)[1]

    def worked(self, waiting: WaitingPod, looks: int) -> None:
        """So much work was done for the pod, on the turn of its namespace."""
        self._work[waiting.turn_of] = self._work.get(waiting.turn_of, 0) + looks

    def take_turns(self, *, by_turns: bool) -> None:
        """Have them take turns, as one event's work was not enough for all, or no more."""
        if not by_turns:
            self._turns = None
            self._work.clear()
        elif self._turns is None:
            active = [waiting for heap in self._heaps.values() for waiting in _active(heap)]
            self._heaps, self._turns = {}, {}
            for waiting in active:
                heapq.heappush(self._heap_of(waiting), (waiting.key, waiting))

    def elder(self, waiting: WaitingPod, shape: Shape) -> WaitingPod | None:
        """While there are turns: the first of those alike that came before it, and wait for the
        turn of another namespace."""
        if self._turns is None:
            return None
        ranks = self._turns.get(waiting.profile.name, {})
        alike = (
            other
            for heap in ranks.get(waiting.rank, {}).values()
            for other in _active(heap)
            if other.key < waiting.key
            and (other.shape == shape or other.pod.shape == waiting.pod.shape)
        )
        return min(alike, key=lambda other: other.key, default=None)

    def _heap_of(self, waiting: WaitingPod) -> Heap:
        name = waiting.profile.name
        if self._turns is None:
            return self._heaps.setdefault(name, [])
        ranks = self._turns.setdefault(name, {})
        return ranks.setdefault(waiting.rank, {}).setdefault(waiting.turn_of, [])

    def _has_turn(self, namespace: str) -> bool:
        return any(
            _head(heap) is not None
            for ranks in (self._turns or {}).values()
            for namespaces in ranks.values()
            if (heap := namespaces.get(namespace)) is not None
        )

    def _catch_up(self, namespace: str) -> None:
        """Count for a namespace that comes later the work that the others had before."""
        others = {
            other
            for ranks in (self._turns or {}).values()
            for namespaces in ranks.values()
            for other, heap in namespaces.items()
            if _head(heap) is not None
        }
        least = min((self._work.get(other, 0) for other in others), default=0)
        self._work[namespace] = max(self._work.get(namespace, 0), least)

    def _pop_by_turns(self) -> WaitingPod | None:
        best: Heap | None = None
        best_key: tuple[int, ...] | None = None
        for ranks in (self._turns or {}).values():
            if (rank := _highest(ranks)) is None:
                continue
            for namespace, heap in ranks[rank].items():
                key = (rank[1], self._work.get(namespace, 0), *_came(heap[0][1]))
                if best_key is None or key < best_key:
                    best, best_key = heap, key
        return None if best is None else heapq.heappop(best)[1]

    def _all(self) -> Iterator[Heap]:
        yield from self._heaps.values()
        for ranks in (self._turns or {}).values():
            for namespaces in ranks.values():
                yield from namespaces.values()


def _highest(ranks: dict[tuple[int, int], dict[str, Heap]]) -> tuple[int, int] | None:
    """The highest rank that anybody has; what is empty is dropped on the way."""
    while ranks:
        rank = min(ranks)
        namespaces = ranks[rank]
        for namespace in [one for one, heap in namespaces.items() if _head(heap) is None]:
            del namespaces[namespace]
        if namespaces:
            return rank
        del ranks[rank]
    return None


def _head(heap: Heap) -> WaitingPod | None:
    while heap and heap[0][1].state != "active":
        heapq.heappop(heap)
    return heap[0][1] if heap else None


def _active(heap: Heap) -> Iterator[WaitingPod]:
    return (waiting for _, waiting in heap if waiting.state == "active")


def _came(waiting: WaitingPod) -> tuple[int, int]:
    return waiting.pod.created_ns, waiting.key[-1]


class _GroupsByRule:
    """Parked groups by what their rules about other pods and volumes wait for: an event looks at
    no others, and at none of a group's thousands of terms but its own.

    A group that was woken is mostly parked again, so it stays for a while, as nobody.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, object], dict[int, None]] = {}
        self._known: dict[GroupKey, int] = {}
        self._groups: dict[int, ParkedGroup] = {}
        self._keys: dict[int, list[tuple[str, object]]] = {}
        self._left: dict[GroupKey, None] = {}
        self._count = 0

    def add(self, group: ParkedGroup) -> None:
        """One more."""
        self._left.pop(group.key, None)
        number = self._known.get(group.key)
        if number is None:
            keys = list(_keys(waits_for(group.key.shape.constraints)))
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

    def leave(self, group: ParkedGroup) -> None:
        """Nobody of the group is parked any more."""
        if (number := self._known.get(group.key)) is not None:
            del self._groups[number]
            self._left[group.key] = None

    def _forget(self, left: GroupKey) -> None:
        del self._left[left]
        number = self._known.pop(left)
        for key in self._keys.pop(number):
            here = self._numbers[key]
            del here[number]
            if not here:
                del self._numbers[key]

    def waiting_for(self, moved: PodsMoved) -> list[ParkedGroup]:
        """The groups that may fit since this moved, in the order in which they came first."""
        found: set[int] = set()
        for key in _keys(moved):
            found.update(self._numbers.get(key, ()))
        return [self._groups[number] for number in sorted(found) if number in self._groups]


def _keys(moved: PodsMoved) -> Iterator[tuple[str, object]]:
    return ((kind, key) for kind, keys in moved._asdict().items() for key in keys)


class Queue:
    """All waiting pods. Heads of different profiles are compared by priority, then age; who is
    next while there is more to do than one event's work, `ActivePods` says."""

    def __init__(self) -> None:
        self._active = ActivePods()
        self._backoff: list[tuple[int, int, WaitingPod]] = []
        self._parked: dict[GroupKey, ParkedGroup] = {}
        self._woken: dict[GroupKey, WaitingPod] = {}
        self._known: dict[str, WaitingPod] = {}
        self._faulty: dict[str, WaitingPod] = {}
        self._by_rule = _GroupsByRule()
        self._seq = self._held = self._looked_at = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def get(self, uid: str) -> WaitingPod | None:
        """The pod, if it is in the queue."""
        return self._known.get(uid)

    def waiting(self) -> Iterator[WaitingPod]:
        """Every pod in the queue, wherever it waits."""
        return iter(self._known.values())

    def add(self, pod: PodRequest, profile: Profile, now_ns: int, *, first: bool = False) -> None:
        """A new pod, before all others of its profile where it is to be `first`.

        One with the same UID is replaced, and left alone if it is the same.
        """
        known = self._known.get(pod.uid)
        if known is not None:
            if known.pod == pod:
                return
            self.remove(pod.uid, now_ns)
        self._seq += 1
        waiting = WaitingPod(pod, profile, self._seq)
        if first:
            waiting.go_first()
        self._known[pod.uid] = waiting
        self._activate(waiting)

    def remove(self, uid: str, now_ns: int) -> None:
        """Forget the pod. Its heap entries are skipped when they surface.

        If it was woken and not tried yet, the next of its group takes its turn.
        """
        waiting = self._known.pop(uid, None)
        if waiting is None:
            return
        self._faulty.pop(uid, None)
        was, waiting.state = waiting.state, "gone"
        if was != "parked":
            self._end_turn(waiting)
            self.next_of_group(waiting, now_ns)
        elif (group := self._parked.get(waiting.group)) is not None:
            self._leave(group)
            group.tidy()

    def pop(self) -> WaitingPod | None:
        """The pod to try next, taken out of the active queue; None when there is none."""
        waiting = self._active.pop()
        if waiting is None:
            return None
        waiting.state = "trying"
        waiting.tries += 1
        self._end_turn(waiting)
        return waiting

    @property
    def active(self) -> bool:
        """True while `pop` has a pod to try."""
        return bool(self._active)

    def worked(self, waiting: WaitingPod, looks: int) -> None:
        """So much work was done for the pod."""
        self._active.worked(waiting, looks)

    def take_turns(self, *, by_turns: bool) -> None:
        """Have active pods take turns, as one event's work was not enough for all, or no more."""
        self._active.take_turns(by_turns=by_turns)

    def defers(self, waiting: WaitingPod, shape: Shape) -> bool:
        """True if a pod of this shape that came before `waiting` backs off, is parked, or waits for
        its namespace's turn.

        To be asked before `waiting` takes a place: then that one is tried first, and this again.
        """
        key = GroupKey(waiting.profile.name, shape)
        group, woken = self._parked.get(key), self._woken.get(key)
        there = [group.first() if group is not None else None, woken]
        ahead = [pod for pod in there if pod is not None and pod.state in {"parked", "backoff"}]
        if (elder := self._active.elder(waiting, shape)) is not None:
            ahead.append(elder)
        first = min(ahead, key=lambda pod: pod.key, default=waiting)
        if first.key >= waiting.key:
            return False
        if first.state == "parked" and group is not None:
            heapq.heappop(group.heap)
            first.woken = True
            self._leave(group)
        self._activate(first, waiting.turn_of)
        waiting.tries -= 1
        self._activate(waiting, waiting.turn_of)
        return True

    def done(self, waiting: WaitingPod) -> None:
        """The pod has a place."""
        self._known.pop(waiting.pod.uid, None)
        waiting.state = "gone"

    def next_of_group(self, waiting: WaitingPod, now_ns: int) -> None:
        """A woken pod got its place, or left: let the next of its kind try."""
        group = self._parked.get(waiting.group) if waiting.woken else None
        if group is not None:
            self._wake_first(group, now_ns, skip_backoff=waiting.skip_backoff)

    def park(
        self, waiting: WaitingPod, shape: Shape, demand: Demand, now_ns: int, never: Never = NOWHERE
    ) -> None:
        """Park a pod that fits nowhere until an event helps. `never` are nodes that none could.

        One woken for its old group that by now has another shape leaves its turn to the next there.
        """
        if shape != waiting.shape:
            self.next_of_group(waiting, now_ns)
            waiting.group = GroupKey(waiting.profile.name, shape)
        waiting.state = "parked"
        waiting.ready_ns = now_ns if waiting.skip_backoff else now_ns + backoff_ns(waiting.tries)
        waiting.woken = waiting.skip_backoff = False
        key = waiting.group
        group = self._parked.get(key)
        if group is None:
            group = self._parked[key] = ParkedGroup(key, demand)
            self._by_rule.add(group)
        elif group.demand is not demand:
            group.set_demand(demand)
        waiting.group = group.key
        group.never = never
        group.parked += 1
        heapq.heappush(group.heap, (waiting.key, waiting))
        waiting.parked_in = group

    def park_faulty(self, waiting: WaitingPod, now_ns: int) -> None:
        """Deciding for it broke off: it waits apart from its group for whatever changes."""
        self.next_of_group(waiting, now_ns)
        waiting.faults += 1
        waiting.state = "faulty"
        waiting.ready_ns = now_ns + fault_backoff_ns(waiting.faults)
        waiting.woken = waiting.skip_backoff = False
        self._known[waiting.pod.uid] = self._faulty[waiting.pod.uid] = waiting

    def _wake_faulty(self, now_ns: int) -> None:
        waiting, self._faulty = self._faulty, {}
        for faulty in waiting.values():
            self._hold(faulty, now_ns)

    def retry(self, pod: PodRequest, profile: Profile, tries: int, now_ns: int) -> None:
        """A pod that lost its place (bind refused): back in after its back-off."""
        self._seq += 1
        waiting = WaitingPod(pod, profile, self._seq)
        waiting.tries = tries
        waiting.ready_ns = now_ns + backoff_ns(tries)
        self._known[pod.uid] = waiting
        self._hold(waiting, now_ns)

    def wake_for_freed(self, freed: FreedNode, now_ns: int) -> None:
        """Wake the first pod of each group that could fit a node on which capacity was freed.

        A pod that may borrow is woken by any freed capacity, mostly in vain, so it keeps its
        back-off. Capacity in which it would fit without harvesting ends the back-off at once.
        """
        self._wake_faulty(now_ns)
        for woken in list(self._woken.values()):
            if woken.state == "backoff" and fits_without_harvest(woken.parked_in, freed):
                woken.skip_backoff = True
                self._activate(woken)
        self._looked_at += len(self._parked)
        for group in list(self._parked.values()):
            if group.could_fit(freed):
                self._wake_first(group, now_ns, skip_backoff=fits_without_harvest(group, freed))

    def wake_all(self, now_ns: int, *, skip_backoff: bool = False) -> None:
        """Anything may have changed (nodes, a policy's input): wake every group's first.

        `skip_backoff` ends the back-off of those, and of the ones that were woken before.
        """
        self._wake_faulty(now_ns)
        for woken in list(self._woken.values()) if skip_backoff else ():
            woken.skip_backoff = True
            if woken.state == "backoff":
                self._activate(woken)
        self._looked_at += len(self._parked)
        for group in list(self._parked.values()):
            self._wake_first(group, now_ns, skip_backoff=skip_backoff)

    def wake_for_pods(self, moved: PodsMoved, now_ns: int) -> None:
        """Pods came, went or were relabelled, or volumes did: wake the first of each group whose
        rules about these may hold somewhere now."""
        for group in self._by_rule.waiting_for(moved):
            self._looked_at += 1
            self._wake_first(group, now_ns)

    def groups_looked_at(self) -> int:
        """Groups that were gone through since this was asked last, to wake somebody."""
        count, self._looked_at = self._looked_at, 0
        return count

    def tick(self, now_ns: int) -> None:
        """Move pods whose back-off has ended to the active queue."""
        while self._backoff and self._backoff[0][0] <= now_ns:
            ready_ns, _, waiting = heapq.heappop(self._backoff)
            if waiting.state == "backoff" and waiting.ready_ns == ready_ns:
                self._activate(waiting)

    def next_ns(self) -> int | None:
        """The end of the next back-off."""
        while self._backoff:
            ready_ns, _, waiting = self._backoff[0]
            if waiting.state == "backoff" and waiting.ready_ns == ready_ns:
                return ready_ns
            heapq.heappop(self._backoff)  # it left, or was activated before its time
        return None

    def _activate(self, waiting: WaitingPod, turn_of: str | None = None) -> None:
        waiting.state = "active"
        self._active.push(waiting, turn_of)

    def _wake_first(self, group: ParkedGroup, now_ns: int, *, skip_backoff: bool = False) -> None:
        """Let the group's first pod try, unless one that was woken was not tried yet."""
        if group.key in self._woken:
            return
        waiting = group.first()
        if waiting is not None:
            heapq.heappop(group.heap)
            waiting.woken, waiting.skip_backoff = True, skip_backoff
            self._woken[group.key] = waiting
            self._leave(group)
            if skip_backoff:
                self._activate(waiting)
            else:
                self._hold(waiting, now_ns)

    def _end_turn(self, waiting: WaitingPod) -> None:
        """The pod is tried now, or left."""
        if waiting.woken and self._woken.get(waiting.group) is waiting:
            del self._woken[waiting.group]

    def _leave(self, group: ParkedGroup) -> None:
        """One pod less is parked in the group; an empty group is forgotten."""
        group.parked -= 1
        if group.parked == 0:
            del self._parked[group.key]
            self._by_rule.leave(group)

    def _hold(self, waiting: WaitingPod, now_ns: int) -> None:
        if waiting.ready_ns <= now_ns:
            self._activate(waiting)
        else:
            waiting.state = "backoff"
            self._held += 1
            heapq.heappush(self._backoff, (waiting.ready_ns, self._held, waiting))


def backoff_ns(tries: int) -> int:
    """The back-off of a pod after its `tries`-th failed try, nanoseconds."""
    return min(BACKOFF_FIRST_NS << min(tries - 1, 10), BACKOFF_MOST_NS)
