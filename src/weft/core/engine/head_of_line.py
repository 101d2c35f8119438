"""Keeps a place for the pod or gang at the head of its line (a profile and a priority). A gang or
a pod gets a turn (a place is kept for it) after a while (later if it requests one GPU or less), if
it is among the first of its line by its policy's order, and has had no unsuccessful turn lately."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import (
    deciding,
    gang_search,
    least_to_end,
    nomination_events,
    preempting,
)
from weft.core.engine.events import Command, Unschedulable
from weft.core.engine.forecasts import kinds_of
from weft.core.engine.gangs import GangMembers
from weft.core.engine.kept_places import (
    WAITS,
    LineTurn,
    VacatedTurn,
    goes_before,
    key_of,
    line_of,
)
from weft.core.engine.parked import FreedNode
from weft.core.engine.queue import WaitingPod
from weft.core.engine.records import Record
from weft.core.ledger import FAR
from weft.model import Code, Placement, PodRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weft.core.engine.engine import Engine

MOVED_FOR_NS, MOVED_FOR_PART = 60_000_000_000, 10
"""A kept place is moved if another one is free sooner by at least this time, and by one part in 10
of the wait."""


def decide(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    now_ns: int,
    out: list[Command],
) -> None:
    """Decide for a gang: place it; otherwise keep a place for it if its turn is due."""
    kept = engine.kept_places
    passed = _passes(engine, head, now_ns)
    with kept.aside(head, passed):
        turn = kept.turns.get(members.gang.key)
        refused = gang_search.decide(engine, head, members, now_ns, out)
        if not kept.on:
            return
        if refused is None or refused.preempts is not UNSET:
            if turn is not None:
                end(engine, turn, "started" if refused is None else "preempts", now_ns)
        elif nodes := _keep(engine, head, members, refused.counts, now_ns):
            _tell(refused, nodes, out)


def decide_alone(engine: Engine, waiting: WaitingPod, now_ns: int, out: list[Command]) -> None:
    """Decide for a pod that has a turn, or that fits nowhere while places are kept: place it, if
    need be on a kept place, or preempt for it. Otherwise it waits, and if its turn is due a place
    is kept for it."""
    kept, uid = engine.kept_places, waiting.pod.uid
    passed = _passes(engine, waiting, now_ns)
    with kept.aside(waiting, passed) as opened:
        turn = kept.turns.get(uid)
        if turn is not None and uid in engine.preemption.nominations:  # the API says so
            end(engine, turn, "preempts", now_ns)
            preempting.try_nominated(engine, waiting, now_ns, out)
            return
        known = engine.assess(waiting.profile, waiting.pod)
        row = deciding.best_row(known, waiting.profile, f"{engine.seed}/{uid}/{waiting.tries}")
        if row >= 0:
            places = [each for each in opened if each.places]
            to = partial(_may_pass_too, engine, places, now_ns) if places else None
            if not engine.queue.defers(waiting, known.shape, to):
                deciding.place(engine, waiting, known, row, now_ns, out)
                if passed:  # other pods that may backfill may fit there too
                    engine.wake_for_freed(engine.ledger.table.nodes[row].name, now_ns)
        elif not preempting.makes_room(engine, waiting, known, now_ns, out):
            engine.parks(waiting, known, now_ns, out)
        if uid not in engine.queue or uid in engine.preemption.nominations:
            if turn is not None:
                why = "preempts" if uid in engine.queue else "started"
                end(engine, turn, why, now_ns)
        elif row < 0:
            _keep(engine, waiting, None, known.counts, now_ns)


def _passes(engine: Engine, waiting: WaitingPod, now_ns: int) -> list[LineTurn]:
    """Return the turns of other pods or gangs on whose kept places `waiting` may run until all of
    the place is free."""
    if not (engine.kept_places.lends or engine.forecasts.on):
        return []  # the discipline lets no pod backfill
    closed = engine.kept_places.closed_to(waiting.pod, waiting.key[-1])
    return _passed_by(engine, _starters(engine, waiting), closed, now_ns)


def _passed_by(
    engine: Engine, pods: list[PodRequest], turns: Sequence[LineTurn], now_ns: int
) -> list[LineTurn]:
    """Return those of these turns on whose kept places the `pods`, which start together, may run
    until all of the place is free."""
    return engine.kept_places.lent(turns, now_ns) or engine.forecasts.passes(pods, turns, now_ns)


def _starters(engine: Engine, waiting: WaitingPod) -> list[PodRequest]:
    """Return the pods that start together with `waiting`: this pod alone or, for the head of a
    gang, all waiting pods of the gang."""
    gang = waiting.pod.gang
    members = engine.queue.gangs.of(gang) if gang else None
    if members is None or members.head is not waiting:
        return [waiting.pod]
    return [each.pod for each in members.waiting.values()]


def _may_pass_too(
    engine: Engine, passed: Sequence[LineTurn], now_ns: int, elder: WaitingPod
) -> bool:
    """Return True if the pod `elder`, too, may run on the kept places of all `passed` turns until
    they are free, or may take these places."""
    passes = _passed_by(engine, _starters(engine, elder), passed, now_ns)
    may = [*engine.kept_places.open_to(elder.pod, elder.key[-1]), *passes]
    return all(turn in may for turn in passed)


def _keep(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod] | None,
    counts: Sequence[int],
    now_ns: int,
) -> list[str]:
    """Keep or move a place for a gang or pod that fits nowhere and cannot preempt, if its turn is
    due; return the nodes of the kept place."""
    kept = engine.kept_places
    kept.enters(head, members, now_ns)
    turn = kept.turns.get(key_of(head.pod))
    if turn is None or now_ns < turn.due_ns:
        return []
    places = None
    if not counts[Code.QUEUE_LIMIT]:
        places = _chosen(engine, head, members, turn, now_ns)
        if places is None:
            kept.fits_nowhere(head, now_ns)
    if places is None:
        end(engine, turn, "nowhere", now_ns)
        return []
    if turn.until_ns == FAR:
        turn.until_ns = now_ns + kept.keep_for_ns(turn)
    turn.asks = least_to_end.in_words(places)
    before = turn.nodes
    kept.take(turn, places)
    _renew(engine, turn, now_ns, moved=bool(before) and before != turn.nodes)
    _open_up(engine, turn, [node for node in before if node not in turn.nodes], now_ns)
    kept_now = [node for node in turn.nodes if node not in before]
    nomination_events.kept_anew(engine, kept_now, now_ns)
    return turn.nodes


def _chosen(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod] | None,
    turn: LineTurn,
    now_ns: int,
) -> list[Placement] | None:
    """Return the place for which running pods have to free the least or, if running times are
    forecast, the place that is free first; None if no place would do. A place that is already kept
    is returned again, unless another one is free much sooner."""
    forecasts, kept = engine.forecasts, turn.places
    if not forecasts.on or (kept and turn.reservation.is_hard):
        return least_to_end.find(engine, head, members, turn.nodes, now_ns)
    waits_s = forecasts.waits_s(now_ns)
    sooner = least_to_end.find(engine, head, members, (), now_ns, waits_s)
    if not kept:
        return sooner
    places: list[Placement] | None
    places = [replace(place, uid=place.uid.removeprefix(WAITS)) for place in kept]
    if sooner is None or {p.uid for p in places} != {p.uid for p in sooner}:
        places = least_to_end.find(engine, head, members, turn.nodes, now_ns)
    if sooner is None or places is None:
        return places or sooner
    starts_ns = forecasts.start_of(places, now_ns).compared_ns
    gains_ns = starts_ns - forecasts.start_of(sooner, now_ns).compared_ns
    least_ns = MOVED_FOR_NS + (starts_ns - now_ns) // MOVED_FOR_PART
    return sooner if gains_ns > least_ns else places


def _tell(refused: Record, nodes: Sequence[str], out: list[Command]) -> None:
    """Note in the decision's record where a place is kept."""
    for at, command in enumerate(out):
        if isinstance(command, Unschedulable) and command.record is refused and refused.gang:
            gang = replace(refused.gang, kept=tuple(nodes))
            out[at] = replace(command, record=replace(refused, gang=gang))


