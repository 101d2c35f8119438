"""Standard output and error of a command, with errors distinguished from those of other files.

`print` raises `OSError` if a disk is full, but so do all file operations. Here an error of standard
output is raised as `OutputError`: the output is lost, but all other work is valid."""

import errno
import io
import os
import sys
from typing import Any, TextIO


class OutputError(Exception):
    """Standard output could not be written; `error` is the operating system's error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _Output(io.RawIOBase):
    """Writes bytes to a file descriptor, which is None if it was closed before the process
    began."""

    def __init__(self, descriptor: int | None, *, optional: bool) -> None:
        self._descriptor, self._broken, self._optional = descriptor, False, optional

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        if self._descriptor is None:
            raise io.UnsupportedOperation("fileno")
        return self._descriptor

    def isatty(self) -> bool:
        """Return True if the descriptor is a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, body: Any) -> int | None:
        """Write bytes; after an error return success, as Python would otherwise report it again at
        exit."""
        if self._broken:
            return len(body)
        try:
            if self._descriptor is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return os.write(self._descriptor, body)
        except BlockingIOError:
            return None
        except OSError as error:
            self._broken = True
            if self._optional:
                return len(body)
            raise OutputError(error) from None


def prepare() -> None:
    """Make failed writes to standard output raise `OutputError`, and ignore failed writes to
    standard error.

    Both then accept any text. Streams that are not the process' own, as in tests, are not
    changed."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _stream(sys.__stdout__, optional=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(sys.__stderr__, optional=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # show any name, whatever it contains


def _stream(before: TextIO | None, *, optional: bool) -> io.TextIOWrapper:
    if not isinstance(before, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(_Output(None, optional=optional)), "utf-8")
    before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(before.fileno(), optional=optional)),
        before.encoding,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
