"""Explains a pod of an engine without a cluster, such as in a simulation.

The explanation has the same form as a live cluster's (`cluster/scheduler/explain_service.py`)."""

from typing import Any

from weft.core.engine import Engine
from weft.core.engine.deciding import PlacedPod
from weft.core.engine.reasons import best_nodes, summarise
from weft.core.explain.counterfactual import PlacementQuestion
from weft.core.explain.explanation import Explanation, State
from weft.core.explain.score_parts import score_in_words
from weft.core.explain.sentences import (
    GANG_WAITS,
    NOWHERE,
    ROOM_NOW,
    chosen_in_words,
    decision_notes,
    gang_in_words,
    place_in_words,
    state_in_words,
)
from weft.core.explain.smallest_change import SuggestedChange, changes
from weft.model import PodRequest

_CANDIDATES = 3


def explanation_of(engine: Engine, uid: str) -> Explanation | None:
    """Explain the pod as of now; None if the engine has neither placed nor queued it."""
    placed = engine.placed.get(uid)
    if placed is not None:
        return _placed(engine, placed)
    waiting = engine.queue.get(uid)
    return None if waiting is None else _waiting(engine, waiting.pod, waiting.tries)


def _placed(engine: Engine, placed: PlacedPod) -> Explanation:
    record, profile = placed.record, placed.profile
    at = place_in_words(record.node, record.shares, without=", without a GPU")
    how = chosen_in_words(record, (policy.name for policy in profile.policies))
    question = PlacementQuestion(placed.pod, profile, record.attempt, gone=(record.uid,))
    held = engine.ledger.holdings.get(record.uid)
    state: State = "binding" if held is not None and held.state == "reserved" else "bound"
    return _explanation(
        placed.pod,
        state,
        f"{at}; {how}",
        node=record.node,
        shares=record.shares,
        score=record.score,
        attempt=record.attempt,
        profile=record.profile,
        score_parts=score_in_words(engine, question, record.node, record.shares),
        candidates=record.top,
        predicted=record.predicted,
        notes=tuple(decision_notes(record, lambda uid: _name(engine, uid))),
    )


def _waiting(engine: Engine, pod: PodRequest, tries: int) -> Explanation:
    profile = engine.profile_of(pod)
    known = engine.assess(profile, pod)
    summary = summarise(engine.ledger.table, known, pod.warnings)
    notes, lacks_members = list(pod.warnings), False
    if pod.gang and (members := engine.queue.gangs.of(pod.gang)) is not None:
        notes.append(gang_in_words(members.decision()))
        lacks_members = not members.has_quorum
    more: dict[str, Any] = {
        "profile": profile.name,
        "summary": summary,
        "reason": str(summary),
        "attempt": tries,
        "notes": tuple(notes),
    }
    if summary.fits:
        best = tuple(best_nodes(engine.ledger.table, known, profile, _CANDIDATES))
        why = GANG_WAITS if lacks_members else ROOM_NOW
        return _explanation(pod, "pending", why, candidates=best, **more)
    found = (SuggestedChange(made.axis, made.text, made.free) for made in changes(engine, pod))
    return _explanation(pod, "pending", NOWHERE, changes=tuple(found), **more)


def _explanation(pod: PodRequest, state: State, why: str, **more: Any) -> Explanation:
    return Explanation(
        pod.namespace,
        pod.name,
        pod.uid,
        state,
        state_in_words(state, why),
        pod.scheduler_name,
        leader=True,
        **more,
    )


def _name(engine: Engine, uid: str) -> str:
    placed = engine.placed.get(uid)
    return f"{placed.pod.namespace}/{placed.pod.name}" if placed else ""
