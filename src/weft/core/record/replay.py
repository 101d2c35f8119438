"""Replays a decisions file and compares the decisions with the recorded ones."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from weft.core.engine import BindOn, Engine, NotEvicted, PodAdded, PodGone, Record
from weft.core.engine.harvest import BEYOND, NEED, USED
from weft.core.engine.reasons import FeasibilitySummary, summarise
from weft.core.engine.records import FAULTED, LEAVES
from weft.core.explain import counterfactual
from weft.core.explain.amounts import shares_in_words
from weft.core.explain.counterfactual import AlternativePlacement, MetricsRead, PlacementQuestion
from weft.core.explain.explanation import Explanation, RecordedDecision, State
from weft.core.explain.kept_from import kept_from
from weft.core.explain.score_parts import score_in_words
from weft.core.explain.sentences import NOWHERE, decision_notes, place_in_words, state_in_words
from weft.core.explain.smallest_change import changes
from weft.core.record.file import DecisionLine, Header, hand_over, records_of
from weft.core.record.reading import read, skim
from weft.model import BadInputError, Code, PodRequest
from weft.model.nearest import nearest
from weft.model.reason import TEXT


class ReplayResult(msgspec.Struct, frozen=True):
    """Outcome of a replay: the number of events and `decisions` compared, and the number of the
    first decision that differs (None if all are equal).

    `was` and `now` are the recorded and the replayed decision, `fields` the names of their fields
    that differ."""

    events: int
    decisions: int
    difference_at: int | None = None
    was: Record | None = None
    now: Record | None = None
    fields: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """True if every replayed decision equals the recorded one."""
        return self.difference_at is None


def replay(
    header: Header, lines: Iterable[DecisionLine], create: Callable[..., Any]
) -> ReplayResult:
    """Pass the recorded events to a new engine and compare its decisions; stop at the first
    difference."""
    engine = header.engine(create)
    events = decisions = 0
    for line in lines:
        events += 1
        replayed = records_of(hand_over(engine, line, events))
        for index in range(max(len(replayed), len(line.records))):
            was = line.records[index] if index < len(line.records) else None
            now = replayed[index] if index < len(replayed) else None
            decisions += 1
            if was != now:
                return ReplayResult(events, decisions, decisions, was, now, _fields(was, now))
    return ReplayResult(events, decisions)


def _fields(was: Record | None, now: Record | None) -> tuple[str, ...]:
    if was is None or now is None:
        return ("missing",)
    return tuple(
        name for name in Record.__struct_fields__ if getattr(was, name) != getattr(now, name)
    )


# --- differences ----------------------------------------------------------------------------------
# Describes the first difference of a replay, field by field.


_ABSENT = "–"


class FieldDifference(NamedTuple):
    """A field in which two records differ, both values as text."""

    field: str
    was: str
    now: str


def differences(verdict: "ReplayResult") -> list[FieldDifference]:
    """List the fields in which a replayed decision differs from the record; a single entry
    "decision" if only one of the two has a decision."""
    was, now = verdict.was, verdict.now
    if was is None and now is None:
        return []
    if was is None or now is None:
        return [FieldDifference("decision", _outcome(was), _outcome(now))]
    return [
        difference
        for field in verdict.fields
        for difference in (
            list(_field(field, getattr(was, field), getattr(now, field)))
            or [FieldDifference(field, _text(getattr(was, field)), _text(getattr(now, field)))]
        )
    ]


def _outcome(record: Record | None) -> str:
    if record is None:
        return _ABSENT
    return f"{record.outcome} {record.node}".strip()


def _field(field: str, was: Any, now: Any) -> Iterator[FieldDifference]:
    """Yield the differing parts of one field: of reason counts and candidates only the entries that
    differ."""
    if field == "counts":
        before, after = _counts(was), _counts(now)
        for reason in dict.fromkeys([*before, *after]):
            if before.get(reason) != after.get(reason):
                numbers = (str(counts.get(reason, 0)) for counts in (before, after))
                yield FieldDifference(f"nodes: {reason}", *numbers)
    elif field == "top":
        for rank in range(max(len(was), len(now))):
            shown = [_candidate(top[rank]) if rank < len(top) else _ABSENT for top in (was, now)]
            if shown[0] != shown[1]:
                yield FieldDifference(f"candidate {rank + 1}", *shown)
    elif field == "shares":
        yield FieldDifference(
            "GPUs", *(shares_in_words(shares) or _ABSENT for shares in (was, now))
        )
    else:
        yield FieldDifference(field, _text(was), _text(now))


def _counts(counts: tuple[int, ...]) -> dict[str, int]:
    """Return the number of nodes by reason; nodes that fit come first."""
    known = [TEXT[code] for code in Code]
    return {
        known[code] if code < len(known) else f"reason {code}": count
        for code, count in enumerate(counts)
        if count
    }


def _candidate(candidate: Any) -> str:
    scores = ", ".join(f"{policy} {score}" for policy, score in candidate.scores.items())
    return f"{candidate.node} score {candidate.score}" + (f" ({scores})" if scores else "")


def _text(value: Any) -> str:
    """Return text unchanged, other values as JSON, and a dash for an empty value."""
    if value in (None, "", ()) or value is msgspec.UNSET:
        return _ABSENT
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# --- the state at a moment ------------------------------------------------------------------------
# Explains one pod from a decisions file, by replaying it up to the decision.


class _ReachedError(Exception):
    """Raised when the engine is about to make the decision that is to be explained."""


def explain(path: Path, name: str, create: Callable[..., Any]) -> Explanation:
    """Explain the last recorded decision on the pod `name`: NAME, NAMESPACE/NAME or UID.

    `create(name, **options)` makes policies. Raises `BadInputError` if the file has no decision on
    such a pod."""
    pods, last, became, doubt = _find(path, name)
    record = max(last.values(), key=lambda record: record.seq)
    header, lines = read(path)
    engine = header.engine(create)
    engine.journal.stop_before(record.seq, _ReachedError)
    on = ""
    try:
        for number, line in enumerate(lines, start=1):
            on = line.event.node if isinstance(line.event, BindOn) else ""
            hand_over(engine, line, number)
    except _ReachedError:
        pass
    other_uids = tuple(uid for uid in last if uid != record.uid)
    then = became.get(record.uid, "nothing is recorded yet") if record.outcome == LEAVES else ""
    explanation = _explain(engine, RecordedDecision(pods[record.uid], record, other_uids, then), on)
    notes = (*explanation.notes, f"the file: {doubt}") if doubt else explanation.notes
    return replace(explanation, notes=notes)


def _explain(engine: Engine, decision: RecordedDecision, on: str) -> Explanation:
    """Explain the decision from the engine's state right before it; `on` is the node that
    kube-scheduler chose, "" if Weft chose."""
    pod, record = decision.pod, decision.record
    if record.outcome == FAULTED:
        summary = FeasibilitySummary(engine.ledger.table.count, 0, ())
        return _explanation(decision, "faulted", record.fault, summary=summary)
    profile = engine.profiles.get(record.profile) or engine.profile_of(pod)
    known = engine.assess(profile, pod)
    summary = summarise(engine.ledger.table, known, pod.warnings)
    at = place_in_words(record.node, record.shares)
    more: dict[str, Any] = {
        "summary": summary,
        "reason": str(summary),
        "candidates": record.top,
        "notes": tuple(decision_notes(record)),
    }
    if record.outcome == LEAVES:
        more["metrics"] = _behind_eviction(engine, record)
        return _explanation(decision, "leaving", f"{at}; {decision.then}", **more)
    question = PlacementQuestion(pod, profile, record.attempt, on)
    place = AlternativePlacement(record.node, record.shares)
    more["metrics"] = counterfactual.metrics_of(engine, question, record.at_ns, place)
    if record.outcome == "placed":
        more["score_parts"] = score_in_words(engine, question, record.node, record.shares)
        return _explanation(decision, "placed", at, **more)
    more["notes"] = (*more["notes"], *kept_from(engine, profile, pod))
    helpful = tuple(changes(engine, pod)) if record.outcome == "unschedulable" else ()
    return _explanation(decision, "pending", NOWHERE, changes=helpful, **more)


def _explanation(decision: RecordedDecision, state: State, why: str, **more: Any) -> Explanation:
    pod, record = decision.pod, decision.record
    return Explanation(
        pod.namespace,
        pod.name,
        pod.uid,
        state,
        state_in_words(state, why),
        pod.scheduler_name,
        leader=False,
        profile=record.profile,
        node=record.node,
        shares=record.shares,
        score=record.score,
        attempt=record.attempt,
        decision=decision,
        **more,
    )


def _behind_eviction(engine: Engine, record: Record) -> MetricsRead | None:
    """Return the metrics that showed the GPU's pods to need more than the GPU has; None if the
    eviction had another reason."""
    view, eviction = engine.signals, record.eviction
    if eviction is None:
        return None
    columns = tuple(column for column in (NEED, BEYOND, USED) if column in view.source.columns)
    gpu = counterfactual.readings(view, columns, record.node, eviction.gpu)
    return MetricsRead((record.at_ns - view.at_ns) / 1e9, columns, (gpu,))


def _find(
    path: Path, name: str
) -> tuple[dict[str, PodRequest], dict[str, Record], dict[str, str], str]:
    """Find the pods called `name`: their requests, last records, and events since, each by UID.

    The fourth value is a warning if the file is incomplete, "" if it is whole."""
    pods: dict[str, PodRequest] = {}
    last: dict[str, Record] = {}
    became: dict[str, str] = {}
    names: set[str] = set()
    lines = skim(path)[1]
    for line in lines:
        if isinstance(line.event, PodAdded | BindOn):
            pod = line.event.pod
            if name in (pod.name, f"{pod.namespace}/{pod.name}", pod.uid):
                pods[pod.uid] = pod
            else:
                names.add(f"{pod.namespace}/{pod.name}")
        elif isinstance(line.event, NotEvicted):
            became[line.event.uid] = (
                f"it was not evicted: {line.event.why or 'no reason was recorded'}"
            )
        elif isinstance(line.event, PodGone):
            became[line.event.uid] = "it is gone"
        for record in line.records:
            if record.uid in pods:
                last[record.uid] = record
                became.pop(record.uid, None)
    if not last:
        near = nearest(
            name, names if "/" in name else (known.rpartition("/")[2] for known in names)
        )
        some = f"its pods are {', '.join(sorted(names)[:5])}, …" if names else "it has no pods"
        hint = f"did you mean {near!r}?" if near else some
        fault = "was added, but has no decision" if pods else f"is not in this file; {hint}"
        raise BadInputError(str(path), f"pod {name} {fault}")
    return pods, last, became, lines.check.why
