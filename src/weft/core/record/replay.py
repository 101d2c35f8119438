"""Replays a decisions file and compares the decisions with the recorded ones."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from weft.core.engine import Record
from weft.core.explain.amounts import shares_in_words
from weft.core.record.file import DecisionLine, Header, hand_over, records_of
from weft.model import Code
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
    """Yield the differing parts of one field. Of reason counts and candidates only differing
    entries."""
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