def end(engine: Engine, turn: LineTurn, why: str, now_ns: int) -> None:
    """End a turn: its kept place becomes available, and the next turn begins. After an unsuccessful
    turn the pod is passed over for as long as a place may be kept."""
    kept = engine.kept_places
    del kept.turns[turn.key]
    kept.let_go(turn)
    if why in {"time", "nowhere"}:
        kept.pause(turn, why, now_ns)
    if turn.places or why == "nowhere":
        kept.counts[why] += 1
    _open_up(engine, turn, turn.nodes, now_ns)
    for members in engine.queue.gangs:
        if members.head is not None and line_of(members.head) == turn.line:
            kept.enters(members.head, members, now_ns)
    for waiting in engine.queue.waiting() if kept.serves_pods else ():
        if waiting.state == "parked" and line_of(waiting) == turn.line:
            kept.enters(waiting, None, now_ns)


def _open_up(engine: Engine, turn: LineTurn, nodes: Sequence[str], now_ns: int) -> None:
    """Wake the pods that may now fit on these nodes, or preempt there, as nothing is kept on them
    any more."""
    for node in nodes:
        engine.wake_for_freed(node, now_ns)
    if nodes:
        nomination_events.wake_others(engine, turn.line.priority, now_ns)


def look(engine: Engine, now_ns: int, out: list[Command]) -> None:
    """Update the turns after an event: end those that are over or whose pods no longer wait, and
    try those that are due. A pod whose turn was unsuccessful may have another one after its pause
    and another wait. Places kept for nominated pods of gangs that cannot start are given up."""
    nomination_events.look_at_gangs(engine, now_ns, out)
    kept, queue = engine.kept_places, engine.queue
    over = {*kept.end_pauses(now_ns)} if kept.paused else set()
    for members in queue.gangs if over else ():
        if members.head is not None and members.gang.key in over:
            kept.enters(members.head, members, now_ns)
    for uid in sorted(over):
        if (waiting := queue.get(uid)) is not None and kept.serves_pods:
            kept.enters(waiting, None, now_ns)
    for turn in list(engine.kept_places.turns.values()):
        head = turn.head
        if isinstance(turn, VacatedTurn):
            _look_at_vacated(engine, turn, now_ns)
        elif head is None or line_of(head) != turn.line:
            end(engine, turn, "gone", now_ns)
        elif now_ns >= turn.until_ns:
            end(engine, turn, "time", now_ns)
        elif now_ns >= turn.due_ns and not turn.places and head.state != "faulty":
            engine.queue.wake(head.pod.uid, now_ns)
        elif (whole_ns := turn.reservation.due_ns) is not None and whole_ns < now_ns:
            _renew(engine, turn, now_ns)  # it was not free in time: look for a better one
            engine.queue.wake(head.pod.uid, now_ns)


