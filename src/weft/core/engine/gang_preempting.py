"""Preempts pods of lower priority for a gang that fits nowhere, in one preemption for the whole
gang. On the nodes that would have the most capacity without such pods, all these pods are removed
on trial. If the gang then has places, each removed pod that leaves these places free is put back,
the most important first. The other pods are evicted, and the gang's places are kept as a single
pod's place is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.core.engine import gang_search, nomination_events, preempting
from weft.core.engine.events import Command, Nominate
from weft.core.engine.gang_search import GangPlaces
from weft.core.engine.gangs import GangMembers
from weft.core.engine.moved_victims import may_move, rooms_beside
from weft.core.engine.nominations import Nomination
from weft.core.engine.preempting import PreemptionRights
from weft.core.engine.queue import WaitingPod
from weft.core.engine.records import PreemptionPlan
from weft.core.ledger.table import Bools, Ints
from weft.core.preempt import Victim, uids_of, violations
from weft.core.preempt.lower_pods import room_without
from weft.core.preempt.victims import importance, most_given_back

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine

MOST_NODES = 64
"""The most nodes that are cleared on trial for one gang."""
MOST_DOMAINS = 4


class _Pool(NamedTuple):
    """The pods that may be evicted in one search. `guarded`: also pods whose disruption budget
    allows no eviction; `borrowers`: only pods with which other queues borrow."""

    rights: PreemptionRights
    guarded: bool
    borrowers: bool


def makes_room(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    now_ns: int,
    out: list[Command],
) -> PreemptionPlan | None:
    """Evict pods so that the gang fits, or wait for pods that already leave; return None if neither
    helps. A plan without victims means that only places kept for other pods were in the way: the
    gang may try again."""
    preemption = engine.preemption
    own = preemption.of_pods(members.waiting)
    if leaving := preemption.leaving_on({each.node for each in own}):
        for each in own:
            preemption.keep(each)
        return PreemptionPlan(own[0].node, (), tuple(leaving))
    for each in own:
        del preemption.nominations[each.pod.uid]
        out.append(Nominate(each.pod, ""))
    plan = _plan(engine, head, members, now_ns, out)
    kept = {each.node for each in preemption.of_pods(members.waiting)}
    for each in own:
        if each.node not in kept:
            nomination_events.is_over(engine, each, now_ns)
    return plan


def _plan(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    now_ns: int,
    out: list[Command],
) -> PreemptionPlan | None:
    preemption = engine.preemption
    if head.pod.never_preempts or not (preemption.standings or preemption.nominations):
        return None
    rights, before = preempting.rights_of(engine, head.pod), engine.journal.seq
    if not (rights.going or rights.beaten or preemption.lower.priorities(rights.below)):
        return None  # there is no pod that it could preempt
    budgets = (False,) if head.profile.budgets_are_law else (False, True)
    for borrowers, guarded in product(rights.steps, budgets):
        pool = _Pool(rights, guarded, borrowers)
        found = _search(engine, head, members, pool, now_ns)
        engine.journal.back_to(before)
        if found is not None and _changes_something(engine, *found, rights):
            return _nominate(engine, head, *found, rights, now_ns, out)
    return None


def _changes_something(
    engine: Engine, found: GangPlaces, victims: Sequence[Victim], rights: PreemptionRights
) -> bool:
    """Return False if no pod on the nodes of `found` has to be evicted, is leaving, or has to give
    up a kept place: the gang's own search has just failed there, and would fail again."""
    nodes = {place.placement.node for place in found.chosen}
    beaten = any(each.node in nodes for each in rights.beaten)
    going = [uid for uid in rights.going if uid in engine.preemption.going]
    return bool(victims) or beaten or any(preempting.on_node(engine, going, n) for n in nodes)


def _search(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    pool: _Pool,
    now_ns: int,
) -> tuple[GangPlaces, list[Victim]] | None:
    """Find places for the gang, and the pods to evict for them; None if there are none."""
    table, going = engine.ledger.table, pool.rights.going
    regions = _regions(engine, head, members, pool)
    for rows, inside in islice(regions, gang_search.most_tries(members)):
        names = [table.nodes[row].name for row in rows.tolist()]
        for victims in _victims(engine, names, pool):
            found = gang_search.try_without(
                engine, members, inside, [*going, *uids_of(victims)], now_ns
            )
            if found.chosen:
                fewer = _needed(engine, found, victims, going)
                again = gang_search.try_without(
                    engine, members, inside, [*going, *uids_of(fewer)], now_ns
                )
                return (again, fewer) if again.chosen else (found, victims)
    return None


