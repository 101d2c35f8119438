"""The decisions file, JSON Lines.

Line 1 is the header: schema, Weft's version, seed, and the profiles with their policies, options
and weights. Every other line is one event as the engine got it, its time, and the records of the
decisions it led to. That is all a replay needs.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

import weft
from weft.engine import Bind, Command, Engine, Event, Record, Unschedulable
from weft.framework import Plugin, Profile
from weft.model import BadInputError

SCHEMA = "weft.dev/decisions/v1"


class PolicyUse(msgspec.Struct, frozen=True):
    """A policy in a profile: how it was made, and its weight."""

    name: str
    weight: int = 1
    options: dict[str, Any] = {}


class ProfileUse(msgspec.Struct, frozen=True):
    """A profile as configured."""

    name: str
    policies: list[PolicyUse]


class Header(msgspec.Struct, frozen=True):
    """Line 1."""

    profiles: list[ProfileUse]
    seed: int = 0
    keep_top: int = 0
    schema: str = SCHEMA
    weft: str = weft.__version__

    def engine(self, create: Callable[..., Any]) -> Engine:
        """The engine this header describes; `create(name, **options)` makes policies."""
        profiles = [
            Profile(use.name, [Plugin(create(p.name, **p.options), p.weight) for p in use.policies])
            for use in self.profiles
        ]
        return Engine(profiles, seed=self.seed, keep_top=self.keep_top)


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event and the records of the decisions it led to."""

    at_ns: int
    event: Event
    records: list[Record] = []


class Recorder:
    """Wraps an engine's `handle` and writes what went in and what came out."""

    def __init__(self, engine: Engine, header: Header, out: BinaryIO) -> None:
        self._engine, self._out = engine, out
        self._encoder = msgspec.json.Encoder()
        self._write(header)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """As `Engine.handle`, and on the record."""
        commands = self._engine.handle(event, now_ns)
        self._write(Line(now_ns, event, records_of(commands)))
        return commands

    def _write(self, line: Header | Line) -> None:
        self._out.write(self._encoder.encode(line) + b"\n")


def records_of(commands: list[Command]) -> list[Record]:
    """The decision records among commands."""
    return [c.record for c in commands if isinstance(c, Bind | Unschedulable)]


def read(path: Path) -> tuple[Header, Iterator[Line]]:
    """Header and lines of a decisions file; `BadInputError` names the line that is broken."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise BadInputError(str(path), error.strerror or "cannot be read") from None
    first = file.readline()
    try:
        header = msgspec.json.decode(first, type=Header)
    except msgspec.DecodeError as error:
        file.close()
        raise BadInputError(f"{path}, line 1", f"not a decisions header: {error}") from None
    if header.schema != SCHEMA:
        file.close()
        raise BadInputError(
            f"{path}, line 1, field schema",
            f"{header.schema!r}; this Weft reads {SCHEMA}; Weft {header.weft} wrote the file",
        )
    return header, _lines(path, file)


def _lines(path: Path, file: BinaryIO) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    with file:
        for number, text in enumerate(file, start=2):
            try:
                yield decoder.decode(text)
            except msgspec.DecodeError as error:
                raise BadInputError(f"{path}, line {number}", f"broken line: {error}") from None
