"""Decides for a gang: finds places for as many of its pods as it needs, and reserves all of them or
none. The search is a trial, undone at its end. The largest pods are tried first. Each goes to a
node that already has pods of the gang, else to a node with room for the most remaining pods; among
these, to the one that its policy rates best. Of several topology domains the one whose places have
the best total score is taken. For like pods this finds places if there are any, except with GPUs
shared in unequal parts. For a gang of several sizes other orders are tried too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from weft.core.constraints.answer import PodAnswer
from weft.core.engine import deciding, nomination_events, preempting
from weft.core.engine.assessment import Assessment
from weft.core.engine.deciding import ChosenPlace
from weft.core.engine.events import Command, Unschedulable, Wake
from weft.core.engine.gang_room import ANY_NUMBER, room_for, room_when_empty
from weft.core.engine.gangs import GRACE_NS, GangMembers, Gangs
from weft.core.engine.nominations import kept_uid
from weft.core.engine.queue import WaitingPod
from weft.core.engine.records import GangDecision, Record
from weft.core.framework import NEVER, Demand
from weft.core.ledger import Ledger
from weft.core.ledger.table import STRICT, Bools, Ints, LedgerTable
from weft.model import Code, Gang, PodRequest, Shape
from weft.model.ceilings import MOST_GANG_PODS

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine

SEARCHED = 512
"""Once as many pods were tried for one gang, or as many as it has if these are more, no further
topology domain is tried; as many again may be tried in other orders."""


TRIED = 4_096
"""The most pods that are tried for one gang in all tries on nodes cleared of pods (at least one try
is made)."""

SHAPES_SUMMED = 16
"""If a gang has more shapes than this, the room of an empty cluster is not computed."""


class GangPlaces(NamedTuple):
    """Places for a gang's pods (`chosen`), () if there are too few. `found` is the number of pods
    that found a place, `short` the first pod that found none, with the decision about it (None if
    each found one), `demands` are the distinct demands of the pods that were tried, and `tried` is
    how many were tried, pods alike only until one of them found no place."""

    chosen: tuple[ChosenPlace, ...]
    found: int
    short: tuple[WaitingPod, Record] | None
    demands: tuple[tuple[Shape, Demand], ...]
    tried: int


def find_places(
    engine: Engine, members: GangMembers[WaitingPod], now_ns: int, gone: Sequence[str] = ()
) -> GangPlaces:
    """Find places for as many of the waiting pods as possible, none if these are too few for the
    gang; pods in `gone` count as gone."""
    waiting = _to_place(members)
    for each in waiting:
        each.tries = max(each.tries, members.tries)
    with engine.trial(gone):
        domains = _domains(engine, members, waiting)
    several = len({(each.profile.name, each.pod.shape) for each in waiting}) > 1
    best: GangPlaces | None = None
    ordered = sorted(waiting, key=PLANS[0].order)
    looks = max(SEARCHED, len(waiting) + 1)  # a second domain is tried in any case
    for inside in domains:
        if best is not None and looks < (len(waiting) if best.chosen else 1):
            break
        found = _try(engine, members, ordered, inside, PLANS[0], now_ns, gone)
        looks -= found.tried
        if best is None or _merit(found) > _merit(best):
            best = found
    assert best is not None
    if best.chosen or not several:
        return best
    return _other_orders(engine, members, domains, now_ns, gone) or best


def _other_orders(
    engine: Engine,
    members: GangMembers[WaitingPod],
    domains: Sequence[Bools | None],
    now_ns: int,
    gone: Sequence[str],
) -> GangPlaces | None:
    """Try other orders for a gang of several sizes that found no places: which pod goes first, and
    where, may decide whether the others fit. A pod that found no place goes first at the next try.
    """
    waiting, looks = _to_place(members), SEARCHED
    tries = dict(enumerate((plan, inside) for plan in PLANS for inside in domains))
    orders = {at: sorted(waiting, key=plan.order) for at, (plan, _) in tries.items()}
    for _ in range(ROUNDS):
        for at, (plan, inside) in list(tries.items()):
            ordered = orders[at]
            looks -= len(ordered)
            if looks < 0:
                return None
            found = _try(engine, members, ordered, inside, plan, now_ns, gone)
            if found.chosen:
                return found
            if found.short is None or found.short[0] is ordered[0]:
                del tries[at]  # the same order again would fail again
            else:
                ordered.remove(found.short[0])
                ordered.insert(0, found.short[0])
    return None


def _domains(
    engine: Engine, members: GangMembers[WaitingPod], waiting: Sequence[WaitingPod]
) -> list[Bools | None]:
    """Return a mask of nodes, [N], for each topology domain that may have room for the gang; [None]
    (all nodes) if it has no topology key, or if one of its pods has a place already."""
    key, table = members.topology_key(), engine.ledger.table
    if not key or members.placed:
        return [None]
    column = table.labels.domains(key)
    numbers = _by_room(engine, waiting, column.of_node, len(column.values), members.least)
    found: list[Bools | None] = [column.of_node == number for number in numbers]
    return found or [np.zeros(table.count, dtype=np.bool_)]


def _merit(found: GangPlaces) -> tuple[bool, int, int]:
    rated = sum(place.placed.record.score for place in found.chosen)
    return bool(found.chosen), found.found, rated


def size(waiting: WaitingPod) -> tuple[int, int, int, int]:
    """Return the pod's size, to sort by: GPUs, their memory, CPU, host memory."""
    shape = waiting.pod.shape
    gpus = sum(r.count * (1000 if r.whole else max(1, r.milli)) for r in shape.gpu_requests)
    memory = sum(r.count * r.memory.value for r in shape.gpu_requests)
    return gpus, memory, shape.cpu_milli, shape.memory_mib


