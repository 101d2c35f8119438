"""The decisions file, JSON Lines.

Line 1 is the header: schema, Weft's version, seed, and the profiles with their policies, options
and weights. Every other line is one event as the engine got it, its time, and the records of the
decisions it led to. Large snapshots of signals are in a folder beside it (`side.py`). That is all a
replay needs.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec.structs import replace

import weft
from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    Evict,
    Faulted,
    PolicyInput,
    Record,
    SignalsChanged,
    Unschedulable,
)
from weft.core.engine.records import LEAVES
from weft.core.framework import Plugin, Profile
from weft.core.ledger import RequestLimits
from weft.core.record.side import SideError, SignalsKept, SnapshotPacker, Unpacker, keep, side_of
from weft.files.reading import UNREADABLE, open_plain, read_line
from weft.model import BadInputError, Code

INLINE_BYTES = 4096
"""Snapshots up to this size stand in the file itself: a few GPUs' need no files of their own."""

_EVICTED, _LEAVES = b'"outcome":"evicted"', f'"outcome":"{LEAVES}"'.encode()
"""How it was called until Weft said what is true of it; no other text can have these quotes."""

_CODES_BEFORE = 24
"""How many reasons there were until a node could lack the resource that a pod asks for; since then
one came in between, and the others behind."""

SCHEMA = "weft.dev/decisions/v1"


class PolicyUse(msgspec.Struct, frozen=True):
    """A policy in a profile: how it was made, and its weight."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=0)] = 1
    options: dict[str, Any] = {}


class ProfileUse(msgspec.Struct, frozen=True):
    """A profile as configured."""

    name: str
    policies: Annotated[list[PolicyUse], msgspec.Meta(min_length=1)]


class Header(msgspec.Struct, frozen=True):
    """Line 1."""

    profiles: Annotated[list[ProfileUse], msgspec.Meta(min_length=1)]
    seed: int = 0
    keep_top: int = 0
    overcommit_permille: int = 1000
    harvest_permille: int = 1000
    turn_looks: int = 0
    schema: str = SCHEMA
    weft: str = weft.__version__

    def engine(self, create: Callable[..., Any]) -> Engine:
        """The engine this header describes; `create(name, **options)` makes policies."""
        profiles = [
            Profile(use.name, [Plugin(create(p.name, **p.options), p.weight) for p in use.policies])
            for use in self.profiles
        ]
        limits = RequestLimits(self.overcommit_permille, self.harvest_permille)
        return Engine(
            profiles,
            seed=self.seed,
            keep_top=self.keep_top,
            limits=limits,
            turn_looks=self.turn_looks,
        )


class DecisionLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event and the records of the decisions it led to."""

    at_ns: int
    event: Event
    records: list[Record] = []


class FileLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line as it stands in the file: of a large snapshot only its hash."""

    at_ns: int
    event: Event | SignalsKept
    records: list[Record] = []


class _MadeBy(msgspec.Struct, frozen=True):
    """The fields that every version of the header has."""

    schema: str
    weft: str = "(version unknown)"


_UNREADABLE = (msgspec.DecodeError, RecursionError, *UNREADABLE)
"""Errors of lines that are no JSON or of another form, and of a broken gzip file."""


class FullError(OSError):
    """The record is as large as it may be."""


class DecisionLines:
    """Header and lines as they stand in the file; with a `side` folder large snapshots go there.

    `size` is what both take, bytes; at most `most_bytes` (0: however many).
    """

    def __init__(self, side: Path | None = None, most_bytes: int = 0) -> None:
        self._side, self._most = side, most_bytes
        self.size = 0
        self._packer, self._encoder = SnapshotPacker(), msgspec.json.Encoder()

    def encoded(self, line: Header | DecisionLine) -> bytes:
        """The line. What it names is in the folder when this returns; OSError where that fails."""
        if self._side is not None and isinstance(line, DecisionLine) and is_large(line):
            assert isinstance(line.event, SignalsChanged)
            stored, packed = self._packer.pack(line.event.signals)
            text = self._encoder.encode(FileLine(line.at_ns, stored, line.records)) + b"\n"
            self.take(len(packed) + len(text))
            keep(self._side, stored.blob, packed)
            return text
        text = self._encoder.encode(line) + b"\n"
        self.take(len(text))
        return text

    def take(self, size: int) -> None:
        """So many bytes more are about to be written; `FullError` where there is no room."""
        if self._most and self.size + size > self._most:
            raise FullError(0, f"it and its signals would be more than {self._most >> 20:,} MiB")
        self.size += size


class DecisionsWriter:
    """Writes header and lines to `out`, snapshots and all."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._lines = out, DecisionLines()

    def write(self, line: Header | DecisionLine) -> None:
        """One line more."""
        self._out.write(self._lines.encoded(line))


