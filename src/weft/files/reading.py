"""Reads files into memory, decompressed if gzipped, up to a limit on their size.

A few kB of gzip can expand to gigabytes, so decompression stops at the limit.
"""

import gzip
import io
import sys
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TextIO

import msgspec

from weft.model import BadInputError
from weft.model.nearest import nearest

MOST_MIB = 256
"""The limit for a file, or for a line of a file read line by line, in MiB after decompression.
Traces of millions of pods, and snapshots of clusters of ten thousand GPUs, stay below it."""

MOST_BYTES = MOST_MIB << 20
UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error)
"""Errors of a file that is not text or is badly compressed."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of invalid JSON: another form, not UTF-8, or nested too deeply."""

STDIN = Path("-")
"""Path that means standard input wherever a file is read."""

_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 20
_FILES_ALIKE = 0.85
"""Minimum similarity of file names for a suggestion; nodes.csv and pods.csv are less similar."""


def read_text(path: Path) -> str:
    """Return the text of a file, gzipped or not; `BadInputError` if it cannot be read."""
    try:
        with open_plain(path, MOST_BYTES) as file:
            return _whole(file, str(path)).decode("utf-8-sig")
    except FileNotFoundError:
        raise BadInputError(str(path), "no such file" + did_you_mean(path)) from None
    except IsADirectoryError:
        raise BadInputError(str(path), "is a directory; name a file") from None
    except UnicodeDecodeError:
        raise BadInputError(str(path), "cannot be read: not UTF-8 text") from None
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise BadInputError(str(path), f"cannot be read: {error}") from None


def open_plain(path: Path, most_bytes: int | None = None) -> BinaryIO:
    """Open a file for reading, decompressed if it is gzipped; `OSError` if it cannot be opened.

    There is no size limit here, as the file may be a pipe: the reader limits what it takes.
    Standard input is copied first, up to `most_bytes` if given.
    """
    file = local(path, most_bytes).open("rb")
    if file.peek(len(_MAGIC))[: len(_MAGIC)] != _MAGIC:
        return file
    return _Unpacked(file)  # type: ignore[return-value]


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes, not decompressed; `BadInputError` if it cannot be read."""
    try:
        return raw_bytes(path)
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {unreadable(path, error)}") from error


class _Unpacked(gzip.GzipFile):
    """A gzipped file that also closes the file that it reads from."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self._packed = packed

    def close(self) -> None:
        """Close both files."""
        super().close()
        self._packed.close()


def raw_bytes(path: Path) -> bytes:
    """Return the file's bytes, not decompressed; `OSError` if it cannot be read.

    The path may be a device that never ends: `BadInputError` for more than `MOST_MIB`.
    """
    with local(path, MOST_BYTES).open("rb") as file:
        return _whole(file, str(path))


def local(path: Path, most_bytes: int | None = None) -> Path:
    """Return the path; for `STDIN` that of a temporary copy, which can be read more than once.

    `BadInputError` if standard input has more than `most_bytes`.
    """
    return Path(_spooled(sys.stdin, most_bytes).name) if path == STDIN else path


@lru_cache(maxsize=1)
def _spooled(stream: TextIO, most_bytes: int | None) -> "tempfile._TemporaryFileWrapper[bytes]":
    """Copy a stream to a file that is deleted when the process ends or reads another stream."""
    file = tempfile.NamedTemporaryFile(prefix="weft-stdin-")  # noqa: SIM115 - it outlives us
    size = 0
    while piece := stream.buffer.read(_PIECE):
        size += file.write(piece)
        if most_bytes is not None and size > most_bytes:
            raise _too_large(str(STDIN), "it has")
    file.flush()
    return file


def unreadable(path: Path, error: OSError) -> str:
    """Describe the error; for a missing file, suggest an existing file of almost the same name."""
    problem = error.strerror or "cannot be read"
    return problem + did_you_mean(path) if isinstance(error, FileNotFoundError) else problem


def did_you_mean(path: Path) -> str:
    """Suggest a file of almost the same name in the same folder; "" if there is none."""
    try:
        names = [other.name for other in path.parent.iterdir()]
    except OSError:
        return ""
    near = nearest(path.name, names, like=_FILES_ALIKE)
    return f"; did you mean {str(path.parent / near)!r}?" if near else ""


def read_line(file: BinaryIO, where: str) -> bytes:
    """Return the next line, b"" at the end; `BadInputError` for one longer than `MOST_MIB`."""
    line = file.readline(MOST_BYTES + 1)
    if len(line) > MOST_BYTES:
        raise _too_large(where, "this line has")
    return line


def unpack(body: bytes, where: str) -> bytes:
    """Return the body decompressed if it is gzipped, else unchanged."""
    if body[: len(_MAGIC)] != _MAGIC:
        return body
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        return _whole(file, where)


def pack(body: bytes) -> bytes:
    """Compress with gzip, without a timestamp: equal content gives equal bytes."""
    return gzip.compress(body, mtime=0)


def inflate(body: bytes) -> bytes:
    """Decompress zlib data; `zlib.error` if it is invalid, truncated, or larger than `MOST_MIB`."""
    unpacking = zlib.decompressobj()
    inflated = unpacking.decompress(body, MOST_BYTES)
    if not unpacking.eof:
        raise zlib.error(f"it is cut off, or has more than {MOST_MIB} MiB")
    return inflated


def _whole(file: BinaryIO | gzip.GzipFile, where: str) -> bytes:
    pieces, size = [], 0
    while piece := file.read(_PIECE):
        size += len(piece)
        if size > MOST_BYTES:
            raise _too_large(where, "it has")
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(where: str, limit: str) -> BadInputError:
    return BadInputError(where, f"{limit} more than {MOST_MIB} MiB, unpacked; split the file")
