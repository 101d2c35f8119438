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
"""

import heapq
from collections.abc import Iterator

from weft.core.engine.active_pods import ActivePods
from weft.core.engine.decision_faults import fault_backoff_ns
from weft.core.engine.waiting_pods import (
    NOWHERE,
    FreedNode,
    GroupKey,
    Never,
    ParkedGroup,
    WaitingPod,
    fits_without_harvest,
)
from weft.core.framework import Demand, Profile
from weft.model import PodRequest, Shape

BACKOFF_FIRST_NS = 1_000_000_000
BACKOFF_MOST_NS = 10_000_000_000
"""kube-scheduler's podInitialBackoffSeconds and podMaxBackoffSeconds."""


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