def _largest_first(waiting: WaitingPod) -> tuple[object, ...]:
    return *(-amount for amount in size(waiting)), waiting.key


def _smallest_first(waiting: WaitingPod) -> tuple[object, ...]:
    return *size(waiting), waiting.key


class Plan(NamedTuple):
    """A search order: the order in which pods are tried, and whether each goes to nodes with room
    for the most pods like it, or for the fewest."""

    order: Callable[[WaitingPod], tuple[object, ...]]
    roomiest: bool


PLANS = (
    Plan(_largest_first, roomiest=True),
    Plan(_largest_first, roomiest=False),
    Plan(_smallest_first, roomiest=True),
    Plan(_smallest_first, roomiest=False),
)
"""Search orders; a gang of one size uses only the first."""
ROUNDS = 8
"""The most tries of one plan. With this many, a test with 8,000 small gangs without GPUs found
places for every gang that fits."""


def _by_room(
    engine: Engine, waiting: Sequence[WaitingPod], of_node: Ints, count: int, least: int
) -> list[int]:
    """Return the numbers of the domains that may have room for as many pods as needed, counting at
    most as many pods of each kind as are waiting. Domains with room for all come first, those with
    the least room to spare before others. If no domain has enough room, return the roomiest."""
    pods = np.zeros(count + 1, dtype=np.int64)
    room = np.zeros(engine.ledger.table.count, dtype=np.int64)
    kinds = Counter((each.profile.name, each.pod.shape) for each in waiting)
    for kind, each in {(each.profile.name, each.pod.shape): each for each in waiting}.items():
        known = engine.assess(each.profile, each.pod)
        fits = np.where(known.codes == 0, room_for(known.demand, engine.ledger.table), 0)
        room = np.maximum(room, fits)
        pods += np.minimum(_by_domain(fits, kinds[kind], of_node, count), kinds[kind])
    sums = _by_domain(room, len(waiting), of_node, count)
    may = [number for number in range(1, count + 1) if pods[number] >= least]
    if not may and pods[1:].any():
        return [int(pods[1:].argmax()) + 1]
    return sorted(may, key=lambda n: (pods[n] < len(waiting), abs(sums[n] - len(waiting)), n))


def _by_domain(room: Ints, most: int, of_node: Ints, count: int) -> Ints:
    """Sum the nodes' room by domain, counting at most `most` pods for each node, [count + 1]."""
    sums = np.zeros(count + 1, dtype=np.int64)
    np.add.at(sums, of_node, np.minimum(room, most))
    return sums


