"""Tracks the pods that may be preempted, and keeps places for nominated pods while victims leave.

    Unschedulable ──victims found──▶ NOMINATED ──all gone──▶ tried ──▶ placed: forgotten
                                        │ ▲                    └─ fits nowhere: new search
         beaten, gone, a victim stays ◀─┘ └── a victim is gone: more is kept

A nominated pod holds nothing yet, but the free part of its place is held for it under a separate
UID (`kept_uid`): no pod of its priority or lower takes what victims were evicted for, and the
ledger stays exact. Pods of higher priority take the place as if it were free. Rules about other
pods, except affinity, count the nominated pod as if it ran there.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from weft.core.constraints import ExistingPods
from weft.core.engine.gangs import GangMembers
from weft.core.engine.queue import WaitingPod
from weft.core.engine.records import PreemptedFor
from weft.core.engine.waiting_moves import NONE_MOVED, WaitingMoves
from weft.core.ledger import Holding, Ledger
from weft.core.preempt import Budget, LowerPods, Victim, violations
from weft.core.preempt.lower_pods import STAYS
from weft.model import Placement, PodRequest
from weft.model.queue_rules import MoveRules

KEPT = "kept-for/"
REFUSED_NS = 30_000_000_000
"""After a budget or the API server refused a pod's eviction, it is not tried again for this
long."""

GangOf = Callable[[str], GangMembers[WaitingPod] | None]


def kept_uid(uid: str) -> str:
    """Return the UID under which a place is kept for this pod."""
    return KEPT + uid


def is_kept(uid: str) -> bool:
    """Return True for the UID of a kept place."""
    return uid.startswith(KEPT)


class Nomination:
    """A nominated pod, which gets the `place` once all pods in `leaving` are gone. Pods above
    `priority` may take the place; for a gang, the head's priority counts for all of its pods.
    """

    __slots__ = ("leaving", "place", "pod", "priority")

    def __init__(
        self,
        pod: PodRequest,
        place: Placement,
        leaving: Iterable[str],
        priority: int | None = None,
    ) -> None:
        self.pod, self.place, self.leaving = pod, place, set(leaving)
        self.priority = pod.priority if priority is None else priority

    @property
    def node(self) -> str:
        """Return the name of the place's node."""
        return self.place.node


