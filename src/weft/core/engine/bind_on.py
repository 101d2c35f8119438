"""Binds a pod to the node that kube-scheduler chose; the engine chooses the GPUs. As in the
extender's answer to a filter request (`core/engine/questions.py`), a place kept for a less
important pod counts as free; that pod then looks for another place."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from weft.core.engine import deciding, nomination_events, preempting
from weft.core.engine.events import Bind, BindOn, BindOnRefused, Command
from weft.core.engine.queue import WaitingPod
from weft.core.framework import Profile
from weft.model import Code

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine


def bind_on(
    engine: Engine, event: BindOn, profile: Profile, now_ns: int, out: list[Command]
) -> None:
    """Reserve GPUs for the pod on the event's node and ask for its Binding, or refuse."""
    pod = event.pod
    holding = engine.ledger.holdings.get(pod.uid)
    if holding is not None:
        placed = engine.placed.get(pod.uid)
        if placed is not None and holding.placement.node == event.node:
            out.append(Bind(pod, holding.placement, placed.record))
        else:
            out.append(BindOnRefused(pod, event.node, Code.OTHER_NODE))
        return
    if engine.teams.count:
        engine.teams.belongs(pod.uid, pod.team_queue)
    waiting = WaitingPod(pod, profile, 0)
    waiting.state, waiting.tries = "asked", 1
    with engine.kept_places.aside(waiting) if engine.kept_places.turns else nullcontext():
        _reserve(engine, event, waiting, now_ns, out)


def _reserve(
    engine: Engine, event: BindOn, waiting: WaitingPod, now_ns: int, out: list[Command]
) -> None:
    pod, profile, table = event.pod, waiting.profile, engine.ledger.table
    row = table.row_of.get(event.node, -1)
    known = engine.assess(profile, pod, None)
    if row >= 0 and known.codes[row] and _takes_kept(engine, profile, event, now_ns, out):
        known = engine.assess(profile, pod, None)
    if row < 0 or known.codes[row]:
        code = Code(int(known.codes[row])) if row >= 0 else Code.UNSCHEDULABLE
        out.append(BindOnRefused(pod, event.node, code))
        return
    own = engine.queue.get(pod.uid)
    engine.queue.remove(pod.uid, now_ns)
    deciding.hold(
        engine, deciding.choose_place(engine, waiting, known, row, now_ns), now_ns, out
    ).own = own
    if pod.gang:
        engine.queue.has_place(pod.uid, pod.gang, now_ns)


def _takes_kept(
    engine: Engine, profile: Profile, event: BindOn, now_ns: int, out: list[Command]
) -> bool:
    """Give up places kept on the node for less important pods, if the pod then fits; return True if
    it does."""
    beaten = [each for each in preempting.beaten_by(engine, event.pod) if each.node == event.node]
    if not beaten:
        return False
    row = engine.ledger.table.row_of[event.node]
    with preempting.without_kept(engine, event.pod):
        fits = engine.assess(profile, event.pod, None).codes[row] == 0
    if fits:
        for nomination in beaten:
            nomination_events.beat(engine, nomination, now_ns, out)
    return bool(fits)
