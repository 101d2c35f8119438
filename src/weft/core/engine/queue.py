"""The pending pods: waiting to be tried (active), for the end of their back-off, or for a change.

    added ──▶ ACTIVE ──fits──▶ (out)
                │ ▲
          fails │ │ back-off over
                ▼ │
             PARKED ──an event that could help──▶ BACKING OFF
             FAULTY ──any change──▶ BACKING OFF, longer each time
Pods of one profile and shape fit alike, so only the first of each parked group is woken. When it
gets a place, or leaves before it was tried, the next one is woken; until then no other is, as the
woken pod will benefit from every change. No pod overtakes a like one: before a pod takes a place,
earlier pods of its group are tried (`defers`), whether they back off, are parked or wait for their
turn.

Active pods are tried by their policy's order, as long as one event's work budget is enough for all.
Otherwise they take turns: the highest priority first, and among equals the namespace for which the
least work was done so far; within a namespace the policy's order holds. So many pods of one
namespace do not keep other namespaces waiting.

Pods of a gang gather apart (GATHERING) until as many are there as it needs; then one of them, its
head, waits as above for all of them (`core/engine/gangs.py`).
"""

import heapq
from collections.abc import Callable, Iterator, Sequence

from weft.core.constraints import PodsMoved
from weft.core.engine.decision_faults import fault_backoff_ns
from weft.core.engine.gangs import Gangs
from weft.core.engine.gathering import GatheringPods
from weft.core.engine.parked import (
    NOWHERE,
    FreedNode,
    GroupsByRule,
    Key,
    Never,
    ParkedGroup,
    backoff_ns,
    fits_without_harvest,
)
from weft.core.engine.team_queues import TeamQueues
from weft.core.framework import Demand, Profile
from weft.core.framework import policy as ask
from weft.core.framework.policy import QueueOrder
from weft.model import PodRequest, Shape

FIRST = -1 << 62
"""The values in the sort key of pods that go before all others of their profile."""

Heap = list[tuple[Key, "WaitingPod"]]
By = Callable[["WaitingPod", int], Key] | None
Whom = Callable[["WaitingPod"], bool] | None


class GroupKey:
    """A profile and a shape as a key that is hashed once, since a shape may have thousands of parts
    and one event may look up thousands of keys. A gang (`Gang.key`) that waits as one has a group
    of its own; pods of a team's queue share a group only with each other if their queue matters
    (`TeamQueues.apart`)."""

    __slots__ = ("_hash", "gang", "profile", "shape", "team")

    def __init__(self, profile: str, shape: Shape, gang: str = "", team: str = "") -> None:
        self.profile, self.shape, self.gang, self.team = profile, shape, gang, team
        self._hash = hash((profile, shape, gang, team))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, GroupKey) or self._hash != other._hash:
            return False
        alike = self.profile == other.profile and self.gang == other.gang
        return alike and self.team == other.team and self.shape == other.shape


class WaitingPod:
    """A pod in the queue. `tries` counts its attempts so far, `state` says where it waits.

    `woken`: it left its group for a try. `skip_backoff`: it was woken by periodic events (GPU
    metrics), and needs no back-off before or after the try. `parked_in` is the group that it was
    parked in last, `group` the key of its group. `faults` counts the tries that failed by an error.
    `rank` is its priority, smaller is higher, `turn_of` the namespace on whose turn it is tried,
    `came_ns` when it came. `team` is its team's queue, "" if that does not matter.
    """

    __slots__ = (
        *("came_ns", "faults"),
        "group",
        "key",
        "parked_in",
        "pod",
        "profile",
        "rank",
        "ready_ns",
        "skip_backoff",
        "state",
        "team",
        "tries",
        "turn_of",
        "woken",
    )

    def __init__(
        self,
        pod: PodRequest,
        profile: Profile,
        seq: int,
        team: str = "",
        order: QueueOrder | None = None,
    ) -> None:
        self.pod, self.profile, self.team = pod, profile, team
        order = order or ask.queue_order(profile.lead, pod)
        self.key: Key = (*order.key, seq)
        self.rank, self.came_ns = order.rank, order.came_ns
        self.turn_of = pod.namespace
        self.group = self.own_group()
        self.tries = self.faults = 0
        self.ready_ns = 0
        self.state = "active"
        self.woken = self.skip_backoff = False
        self.parked_in: ParkedGroup[GroupKey, WaitingPod] | None = None

    def own_group(self) -> GroupKey:
        """Return the key of the group of like pods in which the pod waits on its own. A pod that
        must be in its gang's topology domain shares a group only with pods of its gang."""
        gang = self.pod.gang
        in_domain = gang.key if gang and gang.topology_key else ""
        return GroupKey(self.profile.name, self.pod.shape, in_domain, self.team)

    def gang_group(self, gang: str) -> GroupKey:
        """Return the key of the group of a gang's head, which waits for the whole gang; no other
        pod is in it."""
        return GroupKey(self.profile.name, self.pod.shape, gang, self.team)

    def go_first(self) -> None:
        """Put the pod before all others of its profile, in order of arrival."""
        self.key = (*(FIRST for _ in self.key[:-1]), self.key[-1])
        self.rank = FIRST, FIRST

    @property
    def shape(self) -> Shape:
        """Return the shape that was last assessed for the pod, at first its own."""
        return self.group.shape


