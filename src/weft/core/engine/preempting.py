"""Evicts pods of lower priority for a pod that fits nowhere, and keeps the place for this pod until
the evicted pods are gone.

`core/preempt/` searches the victims; each set of victims is tried on the ledger, and undone. A
preemption makes one record for the pod and one for each victim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.constraints import PodsToLeave, pods_to_leave
from weft.core.engine import deciding, nomination_events
from weft.core.engine.assessment import LOOKS_AT_LEAST, Assessment
from weft.core.engine.events import (
    Command,
    Nominate,
    Unschedulable,
)
from weft.core.engine.moved_victims import may_move, rooms_beside
from weft.core.engine.nominations import Nomination, kept_uid
from weft.core.engine.queue import WaitingPod
from weft.core.engine.queue_rights import QueueRights
from weft.core.engine.records import MoveCost, PreemptedFor, PreemptionPlan
from weft.core.engine.waiting_moves import cost_of_moves, gpu_milli, lost_by
from weft.core.framework import Demand, Profile
from weft.core.ledger import FAR
from weft.core.ledger.table import Bools
from weft.core.preempt import FoundVictims, Victim, VictimSearch, uids_of
from weft.core.preempt.search import Fits
from weft.model import Code, Placement, PodRequest, Shape

if TYPE_CHECKING:
    from weft.core.engine.deciding import ChosenPlace
    from weft.core.engine.engine import Engine

_NOBODYS_END_HELPS = (
    *(Code.POD_AFFINITY, Code.CLAIM_WAITS, Code.NO_VOLUME, Code.STORAGE_CAPACITY),
    *(Code.FAULT, Code.GROUP_INCOMPLETE, Code.GROUP_ELSEWHERE, Code.QUEUE_LIMIT),
)
_BY_OTHERS = np.array(
    [code.is_by_others and code not in _NOBODYS_END_HELPS for code in Code], dtype=np.bool_
)
PODS = "pods"
"""The name of the resource that limits the number of pods on a node: each pod takes one, so sums by
resource check this limit too."""
LOOKS_SEARCH = 4
"""Work of a search, counted in looks (`core/engine/assessment.py`): reading the columns of all
nodes costs one look for this many nodes."""


class RoomFound(NamedTuple):
    """The node's row, the victims there, the pod's place once they are gone, and nodes with room
    for victims that may move; `cost` is set if all victims are moved because the pod waited."""

    row: int
    victims: tuple[Victim, ...]
    place: Placement
    rooms: dict[str, str]
    cost: MoveCost | None = None


# --- a pod that fits nowhere ----------------------------------------------------------------------


def makes_room(
    engine: Engine, waiting: WaitingPod, known: Assessment, now_ns: int, out: list[Command]
) -> bool:
    """Make room for a pod that fits nowhere: take places kept for pods of lower priority, or evict
    pods. Returns True if the pod has a place, waits for a place that is kept for it, or is tried
    again after a more important pod."""
    pod, preemption = waiting.pod, engine.preemption
    if preemption.nominations and _takes_kept(engine, waiting, now_ns, out):
        return True
    ends_others = (waiting.profile.preempts or preemption.moves.on) and not pod.never_preempts
    if not ends_others or not (preemption.standings or preemption.nominations):
        return False
    rights, found = rights_of(engine, pod, shares_room=True), None
    if waiting.profile.preempts:
        found = _search(engine, waiting, known, rights, now_ns)
    if found is None and preemption.moves.on and preemption.moves.may_search(pod, now_ns):
        known = engine.assess(waiting.profile, pod)
        rights = rights._replace(below=pod.priority + 1, by_queue=None)
        found = _moves(engine, waiting, known, rights, now_ns)
        preemption.moves.searched(pod.uid, now_ns)
    if found is not None and found.victims and engine.queue.yields(waiting):
        return True
    known = engine.assess(waiting.profile, pod)  # trials have changed the cached answers
    if found is None:
        return False
    node = engine.ledger.table.nodes[found.row].name
    leaving = {uid for uid in on_node(engine, rights.going, node) if uid in preemption.going}
    beaten = [each for each in rights.beaten if each.node == node]
    for nomination in beaten:
        leaving |= {uid for uid in nomination.leaving if uid in preemption.going}
        nomination_events.beat(engine, nomination, now_ns, out)
    if not found.victims and not leaving:
        known = engine.assess(waiting.profile, pod)  # the kept places are given up now
        deciding.place(engine, waiting, known, found.row, now_ns, out)
        return True
    _nominate(engine, waiting, known, found, leaving, now_ns, out)
    return True


def _takes_kept(engine: Engine, waiting: WaitingPod, now_ns: int, out: list[Command]) -> bool:
    """Place the pod if it fits now when places kept for less important pods count as free; return
    True if it was placed."""
    pod, profile = waiting.pod, waiting.profile
    beaten = beaten_by(engine, pod)
    if not beaten:
        return False
    with without_kept(engine, pod):
        known = engine.assess(profile, pod)
        row = deciding.best_row(known, profile, f"{engine.seed}/{pod.uid}/{waiting.tries}")
    if row < 0:
        return False
    node = engine.ledger.table.nodes[row].name
    for nomination in beaten:
        if nomination.node == node:
            nomination_events.beat(engine, nomination, now_ns, out)
    deciding.place(engine, waiting, engine.assess(profile, pod), row, now_ns, out)
    return True


def on_node(engine: Engine, uids: Iterable[str], node: str) -> list[str]:
    """Return those of the pods that hold something on the node."""
    held = ((uid, engine.ledger.holdings.get(uid)) for uid in uids)
    return [uid for uid, holding in held if holding and holding.placement.node == node]


def is_open(known: Assessment) -> Bools:
    """Return a mask of the nodes where evicting pods could help, [N]."""
    return np.asarray(_BY_OTHERS[known.codes] & (known.declared == 0))


# --- a pod's rights ------------------------------------------------------------------------------


class PreemptionRights(NamedTuple):
    """Rights of a pod: it may evict pods of a priority lower than `below`, as far as `by_queue`
    allows (None: all of them), take the kept places in `beaten`, and count the pods in `going` as
    leaving. `beside` are nominations of other pods that wait for pods in `going`: the pod may use
    what remains free once the nominated pods have their places."""

    below: int
    by_queue: QueueRights | None
    beaten: list[Nomination]
    going: list[str]
    beside: list[Nomination]

    def victims_on(self, engine: Engine, node: str, *, borrowers: bool = False) -> Sequence[Victim]:
        """Return the pods of the node that the pod may evict; `borrowers`: only those with which
        other queues borrow."""
        victims = engine.preemption.victims_on(node, self.below)
        if self.by_queue is None:
            return victims
        return self.by_queue.victims(victims, borrowers=borrowers)

    @property
    def steps(self) -> tuple[bool, ...]:
        """Return whether to search among borrowers only: first so if the pod's queue reclaims, then
        among all victims."""
        return (True, False) if self.by_queue is not None and self.by_queue.reclaims else (False,)

    @property
    def kept_from(self) -> list[str]:
        """Return the UIDs that hold the `beaten` places; the pod's rules about other pods ignore
        them."""
        return [kept_uid(each.pod.uid) for each in self.beaten]

    def gone_for(self, engine: Engine, node: str) -> list[str]:
        """Return the pods that count as gone when the pod is tried on this node; pods leaving other
        nodes may stay long."""
        return [*dict.fromkeys((*self.kept_from, *on_node(engine, self.going, node)))]

    def beside_on(self, node: str) -> list[Nomination]:
        """Return the nominations of `beside` that are on the node."""
        return [each for each in self.beside if each.node == node]


def rights_of(engine: Engine, pod: PodRequest, *, shares_room: bool = False) -> PreemptionRights:
    """Return the pod's rights, by priority, and by its queue where queues of teams count.
    `shares_room`: it may use what remains of the room that is being made for pods whose kept places
    it may not take."""
    preemption, beaten = engine.preemption, beaten_by(engine, pod)
    by_queue = QueueRights(engine, pod) if engine.teams.part else None
    shares_room = shares_room and not engine.teams.rules.reclaim
    beside = [*preemption.still_waiting()] if shares_room else []
    beside = [each for each in beside if each not in beaten]
    going = [kept_uid(each.pod.uid) for each in (*beaten, *beside)]
    if beside:
        going += preemption.going
    elif by_queue is None:
        going += preemption.going_for(pod.priority)
    else:
        going += [uid for each in beaten for uid in sorted(each.leaving)]
        going += preemption.going_for(-FAR)  # for nobody any more
    going = [uid for uid in going if uid in engine.ledger.holdings]
    return PreemptionRights(
        by_queue.below if by_queue else pod.priority, by_queue, beaten, going, beside
    )


def beaten_by(engine: Engine, pod: PodRequest) -> list[Nomination]:
    """Return the kept places that this pod may take: those of lower priority; where queues of teams
    count, only those of its own queue."""
    beaten = engine.preemption.below(pod.priority)
    if not engine.teams.part:
        return beaten
    return [each for each in beaten if each.pod.team_queue == pod.team_queue]


@contextmanager
def without_kept(engine: Engine, pod: PodRequest) -> Iterator[None]:
    """For the duration of the context, release what is held for pods whose kept places this pod may
    take."""
    kept = [kept_uid(each.pod.uid) for each in beaten_by(engine, pod)]
    if engine.kept_places.turns:
        kept += engine.kept_places.uids(engine.kept_places.open_to(pod))
    with engine.trial(kept) if kept else nullcontext():
        yield


def _search(
    engine: Engine, waiting: WaitingPod, known: Assessment, rights: PreemptionRights, now_ns: int
) -> RoomFound | None:
    """Search for victims; pods that may move and have room elsewhere are preferred, then pods with
    which other queues borrow. None if there are none."""
    preemption = engine.preemption
    fits = FitTrials(engine, waiting.profile, waiting, rights)

    def all_move(row: int, uids: Sequence[str]) -> bool:
        chosen, gone = _place_without(engine, waiting, row, uids, rights, now_ns)
        if chosen is None:
            return False
        return len(rooms_beside(engine, [chosen], gone, uids, rights.beside)) == len(uids)

    here, limited = is_open(known), _at_limit(engine, waiting.pod, known)
    found: FoundVictims | None = None
    for moved, borrowers in product((True, False), rights.steps):
        if found is None and (preemption.movable or not moved):
            victims = _VictimsOf(engine, rights, only_movable=moved, borrowers=borrowers)
            suits = all_move if moved else None
            found = _found(engine, _search_of(waiting, known.demand, here, victims, fits, suits))
    if found is None and limited is not None:
        own = _VictimsOf(engine, rights, only_queue=waiting.pod.team_queue)
        found = _found(engine, _search_of(waiting, known.demand, limited, own, fits))
    if found is None:
        return None
    uids = uids_of(found.victims)
    chosen, gone = _place_without(engine, waiting, found.row, uids, rights, now_ns)
    if chosen is None:
        return None
    movers = may_move(engine, found.victims)
    rooms = rooms_beside(engine, [chosen], gone, movers, rights.beside)
    return RoomFound(found.row, found.victims, chosen.placement, rooms)


def _moves(
    engine: Engine, waiting: WaitingPod, known: Assessment, rights: PreemptionRights, now_ns: int
) -> RoomFound | None:
    """Search for pods to move for a pod that has waited, all with room elsewhere; None if there are
    none. Sets are ordered as for preemption, but among equals the set whose costliest pod loses the
    least work wins."""
    preemption, uid = engine.preemption, waiting.pod.uid
    moves, tried = preemption.moves, dict[tuple[int, tuple[str, ...]], RoomFound]()
    if not preemption.movable:
        return None

    def all_move(row: int, uids: Sequence[str]) -> bool:
        chosen, gone = _place_without(engine, waiting, row, uids, rights, now_ns)
        milli = gpu_milli(engine, chosen.placement) if chosen else 0
        if chosen is None or not milli:
            return False
        standings = preemption.standings
        in_order = sorted(uids, key=lambda each: (-standings[each][0], standings[each][1]))
        rooms = rooms_beside(engine, [chosen], gone, in_order, rights.beside)
        lost = [lost_by(engine, each, now_ns) for each in uids]
        if len(rooms) < len(uids) or not moves.is_worth(uid, lost, milli, now_ns):
            return False
        cost = cost_of_moves(lost, moves.waited_ns(uid, now_ns) * milli)
        tried[row, tuple(uids)] = RoomFound(row, (), chosen.placement, rooms, cost)
        return moves.may_move(uid, len(uids), now_ns)

    fits = FitTrials(engine, waiting.profile, waiting, rights)
    victims = _VictimsOf(engine, rights, only_movable=True, least_lost_at=now_ns)
    search = _search_of(waiting, known.demand, is_open(known), victims, fits, all_move)
    if (found := _found(engine, search)) is None:
        return None
    if not found.victims:
        chosen, _ = _place_without(engine, waiting, found.row, (), rights, now_ns)
        return RoomFound(found.row, (), chosen.placement, {}) if chosen else None
    return tried[found.row, tuple(uids_of(found.victims))]._replace(victims=found.victims)


def _at_limit(engine: Engine, pod: PodRequest, known: Assessment) -> Bools | None:
    """Return a mask of nodes that are closed to the pod only by its queue's limit, and that have
    less important pods of its queue; None if there are none."""
    teams, table, standings = engine.teams, engine.ledger.table, engine.preemption.standings
    if not teams.is_limited(pod.team_queue):
        return None
    closed = (known.codes == Code.QUEUE_LIMIT) & (known.declared == 0)
    if not closed.any():
        return None
    lower = [u for u in teams.uids_of(pod.team_queue) if standings.get(u, (FAR,))[0] < pod.priority]
    rows = [table.row_of.get(engine.ledger.holdings[uid].placement.node, -1) for uid in lower]
    here = np.zeros(table.count, dtype=np.bool_)
    here[[row for row in rows if row >= 0]] = True
    here &= closed
    return here if here.any() else None


def _found(engine: Engine, search: VictimSearch) -> FoundVictims | None:
    """Return the search's result, and count its work in looks."""
    found, looks = search.find(), engine.ledger.table.count // LOOKS_SEARCH
    engine.assessor.looked += looks + LOOKS_AT_LEAST * search.trials
    return found