def keep_for_successor(
    engine: Engine,
    members: GangMembers[WaitingPod],
    ended: Placement,
    priority: int,
    now_ns: int,
) -> None:
    """Keep the place of a gang's running pod, which ended before it was done, for the pod that
    replaces it. Where queues of teams count, the next turn decides who gets it."""
    members.owed_ns.append(now_ns)
    if not members.there or engine.teams.part:
        return
    if (turn := engine.kept_places.vacated(members, ended, priority, now_ns)) is not None:
        replaces = "a pod that ended" if len(turn.places) == 1 else "pods that ended"
        turn.asks = f"{least_to_end.in_words(turn.places)} to replace {replaces}"


def _look_at_vacated(engine: Engine, turn: VacatedTurn, now_ns: int) -> None:
    """Give up places whose time is over and those that no pod needs any more; all of them once the
    gang is gone."""
    kept = engine.kept_places
    still = kept.still_kept(turn, now_ns) if turn.members.there else []
    if still and len(still) == len(turn.places):
        return
    before = turn.nodes
    kept.let_go(turn)
    turn.places = still
    if still:
        kept.hold(turn)
    else:
        del kept.turns[turn.key]
    _open_up(engine, turn, before, now_ns)


def freed(engine: Engine, node: str, now_ns: int) -> None:
    """Hold what became free on the node for the places kept there. If all of a kept place is free,
    its pod or gang is tried at once. Other pods that may take or backfill the freed capacity are
    woken too."""
    kept, row = engine.kept_places, engine.ledger.table.row_of.get(node)
    held = kept.held_on(node)
    there = kept.lift(node)
    if not there or row is None:
        return
    all_free = FreedNode.on(engine.ledger, row)
    later = kept.keep_on_later(node, held)
    if not later:
        kept.keep_on(node)
    for turn in there:
        _renew(engine, turn, now_ns)
        if (later or kept.is_whole(turn)) and not isinstance(turn, VacatedTurn):
            _wake(engine, turn, now_ns)
    for_whom, by_pod = partial(_is_for, engine, there, {}, now_ns), engine.forecasts.on
    engine.queue.wake_for_freed(all_free._replace(for_whom=for_whom, by_pod=by_pod), now_ns)


