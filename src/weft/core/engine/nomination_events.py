"""Takes in what becomes of pods for which a node is kept, and of those who may be ended.

A pod or a node is gone, a victim stays, a budget changes, a leader before kept a node: what is kept
no more is others', and who may have it now, or may end others now, is woken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

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
"""For so long a place is kept for pods of a gang that cannot start, as too few of its pods are
there: its controller makes one that went anew."""


def beat(engine: Engine, nomination: Nomination, now_ns: int, out: list[Command]) -> None:
    """A pod of higher priority takes what was kept: that one, or its gang, searches again."""
    if nomination.pod.uid not in engine.preemption.nominations:
        return  # with another one of its gang
    for each in engine.preemption.together(nomination):
        drop(engine, each, now_ns, out)
    _wake(engine, nomination, now_ns)


def _wake(engine: Engine, nomination: Nomination, now_ns: int) -> None:
    """Have the pod tried, or the one that waits for its gang."""
    waiting = _waits_for(engine, nomination)
    engine.queue.wake(waiting.pod.uid if waiting else nomination.pod.uid, now_ns)


def _waits_for(engine: Engine, nomination: Nomination) -> WaitingPod | None:
    """Return the pod in the queue, or the head of its gang."""
    gang = nomination.pod.gang
    members = engine.queue.gangs.of(gang) if gang else None
    head = members.head if members else None
    return head or engine.queue.get(nomination.pod.uid)


def drop(engine: Engine, nomination: Nomination, now_ns: int, out: list[Command]) -> None:
    """Keep nothing for the pod any more."""
    engine.preemption.nominations.pop(nomination.pod.uid, None)
    engine.preemption.let_go(nomination)
    is_over(engine, nomination, now_ns)
    out.append(Nominate(nomination.pod, ""))


def is_over(engine: Engine, nomination: Nomination, now_ns: int) -> None:
    """Nothing is kept there any more: who fits may try, who may end others there, and whom the
    queue's limit may let in."""
    engine.wake_for_freed(nomination.node, now_ns, nomination.pod.team_queue)
    takes_back = engine.teams.rules.reclaim  # no priority beats another queue's places
    wake_others(engine, FAR if takes_back else nomination.priority, now_ns)


def kept_anew(engine: Engine, nodes: Iterable[str], now_ns: int) -> None:
    """Places are kept on these nodes that were not before: where policies go by who is on a GPU,
    one with this on it may suit others."""
    if engine.by_residents:
        for node in nodes:
            engine.wake_for_freed(node, now_ns)


def look_at_gangs(engine: Engine, now_ns: int, out: list[Command]) -> None:
    """An event was taken in: nothing is kept for ever for a gang that cannot start."""
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


# --- what is taken in -----------------------------------------------------------------------------


def nominated(engine: Engine, event: PodNominated, now_ns: int, out: list[Command]) -> None:
    """The API says that a node is kept for a pod: keep what is free there of the place that it
    would have without those who leave."""
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
            place = engine.choose_place(waiting, known, row, now_ns).placement
    engine.journal.back_to(before)
    if place is None:
        out.append(Nominate(pod, ""))
        return
    nomination = preemption.nominations[pod.uid] = Nomination(pod, place, leaving)
    preemption.keep(nomination)


def apply(engine: Engine, event: Event, now_ns: int, out: list[Command]) -> None:
    """Take in an event that only matters here."""
    match event:
        case BudgetsChanged():
            take_budgets(engine, event, now_ns)
        case PodNominated():
            nominated(engine, event, now_ns, out)


# --- what becomes of it ---------------------------------------------------------------------------


def freed(engine: Engine, uid: str, node: str, now_ns: int) -> None:
    """The pod holds nothing on the node any more: more of it is kept for those it was kept for."""
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
    """More is free on the node: pods for which it is kept try if that may do with what is kept,
    whoever is still leaving; a gang after its back-off, as it may need more elsewhere. More
    important ones may take what is kept; and for others pods may be moved there now."""
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
    if there:  # more important ones take what is kept as if it were free
        lowest = min(each.priority for each in there)
        freed = _free_without(engine, there, row)
        whom = partial(_is_above, lowest)
        engine.queue.wake_for_freed(freed._replace(for_whom=whom), now_ns)


def _free_without(engine: Engine, kept: Sequence[Nomination], row: int) -> FreedNode:
    """Return the node of this row, were nothing kept there for these. Of one that is decided about
    just now nothing is held, and nothing is to be."""
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
    """A pod is no more: what it held, or was kept for it, is others'."""
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
        wake_others(engine, FAR if priority is None else priority, now_ns)


def seen_bound(engine: Engine, event: PodSeenBound, now_ns: int, out: list[Command]) -> None:
    """The API shows a pod bound: who it is to others, and what was kept for it is others'."""
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
    """A victim does not go: those who waited for that look for others. Nor does a pod of a gang
    that runs in part: it is asked again."""
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
    """Let pods of at most this priority look for others to end, if there may be any for them."""
    if not engine.queue.any_parked:
        return
    everybody = engine.teams.rules.reclaim  # also of one's own priority, and higher ones
    above = -FAR if everybody else engine.preemption.lowest()
    engine.queue.wake_preemptors(above, up_to, now_ns)


def take_budgets(engine: Engine, event: BudgetsChanged, now_ns: int) -> None:
    """Disruption budgets changed: where one lets more pods go, those who wait look again."""
    if engine.preemption.take_budgets(event.budgets, event.removed):
        engine.preemption.moves.changed(now_ns)
        wake_others(engine, FAR, now_ns)


def due(engine: Engine, now_ns: int) -> None:
    """Time has passed: pods that were not let go may be asked again, or moved for others."""
    if engine.preemption.due(now_ns):
        engine.preemption.moves.changed(now_ns)
        wake_others(engine, FAR, now_ns)
    if engine.preemption.moves.since:
        look(engine, now_ns)


def nodes_changed(engine: Engine, gone: Iterable[str], now_ns: int, out: list[Command]) -> None:
    """Nodes changed, and these are gone: nothing is kept on them."""
    engine.preemption.moves.changed(now_ns)
    for name in gone:
        for nomination in engine.preemption.on_node(name):
            beat(engine, nomination, now_ns, out)
