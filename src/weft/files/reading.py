"""Files into memory, unpacked where they are packed, and never more than is meant to be there.

Some kB of gzip can stand for gigabytes: it is unpacked piece by piece, no further than the bound.
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
"""The most MiB of a file, or of a line of one read line by line, unpacked. Traces of millions of
pods, and snapshots of clusters of ten thousand GPUs, stay below."""

MOST_BYTES = MOST_MIB << 20
UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error)
"""Errors of a file that is no text, or is packed badly."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of what should be JSON: another form, no text, or nested a thousand deep."""

STDIN = Path("-")
"""Stands for standard input wherever a file is read."""

_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 20
_FILES_ALIKE = 0.85
"""nodes.csv and pods.csv are not."""


def read_text(path: Path) -> str:
    """A text file, plain or gzipped; `BadInputError` where there is none."""
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
    """The file, to be read unpacked where it is gzipped; `OSError` where it can't be opened.

    It may be a pipe, and as long as it likes: whoever reads it says how much. Of standard input
    that is `most_bytes`, where not all of it can be needed.
    """
    file = local(path, most_bytes).open("rb")
    if file.peek(len(_MAGIC))[: len(_MAGIC)] != _MAGIC:
        return file
    return _Unpacked(file)  # type: ignore[return-value]


def read_bytes(path: Path) -> bytes:
    """The file as it is, packed or not; `BadInputError` where it cannot be read."""
    try:
        return raw_bytes(path)
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {unreadable(path, error)}") from error


class _Unpacked(gzip.GzipFile):
    """A gzipped file that closes what it reads from, too."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self._packed = packed

    def close(self) -> None:
        """Close both."""
        super().close()
        self._packed.close()


def raw_bytes(path: Path) -> bytes:
    """As `Path.read_bytes`, with `OSError`; but a file may be a device that never ends:
    `BadInputError` for more than `MOST_MIB`."""
    with local(path, MOST_BYTES).open("rb") as file:
        return _whole(file, str(path))


def local(path: Path, most_bytes: int | None = None) -> Path:
    """The same; for `STDIN` a file of what came there, which can be read more than once.

    `BadInputError` where more than `most_bytes` come.
    """
    return Path(_spooled(sys.stdin, most_bytes).name) if path == STDIN else path


@lru_cache(maxsize=1)
def _spooled(stream: TextIO, most_bytes: int | None) -> "tempfile._TemporaryFileWrapper[bytes]":
    """All of a stream in a file that goes when the process ends, or reads another stream."""
    file = tempfile.NamedTemporaryFile(prefix="weft-stdin-")  # noqa: SIM115 - it outlives us
    size = 0
    while piece := stream.buffer.read(_PIECE):
        size += file.write(piece)
        if most_bytes is not None and size > most_bytes:
            raise _too_large(str(STDIN), "it has")
    file.flush()
    return file


def unreadable(path: Path, error: OSError) -> str:
    """The error in words; of a file that is not there, which one may have been meant."""
    problem = error.strerror or "cannot be read"
    return problem + did_you_mean(path) if isinstance(error, FileNotFoundError) else problem


def did_you_mean(path: Path) -> str:
    """A question after a file beside this one of almost the same name; "" without."""
    try:
        names = [other.name for other in path.parent.iterdir()]
    except OSError:
        return ""
    near = nearest(path.name, names, like=_FILES_ALIKE)
    return f"; did you mean {str(path.parent / near)!r}?" if near else ""


def read_line(file: BinaryIO, where: str) -> bytes:
    """The next line, b"" at the end; `BadInputError` for one that is longer than `MOST_MIB`."""
    line = file.readline(MOST_BYTES + 1)
    if len(line) > MOST_BYTES:
        raise _too_large(where, "this line has")
    return line


def unpack(body: bytes, where: str) -> bytes:
    """Unpacks what was read, where it is gzipped."""
    if body[: len(_MAGIC)] != _MAGIC:
        return body
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        return _whole(file, where)


def pack(body: bytes) -> bytes:
    """As gzip, without a time: the same gives the same bytes."""
    return gzip.compress(body, mtime=0)


def inflate(body: bytes) -> bytes:
    """zlib's own form; `zlib.error` for what is none, cut off, or larger than `MOST_MIB`."""
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
