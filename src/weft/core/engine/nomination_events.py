"""Handles events about nominated pods and their victims: a pod or node is gone, a victim stays, a
budget changes, or an earlier leader nominated a pod. Updates the kept places, and wakes pods that
may now use a place or preempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from weft.core.engine import deciding
from weft.core.engine.events import (
    BudgetsChanged,
    Command,
    Event,
    Nominate,
    NotEvicted,
    PodNominated,
    PodSeenBound,
    Wake,
)
from weft.core.engine.nominations import REFUSED_NS, Nomination, kept_uid
from weft.core.engine.parked import FreedNode
from weft.core.engine.queue import WaitingPod
from weft.core.engine.waiting_moves import look
from weft.core.ledger import FAR, Holding
from weft.model import Placement

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine

GATHERS_NS = 30_000_000_000
"""A place is kept this long for pods of a gang that cannot start because too few of its pods exist;
its controller may create missing ones again."""


def beat(engine: Engine, nomination: Nomination, now_ns: int, out: list[Command]) -> None:
    """Give up a nomination whose place a pod of higher priority takes; the pod, or its gang,
    searches again."""
    if nomination.pod.uid not in engine.preemption.nominations:
        return  # given up together with another one of its gang
    for each in engine.preemption.together(nomination):
        drop(engine, each, now_ns, out)
    _wake(engine, nomination, now_ns)


def _wake(engine: Engine, nomination: Nomination, now_ns: int) -> None:
    """Wake the pod, or the head of its gang."""
    waiting = _waits_for(engine, nomination)
    engine.queue.wake(waiting.pod.uid if waiting else nomination.pod.uid, now_ns)


def _waits_for(engine: Engine, nomination: Nomination) -> WaitingPod | None:
    """Return the pod in the queue, or the head of its gang; None if neither waits."""
    gang = nomination.pod.gang
    members = engine.queue.gangs.of(gang) if gang else None
    head = members.head if members else None
    return head or engine.queue.get(nomination.pod.uid)


def drop(engine: Engine, nomination: Nomination, now_ns: int, out: list[Command]) -> None:
    """Give up the pod's kept place."""
    engine.preemption.nominations.pop(nomination.pod.uid, None)
    engine.preemption.let_go(nomination)
    is_over(engine, nomination, now_ns)
    out.append(Nominate(nomination.pod, ""))


def is_over(engine: Engine, nomination: Nomination, now_ns: int) -> None:
    """Wake the pods that may use the place, which is no longer kept: those that fit, those that may
    preempt there, and those that the queue's limit may let in."""
    engine.wake_for_freed(nomination.node, now_ns, nomination.pod.team_queue)
    part = engine.teams.part  # across queues places are not taken by priority
    wake_others(engine, FAR if part else nomination.priority, now_ns)


def kept_anew(engine: Engine, nodes: Iterable[str], now_ns: int) -> None:
    """Wake pods after new places are kept on these nodes: policies that decide by co-residents may
    now accept other pods there."""
    if engine.by_residents:
        for node in nodes:
            engine.wake_for_freed(node, now_ns)


def look_at_gangs(engine: Engine, now_ns: int, out: list[Command]) -> None:
    """Give up places kept for gangs that have been unable to start for a while."""
    preemption = engine.preemption
    kept = {each.pod.gang.key: each for each in preemption.nominations.values() if each.pod.gang}
    before = preemption.gathers_since
    preemption.gathers_since = since = {}
    for key, nomination in kept.items():
        members = engine.queue.gangs.of(nomination.pod.gang) if nomination.pod.gang else None
        if members is not None and (members.has_quorum or members.is_complete):
            continue
        since[key] = before.get(key, now_ns)
        if key not in before:
            out.append(Wake(now_ns + GATHERS_NS))
        elif now_ns - since[key] >= GATHERS_NS:
            beat(engine, nomination, now_ns, out)


# --- events ---------------------------------------------------------------------------------------


