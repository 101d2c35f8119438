"""Something that serves beside the deciding, from the process's start to its end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol

log = logging.getLogger("weft.scheduler")


class ProcessPart(Protocol):
    """Something that serves beside the deciding: HTTP, the extender."""

    async def start(self) -> str:
        """Begin; what it listens on, for the log."""
        ...

    async def close(self) -> None:
        """End, after what is being answered."""
        ...


class BackgroundPart:
    """Runs one coroutine from start to close; `what` it does is logged, `last` is awaited after."""

    def __init__(
        self,
        what: str,
        run: Callable[[], Coroutine[None, None, None]],
        last: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.what, self._run, self._last = what, run, last
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Run it; nobody waits for it."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        return self.what

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Tell of one that broke off: the process goes on without it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            text = "broke off, and goes on with the next start: %s"
            log.error(text, self.what or "work in the background", exc_info=error)

    async def close(self) -> None:
        """Cancel it, and do what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._last is not None:
            await self._last()
