"""Writes the decisions file of a running scheduler: every event and decision, for replay.

Deciding never waits for the disk and never fails because of it: lines are written in the
background, once a second. If writing fails or the file reaches its size limit, recording ends with
one line in the log. The last line is an end record: a file without end record comes from a crashed
process.
"""

import asyncio
import contextlib
import logging
import os
import threading
from io import FileIO
from pathlib import Path

import msgspec

from weft.cluster.control.interface import ClusterView
from weft.core.record import DecisionLine, DecisionLines, Header, Recorder
from weft.core.record.file import ChainMark, EndRecord, FullError, is_large
from weft.core.record.side import clear, side_of
from weft.host.shell import Background
from weft.model import BadInputError

log = logging.getLogger("weft.scheduler")
_EVERY_S = 1.0
_MOST_WAITING = 64 * 1024 * 1024  # bytes not yet written; beyond that the disk counts as failed


class Recording(Background):
    """Records every event that the cluster handles and its decisions, from this part's start on.

    `most_mib` limits the size of the file and of the signals stored next to it; 0: no limit.
    """

    def __init__(self, live: ClusterView, header: Header, path: Path, most_mib: int = 0) -> None:
        super().__init__(f"recording decisions in {path}", self._write_for_ever, self._end)
        self._live, self._header, self._path = live, header, path
        self._waiting: list[bytes | DecisionLine] = []
        self._size = 0
        self._encoder = msgspec.json.Encoder()
        self._lines, self._writing = DecisionLines(side_of(path), most_mib << 20), threading.Lock()
        self._written = 0
        self.failed = ""
        self._fault: Exception | None = None
        self._under_way: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Begin a new file; the previous one is kept as `.previous`. `BadInputError` if that
        fails."""
        try:
            await asyncio.to_thread(self._begin)
        except OSError as error:
            raise BadInputError(f"--decisions {self._path}", f"{error.strerror}") from error
        self._live.decide = Recorder(self._live.engine, self._header, self._put).handle
        return await super().start()

    def _begin(self) -> None:
        """Rename the previous file and the signals next to it, and create an empty one."""
        previous = self._path.with_name(self._path.name + ".previous")
        side = side_of(self._path)
        if self._path.exists():
            clear(side_of(previous))
            self._path.replace(previous)
            if side.exists():
                side.replace(side_of(previous))
        clear(side)
        self._path.write_bytes(b"")

    def _put(self, line: Header | DecisionLine) -> None:
        """Queue a line to be written. If that fails, recording ends: neither this line nor a
        later one is recorded."""
        try:
            self._keep(line)
        except Exception as error:
            self._fault, self._live.decide = error, self._live.engine.handle

    def _keep(self, line: Header | DecisionLine) -> None:
        """Encode a line now, except a large snapshot, which is packed in the writing thread."""
        if isinstance(line, DecisionLine) and is_large(line):
            self._waiting.append(line)
            self._size += len(line.event.signals.values)  # type: ignore[union-attr]
        else:
            text = self._encoder.encode(line)
            self._waiting.append(text)
            self._size += len(text)

    async def _write_for_ever(self) -> None:
        while not self.failed:
            await asyncio.sleep(_EVERY_S)
            await self._write()

    async def _write(self) -> None:
        lines, size = self._waiting, self._size
        self._waiting, self._size = [], 0
        if self.failed or not (lines or self._fault):
            return
        self._under_way = asyncio.create_task(self._append_or_say(lines, size))
        await asyncio.shield(self._under_way)

    async def _append_or_say(self, lines: list[bytes | DecisionLine], size: int) -> None:
        """Append the lines; if that fails, log once why nothing more is recorded."""
        try:
            await asyncio.to_thread(self._append, lines, size)
        except Exception as error:
            self._live.decide = self._live.engine.handle
            if not isinstance(error, OSError):
                self._live.faults.task("recording decisions", error)
            why = _said(error)
            if isinstance(error, FullError):
                why += ", the limit of --decisions-mib; the next process begins a new file"
            log.error("decisions are no longer recorded: %s: %s", self._path, why)

    async def _end(self) -> None:
        if self._under_way is not None:  # a cancelled task may have left lines to a thread
            await self._under_way
        await self._write()
        if not self.failed:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._writing:
            if not self.failed:
                self._append_end(EndRecord("closed"))

    def _append(self, lines: list[bytes | DecisionLine], size: int) -> None:
        """Write as many lines as fit, with their hashes; raise if some are left."""
        with self._writing:
            if self.failed:
                return
            try:
                if size > _MOST_WAITING:
                    raise OSError(0, "the disk is too slow")
                with self._opened() as file:
                    self._append_sealed(file, lines)
                if self._fault is not None:
                    raise self._fault
            except Exception as error:
                why = _said(error)
                full = isinstance(error, FullError)
                self._append_end(EndRecord("full") if full else EndRecord("failed", why))
                self.failed = why  # nothing may follow a gap or an end record
                raise

    def _append_sealed(self, file: FileIO, lines: list[bytes | DecisionLine]) -> None:
        mark, sealed = self._lines.mark(), list[bytes]()
        try:
            for line in lines:
                if isinstance(line, bytes):
                    sealed.append(self._lines.sealed(line))
                else:
                    sealed.append(self._lines.encoded(line))
        finally:
            self._write_out(file, b"".join(sealed), mark)

    def _write_out(self, file: FileIO, text: bytes, mark: ChainMark) -> None:
        """Write the whole text, or nothing if the disk refuses."""
        left = memoryview(text)
        try:
            while left:
                left = left[file.write(left) :]
            self._written += len(text)
        except OSError:
            self._lines.back_to(mark)
            file.truncate(self._written)
            raise

    def _append_end(self, end: EndRecord) -> None:
        """Write the end record if possible; a full disk may prevent it."""
        with contextlib.suppress(OSError), self._opened() as file:
            self._write_out(file, self._lines.ended(end), self._lines.mark())

    def _opened(self) -> FileIO:
        """Open the file, unbuffered; OSError if another process changed or replaced it."""
        file = FileIO(self._path, "r+")
        if file.seek(0, os.SEEK_END) != self._written:
            file.close()
            raise OSError(0, "another process changed or replaced the file")
        return file


def _said(error: Exception) -> str:
    return str(error.strerror) if isinstance(error, OSError) else repr(error)