def nominated(engine: Engine, event: PodNominated, now_ns: int, out: list[Command]) -> None:
    """Keep a place for a pod that the API shows as nominated: what is free of the place that the
    pod would get without the pods that leave for it."""
    pod, preemption = event.pod, engine.preemption
    profile, table = engine.profile_of(pod), engine.ledger.table
    row = table.row_of.get(event.node, -1)
    ends_others = profile.preempts or preemption.moves.on
    if row < 0 or not ends_others or pod.uid in engine.ledger.holdings:
        return
    leaving = [uid for uid in event.leaving if uid in engine.ledger.holdings]
    preemption.awaited_by(pod, leaving)
    waiting, before = WaitingPod(pod, profile, 0), engine.journal.seq
    place: Placement | None = None
    with engine.trial(leaving, [*preemption.on_node(event.node)]):
        known = engine.assess(profile, pod, None)
        if not known.codes[row]:
            place = deciding.choose_place(engine, waiting, known, row, now_ns).placement
    engine.journal.back_to(before)
    if place is None:
        out.append(Nominate(pod, ""))
        return
    nomination = preemption.nominations[pod.uid] = Nomination(pod, place, leaving)
    preemption.keep(nomination)


def apply(engine: Engine, event: Event, now_ns: int, out: list[Command]) -> None:
    """Handle an event that only concerns preemption."""
    match event:
        case BudgetsChanged():
            take_budgets(engine, event, now_ns)
        case PodNominated():
            nominated(engine, event, now_ns, out)


# --- victims, and other changes -------------------------------------------------------------------


def freed(engine: Engine, uid: str, node: str, now_ns: int) -> None:
    """Hold capacity that a pod freed on the node, for the pods nominated there."""
    preemption = engine.preemption
    for nomination in preemption.on_node(node):
        nomination.leaving.discard(uid)
        preemption.keep(nomination)
    for nomination in preemption.waiting_for(uid):
        nomination.leaving.discard(uid)
    for nomination in preemption.on_node(node):
        if not any(each.leaving for each in preemption.together(nomination)):
            _wake(engine, nomination, now_ns)


def wake_nominated(engine: Engine, node: str, now_ns: int) -> None:
    """Wake pods when more is free on the node. Pods nominated there try if it may be enough
    together with their kept places, even while victims are still leaving; a gang tries after its
    back-off, as it may need more elsewhere. More important pods are woken because they may take
    kept places, others because they may have pods moved there now."""
    engine.preemption.moves.changed(now_ns)
    if (row := engine.ledger.table.row_of.get(node)) is None:
        return
    preemption = engine.preemption
    there = [*preemption.on_node(node)]
    for nomination in there:
        waiting = _waits_for(engine, nomination)
        if waiting is None or waiting.state != "parked":
            continue
        own = [each for each in preemption.together(nomination) if each.node == node]
        freed = _free_without(engine, own, row)
        if waiting.parked_in is not None and waiting.parked_in.could_fit(freed):
            engine.queue.wake(waiting.pod.uid, now_ns, at_once=waiting.group.gang == "")
    if there:  # more important pods take kept places as if they were free
        lowest = min(each.priority for each in there)
        freed = _free_without(engine, there, row)
        whom = partial(_is_above, lowest)
        engine.queue.wake_for_freed(freed._replace(for_whom=whom), now_ns)


def _free_without(engine: Engine, kept: Sequence[Nomination], row: int) -> FreedNode:
    """Return the node of this row as if nothing were kept there for these nominations. A nomination
    for which nothing is held at the moment, as its pod is being decided, is left out."""
    held = [each for each in kept if kept_uid(each.pod.uid) in engine.ledger.holdings]
    for each in held:
        engine.preemption.let_go(each)
    freed = FreedNode.on(engine.ledger, row)
    for each in held:
        engine.preemption.keep(each)
    return freed


def _is_above(priority: int, waiting: WaitingPod) -> bool:
    return waiting.pod.priority > priority


