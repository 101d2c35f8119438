"""Replays a decisions file and shows the engine's state after each event.

  run = RecordedRun(path, create)
  for at_s, engine in run.states(): …     # the engine after each event
  run.trouble                             # why the replay ended early, or a warning; "" if neither

The replay ends at the first decision that this version of Weft makes differently."""

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from weft.core.engine import BindOn, Engine, PodAdded
from weft.core.record.file import hand_over, records_of
from weft.core.record.reading import read, skim
from weft.model import BadInputError

SECOND_NS = 1_000_000_000


class RecordedRun:
    """Replay of one decisions file. `create(name, **options)` makes policies.

    `at_s` has the times of all readable events, in seconds since 1970. The file's own clock may
    begin anywhere; `offset_s` converts it, estimated from the pods' creation times (whole
    seconds)."""

    def __init__(self, path: Path, create: Callable[..., Any]) -> None:
        self._path, self._create = path, create
        self.trouble = ""
        at_ns, ahead_ns = array("q"), list[int]()
        try:
            for line in skim(path)[1]:
                at_ns.append(line.at_ns)
                if isinstance(line.event, PodAdded | BindOn) and line.event.pod.created_ns:
                    ahead_ns.append(line.event.pod.created_ns - line.at_ns)
        except BadInputError:  # `states` reports it
            pass
        self.offset_s = max(ahead_ns, default=0) / SECOND_NS
        self.at_s = array("d", (each / SECOND_NS + self.offset_s for each in at_ns))

    def states(self) -> Iterator[tuple[float, Engine]]:
        """Yield each event's time, in seconds since 1970, and the engine after the event. The
        engine is the same object each time, so read its state before the next event."""
        header, lines = read(self._path)
        engine = header.engine(self._create)
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if records_of(hand_over(engine, line, number)) != line.records:
                    why = (
                        "this version of Weft decides differently from the record; weft replay "
                        "shows how"
                    )
                    self.trouble = f"read up to event {number - 1:,}: {why}"
                    return
                yield line.at_ns / SECOND_NS + self.offset_s, engine
        except BadInputError as error:
            self.trouble = f"read up to event {number:,}: {error}"
            return
        if lines.check.why:
            self.trouble = f"read up to event {number:,}: {lines.check.why}"
