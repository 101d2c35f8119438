"""Reads a decisions file and checks every line against the hash chain.

A line that is not the one originally written is an error with its number. A file whose end is
missing is read up to its last whole line; `Lines.check` reports that once all lines are read."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from weft.core.engine import OomHistoryLearnt, SignalsChanged
from weft.core.record.chain import ChainCheck
from weft.core.record.file import (
    FORMER,
    FORMER_NAMES,
    SCHEMA,
    DecisionLine,
    EndRecord,
    FileLine,
    Header,
)
from weft.core.record.side import SideError, SignalsKept, Unpacker, side_of
from weft.files.reading import UNREADABLE, open_plain, read_line, unreadable
from weft.model import BadInputError, Code
from weft.model.former_names import with_todays_names

_CODES_BEFORE = {
    27: (Code.NO_ISOLATION - 1, 0),
    28: (Code.LINKS_UNKNOWN - 2, 1),
    30: (Code.NOT_DELIVERING - 1, 0),
    31: (Code.POD_AFFINITY - 1, 2),
    34: (Code.DECLARED_FEATURES, 0),
    35: (Code.CLAIM_WAITS, 5),
    41: (Code.GROUP_INCOMPLETE, 1),
    43: (Code.QUEUE_LIMIT, 0),
}
"""Converts records of earlier versions, by the number of reasons that their version knew: the index
at which to insert a zero for the next new reason, and how many zeros to append. Indexes are lower
by the number of reasons inserted before them since."""

_END = b'{"end":'
_NO_END = (
    "the process that wrote it still runs, or ended before it could close the file, "
    "or the file was cut off"
)
_UNREADABLE = (msgspec.DecodeError, RecursionError, *UNREADABLE)
"""Errors of lines that are not valid JSON or have another form, and of a damaged gzip file."""

FileState = Literal["unread", "verified", "incomplete"]
Line = TypeVar("Line")


class FileCheck(msgspec.Struct):
    """How complete a file is, known once all its lines are read.

    `verified`: every line is unchanged, up to the end record, whose reason is `end`. `incomplete`:
    every line is unchanged, but the end is missing. `lines` counts the whole lines; `why` explains
    the state to a user."""

    state: FileState = "unread"
    lines: int = 0
    end: str = ""
    why: str = ""


class Lines(Iterator[Line], Generic[Line]):
    """Iterator over a file's lines; `check` tells at the end how complete the file is."""

    def __init__(self, lines: Iterator[Line], check: FileCheck) -> None:
        self._lines, self.check = lines, check

    def __next__(self) -> Line:
        return next(self._lines)


class _MadeBy(msgspec.Struct, frozen=True):
    """The header fields that every schema version has."""

    schema: str
    weft: str = "(version unknown)"


def read(path: Path) -> tuple[Header, Lines[DecisionLine]]:
    """Return a decisions file's header and an iterator over its lines. Raises `BadInputError` with
    the number of a broken line."""
    header, lines = skim(path)
    return header, Lines(_with_snapshots(path, lines), lines.check)


def skim(path: Path) -> tuple[Header, Lines[FileLine]]:
    """Read as `read` does, but do not load the snapshots from the folder next to the file."""
    try:
        with _open(path) as file:
            header = _header(path, read_line(file, f"{path}, line 1"))
    except _UNREADABLE as error:
        raise BadInputError(f"{path}, line 1", f"not a decisions header: {error}") from None
    check = FileCheck()
    return header, Lines(_chained(path, check, header.schema == FORMER), check)


def _with_snapshots(path: Path, lines: Iterator[FileLine]) -> Iterator[DecisionLine]:
    """Yield the lines, each snapshot loaded from its file."""
    unpacker = Unpacker(side_of(path))
    for number, line in enumerate(lines, start=2):
        event = line.event
        if isinstance(event, SignalsKept):
            try:
                event = SignalsChanged(unpacker.unpack(event))
            except SideError as error:
                raise BadInputError(f"{path}, line {number}", str(error)) from None
        yield DecisionLine(line.at_ns, event, line.records)