class _VictimsOf:
    """Returns the pods on a node that a pod with these rights may evict. `only_movable`: only pods
    that may move and have room now; `only_queue`: only pods of this team's queue; `borrowers`: only
    pods with which other queues borrow; `least_lost_at`: pods are ordered by the work that they
    lose if moved at this time."""

    def __init__(
        self,
        engine: Engine,
        rights: PreemptionRights,
        *,
        only_movable: bool = False,
        only_queue: str = "",
        borrowers: bool = False,
        least_lost_at: int | None = None,
    ) -> None:
        self.engine, self.rights, self.only_movable = engine, rights, only_movable
        self.borrowers = borrowers
        self.only_queue, self._lost_at = only_queue, least_lost_at
        self._roomy: dict[tuple[str, Shape], bool] = {}

    def __call__(self, node: str) -> Sequence[Victim]:
        """Return the victims on the node."""
        victims = self.rights.victims_on(self.engine, node, borrowers=self.borrowers)
        name_of = self.engine.teams.name_of
        if self.only_queue:
            return [v for v in victims if all(name_of(uid) == self.only_queue for uid in v.uids)]
        if not self.only_movable:
            return victims
        movable = self.engine.preemption.movable
        single = (each for each in victims if len(each.uids) == 1)
        victims = [v for v in single if v.uids[0] in movable and self._has_room(movable[v.uids[0]])]
        if (at_ns := self._lost_at) is None:
            return victims
        lost = [lost_by(self.engine, each.uids[0], at_ns).milli_ns for each in victims]
        return [
            each._replace(since_ns=-milli_ns) for each, milli_ns in zip(victims, lost, strict=True)
        ]

    def _has_room(self, pod: PodRequest) -> bool:
        """Return True if a pod like `pod` fits somewhere now, or may fit once `pod` is gone."""
        rules, is_limited = pod.shape.constraints, self.engine.teams.is_limited(pod.team_queue)
        if pod.gang or rules.pods or rules.storage or is_limited or self.engine.existing.owners:
            return True
        profile = self.engine.profile_of(pod)
        alike = profile.name, pod.shape
        if (known := self._roomy.get(alike)) is None:
            known = bool(self.engine.assess(profile, pod, None).counts[0])
            self._roomy[alike] = known
        return known


