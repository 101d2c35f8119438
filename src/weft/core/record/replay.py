"""Replays a decisions file and compares the decisions with the recorded ones."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from weft.core.engine import Record
from weft.core.record.file import DecisionLine, Header, hand_over, records_of


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