def _regions(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    pool: _Pool,
) -> Iterator[tuple[Ints, Bools | None]]:
    """Yield the rows of nodes to clear, first those that lose the fewest pods for the capacity
    gained, each with a mask of the nodes that the gang's topology key allows (None for all)."""
    preemption, table, below = engine.preemption, engine.ledger.table, pool.rights.below
    steps = preemption.lower.priorities(below)
    known = engine.assess(head.profile, head.pod)
    freed = preemption.lower.freed(steps[-1] if steps else below - 1, guarded=pool.guarded)
    if (by_queue := pool.rights.by_queue) is not None:
        freed = freed.only_on(by_queue.nodes(borrowers=pool.borrowers), table)
    room = room_without(table, known.demand, freed)
    room[~preempting.is_open(known) & (known.codes != 0)] = 0
    held = np.bincount(table.device_node, weights=freed.device_pods, minlength=table.count)
    key, needed = members.topology_key(), max(1, members.least - len(members.placed))
    insides: list[Bools | None] = [None]
    if key and not members.placed:
        column = table.labels.domains(key)
        sums = np.bincount(column.of_node, weights=room, minlength=len(column.values) + 1)
        order = [n for n in np.argsort(-sums, kind="stable").tolist() if n and sums[n] >= needed]
        insides = [column.of_node == number for number in order[:MOST_DOMAINS]]
    for inside in insides:
        here = room if inside is None else np.where(inside, room, 0)
        rows = np.flatnonzero(here > 0)
        rows = rows[np.argsort(held[rows] / here[rows], kind="stable")]
        rows = rows[np.cumsum(held[rows] > 0) <= MOST_NODES]  # other nodes lose no pod
        enough = int(np.searchsorted(np.cumsum(here[rows]), needed)) + 1
        while len(rows):
            yield rows[:enough], inside
            if enough >= len(rows):
                break
            enough *= 2


def _victims(engine: Engine, nodes: Sequence[str], pool: _Pool) -> Iterator[list[Victim]]:
    """Yield the pods of these nodes that are removed on trial: all of the pool. If other queues
    would lose their guarantees, as many as leave these, first the least important of all nodes,
    then node by node."""
    allowed, rights, found = engine.preemption.allowed, pool.rights, dict[tuple[str, ...], Victim]()
    for node in nodes:
        for victim in rights.victims_on(engine, node, borrowers=pool.borrowers):
            found[victim.uids] = victim
    victims = [each for each in found.values() if pool.guarded or not violations([each], allowed)]
    if rights.by_queue is None:
        yield victims
        return
    queues = rights.by_queue.borrowing(victims)
    in_order = sorted(range(len(victims)), key=lambda at: importance(victims[at]), reverse=True)
    least = most_given_back(in_order, queues)
    yield [victims[at] for at in least]
    if len(least) < len(victims):
        yield [victims[at] for at in most_given_back(range(len(victims)), queues)]
        yield [victims[at] for at in most_given_back(range(len(victims) - 1, -1, -1), queues)]


def _needed(
    engine: Engine, found: GangPlaces, victims: Sequence[Victim], going: Sequence[str]
) -> list[Victim]:
    """Return the victims that cannot stay once the gang has these places."""
    ledger, allowed = engine.ledger, engine.preemption.allowed
    held = {uid: ledger.holdings[uid].placement for uid in uids_of(victims)}
    needed = []
    with engine.trial([*going, *held]):
        for place in found.chosen:
            ledger.reserve(place.placement, asks=place.demand.asks)
        for victim in sorted(
            victims, key=lambda each: (-violations([each], allowed), -each.priority, each.since_ns)
        ):
            back = [uid for uid in victim.uids if ledger.reserve(held[uid])]
            if len(back) < len(victim.uids):
                needed.append(victim)
                for uid in back:
                    ledger.release(uid)
    return needed


def _nominate(
    engine: Engine,
    head: WaitingPod,
    found: GangPlaces,
    victims: Sequence[Victim],
    rights: PreemptionRights,
    now_ns: int,
    out: list[Command],
) -> PreemptionPlan:
    preemption = engine.preemption
    nodes = dict.fromkeys(place.placement.node for place in found.chosen)
    leaving = {uid for uid in rights.going if uid in preemption.going}
    for nomination in rights.beaten:
        if nomination.node in nodes:
            nomination_events.beat(engine, nomination, now_ns, out)
    uids = uids_of(victims)
    anyway = (preempting.on_node(engine, rights.going, node) for node in nodes)
    gone = [*uids, *chain.from_iterable(anyway)]
    rooms = rooms_beside(engine, found.chosen, gone, may_move(engine, victims))
    on = {node: {*preempting.on_node(engine, [*uids, *leaving], node)} for node in nodes}
    waits = sorted({uid for each in on.values() for uid in each}.difference(uids))
    preemption.awaited_by(head.pod, waits)
    for place in found.chosen:
        pod, node = place.placed.pod, place.placement.node
        nomination = Nomination(pod, place.placement, on[node], head.pod.priority)
        preemption.nominations[pod.uid] = nomination
        out.append(Nominate(pod, node))
    for victim in victims:
        for uid in victim.uids:
            preempting.end(engine, head, uid, victim, now_ns, out, rooms.get(uid, ""))
    for place in found.chosen:
        preemption.keep(preemption.nominations[place.placed.pod.uid])
    nomination_events.kept_anew(engine, nodes, now_ns)
    over = preemption.violations_of(victims)
    return PreemptionPlan(next(iter(nodes)), tuple(uids), tuple(waits), over)
