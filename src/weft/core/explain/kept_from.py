"""Explains places kept free for waiting pods: those kept for others that a pod would fit in, and
those kept for the pod itself."""

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from weft.core.engine.engine import Engine
from weft.core.engine.gangs import GangMembers
from weft.core.engine.kept_places import LineTurn
from weft.core.engine.nomination_events import GATHERS_NS
from weft.core.engine.nominations import Nomination
from weft.core.engine.queue import WaitingPod
from weft.core.engine.records import GangDecision
from weft.core.explain.sentences import (
    kept_for_in_words,
    kept_for_it_in_words,
    kept_in_words,
    starts_in_words,
)
from weft.core.framework import Profile
from weft.model import PodRequest


def kept_from(engine: Engine, profile: Profile, pod: PodRequest) -> list[str]:
    """Return a sentence for each waiting group or pod whose kept places this pod would fit in."""
    kept = engine.kept_places
    waiting = engine.queue.get(pod.uid)
    closed = kept.closed_to(pod, -1 if waiting is None else waiting.key[-1])
    lent = kept.lent(closed, engine.residencies.now_ns)
    closed = [turn for turn in closed if turn not in lent]
    if not (uids := kept.uids(closed)):
        return []
    with engine.trial(uids):
        rows = np.flatnonzero(engine.assess(profile, pod).codes == 0).tolist()
    would_fit = {engine.ledger.table.nodes[row].name for row in rows}
    turns = [(turn, [node for node in turn.nodes if node in would_fit]) for turn in closed]
    return [
        kept_for_in_words(turn.name, turn.asks, nodes, _starts(engine, turn))
        for turn, nodes in turns
        if nodes
    ]


def _starts(engine: Engine, turn: LineTurn) -> str:
    """Say when the waiting group or pod is expected to start in its kept places; "" if unknown."""
    if (sure_ns := turn.reservation.sure_ns) is None:
        return ""
    return starts_in_words(sure_ns - engine.residencies.now_ns)


def kept_for(engine: Engine, pod: PodRequest) -> list[str]:
    """Return a sentence that names the nodes kept for the pod itself; empty if there are none."""
    turn = engine.kept_places.turns.get(pod.uid)
    if turn is None or not turn.places:
        return []
    starts = _starts(engine, turn)
    return [f"{kept_for_it_in_words(turn.nodes)}{f'; it {starts}' if starts else ''}"]


def node_kept_for(engine: Engine, kept: Nomination, name: Callable[[str], str]) -> str:
    """Say which node is kept for a nominated pod, which pods must still end there, and for how long
    at most the node is kept if its group has too few pods."""
    text, gang = kept_in_words(kept.node, map(name, kept.leaving)), kept.pod.gang
    if gang and gang.key in engine.preemption.gathers_since:
        return f"{text}; for {GATHERS_NS // 1_000_000_000} s at most, as its group has too few pods"
    return text


def gang_now(engine: Engine, members: GangMembers[WaitingPod]) -> GangDecision:
    """Return the gang's decision as of now, with the nodes kept for it."""
    decision, turn = members.decision(), engine.kept_places.turns.get(members.gang.key)
    if turn is None or not turn.places:
        return decision
    return replace(decision, kept=tuple(turn.nodes))