def _try(
    engine: Engine,
    members: GangMembers[WaitingPod],
    waiting: Sequence[WaitingPod],
    inside: Bools | None,
    plan: Plan,
    now_ns: int,
    gone: Sequence[str] = (),
) -> GangPlaces:
    chosen: list[ChosenPlace] = []
    short: tuple[WaitingPod, Record] | None = None
    demands: dict[Shape, Demand] = {}
    rooms: dict[Demand, Ints] = {}
    refused: set[tuple[str, Shape]] = set()
    tried = 0
    spare = len(waiting) + len(members.placed) - members.least
    used = np.zeros(engine.ledger.table.count, dtype=np.bool_)
    used[[*_nodes_of(engine.ledger, members)]] = True
    with engine.trial(gone):
        for at, each in enumerate(waiting):
            alike = each.profile.name, each.pod.shape
            known = None if alike in refused else engine.assess(each.profile, each.pod)
            if known is not None:
                tried += 1
                if inside is not None:
                    known = within(known, inside)
                demands.setdefault(known.shape, known.demand)
                row = _row(engine, each, known, used, rooms, len(waiting) - at, plan)
                if row >= 0:
                    chosen.append(deciding.choose_place(engine, each, known, row, now_ns))
                    _reserve(engine, chosen[-1], row)
                    used[row] = True
                    continue
                if not each.pod.shape.constraints.pods:
                    refused.add(alike)
                if short is None:
                    short = each, deciding.refused(engine, each, known, now_ns)
            spare -= 1
            if spare < 0:
                break
    if members.would_do([gang for place in chosen if (gang := place.placed.pod.gang)]):
        return GangPlaces(tuple(chosen), len(chosen), short, tuple(demands.items()), tried)
    return GangPlaces((), len(chosen), short, tuple(demands.items()), tried)


def _reserve(engine: Engine, place: ChosenPlace, row: int) -> None:
    ledger, pod = engine.ledger, place.placed.pod
    if not ledger.reserve(place.placement, asks=place.demand.asks):
        name = place.placed.profile.lead.name
        raise RuntimeError(f"{name} chose a place that does not fit: {place.placement}")
    node = ledger.table.nodes[row]
    volumes = engine.existing.choose(pod, place.shape, node) if pod.claims else ()
    engine.existing.put_asked(pod, node.name, volumes)


def _row(
    engine: Engine,
    waiting: WaitingPod,
    known: Assessment,
    used: Bools,
    rooms: dict[Demand, Ints],
    left: int,
    plan: Plan,
) -> int:
    """Return the row of the node for the next pod, −1 if none fits. `rooms` is the room of nodes
    that are not `used` yet, which does not change during the search."""
    if not known.counts[0]:
        return -1
    key = f"{engine.seed}/{waiting.pod.uid}/{waiting.tries}"
    if known.wishes is not None:  # the pod's own preferences decide
        return deciding.best_row(known, waiting.profile, key)
    fits = known.codes == 0
    keep = fits & used
    here = np.count_nonzero(keep) if plan.roomiest else 0
    if here == 1:
        return int(keep.argmax())
    if not here:
        room = rooms.get(known.demand) if plan.roomiest else None
        if room is None:
            room = rooms[known.demand] = room_for(known.demand, engine.ledger.table)
        room = np.minimum(room, left) if plan.roomiest else -room
        keep = fits & (room == room.max(initial=-ANY_NUMBER, where=fits))
    narrowed = known.copied()
    narrowed.total = np.where(keep, known.total, NEVER)
    return deciding.best_row(narrowed, waiting.profile, key)


def _nodes_of(ledger: Ledger, members: GangMembers[WaitingPod]) -> set[int]:
    nodes = (
        ledger.holdings[uid].placement.node for uid in members.placed if uid in ledger.holdings
    )
    return {ledger.table.row_of[node] for node in nodes if node in ledger.table.row_of}


def within(known: Assessment, inside: Bools) -> Assessment:
    """Return the answers for the nodes of this mask only."""
    answer = PodAnswer(Code.GROUP_ELSEWHERE, ~inside, _elsewhere)
    return known.among(known.shape, [answer])


def _elsewhere(row: int) -> str:
    return "the node is outside the topology domain of the pod's group"


