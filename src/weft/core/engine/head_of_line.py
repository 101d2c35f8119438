"""Gives a gang at the head of its priority a turn: after a while its place is kept for it.

A gang is at the head of its line (its profile and priority) where it waits for places, no other
gang there goes before it by its policy's order, and it had no turn in vain lately.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import gang_search, least_to_end, preempting, selection
from weft.core.engine.assessment import Assessment
from weft.core.engine.events import Command, Unschedulable
from weft.core.engine.gangs import GangMembers
from weft.core.engine.kept_places import Line, LineTurn, goes_before, line_of
from weft.core.engine.parked import FreedNode
from weft.core.engine.queue import WaitingPod
from weft.core.engine.records import Record
from weft.core.ledger import FAR
from weft.model import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weft.core.engine.engine import Engine


def decide(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    now_ns: int,
    out: list[Command],
) -> None:
    """Places for the gang, or for none of it; then one is kept for it if its turn is due."""
    kept = engine.kept_places
    with kept.aside(head):
        if (turn := kept.of_gang(members.gang.key)) is not None:
            kept.let_go(turn)
        refused = gang_search.decide(engine, head, members, now_ns, out)
        if not kept.on:
            return
        if refused is None or refused.preempts is not UNSET:
            if turn is not None:
                end(engine, turn, "started" if refused is None else "preempts", now_ns)
        elif nodes := _keep(engine, head, members, refused, now_ns):
            _tell(refused, nodes, out)


def takes_kept(
    engine: Engine, waiting: WaitingPod, known: Assessment, now_ns: int, out: list[Command]
) -> None:
    """A pod fits nowhere while places are kept: it has one of those that it may take, or ends
    others, or waits."""
    profile, row = waiting.profile, -1
    with engine.kept_places.aside(waiting) as is_more_free:
        if is_more_free:
            known = engine.assess(profile, waiting.pod)
            key = f"{engine.seed}/{waiting.pod.uid}/{waiting.tries}"
            row = selection.best_row(known, profile, key)
        if row >= 0:
            if not engine.queue.defers(waiting, known.shape):
                engine.place(waiting, known, row, now_ns, out)
        elif not profile.preempts or not preempting.makes_room(engine, waiting, known, now_ns, out):
            engine.parks(waiting, known, now_ns, out)


def _keep(
    engine: Engine,
    head: WaitingPod,
    members: GangMembers[WaitingPod],
    refused: Record,
    now_ns: int,
) -> list[str]:
    """The gang fits nowhere, and ends nobody. If its turn is due, its place is kept, or moved; the
    nodes on which one is."""
    kept, line = engine.kept_places, line_of(head)
    if line not in kept.turns:
        _begin(engine, line, now_ns)
    turn = kept.turns.get(line)
    if turn is None or turn.gang != members.gang.key or now_ns < turn.due_ns:
        return []
    is_limited = bool(refused.counts[Code.QUEUE_LIMIT])
    places = None if is_limited else least_to_end.find(engine, members, turn.nodes, now_ns)
    if places is None:
        end(engine, turn, "nowhere", now_ns)
        return []
    if turn.until_ns == FAR:
        turn.until_ns = now_ns + kept.rules.keep_for_ns
    turn.asks = least_to_end.in_words(places)
    before = set(turn.nodes)
    kept.take(turn, places)
    for node in before.difference(turn.nodes):
        engine.wake_for_freed(node, now_ns)
    return turn.nodes


def _tell(refused: Record, nodes: Sequence[str], out: list[Command]) -> None:
    """Say in the decision that is told where a place is kept."""
    for at, command in enumerate(out):
        if isinstance(command, Unschedulable) and command.record is refused and refused.gang:
            gang = replace(refused.gang, kept=tuple(nodes))
            out[at] = replace(command, record=replace(refused, gang=gang))


def end(engine: Engine, turn: LineTurn, why: str, now_ns: int) -> None:
    """The turn is over: what was kept is others', and the next gang's turn begins. A gang that had
    it in vain is passed over for as long as its place may be kept."""
    kept = engine.kept_places
    del kept.turns[turn.line]
    kept.let_go(turn)
    if why in {"time", "nowhere"}:
        kept.paused[turn.gang] = now_ns + kept.rules.keep_for_ns
    if turn.places or why == "nowhere":
        kept.counts[why] += 1
    for node in turn.nodes:
        engine.wake_for_freed(node, now_ns)
    _begin(engine, turn.line, now_ns)


def _begin(engine: Engine, line: Line, now_ns: int) -> None:
    """Give the first gang of the line the turn."""
    kept = engine.kept_places
    kept.paused = {gang: until for gang, until in kept.paused.items() if until > now_ns}
    first: tuple[WaitingPod, GangMembers[WaitingPod]] | None = None
    for members in engine.queue.gangs:
        head = members.head
        if head is None or members.gang.key in kept.paused or line_of(head) != line:
            continue
        if members.most >= members.least and (first is None or head.key < first[0].key):
            first = head, members
    if first is not None:
        kept.turns[line] = LineTurn(*first, now_ns + kept.rules.after_ns)


def look(engine: Engine, now_ns: int) -> None:
    """An event was taken in: turns whose gang waits no more, or whose time is over, end; one that
    is due is tried."""
    for turn in list(engine.kept_places.turns.values()):
        head = turn.members.head
        if head is None or line_of(head) != turn.line:
            end(engine, turn, "gone", now_ns)
        elif now_ns >= turn.until_ns:
            end(engine, turn, "time", now_ns)
        elif now_ns >= turn.due_ns and not turn.places and head.state != "faulty":
            engine.queue.wake(head.pod.uid, now_ns)


def freed(engine: Engine, node: str, now_ns: int) -> None:
    """More is free on the node: what belongs to places that are kept is held. A gang tries at once
    where all of its place is free; else it is woken as if that were free, and so are pods that may
    take it."""
    kept, row = engine.kept_places, engine.ledger.table.row_of.get(node)
    there = kept.lift(node)
    if not there or row is None:
        return
    all_free = FreedNode.on(engine.ledger, row)
    kept.keep_on(node)
    for turn in there:
        if kept.is_whole(turn):
            _wake(engine, turn, now_ns)
    for_whom = partial(_is_for, there)
    engine.queue.wake_for_freed(all_free._replace(for_whom=for_whom), now_ns)


def _is_for(turns: list[LineTurn], waiting: WaitingPod) -> bool:
    return any(
        waiting is turn.members.head or goes_before(waiting.pod, waiting.key[-1], turn)
        for turn in turns
    )


def nodes_changed(engine: Engine, names: Iterable[str], now_ns: int) -> None:
    """Nodes changed, or are gone: nothing is kept where no pod may start; those gangs look for
    another place."""
    kept, table = engine.kept_places, engine.ledger.table
    for name in names:
        row = table.row_of.get(name)
        for turn in kept.keep_on(name):
            if row is None or not table.schedulable[row]:
                kept.let_go(turn)
                nodes, turn.places = turn.nodes, ()
                for node in nodes:
                    engine.wake_for_freed(node, now_ns)
                _wake(engine, turn, now_ns)


def _wake(engine: Engine, turn: LineTurn, now_ns: int) -> None:
    if (head := turn.members.head) is not None:
        engine.queue.wake(head.pod.uid, now_ns)
