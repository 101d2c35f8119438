"""Something that serves beside the deciding, from the process's start to its end."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol


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
        return self.what

    async def close(self) -> None:
        """Cancel it, and do what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._last is not None:
            await self._last()
