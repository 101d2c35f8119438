"""Pods waiting: to be tried (active), for their back-off to end, or for something to change.

    added ──▶ ACTIVE ──fits──▶ (out)
                │ ▲
          fails │ │ back-off over
                ▼ │
             PARKED ──an event that could help──▶ BACKING OFF
Pods of one profile and shape fit alike, so only the first of each parked group is woken; when it
gets a place or leaves before its turn, the next one is.
"""

import heapq
from collections.abc import Iterator

from weft.framework import Demand, Need, Profile
from weft.model import PodRequest, Shape

BACKOFF_FIRST_NS = 1_000_000_000
BACKOFF_MOST_NS = 10_000_000_000
"""kube-scheduler's podInitialBackoffSeconds and podMaxBackoffSeconds."""
NOWHERE_MIB = 1 << 60
"""More memory than any GPU has: no kind of GPU will do."""

FIRST = -1 << 62

Key = tuple[int, ...]


class Waiting:
    """A pod in the queue. `tries` counts attempts so far, `state` says where it waits."""

    __slots__ = ("key", "pod", "profile", "ready_ns", "shape", "state", "tries", "woken")

    def __init__(self, pod: PodRequest, profile: Profile, seq: int) -> None:
        self.pod, self.profile = pod, profile
        self.key: Key = (*profile.lead.queue_key(pod), seq)
        self.shape: Shape = pod.shape
        self.tries = 0
        self.ready_ns = 0
        self.state = "active"
        self.woken = False


class Group:
    """Parked pods of one profile and shape, with what a node must have to be worth a try.

    `heap` may still hold pods that left; `parked` counts those that did not.
    """

    __slots__ = ("_least_mib", "demand", "heap", "key", "parked")

    def __init__(self, key: tuple[str, Shape], demand: Demand) -> None:
        self.key = key
        self.heap: list[tuple[Key, Waiting]] = []
        self.parked = 0
        self.ask(demand)

    def ask(self, demand: Demand) -> None:
        """What the group asks for, on the kinds of GPU that there are now."""
        self.demand = demand
        self._least_mib: list[int] | None = None

    def could_fit(self, cells: list[int]) -> bool:
        """Necessary, not sufficient. `cells` are one node's columns in `NODE_COLUMNS` order."""
        demand = self.demand
        if cells[0] < demand.cpu_milli and demand.cpu_milli:
            return False
        if cells[1] < demand.memory_mib and demand.memory_mib:
            return False
        if self._least_mib is None:
            self._least_mib = [_least_mib(need) for need in demand.needs]
        for need, least_mib in zip(demand.needs, self._least_mib, strict=True):
            if need.whole:
                if cells[5] < need.count:
                    return False
            elif cells[3] < need.milli or (cells[4] < least_mib and not demand.harvests):
                return False
        return True

    def tidy(self) -> None:
        """Drop pods that left, once they are most of the heap."""
        if len(self.heap) > 2 * self.parked + 8:
            self.heap = [entry for entry in self.heap if entry[1].state == "parked"]
            heapq.heapify(self.heap)


def _least_mib(need: Need) -> int:
    """The least memory one GPU must have free for the claim, over the kinds that will do."""
    if need.claim.split:
        return 0
    return int(need.ask_mib.min(initial=NOWHERE_MIB, where=need.will_do))