def _search_of(
    waiting: WaitingPod,
    demand: Demand,
    here: Bools,
    victims_on: _VictimsOf,
    fits: Fits,
    suits: Fits | None = None,
) -> VictimSearch:
    pod, engine, rights = waiting.pod, victims_on.engine, victims_on.rights
    preemption, by_queue = engine.preemption, rights.by_queue
    constraints, moves = pod.shape.constraints, victims_on.only_movable
    beside = [name for name, _ in pod.shape.extended if name != PODS]
    rules_count = bool(constraints.pods or engine.existing.owners)
    rules = rules_count or constraints.storage or constraints.ports or beside
    beyond_sums = rules or victims_on.only_queue
    return VictimSearch(
        engine.ledger,
        preemption.movers if moves else preemption.lower,
        demand,
        rights.below,
        here,
        fits=fits,
        victims_on=victims_on,
        allowed=preemption.allowed,
        going=rights.going,
        taken=[each.place for each in rights.beside],
        may_violate=not (moves or waiting.profile.budgets_are_law),
        simple=not (beyond_sums or waiting.profile.device_filters),
        rules=_rules_on_leaving(engine, waiting, rights) if rules_count else (),
        suits=suits,
        among=by_queue.nodes(borrowers=victims_on.borrowers) if by_queue is not None else None,
        queues_of=by_queue.borrowing if by_queue is not None else None,
    )


