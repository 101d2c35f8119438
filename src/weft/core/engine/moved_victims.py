"""Finds victims of a preemption that may move, and have room elsewhere, instead of ending for good.
A move is an eviction; the pod's controller creates it again, and it enters the queue like any pod.
Whether it would have room is tried on the ledger, as `weft defrag` does, after the pods for which
it is moved have their places. The room is not kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from weft.core.engine.kept_places import key_of
from weft.core.engine.move_trials import reserve_place
from weft.core.engine.nominations import kept_uid
from weft.core.preempt import Victim
from weft.model import PodRequest

if TYPE_CHECKING:
    from weft.core.engine.deciding import ChosenPlace
    from weft.core.engine.engine import Engine
    from weft.core.engine.nominations import Nomination
    from weft.core.engine.records import PreemptedFor


def may_move(engine: Engine, victims: Sequence[Victim]) -> list[str]:
    """Return the UIDs of victims that may move, the most important first: except pods of a group
    that is evicted as one and, if the evictions violate a disruption budget, pods that any budget
    guards."""
    preemption = engine.preemption
    if not preemption.movable:
        return []
    over = preemption.violations_of(victims)
    single = (each for each in victims if len(each.uids) == 1 and not (over and each.budgets))
    in_order = sorted(single, key=lambda each: (-each.priority, each.since_ns))
    return [each.uids[0] for each in in_order if each.uids[0] in preemption.movable]


def rooms_beside(
    engine: Engine,
    chosen: Sequence[ChosenPlace],
    gone: Sequence[str],
    uids: Sequence[str],
    beside: Sequence[Nomination] = (),
) -> dict[str, str]:
    """Return, by UID, the nodes with room for these pods, placed one after the other, once all of
    `gone` are gone, the `chosen` places are taken, and the places kept for `beside` are respected.
    Pods without room are left out."""
    rooms: dict[str, str] = {}
    if not uids:
        return rooms
    with engine.trial(gone, beside):
        for each in chosen:
            engine.ledger.reserve(each.placement, asks=each.demand.asks)
            engine.existing.put_asked(each.placed.pod, each.placement.node)
        for uid in uids:
            pod = engine.preemption.movable[uid]
            kept = _keep_from(engine, pod, chosen)
            if node := _reserve_room(engine, pod):
                rooms[uid] = node
            for other in kept:
                engine.ledger.release(other)
                engine.existing.remove(other)
    return rooms


def _reserve_room(engine: Engine, pod: PodRequest) -> str | None:
    return reserve_place(engine, engine.assess(engine.profile_of(pod), pod, None), pod)


def still_has_room(engine: Engine, uid: str, why: PreemptedFor) -> bool:
    """Return True if there still is room elsewhere for a pod that was asked to move, once the pods
    that it moves for have their places; other pods may have taken it. Places kept for less
    important pods count as free."""
    preemption, ledger = engine.preemption, engine.ledger
    pod = preemption.movable.get(uid)
    awaited = [*preemption.waiting_for(uid)] or preemption.of_pods([why.uid])
    nominated = [each for one in awaited for each in preemption.together(one)]
    if pod is None or not nominated:
        return False
    open_to_it = [*nominated, *preemption.below(pod.priority)]
    gone = {uid, *(kept_uid(each.pod.uid) for each in open_to_it)}
    gone.update(each for one in nominated for each in one.leaving)
    gone.update(engine.kept_places.uids(engine.kept_places.below(pod.priority)))
    with engine.trial(sorted(gone & ledger.holdings.keys())):
        for each in nominated:
            kept = kept_uid(each.pod.uid)
            ledger.reserve(replace(each.place, uid=kept))
            engine.existing.put_kept(kept, each.pod, each.node)
        return _reserve_room(engine, pod) is not None


def _keep_from(engine: Engine, pod: PodRequest, chosen: Sequence[ChosenPlace]) -> list[str]:
    """Hold, on trial, the places kept for other pods that will be closed to this pod when it is
    created again, except nominated places on the nodes of `chosen`, and the chosen pods' own;
    return the UIDs of these holdings."""
    preemption, holdings = engine.preemption, engine.ledger.holdings
    taken = {place.placement.node for place in chosen}
    held = []
    for each in preemption.not_below(pod.priority) if preemption.nominations else ():
        uid = kept_uid(each.pod.uid)
        if each.node not in taken and uid not in holdings:
            preemption.keep(each)
            held.append(uid)
    own = {key_of(place.placed.pod) for place in chosen}
    return held + engine.kept_places.hold_from(pod.priority, own)
