"""Files into memory, unpacked where they are packed, and never more than is meant to be there.

Some kB of gzip can stand for gigabytes: it is unpacked piece by piece, no further than the bound.
"""

import gzip
import io
import shutil
import sys
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TextIO

from weft.model import BadInputError
from weft.model.nearest import nearest

MOST_MIB = 256
"""The most MiB of a file, or of a line of one read line by line, unpacked. Traces of millions of
pods, and snapshots of clusters of ten thousand GPUs, stay below."""

MOST_BYTES = MOST_MIB << 20
UNREADABLE = (UnicodeDecodeError, OSError, EOFError, zlib.error)
"""Errors of a file that is no text, or is packed badly."""

STDIN = Path("-")
"""Stands for standard input wherever a file is read."""

_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 20
_FILES_ALIKE = 0.85
"""nodes.csv and pods.csv are not."""


def read_text(path: Path) -> str:
    """A text file, plain or gzipped; `BadInputError` where there is none."""
    try:
        with open_plain(path) as file:
            return _whole(file, str(path)).decode("utf-8-sig")
    except FileNotFoundError:
        raise BadInputError(str(path), "no such file" + did_you_mean(path)) from None
    except IsADirectoryError:
        raise BadInputError(str(path), "is a directory; name a file") from None
    except UNREADABLE as error:
        raise BadInputError(str(path), f"cannot be read: {error}") from None


def open_plain(path: Path) -> BinaryIO:
    """The file, to be read unpacked where it is gzipped; `OSError` where it can't be opened."""
    file = local(path).open("rb")
    magic = file.read(len(_MAGIC))
    file.seek(0)
    if magic != _MAGIC:
        return file
    file.close()
    return gzip.open(local(path))  # type: ignore[return-value]


def read_bytes(path: Path) -> bytes:
    """The file as it is, packed or not; `BadInputError` where it cannot be read."""
    try:
        return local(path).read_bytes()
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read: {unreadable(path, error)}") from error


def local(path: Path) -> Path:
    """The same; for `STDIN` a file of what came there, which can be read more than once."""
    return Path(_spooled(sys.stdin).name) if path == STDIN else path


@lru_cache(maxsize=1)
def _spooled(stream: TextIO) -> "tempfile._TemporaryFileWrapper[bytes]":
    """All of a stream in a file that goes when the process ends, or reads another stream."""
    file = tempfile.NamedTemporaryFile(prefix="weft-stdin-")  # noqa: SIM115 - it outlives us
    shutil.copyfileobj(stream.buffer, file)
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