def _rules_on_leaving(
    engine: Engine, waiting: WaitingPod, rights: PreemptionRights
) -> list[PodsToLeave]:
    """Return which pods have to leave because of the pod's rules about other pods, or these pods'
    rules about it."""
    existing, table, pod = engine.existing, engine.ledger.table, waiting.pod
    shape = engine.shape_of(waiting.profile, pod)
    if shape.constraints.judged_elsewhere or shape.constraints.unsupported:
        return []
    with engine.trial(rights.kept_from):
        asked = existing.filled_in(pod, shape).constraints.pods
        off, gangs = asked.kept_off_by if asked else (), engine.queue.gangs.have_places
        return pods_to_leave(existing, table, shape.constraints, off, by_domain=gangs)


def _place_without(
    engine: Engine,
    waiting: WaitingPod,
    row: int,
    uids: Sequence[str],
    rights: PreemptionRights,
    now_ns: int,
) -> tuple[ChosenPlace | None, list[str]]:
    """Return the place that the engine would choose for the pod on this row once `uids` are gone
    (None if it does not fit), and all pods that count as gone there."""
    before, node = engine.journal.seq, engine.ledger.table.nodes[row].name
    gone, chosen = [*rights.gone_for(engine, node), *uids], None
    with engine.trial(gone, rights.beside_on(node)):
        known = engine.assess(waiting.profile, waiting.pod)
        if not known.codes[row]:
            chosen = deciding.choose_place(engine, waiting, known, row, now_ns)
    engine.journal.back_to(before)
    return chosen, gone


