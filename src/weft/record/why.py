"""One pod out of a decisions file: take the engine back to the moment it was decided, and ask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from weft.engine import Engine, PodAdded, Record
from weft.engine.explain import Summary, summarise
from weft.engine.whatif import Change, changes
from weft.model import BadInputError, PodRequest
from weft.record.file import read, tell


class Explanation(msgspec.Struct, frozen=True):
    """A decision with its reasons; `changes` would have made an unschedulable pod fit."""

    pod: PodRequest
    record: Record
    summary: Summary
    changes: tuple[Change, ...]
    other_uids: tuple[str, ...] = ()


class _ReachedError(Exception):
    """The engine stands right before the decision asked about."""


def explain(path: Path, name: str, create: Callable[..., Any]) -> Explanation:
    """Why `name` (NAME, NAMESPACE/NAME or a UID) was decided as it was, the last time."""
    pods, last = _find(path, name)
    record = max(last.values(), key=lambda record: record.seq)
    header, lines = read(path)
    engine = header.engine(create)
    engine.stop_before(record.seq, _ReachedError)
    try:
        for number, line in enumerate(lines, start=1):
            tell(engine, line, number)
    except _ReachedError:
        pass
    others = tuple(uid for uid in last if uid != record.uid)
    return _explain(engine, pods[record.uid], record, others)


def _explain(
    engine: Engine, pod: PodRequest, record: Record, others: tuple[str, ...]
) -> Explanation:
    profile = engine.profiles[record.profile]
    shape = engine.lessons.shape_of(pod)
    for policy in profile.pre_filters:
        shape = policy.pre_filter(shape)
    known = engine.assessor.assess(profile, shape)
    summary = summarise(engine.ledger.table, known)
    found = changes(engine, pod) if record.outcome == "unschedulable" else []
    return Explanation(pod, record, summary, tuple(found), others)


def _find(path: Path, name: str) -> tuple[dict[str, PodRequest], dict[str, Record]]:
    """Pods that answer to `name`, by UID, and each one's last record."""
    pods: dict[str, PodRequest] = {}
    last: dict[str, Record] = {}
    names: set[str] = set()
    for line in read(path)[1]:
        if isinstance(line.event, PodAdded):
            pod = line.event.pod
            if name in (pod.name, f"{pod.namespace}/{pod.name}", pod.uid):
                pods[pod.uid] = pod
            elif len(names) < 5:
                names.add(f"{pod.namespace}/{pod.name}")
        for record in line.records:
            if record.uid in pods:
                last[record.uid] = record
    if not last:
        known = f"; it knows {', '.join(sorted(names))}, …" if names else ""
        what = "was added but never decided" if pods else "is not in this file" + known
        raise BadInputError(str(path), f"pod {name} {what}")
    return pods, last