def is_large(line: DecisionLine) -> bool:
    """True if the line holds a snapshot too large for the file itself."""
    return isinstance(line.event, SignalsChanged) and len(line.event.signals.values) > INLINE_BYTES


class Recorder:
    """Wraps an engine's `handle`, and has what went in and what came out written by `write`."""

    def __init__(
        self, engine: Engine, header: Header, write: Callable[[Header | DecisionLine], None]
    ) -> None:
        self._engine, self._write = engine, write
        self._write(header)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """As `Engine.handle`, and on the record."""
        commands = self._engine.handle(event, now_ns)
        self._write(DecisionLine(now_ns, event, records_of(commands)))
        return commands


def hand_over(engine: Engine, line: DecisionLine, number: int) -> list[Command]:
    """Hand the `number`-th event to the engine; `BadInputError` if a policy cannot read it."""
    try:
        return engine.handle(line.event, line.at_ns)
    except msgspec.ValidationError as error:
        subject = line.event.policy if isinstance(line.event, PolicyInput) else "the engine"
        location = f"event {number}, {type(line.event).__name__} for {subject}"
        raise BadInputError(location, str(error)) from None


def records_of(commands: list[Command]) -> list[Record]:
    """The decision records among commands."""
    return [c.record for c in commands if isinstance(c, Bind | Unschedulable | Evict | Faulted)]


def read(path: Path) -> tuple[Header, Iterator[DecisionLine]]:
    """Header and lines of a decisions file; `BadInputError` names the line that is broken."""
    header, lines = skim(path)
    return header, _whole(path, lines)


def _whole(path: Path, lines: Iterator[FileLine]) -> Iterator[DecisionLine]:
    """The lines with every snapshot in its place."""
    unpacker = Unpacker(side_of(path))
    for number, line in enumerate(lines, start=2):
        event = line.event
        if isinstance(event, SignalsKept):
            try:
                event = SignalsChanged(unpacker.unpack(event))
            except SideError as error:
                raise BadInputError(f"{path}, line {number}", str(error)) from None
        yield DecisionLine(line.at_ns, event, line.records)


def skim(path: Path) -> tuple[Header, Iterator[FileLine]]:
    """As `read`, but for the snapshots beside the file, which nobody opens."""
    try:
        with _open(path) as file:
            header = _header(path, read_line(file, f"{path}, line 1"))
    except _UNREADABLE as error:
        raise BadInputError(f"{path}, line 1", f"not a decisions header: {error}") from None
    return header, _lines(path)


def _header(path: Path, first: bytes) -> Header:
    """Line 1; its schema is looked at before anything else, which may be of another form."""
    written_by = msgspec.json.decode(first, type=_MadeBy)
    if written_by.schema != SCHEMA:
        raise BadInputError(
            f"{path}, line 1, field schema",
            f"{written_by.schema!r}; this Weft reads {SCHEMA}. "
            f"Use the Weft {written_by.weft} that wrote it",
        )
    return msgspec.json.decode(first, type=Header)


def _open(path: Path) -> BinaryIO:
    """The file, unpacked where it is gzipped."""
    try:
        return open_plain(path)
    except OSError as error:
        raise BadInputError(str(path), error.strerror or "cannot be read") from None


def _lines(path: Path) -> Iterator[FileLine]:
    decoder = msgspec.json.Decoder(FileLine)
    with _open(path) as file:
        number = 1
        try:
            read_line(file, str(path))
            while text := read_line(file, f"{path}, line {number + 1}"):
                number += 1
                yield _renumbered(decoder.decode(text.replace(_EVICTED, _LEAVES)))
        except _UNREADABLE as error:
            raise BadInputError(f"{path}, line {number}", f"broken line: {error}") from None


def _renumbered(line: FileLine) -> FileLine:
    """The same, with counts of reasons as they are numbered now."""
    if not any(len(record.counts) == _CODES_BEFORE for record in line.records):
        return line
    at, since = Code.NOT_ADVERTISED, len(Code) - 1 - _CODES_BEFORE
    records = [
        replace(old, counts=(*old.counts[:at], 0, *old.counts[at:], *(0,) * since))
        if len(old.counts) == _CODES_BEFORE
        else old
        for old in line.records
    ]
    return replace(line, records=records)