class FitTrials:
    """Checks whether the pod fits on a row once some pods are gone; computes no scores."""

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        waiting: WaitingPod,
        rights: PreemptionRights,
    ) -> None:
        self._engine, self._pod, self._rights = engine, waiting.pod, rights
        self._profile = profile.without_scores()
        self._shape = engine.shape_of(profile, waiting.pod)
        engine.fits_only.observed = engine.assessor.observed

    def __call__(self, row: int, gone: Sequence[str]) -> bool:
        """Return True if the pod fits on this row without the pods in `gone`."""
        engine, rights = self._engine, self._rights
        node = engine.ledger.table.nodes[row].name
        with engine.trial([*rights.kept_from, *gone], rights.beside_on(node)):
            known = engine.asked_of(engine.fits_only, self._profile, self._shape, self._pod)
            return bool(known.codes[row] == 0)


def _nominate(
    engine: Engine,
    waiting: WaitingPod,
    known: Assessment,
    found: RoomFound,
    leaving: set[str],
    now_ns: int,
    out: list[Command],
) -> None:
    """Keep the place found for the pod, and evict the victims."""
    pod, preemption = waiting.pod, engine.preemption
    victims = tuple(uids_of(found.victims))
    over = preemption.violations_of(found.victims)
    node = found.place.node
    nomination = Nomination(pod, found.place, {*leaving, *on_node(engine, victims, node)})
    preemption.nominations[pod.uid] = nomination
    plan = PreemptionPlan(node, victims, tuple(sorted(leaving)), over, found.cost or UNSET)
    _wait(engine, waiting, known, plan, now_ns, out)
    if found.cost:
        preemption.moves.begin(len(victims), found.cost.lost_gpu_s, now_ns)
    preemption.awaited_by(pod, leaving)
    out.append(Nominate(pod, node))
    for victim in found.victims:
        for uid in victim.uids:
            end(engine, waiting, uid, victim, now_ns, out, found.rooms.get(uid, ""))
    preemption.keep(nomination)
    nomination_events.kept_anew(engine, (node,), now_ns)


