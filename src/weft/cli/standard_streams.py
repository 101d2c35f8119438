"""Standard output and error of a command: their faults are told apart from those of other files.

`print` raises `OSError` where a disk is full, but so does everything else. Here a fault of standard
output is an `OutputError`: what was to be printed is lost, and nothing else is wrong.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO


class OutputError(Exception):
    """Standard output took no more: `error` is the operating system's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _Output(io.RawIOBase):
    """Bytes to a file descriptor; None where it was closed before we began."""

    def __init__(self, descriptor: int | None, *, optional: bool) -> None:
        self._descriptor, self._broken, self._optional = descriptor, False, optional

    def writable(self) -> bool:
        """True: for nothing else is it made."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        if self._descriptor is None:
            raise io.UnsupportedOperation("fileno")
        return self._descriptor

    def isatty(self) -> bool:
        """True if it is a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, body: Any) -> int | None:
        """How much was written; after a fault all, or Python would complain again at the end."""
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
    """Standard output raises `OutputError`; what standard error does not take is dropped.

    Both take any text. Left alone where they are no streams of the process, as in tests.
    """
    if sys.stdout is sys.__stdout__:
        sys.stdout = _stream(sys.__stdout__, optional=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(sys.__stderr__, optional=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever a name holds, it is shown


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