class Preemption:
    """The priorities and start times of placed pods, nominations by pod, and budgets. `on`: some
    profile preempts, or pods are moved for waiting pods; otherwise nothing is recorded here.
    """

    def __init__(
        self,
        ledger: Ledger,
        existing: ExistingPods,
        gang_of: GangOf,
        moves: MoveRules,
        *,
        on: bool,
    ) -> None:
        self.moves = WaitingMoves(moves) if moves.after_ns else NONE_MOVED
        self.on = on or self.moves.on
        self.standings: dict[str, tuple[int, int]] = {}
        self.nominations: dict[str, Nomination] = {}
        self.budgets: dict[str, Budget] = {}
        self.going: dict[str, PreemptedFor] = {}  # pods being evicted, and for which pod
        self.gathers_since: dict[str, int] = {}  # gangs that cannot start, and have places kept
        self.movable: dict[str, PodRequest] = {}  # pods that may move, when created again
        self._stays: dict[str, int] = {}  # pods not to be evicted again before this time
        self._ledger, self._existing, self._gang_of = ledger, existing, gang_of
        self._lower: LowerPods | None = None
        self._movers: LowerPods | None = None

    # --- pods that may be evicted ---

    @property
    def lower(self) -> LowerPods:
        """Return what evicting pods would free on each node and GPU, by their priority; built on
        first use."""
        if self._lower is None:
            self._lower = LowerPods(self._ledger, self._standing)
        return self._lower

    @property
    def movers(self) -> LowerPods:
        """Return what moving pods would free on each node and GPU, by their priority; built on
        first use."""
        if self._movers is None:
            self._movers = LowerPods(self._ledger, self._standing_of_movable)
        return self._movers

    def lowest(self) -> int:
        """Return the lowest priority of the pods that may be evicted; `STAYS` if no pod may."""
        return next(iter(self.lower.priorities(STAYS)), STAYS)

    def _changed_on(self, node: str) -> None:
        for columns in (self._lower, self._movers):
            if columns is not None:
                columns.touch(node)

    def note(self, uid: str, priority: int, since_ns: int, node: str) -> None:
        """Record that the pod has a place, and may be evicted for pods of a higher priority."""
        before = self.standings.get(uid)
        if self.moves.since:
            self.moves.forget(uid)
        if before is None or before[0] != priority:
            self.standings[uid] = priority, since_ns
            self._changed_on(node)

    def may_not_be_ended(self, uid: str, node: str) -> None:
        """Record that the pod belongs to another scheduler, and may not be evicted."""
        if self.standings.pop(uid, None) is not None:
            self._changed_on(node)

    def forget(self, uid: str) -> int | None:
        """Record that the pod has no place any more; return its priority, None if it may not be
        evicted."""
        if self.moves.since:
            self.moves.forget(uid)
        self.going.pop(uid, None)
        self._stays.pop(uid, None)
        self.movable.pop(uid, None)
        standing = self.standings.pop(uid, None)
        return None if standing is None else standing[0]

    def may_move(self, uid: str, request: PodRequest | None, node: str) -> None:
        """Record that the pod may be moved, and the request with which its controller would create
        it again; None means that it may not."""
        if request is None:
            self.movable.pop(uid, None)
        else:
            self.movable[uid] = request
        self._changed_on(node)

    def may_end(self, uid: str) -> bool:
        """Return True if the pod may be evicted for pods of a higher priority, and is not being
        evicted already."""
        return uid in self.standings and uid not in self.going and uid not in self._stays

    def _standing(self, holding: Holding) -> tuple[int, bool]:
        uid = holding.placement.uid
        if not self.may_end(uid):
            return STAYS, False
        budgets = self.budgets_of(uid) if self.budgets else ()
        return self.standings[uid][0], any(self.budgets[b].allowed <= 0 for b in budgets)

    def _standing_of_movable(self, holding: Holding) -> tuple[int, bool]:
        standing = self._standing(holding) if holding.placement.uid in self.movable else None
        return standing or (STAYS, False)

    def budgets_of(self, uid: str) -> tuple[str, ...]:
        """Return the names of the budgets that the pod counts against."""
        marks = self._existing.marks_of(uid)
        if marks is None:
            return ()
        return tuple(
            budget.name
            for budget in self.budgets.values()
            if budget.pods.matches(marks.namespace, marks.labels)
        )

    @property
    def allowed(self) -> dict[str, int]:
        """Return how many evictions each budget allows."""
        return {budget.name: budget.allowed for budget in self.budgets.values()}

    def victims_on(self, node: str, below: int) -> list[Victim]:
        """Return the pods of the node that may be evicted for a pod of priority `below`. Pods of a
        gang are one victim if the gang ends as one, or would be left with fewer pods than it needs.
        """
        here = [
            holding.placement.uid
            for holding in self._ledger.pods_on(node)
            if self.may_end(holding.placement.uid)
        ]
        victims: dict[tuple[str, ...], Victim] = {}
        for uid in here:
            uids = self._together(uid, here)
            if uids not in victims and all(map(self.may_end, uids)):
                victim = self._victim(uids)
                if victim.priority < below:
                    victims[uids] = victim
        return list(victims.values())

    def _together(self, uid: str, here: Sequence[str]) -> tuple[str, ...]:
        members = self._gang_of(uid)
        if members is None:
            return (uid,)
        staying = len(members.placed) - sum(each in members.placed for each in here)
        as_one = any(gang.ends_as_one for gang in members.placed.values())
        if not as_one and (staying >= members.least or not members.has_quorum):
            return (uid,)
        return tuple(sorted(members.placed))

    def _victim(self, uids: tuple[str, ...]) -> Victim:
        standings = [self.standings[uid] for uid in uids]
        budgets = [name for uid in uids for name in self.budgets_of(uid)] if self.budgets else ()
        return Victim(uids, max(p for p, _ in standings), min(s for _, s in standings), (*budgets,))

    def violations_of(self, victims: Iterable[Victim]) -> int:
        """Return how many more evictions these victims are than budgets allow."""
        return violations(victims, self.allowed)

    # --- pods being evicted ---

    def goes(self, uid: str, why: PreemptedFor) -> None:
        """Record that the pod is being evicted for another one."""
        before = self.going.get(uid)
        if before is None or self._counts_for(before, why.pod_priority):
            self.going[uid] = why
        self._touch(uid)

    def _counts_for(self, why: PreemptedFor, priority: int) -> bool:
        return why.pod_priority < priority or why.uid not in self.nominations

    def going_for(self, priority: int) -> Iterator[str]:
        """Return the pods that a pod of this priority may count as leaving: pods evicted for less
        important pods, or for pods that no longer wait for them. Several pods may wait for the same
        pod."""
        awaited = {uid for each in self.not_below(priority) for uid in each.leaving}
        counted = (uid for uid, why in self.going.items() if self._counts_for(why, priority))
        return (uid for uid in counted if uid not in awaited)

    def still_waiting(self) -> Iterator[Nomination]:
        """Return the nominations that wait for a pod to leave."""
        return (each for each in self.nominations.values() if each.leaving & self.going.keys())

    def awaited_by(self, pod: PodRequest, uids: Iterable[str]) -> None:
        """Assign pods that are already leaving to this pod: no other pod of its priority counts on
        them."""
        name = f"{pod.namespace}/{pod.name}"
        for uid in uids:
            own = self.standings.get(uid, (0, 0))[0]
            self.goes(uid, PreemptedFor(pod.uid, name, pod.priority, own))

    def goes_not(self, uid: str, until_ns: int) -> list[Nomination]:
        """Record that the pod's eviction failed, and is not tried again before `until_ns`; return
        the nominations that waited for it."""
        self.going.pop(uid, None)
        self._stays[uid] = until_ns
        self._touch(uid)
        return [each for each in self.nominations.values() if uid in each.leaving]

    def due(self, now_ns: int) -> bool:
        """Return True if a refused eviction may be tried again by now."""
        over = [uid for uid, until_ns in self._stays.items() if until_ns <= now_ns]
        for uid in over:
            del self._stays[uid]
            self._touch(uid)
        return bool(over)

    def _touch(self, uid: str) -> None:
        if (holding := self._ledger.holdings.get(uid)) is not None:
            self._changed_on(holding.placement.node)

    def take_budgets(self, budgets: Iterable[Budget], removed: Iterable[str]) -> bool:
        """Update the disruption budgets; return True if one allows more evictions than before, or
        was removed."""
        more = False
        for name in removed:
            if (gone := self.budgets.pop(name, None)) is not None:
                more = True
                self._touch_all(gone)
        for budget in budgets:
            before = self.budgets.get(budget.name)
            self.budgets[budget.name] = budget
            more |= before is not None and budget.allowed > before.allowed
            if before is None:
                self._touch_all(budget)
            elif before.pods != budget.pods or (before.allowed <= 0) != (budget.allowed <= 0):
                self._touch_all(before)
                self._touch_all(budget)
        return more

    def _touch_all(self, budget: Budget) -> None:
        for namespace in budget.pods.namespaces or ():
            for node in self._existing.nodes_of(namespace):
                self._changed_on(node)

    # --- places that are kept ---

    def below(self, priority: int) -> list[Nomination]:
        """Return nominations of pods of a lower priority."""
        return [each for each in self.nominations.values() if each.priority < priority]

    def not_below(self, priority: int) -> list[Nomination]:
        """Return nominations of pods of this priority or a higher one."""
        return [each for each in self.nominations.values() if each.priority >= priority]

    def together(self, nomination: Nomination) -> list[Nomination]:
        """Return the nomination and those of its gang: they are kept together or not at all."""
        found = self._beside(nomination.pod) if nomination.pod.gang else []
        return found or [nomination]

    def _beside(self, pod: PodRequest) -> list[Nomination]:
        """Return the nominations of the pod and of its gang."""
        return [each for each in self.nominations.values() if pod.goes_with(each.pod)]

    def of_pods(self, uids: Iterable[str]) -> list[Nomination]:
        """Return the nominations of these pods."""
        return [self.nominations[uid] for uid in uids if uid in self.nominations]

    def waiting_for(self, uid: str) -> Iterator[Nomination]:
        """Return the nominations that wait for this pod to be gone."""
        return (each for each in list(self.nominations.values()) if uid in each.leaving)

    def on_node(self, node: str) -> Iterator[Nomination]:
        """Return the nominations to this node."""
        return (each for each in list(self.nominations.values()) if each.node == node)

    def leaving_on(self, nodes: Collection[str]) -> list[str]:
        """Return the pods leaving for any place kept on these nodes. Until they are gone, one
        nomination may hold capacity that another one needs."""
        kept = (each for each in self.nominations.values() if each.node in nodes)
        return sorted({uid for each in kept for uid in each.leaving})

    def keep(self, nomination: Nomination) -> None:
        """Reserve what is free of the nominated place now."""
        uid = kept_uid(nomination.pod.uid)
        self._ledger.release(uid)
        self._existing.put_kept(uid, nomination.pod, nomination.node)
        part = free_part(self._ledger, nomination.place, uid)
        if part is not None and not self._ledger.reserve(part):
            self._ledger.reserve(replace(part, shares=(), ports=()))

    def keep_again(self, pod: PodRequest) -> None:
        """Reserve the places of the pod and its gang again, after a failed decision."""
        for each in self._beside(pod):
            self.keep(each)

    def let_go(self, nomination: Nomination) -> Holding | None:
        """Release what is held for the nomination; return the holding, None if nothing was held."""
        uid = kept_uid(nomination.pod.uid)
        self._existing.remove(uid)
        return self._ledger.release(uid)


def free_part(ledger: Ledger, place: Placement, uid: str) -> Placement | None:
    """Return the part of the place that is free, as a placement under this UID (its amounts may
    be 0); None if the ledger does not have the node."""
    table = ledger.table
    row = table.row_of.get(place.node)
    if row is None:
        return None
    shares = []
    for share in place.shares:
        device = table.device_row(row, share.gpu)
        if device < 0 or not table.device_usable[device]:
            continue
        memory = min(share.memory_mib, int(table.device_memory_free[device]))
        milli = min(share.milli, int(table.device_milli_free[device]))
        if memory > 0 or milli > 0:
            shares.append(replace(share, memory_mib=memory, milli=milli))
    extended = tuple(
        (name, min(amount, max(0, int(table.extended[name][row]))))
        for name, amount in place.extended
        if name in table.extended
    )
    return Placement(
        uid,
        place.node,
        tuple(shares),
        min(place.cpu_milli, max(0, int(table.cpu_free[row]))),
        min(place.memory_mib, max(0, int(table.memory_free[row]))),
        extended,
        place.ports,
    )
