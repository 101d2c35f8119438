"""Handles events with measurements and stored data other than signals: OOM history, progress, the
bindings of an overbooked node, policies' own input.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from weft.core.engine import events, nomination_events
from weft.core.engine.deciding import PlacedPod
from weft.core.engine.events import Command, Event
from weft.core.engine.oom_history import OutOfMemory
from weft.core.engine.overbooking import first_overbooked
from weft.core.engine.pricing import PRICING
from weft.core.framework import policy as ask
from weft.core.framework.signals import NO_SIGNALS

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine


def apply(engine: Engine, event: Event, now_ns: int, out: list[Command]) -> None:
    """Apply an event that changes what policies see or rules decide by."""
    match event:
        case OutOfMemory():
            learn(engine, event, engine.placed.get(event.placement.uid), out)
        case events.ImagesSeen():
            for node, images in event.by_node():
                engine.images.put(node, images)
        case events.LeadershipBegan():
            engine.slowdown_eviction.begin_to_lead(now_ns)
        case events.BindingsRead():
            bindings_read(engine, event, now_ns, out)
        case events.ProgressSeen():
            engine.slowdown_eviction.note_inherited(engine.placed, now_ns)
            for holding, slowed in engine.slowdown_eviction.observe(
                event.observed, engine.tolerance_of, now_ns
            ):
                engine.evict(holding, slowed, now_ns, out)
        case events.PolicyInput():
            policy_input(engine, event, now_ns)
        case events.NotEvicted():
            nomination_events.not_evicted(engine, event, now_ns, out)
            engine.harvest.not_evicted(event.uid, refused=event.refused)
            engine.slowdown_eviction.not_evicted(event.uid, now_ns, refused=event.refused)
        case events.OomHistoryLearnt():
            if engine.oom_history.merge(event.oom_history) | engine.peaks.merge(event.peaks):
                engine.queue.wake_all(now_ns)
        case _:
            nomination_events.apply(engine, event, now_ns, out)


def learn(engine: Engine, event: OutOfMemory, placed: PlacedPod | None, out: list[Command]) -> None:
    """Learn from a pod that ran out of memory what pods like it are charged from now on."""
    oom_record = engine.oom_history.learn(event, engine.ledger)
    if oom_record is not None:
        out.append(events.Learnt(event.workload, oom_record))
        if placed is not None:
            engine.peaks.ran_out(placed.pod, oom_record.least_mib)


def leave_out(engine: Engine, event: Event) -> None:
    """Continue after a failed event. If signals cannot be read, they count as missing, so that
    nothing is lent."""
    if not isinstance(event, events.SignalsChanged):
        return
    engine.observe(NO_SIGNALS)
    engine.ledger.forget_measurements()


def bindings_read(
    engine: Engine, event: events.BindingsRead, now_ns: int, out: list[Command]
) -> None:
    """Evict the first pod, in order of binding, that does not fit on an overbooked node, or report
    why it is not evicted."""
    late = first_overbooked(engine.ledger, event.node, event.bindings, shrunk=event.shrunk)
    if late is None:
        return
    if late.excuse:
        out.append(events.EvictionWaived(late.held.placement, *late[1:]))
    else:
        engine.evict(late.held, late.why, now_ns, out)


def policy_input(engine: Engine, event: events.PolicyInput, now_ns: int) -> None:
    """Give new input to each policy that reads input of this name, and wake all pods."""
    name = event.policy
    takers = [policy for policy in engine.policies if name in policy.inputs]
    types = dict.fromkeys(policy.inputs[name] for policy in takers)
    values = {kind: msgspec.convert(event.value, kind) for kind in types}
    for policy in takers:
        value = values[policy.inputs[name]]
        engine.side_tasks.run(
            f"taking in {name}", partial(ask.take_input, policy, name, value), None
        )
    if takers:
        engine.side_tasks.run(PRICING, partial(engine.price_lists.make, now_ns), None)
        engine.assessor.forget()
        engine.queue.wake_all(now_ns)