def in_domain(
    known: Assessment, gangs: Gangs[WaitingPod], ledger: Ledger, gang: Gang
) -> Assessment:
    """Return the answers for the topology domain in which the gang's pods are; if none has a place,
    for all nodes with the topology key's label; for no node if its pods are in several domains.
    Unchanged if the gang has no topology key."""
    members = gangs.of(gang)
    if members is None or not (key := members.topology_key()):
        return known
    of_node = ledger.table.labels.domains(key).of_node
    numbers = {int(of_node[row]) for row in _nodes_of(ledger, members)}
    if not numbers:
        return within(known, of_node != 0)
    number = numbers.pop()
    return within(known, (of_node == number) & (number != 0) & (not numbers))


def try_without(
    engine: Engine,
    members: GangMembers[WaitingPod],
    inside: Bools | None,
    gone: Sequence[str],
    now_ns: int,
) -> GangPlaces:
    """Find places for the gang on these nodes (None: all) as if these pods were gone."""
    waiting = sorted(_to_place(members), key=PLANS[0].order)
    return _try(engine, members, waiting, inside, PLANS[0], now_ns, gone)


def most_tries(members: GangMembers[WaitingPod]) -> int:
    """Return on how many sets of nodes the gang may be tried, at most."""
    return max(1, TRIED // max(1, len(members.waiting)))


def _to_place(members: GangMembers[WaitingPod]) -> list[WaitingPod]:
    """Return the pods that are placed together: all that wait, or only the first `MOST_GANG_PODS`
    if the gang needs no more. They include as many of each task as the gang needs."""
    most = max(members.least - len(members.placed), MOST_GANG_PODS)
    if len(members.waiting) <= most:
        return list(members.waiting.values())
    ordered = sorted(members.waiting.values(), key=lambda each: each.key)
    lacking = members.lacking()
    first: list[WaitingPod] = []
    for each in ordered:
        task = each.pod.gang.task if each.pod.gang else ""
        if lacking.get(task, 0) > 0:
            lacking[task] -= 1
            first.append(each)
    chosen = {each.pod.uid for each in first}
    rest = (each for each in ordered if each.pod.uid not in chosen)
    return [*first, *islice(rest, max(0, most - len(first)))]


def decide(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    now_ns: int,
    out: list[Command],
) -> Record | None:
    """Place at least as many pods of the gang as it needs, or none; `head` waits for all of them.
    Return None if they have places now, else the record of the decision."""
    before, preemption = engine.journal.seq, engine.preemption
    own = preemption.of_pods(members.waiting) if preemption.nominations else ()
    for kept in own:
        preemption.let_go(kept)
    found = find_places(engine, members, now_ns)
    if not found.chosen and preemption.nominations:
        found = _take_kept(engine, head, members, now_ns, out) or found
    engine.journal.back_to(before)
    if not found.chosen:
        return _refuse(engine, head, members, found, now_ns, out)
    _take(engine, found, members.decision(found.found), now_ns, out)
    for kept in own:
        preemption.nominations.pop(kept.pod.uid, None)
    for place in found.chosen:
        engine.queue.done(members.waiting[place.placed.pod.uid], now_ns)
    for kept in own:  # only now: the remainder of these places is for other pods
        nomination_events.is_over(engine, kept, now_ns)
    if head.pod.uid in engine.queue:
        engine.queue.go_alone(head, now_ns)
    return None


def _take_kept(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    now_ns: int,
    out: list[Command],
) -> GangPlaces | None:
    """Find places that are free, or kept only for less important pods. Those pods lose their kept
    places in the same decision, so that they cannot take them back in between. None if the gang
    does not fit even so, or if no places are kept for such pods."""
    beaten = [
        each for each in preempting.beaten_by(engine, head.pod) if not head.pod.goes_with(each.pod)
    ]
    kept = [kept_uid(each.pod.uid) for each in beaten]
    if not (gone := [uid for uid in kept if uid in engine.ledger.holdings]):
        return None
    found = find_places(engine, members, now_ns, gone)
    nodes = {place.placement.node for place in found.chosen}
    for nomination in beaten:
        if nomination.node in nodes:
            nomination_events.beat(engine, nomination, now_ns, out)
    return found if found.chosen else None


def _take(
    engine: Engine,
    found: GangPlaces,
    decision: GangDecision,
    now_ns: int,
    out: list[Command],
) -> None:
    """Reserve all places, or none if that fails."""
    before, told = engine.journal.seq, len(out)
    try:
        for place in found.chosen:
            place.placed.record = engine.journal.numbered(place.placed.record, decision)
            deciding.hold(engine, place, now_ns, out)
    except Exception:
        for place in found.chosen:
            engine.undo(place.placed.pod.uid, now_ns)
        del out[told:]
        engine.journal.back_to(before)
        raise


def _refuse(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    found: GangPlaces,
    now_ns: int,
    out: list[Command],
) -> Record:
    """Preempt for the gang, or have it wait; return the decision."""
    _bound(engine, members, members.waiting.values())
    decision = members.decision(found.found)
    assert found.short is not None
    commands: list[Command] = []
    try:
        plan = engine.makes_room_for(head, members, now_ns, commands)
    except Exception:
        out += commands  # these commands report kept places that were given up
        raise
    short, record = found.short[0].pod, engine.journal.numbered(found.short[1], decision)
    record = record if plan is None else replace(record, preempts=plan)
    (shape, demand), *others = found.demands
    engine.queue.park(head, shape, demand, now_ns, others=others)
    members.ready_ns = head.ready_ns
    is_short(engine, members, now_ns, out)
    rest = tuple(each.pod for each in members.waiting.values() if each.pod is not short)
    out += [Unschedulable(short, record, rest), *commands]
    if plan is not None and not (plan.victims or plan.leaving):
        engine.queue.wake(head.pod.uid, now_ns)  # no pod is in its way any more
    return record


def tell_if_gathering(engine: Engine, pod: PodRequest, now_ns: int, out: list[Command]) -> None:
    """Record that a new pod waits for the other pods of its gang."""
    waiting = engine.queue.get(pod.uid)
    members = engine.queue.gangs.of(pod.gang) if pod.gang else None
    if waiting is None or members is None or members.is_complete:
        return
    _bound(engine, members, [waiting])
    out.append(Unschedulable(pod, engine.journal.gathers(waiting, members.decision(), now_ns)))


def _bound(engine: Engine, members: GangMembers[WaitingPod], news: Iterable[WaitingPod]) -> None:
    """Compute how many of the gang's pods an empty cluster has room for at most; `news` are pods
    whose shapes may not have been assessed yet."""
    ledger = engine.ledger
    known = members.largest_sums
    if members.summed_at != ledger.generation:
        known.clear()
        members.summed_at, news = ledger.generation, members.waiting.values()
    for each in news:
        alike = each.profile.name, each.pod.shape
        if alike not in known and len(known) <= SHAPES_SUMMED:
            answer = engine.assess(each.profile, each.pod)
            room = room_when_empty(answer.demand, ledger.table, strict=ledger.limits == STRICT)
            known[alike] = np.where(answer.declared != 0, 0, np.minimum(room, ANY_NUMBER))
    members.most = ANY_NUMBER
    if known and len(known) <= SHAPES_SUMMED:
        room = np.maximum.reduce(list(known.values()))
        key = members.topology_key()
        members.most = _most_in_one(room, ledger.table, key) if key else int(room.sum())


def _most_in_one(room: Ints, table: LedgerTable, key: str) -> int:
    column = table.labels.domains(key)
    sums = np.zeros(len(column.values) + 1, dtype=np.int64)
    np.add.at(sums, column.of_node, room)
    return int(sums[1:].max(initial=0))


def is_short(
    engine: Engine, members: GangMembers[WaitingPod], now_ns: int, out: list[Command]
) -> None:
    """Record that waiting pods of the gang do not start; its running pods, if there are any, are
    evicted unless that changes in time."""
    since_ns = engine.queue.gangs.is_short(members, now_ns)
    if since_ns is not None:
        out.append(Wake(max(now_ns, since_ns + GRACE_NS)))


def evict_broken(engine: Engine, now_ns: int, out: list[Command]) -> None:
    """Evict running pods of gangs that cannot get enough places: they make no progress, and hold
    capacity for which other pods wait."""
    for members in engine.queue.gangs.broken(now_ns):
        decision = members.decision()
        for uid in list(members.placed):
            if uid in members.bound and uid not in members.leaving:
                members.leaving.add(uid)
                engine.evict(engine.ledger.holdings[uid], decision, now_ns, out)
