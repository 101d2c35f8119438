"""Records which functions of Weft run, in order: how many files lie between a cause and its effect.

A *stay* is a maximal run of calls in one file: coming back to a file is another stay. The fakes of
`tests/fakes` are the world outside and do not count. Tasks of one event loop interleave as they
run; of other threads those are seen that start meanwhile.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import weft

SOURCES = f"{Path(weft.__file__).parent}/"
WORLD = f"{Path(__file__).parents[1]}/"


class Call(NamedTuple):
    """A function that ran: its file below `src/weft`, and its qualified name there."""

    file: str
    function: str


class Way:
    """The calls between a cause and its effect; it ends where `ends_at` (a function) is called."""

    def __init__(self, ends_at: Call | None = None) -> None:
        self.calls: list[Call] = []
        self.ended = False
        self._ends_at = ends_at

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what this thread, and those that start, call in the block."""
        threading.setprofile(self._hear)  # type: ignore[arg-type]
        sys.setprofile(self._hear)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    @property
    def files(self) -> set[str]:
        """The files entered."""
        return {call.file for call in self.calls}

    @property
    def stays(self) -> list[str]:
        """The files in the order in which they were entered, each time."""
        return [file for file, _ in groupby(call.file for call in self.calls)]

    @property
    def entries(self) -> Counter[str]:
        """How often each file was entered."""
        return Counter(self.stays)

    def _hear(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or self.ended or not code.co_filename.startswith((SOURCES, WORLD)):
            return
        inside = code.co_filename.startswith(SOURCES)
        call = Call(code.co_filename.removeprefix(SOURCES if inside else WORLD), code.co_qualname)
        if call == self._ends_at:
            self.ended = True
        elif inside and not call.file.startswith("testing/"):
            self.calls.append(call)