def end(
    engine: Engine,
    waiting: WaitingPod,
    uid: str,
    victim: Victim,
    now_ns: int,
    out: list[Command],
    moves_to: str,
) -> None:
    """Evict one of the victims, with a record; `moves_to` is the node that has room for it, "" if
    none."""
    pod, preemption = waiting.pod, engine.preemption
    holding = engine.ledger.holdings[uid]
    members = engine.queue.gangs.of_placed(uid)
    why = PreemptedFor(
        pod.uid,
        f"{pod.namespace}/{pod.name}",
        pod.priority,
        preemption.standings[uid][0],
        waiting.profile.budgets_are_law or bool(moves_to),
        str(members.gang) if members and len(victim.uids) > 1 else "",
        _gives_back_to(engine, pod, uid),
        moves_to,
    )
    preemption.goes(uid, why)
    engine.evict(holding, why, now_ns, out)


def _gives_back_to(engine: Engine, pod: PodRequest, uid: str) -> str:
    """Return the pod's queue if it reclaims from the victim, which borrowed; else ""."""
    if not engine.teams.rules.reclaim or engine.teams.name_of(uid) == pod.team_queue:
        return ""
    return pod.team_queue


def _wait(
    engine: Engine,
    waiting: WaitingPod,
    known: Assessment,
    plan: PreemptionPlan,
    now_ns: int,
    out: list[Command],
) -> None:
    """Let the pod wait for pods that are already leaving, with a record."""
    record = replace(deciding.refused(engine, waiting, known, now_ns), preempts=plan)
    engine.queue.park(waiting, known.shape, known.demand, now_ns, known.never)
    out.append(Unschedulable(waiting.pod, record))


# --- a pod for which a place is kept --------------------------------------------------------------


def try_nominated(engine: Engine, waiting: WaitingPod, now_ns: int, out: list[Command]) -> None:
    """Try a nominated pod: on its node if it fits by now, else anywhere. While victims are still
    leaving for it, no further pods are evicted."""
    preemption, pod = engine.preemption, waiting.pod
    nomination = preemption.nominations[pod.uid]
    preemption.let_go(nomination)
    known = engine.assess(waiting.profile, pod)
    row = engine.ledger.table.row_of.get(nomination.node, -1)
    if row < 0 or known.codes[row]:
        key = f"{engine.seed}/{pod.uid}/{waiting.tries}"
        row = deciding.best_row(known, waiting.profile, key)
    if row >= 0:
        deciding.place(engine, waiting, known, row, now_ns, out)
        del preemption.nominations[pod.uid]
        nomination_events.is_over(engine, nomination, now_ns)
        return
    if leaving := preemption.leaving_on({nomination.node}):
        plan = PreemptionPlan(nomination.node, (), tuple(leaving))
        _wait(engine, waiting, known, plan, now_ns, out)
        preemption.keep(nomination)
        return
    if engine.queue.yields(waiting):
        preemption.keep(nomination)
        return
    del preemption.nominations[pod.uid]
    try:
        found = makes_room(engine, waiting, known, now_ns, out)
    except Exception:
        preemption.nominations[pod.uid] = nomination
        raise
    if not found:
        out.append(Nominate(pod, ""))
    nomination_events.is_over(engine, nomination, now_ns)
    if not found:
        engine.parks(waiting, known, now_ns, out)
