"""One pod out of a decisions file: take the engine back to the moment it was decided, and ask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from weft.core.engine import BindOn, Engine, NotEvicted, PodAdded, PodGone, Record
from weft.core.engine.harvest import BEYOND, NEED, USED
from weft.core.engine.records import FAULTED, LEAVES
from weft.core.explain.counterfactual import (
    AlternativePlacement,
    MetricsRead,
    PlacementQuestion,
    metrics_of,
    readings,
)
from weft.core.explain.reasons import FeasibilitySummary, summarise
from weft.core.explain.smallest_change import SmallestChange, changes
from weft.core.record.file import read, skim, tell
from weft.model import BadInputError, PodRequest


class RecordedExplanation(msgspec.Struct, frozen=True):
    """A decision with its reasons; `changes` would have made an unschedulable pod fit.

    `metrics` are the signals it was made by, and what it would have been without them; None where
    none were read, or none were there. `then` is what the file says became of a pod that was asked
    to leave.
    """

    pod: PodRequest
    record: Record
    summary: FeasibilitySummary
    changes: tuple[SmallestChange, ...]
    other_uids: tuple[str, ...] = ()
    metrics: MetricsRead | None = None
    then: str = ""


class _ReachedError(Exception):
    """The engine stands right before the decision asked about."""


def explain(path: Path, name: str, create: Callable[..., Any]) -> RecordedExplanation:
    """Why `name` (NAME, NAMESPACE/NAME or a UID) was decided as it was, the last time."""
    pods, last, became = _find(path, name)
    record = max(last.values(), key=lambda record: record.seq)
    header, lines = read(path)
    engine = header.engine(create)
    engine.stop_before(record.seq, _ReachedError)
    on = ""
    try:
        for number, line in enumerate(lines, start=1):
            on = line.event.node if isinstance(line.event, BindOn) else ""
            tell(engine, line, number)
    except _ReachedError:
        pass
    others = tuple(uid for uid in last if uid != record.uid)
    found = _explain(engine, pods[record.uid], record, on)
    then = became.get(record.uid, "nothing is on record yet") if record.outcome == LEAVES else ""
    return msgspec.structs.replace(found, other_uids=others, then=then)


def _explain(engine: Engine, pod: PodRequest, record: Record, on: str) -> RecordedExplanation:
    """The engine stands right before the decision; `on` is the node that others chose."""
    if record.outcome == FAULTED:
        return RecordedExplanation(
            pod, record, FeasibilitySummary(engine.ledger.table.count, 0, ()), ()
        )
    profile = engine.profiles.get(record.profile) or engine.profile_of(pod)
    known = engine.assess(profile, pod)
    summary = summarise(engine.ledger.table, known)
    found = changes(engine, pod) if record.outcome == "unschedulable" else []
    place = AlternativePlacement(record.node, record.shares)
    if record.outcome == LEAVES:
        metrics = _behind_eviction(engine, record)
    else:
        asked = PlacementQuestion(pod, profile, record.attempt, on)
        metrics = metrics_of(engine, asked, record.at_ns, place)
    return RecordedExplanation(pod, record, summary, tuple(found), metrics=metrics)


def _behind_eviction(engine: Engine, record: Record) -> MetricsRead | None:
    """What said that the GPU's pods need more than it has; without it nobody is evicted."""
    view, eviction = engine.signals, record.eviction
    if eviction is None:
        return None
    columns = tuple(one for one in (NEED, BEYOND, USED) if one in view.source.columns)
    gpu = readings(view, columns, record.node, eviction.gpu)
    return MetricsRead((record.at_ns - view.at_ns) / 1e9, columns, (gpu,))


def _find(path: Path, name: str) -> tuple[dict[str, PodRequest], dict[str, Record], dict[str, str]]:
    """Pods that answer to `name`, by UID, each one's last record, and what became of it since."""
    pods: dict[str, PodRequest] = {}
    last: dict[str, Record] = {}
    became: dict[str, str] = {}
    names: set[str] = set()
    for line in skim(path)[1]:
        if isinstance(line.event, PodAdded | BindOn):
            pod = line.event.pod
            if name in (pod.name, f"{pod.namespace}/{pod.name}", pod.uid):
                pods[pod.uid] = pod
            elif len(names) < 5:
                names.add(f"{pod.namespace}/{pod.name}")
        elif isinstance(line.event, NotEvicted):
            became[line.event.uid] = f"it stayed: {line.event.why or 'nobody says why'}"
        elif isinstance(line.event, PodGone):
            became[line.event.uid] = "it is gone"
        for record in line.records:
            if record.uid in pods:
                last[record.uid] = record
                became.pop(record.uid, None)
    if not last:
        known = f"; it knows {', '.join(sorted(names))}, …" if names else ""
        what = "was added but never decided" if pods else "is not in this file" + known
        raise BadInputError(str(path), f"pod {name} {what}")
    return pods, last, became