Parked = ParkedGroup[GroupKey, WaitingPod]


class ActivePods:
    """Heaps by profile; while pods take turns, by profile and rank, and within these by namespace.
    Entries of pods that are no longer active are skipped when they come up.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, Heap] = {}
        self._turns: dict[str, dict[tuple[int, int], dict[str, Heap]]] | None = None
        self._work: dict[str, int] = {}

    def __bool__(self) -> bool:
        return any(first_of(heap) is not None for heap in self._all())

    def push(self, waiting: WaitingPod, turn_of: str | None = None) -> None:
        """Add a pod, to be tried on the turn of its own namespace or of another one (`turn_of`)."""
        waiting.turn_of = waiting.pod.namespace if turn_of is None else turn_of
        if self._turns is not None and not self._has_turn(waiting.turn_of):
            self._catch_up(waiting.turn_of)
        heapq.heappush(self._heap_of(waiting), (waiting.key, waiting))

    def pop(self) -> WaitingPod | None:
        """Remove and return the next pod; None if there is none."""
        if self._turns is not None:
            return self._pop_by_turns()
        best: Heap | None = None
        best_key: tuple[int, ...] | None = None
        for heap in self._heaps.values():
            if (head := first_of(heap)) is not None:
                key = (-head.pod.priority, *came(head))
                if best_key is None or key < best_key:
                    best, best_key = heap, key
        return None if best is None else heapq.heappop(best)[1]

    def more_important(self, waiting: WaitingPod) -> WaitingPod | None:
        """Return the first active pod of the highest priority, if that is higher than this pod's.
        None while pods take turns, as turns go by priority anyway."""
        active = (other for heap in self._heaps.values() for other in active_in(heap))
        first = min(active, key=lambda other: (other.rank[1], *came(other)), default=waiting)
        return first if first.rank[1] < waiting.rank[1] else None

    def worked(self, waiting: WaitingPod, looks: int) -> None:
        """Charge the work done for the pod to its namespace's turn."""
        self._work[waiting.turn_of] = self._work.get(waiting.turn_of, 0) + looks

    def take_turns(self, *, by_turns: bool) -> None:
        """Start or stop taking turns; pods take turns while one event's work budget is not enough
        for all."""
        if not by_turns:
            self._turns = None
            self._work.clear()
        elif self._turns is None:
            active = [waiting for heap in self._heaps.values() for waiting in active_in(heap)]
            self._heaps, self._turns = {}, {}
            for waiting in active:
                heapq.heappush(self._heap_of(waiting), (waiting.key, waiting))

    def elder(self, waiting: WaitingPod, shape: Shape) -> WaitingPod | None:
        """Return the first active pod before `waiting` that has the same profile, rank, gang,
        team's queue and shape, but waits for another namespace's turn; None if there is none, or
        if pods do not take turns now."""
        if self._turns is None:
            return None
        ranks = self._turns.get(waiting.profile.name, {})
        alike = (
            other
            for heap in ranks.get(waiting.rank, {}).values()
            for other in active_in(heap)
            if other.key < waiting.key
            and other.group.gang == waiting.group.gang
            and other.group.team == waiting.group.team
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
            first_of(heap) is not None
            for ranks in (self._turns or {}).values()
            for namespaces in ranks.values()
            if (heap := namespaces.get(namespace)) is not None
        )

    def _catch_up(self, namespace: str) -> None:
        """Credit a namespace that just got active pods with the least work done for any other
        active namespace, so that it does not go first for long."""
        others = {
            other
            for ranks in (self._turns or {}).values()
            for namespaces in ranks.values()
            for other, heap in namespaces.items()
            if first_of(heap) is not None
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
                key = (rank[1], self._work.get(namespace, 0), *came(heap[0][1]))
                if best_key is None or key < best_key:
                    best, best_key = heap, key
        return None if best is None else heapq.heappop(best)[1]

    def _all(self) -> Iterator[Heap]:
        yield from self._heaps.values()
        for ranks in (self._turns or {}).values():
            for namespaces in ranks.values():
                yield from namespaces.values()


def _highest(ranks: dict[tuple[int, int], dict[str, Heap]]) -> tuple[int, int] | None:
    """Return the highest rank with active pods; ranks without active pods are dropped."""
    while ranks:
        rank = min(ranks)
        namespaces = ranks[rank]
        for namespace in [one for one, heap in namespaces.items() if first_of(heap) is None]:
            del namespaces[namespace]
        if namespaces:
            return rank
        del ranks[rank]
    return None


def first_of(heap: Heap) -> WaitingPod | None:
    """Return the heap's first active pod; entries of pods that are no longer active are dropped."""
    while heap and heap[0][1].state != "active":
        heapq.heappop(heap)
    return heap[0][1] if heap else None


def active_in(heap: Heap) -> Iterator[WaitingPod]:
    """Yield the heap's active pods."""
    return (waiting for _, waiting in heap if waiting.state == "active")


def came(waiting: WaitingPod) -> tuple[int, int]:
    """Return the order of arrival: smaller is earlier."""
    return waiting.came_ns, waiting.key[-1]


class Queue(GatheringPods):
    """All pending pods. The first pods of different profiles are compared by priority, then age;
    while one event's work budget is not enough for all, `ActivePods` decides which is next."""

    def __init__(
        self, teams: TeamQueues | None = None, active: ActivePods | None = None, order: By = None
    ) -> None:
        self._active, self._order = ActivePods() if active is None else active, order
        self._teams = teams if teams is not None and teams.count else None
        self._backoff: list[tuple[int, int, WaitingPod]] = []
        self._parked: dict[GroupKey, Parked] = {}
        self._woken: dict[GroupKey, WaitingPod] = {}
        self._known: dict[str, WaitingPod] = {}
        self._faulty: dict[str, WaitingPod] = {}
        self._by_rule: GroupsByRule[GroupKey, WaitingPod] = GroupsByRule()
        self._next: WaitingPod | None = None
        self._seq = self._held = self._looked_at = 0
        self.gangs: Gangs[WaitingPod] = Gangs()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def get(self, uid: str) -> WaitingPod | None:
        """Return the pod, if it is in the queue."""
        return self._known.get(uid)

    def waiting(self) -> Iterator[WaitingPod]:
        """Yield every pod in the queue, wherever it waits."""
        return iter(self._known.values())

    def add(
        self,
        pod: PodRequest,
        profile: Profile,
        now_ns: int,
        order: QueueOrder | None = None,
        *,
        first: bool = False,
    ) -> None:
        """Add a pod, with this sort order if the policy already gave one; before all others of its
        profile if `first`. A different pod with the same UID is replaced; an equal one is left
        alone.
        """
        known = self._known.get(pod.uid)
        if known is not None:
            if known.pod == pod:
                return
            self.remove(pod.uid, now_ns)
        waiting = self._new(pod, profile, now_ns, order)
        if first:
            waiting.go_first()
        self._known[pod.uid] = waiting
        self._enter(waiting, now_ns)

    def _new(
        self, pod: PodRequest, profile: Profile, now_ns: int, order: QueueOrder | None = None
    ) -> WaitingPod:
        self._seq += 1
        team = self._teams.apart(pod) if self._teams is not None else ""
        order = order or ask.queue_order(profile.lead, self.gangs.as_old(pod))
        waiting = WaitingPod(pod, profile, self._seq, team, order)
        if self._order is not None:
            waiting.key = self._order(waiting, now_ns)
        return waiting

    def _enter(self, waiting: WaitingPod, now_ns: int) -> None:
        """Let the pod wait for its back-off and its turn, or gather with its gang if the gang needs
        it."""
        if not waiting.pod.gang:
            self._hold(waiting, now_ns)
            return
        members = self.gangs.waits(waiting, waiting.pod.gang)
        if members.has_quorum:
            self._hold(waiting, now_ns)
        else:
            waiting.state = "gathering"
            members.ready_ns = max(members.ready_ns, waiting.ready_ns)
            self._gather(members, now_ns)

    def remove(self, uid: str, now_ns: int) -> None:
        """Forget the pod. Its heap entries are skipped when they come up.

        If it was woken and not tried yet, the next pod of its group is tried instead.
        """
        waiting = self._known.pop(uid, None)
        if waiting is None:
            return
        self._withdraw(waiting, "gone", now_ns)
        if waiting.pod.gang:
            self._leave_gang(waiting, now_ns)
        self._wants_no_place(waiting, now_ns)

    def _withdraw(self, waiting: WaitingPod, state: str, now_ns: int) -> None:
        """Remove the pod from wherever it waits for a try of its own."""
        self._faulty.pop(waiting.pod.uid, None)
        was, waiting.state = waiting.state, state
        if was == "gathering":
            return
        if was != "parked":
            self._end_turn(waiting)
            self.next_of_group(waiting, now_ns)
        elif (group := self._parked.get(waiting.group)) is not None:
            self._leave(group)
            group.tidy()

    def pop(self) -> WaitingPod | None:
        """Remove and return the pod to try next; None if none is active."""
        waiting, self._next = self._next, None
        if waiting is None or waiting.state != "active":
            waiting = self._active.pop()
        if waiting is None:
            return None
        waiting.state = "trying"
        waiting.tries += 1
        if waiting.pod.gang and (members := self.gangs.of(waiting.pod.gang)) is not None:
            members.tries = max(members.tries, waiting.tries)
        self._end_turn(waiting)
        return waiting

    @property
    def active(self) -> bool:
        """Return True while `pop` has a pod to try."""
        return bool(self._active)

    def worked(self, waiting: WaitingPod, looks: int) -> None:
        """Count work done for the pod, in looks, against its turn."""
        self._active.worked(waiting, looks)

    def take_turns(self, *, by_turns: bool) -> None:
        """Start or stop trying pods by the turns of namespaces (or of teams' queues)."""
        self._active.take_turns(by_turns=by_turns)

    def defers(self, waiting: WaitingPod, shape: Shape, to: Whom = None) -> bool:
        """Return True if an earlier pod of this shape backs off, is parked, or waits for its
        namespace's turn; `to` returns False for pods that do not count. To be called before
        `waiting` takes a place: if True, the earlier pod is tried first, and this one again
        afterwards.
        """
        if not ((elder := self._active.elder(waiting, shape)) or self._parked or self._woken):
            return False
        key = GroupKey(waiting.profile.name, shape, waiting.group.gang, waiting.team)
        group, woken = self._parked.get(key), self._woken.get(key)
        there = [group.first() if group is not None else None, woken]
        ahead = [pod for pod in there if pod is not None and pod.state in {"parked", "backoff"}]
        first = min([*ahead, elder or waiting], key=lambda pod: pod.key)
        if first.key >= waiting.key or (to is not None and not to(first)):
            return False
        if first.state == "parked" and group is not None:
            heapq.heappop(group.heap)
            first.woken = True
            self._leave(group)
        self._activate(first, waiting.turn_of)
        waiting.tries -= 1
        self._activate(waiting, waiting.turn_of)
        return True

    def yields(self, waiting: WaitingPod) -> bool:
        """Return True if a more important pod is active: that pod is tried next, and then this one
        again. To be called before any pod is evicted for `waiting`: if the policy's order puts the
        more important pod later, it could take the place, and the victims would have been evicted
        in vain."""
        self._next = self._active.more_important(waiting)
        if self._next is not None:
            waiting.tries -= 1
            self._activate(waiting, waiting.turn_of)
        return self._next is not None

    def done(self, waiting: WaitingPod, now_ns: int) -> None:
        """Note that the pod has a place."""
        self._known.pop(waiting.pod.uid, None)
        if waiting.pod.gang:
            self.has_place(waiting.pod.uid, waiting.pod.gang, now_ns)
            self.gangs.waits_no_more(waiting, waiting.pod.gang)
        waiting.state = "gone"

    def next_of_group(self, waiting: WaitingPod, now_ns: int) -> None:
        """Let the next pod of the group try, after a woken pod got its place or left."""
        group = self._parked.get(waiting.group) if waiting.woken else None
        if group is not None:
            self._wake_first(group, now_ns, skip_backoff=waiting.skip_backoff)

    def park(
        self,
        waiting: WaitingPod,
        shape: Shape,
        demand: Demand,
        now_ns: int,
        never: Never = NOWHERE,
        others: Sequence[tuple[Shape, Demand]] = (),
    ) -> None:
        """Park a pod that fits nowhere until an event helps. `never` are nodes that could not take
        it even if other pods left, `others` the other demands of the gang that it waits for. If the
        pod's shape changed since it was woken, the next pod of its old group is tried.
        """
        if shape != waiting.shape:
            self.next_of_group(waiting, now_ns)
            gang = waiting.group.gang
            waiting.group = GroupKey(waiting.profile.name, shape, gang, waiting.team)
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
        group.others = [ParkedGroup(GroupKey(key.profile, also), asked) for also, asked in others]
        group.parked += 1
        heapq.heappush(group.heap, (waiting.key, waiting))
        waiting.parked_in = group

    def park_faulty(self, waiting: WaitingPod, now_ns: int) -> None:
        """Park a pod whose decision failed, apart from its group, until anything changes."""
        self.next_of_group(waiting, now_ns)
        waiting.faults += 1
        waiting.state = "faulty"
        waiting.ready_ns = now_ns + fault_backoff_ns(waiting.faults)
        waiting.woken = waiting.skip_backoff = False
        self._known[waiting.pod.uid] = self._faulty[waiting.pod.uid] = waiting
        self._wants_no_place(waiting, now_ns)

    def _wants_no_place(self, waiting: WaitingPod, now_ns: int) -> None:
        """If the pod's policy matches waiting pods with places, wake the other pods of its profile:
        the place matched to this pod may become theirs."""
        for group in list(self._parked.values()) if waiting.profile.matcher is not None else ():
            self._looked_at += 1
            if group.key.profile == waiting.profile.name:
                self._wake_first(group, now_ns)

    def _wake_faulty(self, now_ns: int) -> None:
        waiting, self._faulty = self._faulty, {}
        for faulty in waiting.values():
            self._hold(faulty, now_ns)

    def retry(self, pod: PodRequest, profile: Profile, tries: int, now_ns: int) -> None:
        """Add a pod that lost its place (its Binding failed); it is tried after its back-off."""
        waiting = self._new(pod, profile, now_ns)
        waiting.tries = tries
        waiting.ready_ns = now_ns + backoff_ns(tries)
        self._known[pod.uid] = waiting
        self._enter(waiting, now_ns)

    def wake_for_freed(self, freed: FreedNode, now_ns: int) -> None:
        """Wake the first pod of each group that could fit a node on which capacity was freed. A pod
        that may borrow is woken by any freed capacity, mostly in vain, so its back-off goes on,
        unless the pod would fit without borrowing, or teams' queues take turns: another queue would
        otherwise go first meanwhile."""
        self._wake_faulty(now_ns)
        at_once = fits_without_harvest if self._teams is None else self._at_once
        for woken in list(self._woken.values()):
            if woken.state == "backoff" and at_once(woken.parked_in, freed):
                woken.skip_backoff = True
                self._activate(woken)
        self._looked_at += len(self._parked)
        for group in list(self._parked.values()):
            if group.could_fit(freed):
                first = group.first_for(freed)
                if first is None or first is group.first():
                    self._wake_first(group, now_ns, skip_backoff=at_once(group, freed))
                else:  # pods before it may not use this node
                    self.wake(first.pod.uid, now_ns, at_once=at_once(group, freed))

    def _at_once(self, group: Parked | None, freed: FreedNode) -> bool:
        if self._teams is not None and self._teams.is_fair:
            return group is not None and group.could_fit(freed)
        return fits_without_harvest(group, freed)

    def wake_for_team(self, team: str, now_ns: int) -> None:
        """Wake pods that were refused because of this team's queue limit, as the queue now holds
        less."""
        self._looked_at += len(self._parked)
        for group in list(self._parked.values()):
            if group.key.team == team:
                at_once = self._teams is not None and self._teams.is_fair
                self._wake_first(group, now_ns, skip_backoff=at_once)

    def wake_all(self, now_ns: int, *, skip_backoff: bool = False) -> None:
        """Wake the first pod of every group, as anything may have changed (nodes, a policy's
        input). `skip_backoff` ends their back-off, and that of pods woken earlier.
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
        """Wake the first pod of each group whose rules about pods or volumes may be satisfied on
        some node after these changes."""
        for group in self._by_rule.waiting_for(moved):
            self._looked_at += 1
            self._wake_first(group, now_ns)

    def wake(self, uid: str, now_ns: int, *, at_once: bool = True) -> None:
        """Let this pod try again, whatever it waits for: `at_once`, or after its back-off."""
        waiting = self._known.get(uid)
        if waiting is not None and waiting.state in {"parked", "backoff", "faulty"}:
            self._withdraw(waiting, "backoff", now_ns)
            self._hold(waiting, waiting.ready_ns if at_once else now_ns)

    @property
    def any_parked(self) -> bool:
        """Return True if any pod is parked."""
        return bool(self._parked)

    def wake_preemptors(self, above: int, up_to: int, now_ns: int) -> None:
        """Wake pods that may find victims after a pod of priority `up_to` is gone: pods of this
        priority or lower, but higher than `above`. The first of each group is tried after its
        back-off."""
        for group in list(self._parked.values()):
            first = group.first()
            if first is None or not first.profile.preempts:
                continue
            if above < first.pod.priority <= up_to:
                self._wake_first(group, now_ns)

    def groups_looked_at(self) -> int:
        """Return how many groups were checked for waking since the last call."""
        count, self._looked_at = self._looked_at, 0
        return count

    def tick(self, now_ns: int) -> None:
        """Move pods whose back-off has ended to the active queue."""
        while self._backoff and self._backoff[0][0] <= now_ns:
            ready_ns, _, waiting = heapq.heappop(self._backoff)
            if waiting.state == "backoff" and waiting.ready_ns == ready_ns:
                self._activate(waiting)

    def next_ns(self) -> int | None:
        """Return the end of the next back-off; None if no pod backs off."""
        while self._backoff:
            ready_ns, _, waiting = self._backoff[0]
            if waiting.state == "backoff" and waiting.ready_ns == ready_ns:
                return ready_ns
            heapq.heappop(self._backoff)  # the pod left, or was activated earlier
        return None

    def lost_place(self, uid: str, now_ns: int) -> None:
        """Record that a pod has no place any more. If its gang has too few placed pods now, its
        waiting pods gather."""
        members = self.gangs.lost(uid)
        if members is None or members.has_quorum:
            return
        for waiting in list(members.waiting.values()):
            if waiting is not members.head and waiting.state != "gathering":
                self._withdraw(waiting, "gathering", now_ns)
        self._gather(members, now_ns)

    # --- where pods wait -----------------------------------------------------------------------

    def _activate(self, waiting: WaitingPod, turn_of: str | None = None) -> None:
        waiting.state = "active"
        self._active.push(waiting, turn_of)

    def _wake_first(self, group: Parked, now_ns: int, *, skip_backoff: bool = False) -> None:
        """Let the group's first pod try, unless another woken pod has not been tried yet."""
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
        """Note that a woken pod was tried or left the queue."""
        if waiting.woken and self._woken.get(waiting.group) is waiting:
            del self._woken[waiting.group]

    def _leave(self, group: Parked) -> None:
        """Remove a pod from its group; an empty group is dropped."""
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