def _header(path: Path, first: bytes) -> Header:
    """Decode line 1. The schema is checked first, because other versions may have other fields."""
    made = msgspec.json.decode(first, type=_MadeBy)
    if made.schema not in (SCHEMA, FORMER):
        raise BadInputError(
            f"{path}, line 1, field schema",
            f"{made.schema!r}; this Weft reads {SCHEMA}. Use the Weft {made.weft} that wrote it",
        )
    chain = ChainCheck()
    if not chain.follows(first):
        raise BadInputError(f"{path}, line 1", chain.what_is_wrong(first))
    return msgspec.json.decode(first, type=Header)


def _open(path: Path) -> BinaryIO:
    """Open the file, decompressing it if it is gzipped."""
    try:
        return open_plain(path)
    except OSError as error:
        raise BadInputError(str(path), unreadable(path, error)) from None


def _chained(path: Path, check: FileCheck, former: bool) -> Iterator[FileLine]:
    """Yield the lines of a file, each checked against the chain first."""
    decoder, chain = msgspec.json.Decoder(FileLine), ChainCheck()
    with _open(path) as file:
        try:
            while True:
                text = _next_line(file, path, chain, check)
                if not text:
                    return
                if text.startswith(_END):
                    _ended(file, path, msgspec.json.decode(text, type=EndRecord), check)
                    return
                if check.lines > 1:
                    yield _renumbered(decoder.decode(_todays(text) if former else text))
        except _UNREADABLE as error:
            raise BadInputError(f"{path}, line {check.lines}", f"broken line: {error}") from None


def _todays(text: bytes) -> bytes:
    """Return a line of Weft 0.1.0 with its fields renamed to their current names."""
    line = with_todays_names(msgspec.json.decode(text), FORMER_NAMES)
    if line["event"].get("type") == "LessonsTold":
        line["event"]["type"] = OomHistoryLearnt.__name__
    return msgspec.json.encode(line)


def _next_line(file: BinaryIO, path: Path, chain: ChainCheck, check: FileCheck) -> bytes:
    """Return the next line after checking the chain; b"" if the file's end is missing."""
    where = f"{path}, line {check.lines + 1}"
    try:
        text = read_line(file, where)
    except EOFError:  # a truncated gzip file
        text = b"cut"
    if not text.endswith(b"\n"):
        at = f"line {check.lines + 1} is cut off" if text else f"it ends with line {check.lines}"
        check.state, check.why = "incomplete", f"{at}, without an end record: {_NO_END}"
        return b""
    if not chain.follows(text):
        raise BadInputError(where, chain.what_is_wrong(text, _peek(file, where)))
    check.lines += 1
    return text


def _peek(file: BinaryIO, where: str) -> bytes:
    """Return the line after a broken one, b"" if it cannot be read."""
    try:
        return read_line(file, where)
    except (*_UNREADABLE, BadInputError):
        return b""


def _ended(file: BinaryIO, path: Path, end: EndRecord, check: FileCheck) -> None:
    if read_line(file, str(path)):
        raise BadInputError(f"{path}, line {check.lines + 1}", "follows the end record")
    check.state, check.end = "verified", end.end
    if end.end == "full":
        check.why = "the file ends early: it reached the limit of --decisions-mib"
    elif end.end == "failed":
        check.why = f"the file ends early: {end.why}"


def _renumbered(line: FileLine) -> FileLine:
    """Convert the record's reason counts to the current numbering."""
    if not any(len(record.counts) in _CODES_BEFORE for record in line.records):
        return line
    records = [replace(record, counts=_counts_now(record.counts)) for record in line.records]
    return replace(line, records=records)


def _counts_now(counts: tuple[int, ...]) -> tuple[int, ...]:
    while len(counts) in _CODES_BEFORE:
        at, behind = _CODES_BEFORE[len(counts)]
        counts = (*counts[:at], 0, *counts[at:], *(0,) * behind)
    return counts
