"""The decisions file of a running scheduler: every event and what was decided, for replay.

Deciding never waits for the disk and never ends because of it: lines are written behind, once a
second, and where that fails the file ends there, with one line in the log.
"""

import asyncio
import io
import logging
from pathlib import Path

from weft.live.cluster import Cluster
from weft.model import BadInputError
from weft.record import Header, Recorder

log = logging.getLogger("weft.scheduler")
_EVERY_S = 1.0
_MOST_WAITING = 64 * 1024 * 1024  # bytes not written yet; a disk that slow is no disk


class Recording:
    """A part of the process: from its start on everything the cluster handles is on record."""

    def __init__(self, live: Cluster, header: Header, path: Path) -> None:
        self._live, self._header, self._path = live, header, path
        self._waiting = io.BytesIO()
        self._task: asyncio.Task[None] | None = None
        self.failed = ""

    async def start(self) -> str:
        """Begin a new file; the last one is kept as `.previous`. `BadInputError` where it can't."""
        try:
            if self._path.exists():
                self._path.replace(self._path.with_name(self._path.name + ".previous"))
            self._path.write_bytes(b"")
        except OSError as error:
            raise BadInputError(f"--decisions {self._path}", f"{error.strerror}") from error
        self._live.decide = Recorder(self._live.engine, self._header, self._waiting).handle
        self._task = asyncio.create_task(self._write_for_ever())
        return f"decisions go to {self._path}"

    async def close(self) -> None:
        """Write what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._write()

    async def _write_for_ever(self) -> None:
        while not self.failed:
            await asyncio.sleep(_EVERY_S)
            await self._write()

    async def _write(self) -> None:
        lines = self._waiting.getvalue()
        self._waiting.seek(0)
        self._waiting.truncate()
        if not lines or self.failed:
            return
        try:
            if len(lines) > _MOST_WAITING:
                raise OSError(0, "the disk is too slow")
            await asyncio.to_thread(self._append, lines)
        except OSError as error:
            self.failed = str(error.strerror)
            self._live.decide = self._live.engine.handle
            log.error("decisions are not recorded any more: %s: %s", self._path, error.strerror)

    def _append(self, lines: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(lines)
