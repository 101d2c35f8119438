"""Takes in what policies see, and rules decide by: inputs, signals, progress, OOM history."""

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from weft.core.engine.events import (
    BindingsRead,
    Command,
    Event,
    EvictionWaived,
    LeadershipBegan,
    Learnt,
    NotEvicted,
    OomHistoryLearnt,
    PolicyInput,
    ProgressSeen,
    SignalsChanged,
)
from weft.core.engine.harvest import RAN_LONG_NS
from weft.core.engine.journal import PlacedPod
from weft.core.engine.oom_history import OutOfMemory
from weft.core.engine.overbooking import first_overbooked
from weft.core.engine.pricing import PRICING
from weft.core.framework import policy_answers
from weft.core.framework.signals import NO_SIGNALS, SignalsSnapshot, SignalsView

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine

MEASURED = (SignalsChanged, ProgressSeen, OutOfMemory, OomHistoryLearnt, PolicyInput)
"""Events of what others measured, wrote or kept: one that breaks off is left out."""
LEARNING = "learning what pods use"


def apply(engine: "Engine", event: Event, now_ns: int, out: list[Command]) -> None:
    """Applies an event that changes what policies see or rules decide by."""
    match event:
        case SignalsChanged():
            _signals_changed(engine, event.signals, now_ns, out)
        case LeadershipBegan():
            engine.slowdown_eviction.begin_to_lead(now_ns)
        case BindingsRead():
            _bindings_read(engine, event, now_ns, out)
        case ProgressSeen():
            engine.slowdown_eviction.note_inherited(engine.placed, now_ns)
            for holding, slowed in engine.slowdown_eviction.observe(
                event.observed, engine.tolerance_of, now_ns
            ):
                engine.evict(holding, slowed, now_ns, out)
        case PolicyInput():
            _policy_input(engine, event, now_ns)
        case NotEvicted():
            engine.harvest.not_evicted(event.uid, refused=event.refused)
            engine.slowdown_eviction.not_evicted(event.uid, now_ns, refused=event.refused)
        case OomHistoryLearnt():
            if engine.oom_history.merge(event.oom_history) | engine.peaks.merge(event.peaks):
                engine.queue.wake_all(now_ns)


def learn(
    engine: "Engine", event: OutOfMemory, placed: PlacedPod | None, out: list[Command]
) -> None:
    """A pod ran out of memory: what those like it are charged from now on."""
    oom_record = engine.oom_history.learn(event, engine.ledger)
    if oom_record is not None:
        out.append(Learnt(event.workload, oom_record))
        if placed is not None:
            engine.peaks.ran_out(placed.pod, oom_record.least_mib)


def leave_out(engine: "Engine", event: Event) -> None:
    """Taking in the event broke off. Signals that cannot be read are none: nothing is lent."""
    if not isinstance(event, SignalsChanged):
        return
    engine.observe(NO_SIGNALS)
    ledger = engine.ledger
    ledger.set_idle({})
    ledger.hold_back({})
    ledger.set_measured()
    ledger.touch(np.arange(ledger.table.count))


def _bindings_read(engine: "Engine", event: BindingsRead, now_ns: int, out: list[Command]) -> None:
    late = first_overbooked(engine.ledger, event.node, event.bindings, shrunk=event.shrunk)
    if late is None:
        return
    if late.excuse:
        out.append(EvictionWaived(late.held.placement, *late[1:]))
    else:
        engine.evict(late.held, late.why, now_ns, out)


def _policy_input(engine: "Engine", event: PolicyInput, now_ns: int) -> None:
    name = event.policy
    takers = [policy for policy in engine.policies if name in policy.inputs]
    types = dict.fromkeys(policy.inputs[name] for policy in takers)
    values = {kind: msgspec.convert(event.value, kind) for kind in types}
    for policy in takers:
        value = values[policy.inputs[name]]
        engine.side_tasks.run(
            f"taking in {name}", partial(policy_answers.take_input, policy, name, value), None
        )
    if takers:
        engine.side_tasks.run(PRICING, partial(engine.price_lists.make, now_ns), None)
        engine.assessor.forget()
        engine.queue.wake_all(now_ns)


def _signals_changed(
    engine: "Engine", source: SignalsSnapshot, now_ns: int, out: list[Command]
) -> None:
    """Swap what policies see; only nodes on which something moved are asked about again.

    Who borrowed memory that its holders need again is asked to go.
    """
    if source.version <= engine.signals.version:
        return
    before = engine.signals
    engine.observe(SignalsView(source))
    readers = [policy for policy in engine.policies if "signals" in policy.reads]
    if engine.ledger.table.harvests:
        running = partial(engine.peaks.running, engine.placed, source.peaks_mib)
        engine.side_tasks.run(LEARNING, running, None)
    needs = engine.peaks.needs(engine.placed)

    def ran_long(uid: str) -> bool:
        since_ns = engine.residencies.since_ns(uid)
        return since_ns is not None and now_ns - since_ns >= RAN_LONG_NS

    for holding, eviction in engine.harvest.observe(engine.signals, needs, ran_long):
        engine.evict(holding, eviction, now_ns, out)
    table = engine.ledger.table
    if readers:
        moved = engine.signals.moved(before, table)
        if len(moved) and any("cluster" in policy.reads for policy in readers):
            moved = np.arange(table.count)
        engine.ledger.touch(moved)
    if readers or table.harvests:
        engine.queue.wake_all(now_ns, skip_backoff=True)