def _renew(engine: Engine, turn: LineTurn, now_ns: int, *, moved: bool = False) -> None:
    if engine.forecasts.on:
        is_next = partial(_is_next, engine, turn)
        engine.forecasts.renew(turn, now_ns, moved=moved, is_next=is_next)


def _is_next(engine: Engine, turn: LineTurn) -> bool:
    """Return False if a pod that goes first waits, could use a part of the place, and has no kept
    place of its own."""
    kept, priority, (came_ns, _) = engine.kept_places, turn.line.priority, turn.came
    gpus_on = Counter(place.node for place in turn.places for _ in place.shares)
    largest = max(gpus_on.values(), default=0)
    perhaps = [  # a cheap filter first: most of many waiting pods came later
        waiting
        for waiting in engine.queue.waiting()
        if (pod := waiting.pod).priority >= priority
        and (pod.came_ns <= came_ns or pod.priority > priority)
    ]
    return not any(
        goes_before(waiting.pod, waiting.key[-1], turn)
        and waiting.pod.shape.gpus <= largest
        and not ((own := kept.turns.get(key_of(waiting.pod))) is not None and own.places)
        for waiting in perhaps
    )


def _is_for(
    engine: Engine,
    turns: list[LineTurn],
    pass_too: dict[object, bool],
    now_ns: int,
    waiting: WaitingPod,
) -> bool:
    pod = waiting.pod
    if any(key_of(pod) == turn.owner or goes_before(pod, waiting.key[-1], turn) for turn in turns):
        return True
    starters = _starters(engine, waiting)
    runs_as = frozenset((*kinds_of(p), p.shape.expected_s, p.deadline_s) for p in starters)
    if (passes := pass_too.get(runs_as)) is None:
        passes = pass_too[runs_as] = bool(_passed_by(engine, starters, turns, now_ns))
    return passes


def nodes_changed(engine: Engine, names: Iterable[str], now_ns: int) -> None:
    """Give up places kept on nodes that are gone or closed; the gangs or pods look for other
    places."""
    kept, table = engine.kept_places, engine.ledger.table
    kept.nodes_changed()
    for name in names:
        row = table.row_of.get(name)
        for turn in kept.keep_on(name):
            if row is None or not table.schedulable[row]:
                kept.let_go(turn)
                each_alone = isinstance(turn, VacatedTurn)  # each place is for another pod
                nodes, left = turn.nodes, [place for place in turn.places if place.node != name]
                turn.places = left if each_alone else ()
                kept.hold(turn)
                turn.reservation.starts_ns = turn.reservation.sure_ns = None
                _open_up(engine, turn, nodes, now_ns)
                _wake(engine, turn, now_ns)


def _wake(engine: Engine, turn: LineTurn, now_ns: int) -> None:
    if (head := turn.head) is not None:
        engine.queue.wake(head.pod.uid, now_ns)