class Queue:
    """All waiting pods. Heads of different profiles are compared by priority, then age."""

    def __init__(self) -> None:
        self._active: dict[str, list[tuple[Key, Waiting]]] = {}
        self._backoff: list[tuple[int, int, Waiting]] = []
        self._parked: dict[tuple[str, Shape], Group] = {}
        self._known: dict[str, Waiting] = {}
        self._seq = 0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def get(self, uid: str) -> Waiting | None:
        """The pod, if it is in the queue."""
        return self._known.get(uid)

    def waiting(self) -> Iterator[Waiting]:
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
        waiting = Waiting(pod, profile, self._seq)
        if first:
            waiting.key = (*(FIRST for _ in waiting.key[:-1]), self._seq)
        self._known[pod.uid] = waiting
        self._activate(waiting)

    def remove(self, uid: str, now_ns: int) -> None:
        """Forget the pod. Its heap entries are skipped when they surface.

        If it was woken and not tried yet, the next of its group takes its turn.
        """
        waiting = self._known.pop(uid, None)
        if waiting is None:
            return
        was, waiting.state = waiting.state, "gone"
        if was != "parked":
            self.next_of_group(waiting, now_ns)
        elif (group := self._parked.get((waiting.profile.name, waiting.shape))) is not None:
            self._leave(group)
            group.tidy()

    def pop(self) -> Waiting | None:
        """The pod to try next, taken out of the active queue; None when there is none."""
        best: list[tuple[Key, Waiting]] | None = None
        best_key: tuple[int, int, int] | None = None
        for heap in self._active.values():
            while heap and heap[0][1].state != "active":
                heapq.heappop(heap)
            if heap:
                pod = heap[0][1].pod
                key = (-pod.priority, pod.created_ns, heap[0][0][-1])
                if best_key is None or key < best_key:
                    best, best_key = heap, key
        if best is None:
            return None
        waiting = heapq.heappop(best)[1]
        waiting.state = "trying"
        waiting.tries += 1
        return waiting

    def done(self, waiting: Waiting) -> None:
        """It has a place."""
        self._known.pop(waiting.pod.uid, None)
        waiting.state = "gone"

    def next_of_group(self, waiting: Waiting, now_ns: int) -> None:
        """A woken pod got its place, or left: let the next of its kind try."""
        group = self._parked.get((waiting.profile.name, waiting.shape))
        if waiting.woken and group is not None:
            self._wake_first(group, now_ns)

    def park(self, waiting: Waiting, shape: Shape, demand: Demand, now_ns: int) -> None:
        """It fits nowhere: wait for an event that could help."""
        waiting.shape = shape
        waiting.state = "parked"
        waiting.ready_ns = now_ns + backoff_ns(waiting.tries)
        key = (waiting.profile.name, shape)
        group = self._parked.get(key)
        if group is None:
            group = self._parked[key] = Group(key, demand)
        elif group.demand is not demand:
            group.ask(demand)
        group.parked += 1
        heapq.heappush(group.heap, (waiting.key, waiting))

    def retry(self, pod: PodRequest, profile: Profile, tries: int, now_ns: int) -> None:
        """A pod that lost its place (bind refused): back in after its back-off."""
        self._seq += 1
        waiting = Waiting(pod, profile, self._seq)
        waiting.tries = tries
        waiting.ready_ns = now_ns + backoff_ns(tries)
        self._known[pod.uid] = waiting
        self._hold(waiting, now_ns)

    def room_on(self, cells: list[int], now_ns: int) -> None:
        """A node gained room: wake the first pod of each group that could fit there."""
        for group in list(self._parked.values()):
            if group.could_fit(cells):
                self._wake_first(group, now_ns)

    def wake_all(self, now_ns: int) -> None:
        """Anything may have changed (nodes, a policy's input): wake every group's first."""
        for group in list(self._parked.values()):
            self._wake_first(group, now_ns)

    def tick(self, now_ns: int) -> None:
        """Move pods whose back-off has ended to the active queue."""
        while self._backoff and self._backoff[0][0] <= now_ns:
            waiting = heapq.heappop(self._backoff)[2]
            if waiting.state == "backoff":
                self._activate(waiting)

    def next_ns(self) -> int | None:
        """When the next back-off ends."""
        while self._backoff and self._backoff[0][2].state != "backoff":
            heapq.heappop(self._backoff)
        return self._backoff[0][0] if self._backoff else None

    def _activate(self, waiting: Waiting) -> None:
        waiting.state = "active"
        heapq.heappush(self._active.setdefault(waiting.profile.name, []), (waiting.key, waiting))

    def _wake_first(self, group: Group, now_ns: int) -> None:
        while group.heap:
            waiting = heapq.heappop(group.heap)[1]
            if waiting.state == "parked":
                waiting.woken = True
                self._leave(group)
                self._hold(waiting, now_ns)
                return

    def _leave(self, group: Group) -> None:
        """One pod less is parked in the group; an empty group is forgotten."""
        group.parked -= 1
        if group.parked == 0:
            del self._parked[group.key]

    def _hold(self, waiting: Waiting, now_ns: int) -> None:
        if waiting.ready_ns <= now_ns:
            self._activate(waiting)
        else:
            waiting.state = "backoff"
            heapq.heappush(self._backoff, (waiting.ready_ns, waiting.key[-1], waiting))


def backoff_ns(tries: int) -> int:
    """How long a pod rests after its `tries`-th failed try, nanoseconds."""
    return min(BACKOFF_FIRST_NS << min(tries - 1, 10), BACKOFF_MOST_NS)