def gone(engine: Engine, uid: str, held: Holding | None, now_ns: int, out: list[Command]) -> None:
    """Forget a pod that is gone; wake pods that may use what it held or what was kept for it."""
    preemption, node = engine.preemption, held.placement.node if held else ""
    priority = preemption.forget(uid)
    nomination = preemption.nominations.get(uid)
    for each in preemption.together(nomination) if nomination is not None else ():
        del preemption.nominations[each.pod.uid]
        preemption.let_go(each)
        is_over(engine, each, now_ns)
    if node and preemption.nominations:
        freed(engine, uid, node, now_ns)
    if node:
        reclaims = engine.teams.rules.reclaim  # the pod's queue may hold too little now
        wake_others(engine, FAR if priority is None or reclaims else priority, now_ns)


def seen_bound(engine: Engine, event: PodSeenBound, now_ns: int, out: list[Command]) -> None:
    """Record a bound pod's priority and whether it may move, and give up the place kept for it."""
    uid, preemption = event.placement.uid, engine.preemption
    if (movable := event.movable or None) is not None or uid in preemption.movable:
        preemption.may_move(uid, movable, event.placement.node)
        preemption.moves.changed(now_ns)
    if isinstance(event.priority, int):
        preemption.note(uid, event.priority, now_ns - max(0, event.held_ns), event.placement.node)
    else:
        preemption.may_not_be_ended(uid, event.placement.node)
    if (nomination := preemption.nominations.pop(uid, None)) is not None:
        preemption.let_go(nomination)
        is_over(engine, nomination, now_ns)


def not_evicted(engine: Engine, event: NotEvicted, now_ns: int, out: list[Command]) -> None:
    """Handle a failed eviction: pods that waited for the victim to leave search again. A pod of a
    gang that runs only in part is evicted again later."""
    if engine.queue.gangs.stays(event.uid):
        out.append(Wake(now_ns + REFUSED_NS))
    if event.uid not in engine.preemption.going:
        return
    until_ns = FAR if event.stays else now_ns + REFUSED_NS
    for nomination in engine.preemption.goes_not(event.uid, until_ns):
        beat(engine, nomination, now_ns, out)
    if until_ns < FAR:
        out.append(Wake(until_ns))


def wake_others(engine: Engine, up_to: int, now_ns: int) -> None:
    """Wake pods of at most priority `up_to` to search for victims, if there may be any."""
    if not engine.queue.any_parked:
        return
    everybody = engine.teams.rules.reclaim  # a queue reclaims from pods of any priority
    above = -FAR if everybody else engine.preemption.lowest()
    engine.queue.wake_preemptors(above, up_to, now_ns)


def holds_more(engine: Engine, queue: str, now_ns: int) -> None:
    """Wake pods that may reclaim, as this team's queue holds more: which of its pods may be evicted
    depends on all that it holds."""
    teams = engine.teams
    below = (terms.name for terms in teams.rules.queues if teams.is_below_guarantee(terms.name))
    if not teams.is_below_guarantee(queue) and any(name != queue for name in below):
        wake_others(engine, FAR, now_ns)


def take_budgets(engine: Engine, event: BudgetsChanged, now_ns: int) -> None:
    """Take new disruption budgets; if one allows more, waiting pods search again."""
    if engine.preemption.take_budgets(event.budgets, event.removed):
        engine.preemption.moves.changed(now_ns)
        wake_others(engine, FAR, now_ns)


def due(engine: Engine, now_ns: int) -> None:
    """Wake pods when evictions that were refused may be tried again, or when moves for them may be
    searched."""
    if engine.preemption.due(now_ns):
        engine.preemption.moves.changed(now_ns)
        wake_others(engine, FAR, now_ns)
    if engine.preemption.moves.since:
        look(engine, now_ns)


def nodes_changed(engine: Engine, gone: Iterable[str], now_ns: int, out: list[Command]) -> None:
    """Give up nominations on nodes that are gone."""
    engine.preemption.moves.changed(now_ns)
    for name in gone:
        for nomination in engine.preemption.on_node(name):
            beat(engine, nomination, now_ns, out)
