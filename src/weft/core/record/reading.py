"""Reads a decisions file strictly, and says how much of it can be relied on.

A line that is not the one that was written there is an error with its number. A file whose end is
missing is read as far as it is whole; `Lines.check` says so once the lines are read.
"""

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
    27: (Code.NO_ISOLATION, 0),
    28: (Code.LINKS_UNKNOWN - 1, 1),  # NOT_DELIVERING was not before it yet
    30: (Code.NOT_DELIVERING, 0),
}
"""By how many reasons there once were: which came in between next, and how many behind."""

_END = b'{"end":'
_NO_END = (
    "the process that wrote it still runs, or ended before it could close the file, "
    "or the file was cut off"
)
_UNREADABLE = (msgspec.DecodeError, RecursionError, *UNREADABLE)
"""Errors of lines that are no JSON or of another form, and of a broken gzip file."""

FileState = Literal["unread", "verified", "incomplete"]
Line = TypeVar("Line")


class FileCheck(msgspec.Struct):
    """How far a file can be relied on, once its lines are read.

    `verified`: every line is the one that was written, up to the end record, whose reason `end` is.
    `incomplete`: every line is, but its end is missing. `lines` are those that are whole; `why` is
    for people.
    """

    state: FileState = "unread"
    lines: int = 0
    end: str = ""
    why: str = ""


class Lines(Iterator[Line], Generic[Line]):
    """Lines of a file, and, when they are all read, how far it can be relied on."""

    def __init__(self, lines: Iterator[Line], check: FileCheck) -> None:
        self._lines, self.check = lines, check

    def __next__(self) -> Line:
        return next(self._lines)


class _MadeBy(msgspec.Struct, frozen=True):
    """The fields that every version of the header has."""

    schema: str
    weft: str = "(version unknown)"


def read(path: Path) -> tuple[Header, Lines[DecisionLine]]:
    """Header and lines of a decisions file; `BadInputError` names the line that is broken."""
    header, lines = skim(path)
    return header, Lines(_with_snapshots(path, lines), lines.check)


def skim(path: Path) -> tuple[Header, Lines[FileLine]]:
    """As `read`, but for the snapshots beside the file, which nobody opens."""
    try:
        with _open(path) as file:
            header = _header(path, read_line(file, f"{path}, line 1"))
    except _UNREADABLE as error:
        raise BadInputError(f"{path}, line 1", f"not a decisions header: {error}") from None
    check = FileCheck()
    return header, Lines(_chained(path, check, header.schema == FORMER), check)


def _with_snapshots(path: Path, lines: Iterator[FileLine]) -> Iterator[DecisionLine]:
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


def _header(path: Path, first: bytes) -> Header:
    """Line 1; its schema is looked at before anything else, which may be of another form."""
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
    """The file, unpacked where it is gzipped."""
    try:
        return open_plain(path)
    except OSError as error:
        raise BadInputError(str(path), unreadable(path, error)) from None


def _chained(path: Path, check: FileCheck, former: bool) -> Iterator[FileLine]:
    """The events of a file, each line checked before anybody sees it."""
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
    """A line of Weft 0.1.0 with today's names."""
    line = with_todays_names(msgspec.json.decode(text), FORMER_NAMES)
    if line["event"].get("type") == "LessonsTold":
        line["event"]["type"] = OomHistoryLearnt.__name__
    return msgspec.json.encode(line)


def _next_line(file: BinaryIO, path: Path, chain: ChainCheck, check: FileCheck) -> bytes:
    """The next line if it is the one that was written there; b"" where the file's end is lost."""
    where = f"{path}, line {check.lines + 1}"
    try:
        text = read_line(file, where)
    except EOFError:  # a gzip file that was cut off
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
    """The line behind a broken one, b"" where nobody can read it."""
    try:
        return read_line(file, where)
    except (*_UNREADABLE, BadInputError):
        return b""


def _ended(file: BinaryIO, path: Path, end: EndRecord, check: FileCheck) -> None:
    if read_line(file, str(path)):
        raise BadInputError(f"{path}, line {check.lines + 1}", "stands behind the end record")
    check.state, check.end = "verified", end.end
    if end.end == "full":
        check.why = "the record ends early: it was as large as --decisions-mib allows"
    elif end.end == "failed":
        check.why = f"the record ends early: {end.why}"


def _renumbered(line: FileLine) -> FileLine:
    """The same, with counts of reasons as they are numbered now."""
    if not any(len(record.counts) in _CODES_BEFORE for record in line.records):
        return line
    records = [replace(record, counts=_counts_now(record.counts)) for record in line.records]
    return replace(line, records=records)


def _counts_now(counts: tuple[int, ...]) -> tuple[int, ...]:
    while len(counts) in _CODES_BEFORE:
        at, behind = _CODES_BEFORE[len(counts)]
        counts = (*counts[:at], 0, *counts[at:], *(0,) * behind)
    return counts
