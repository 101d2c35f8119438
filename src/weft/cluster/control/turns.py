"""Long work on the event loop lets others have their turn: lease renewals, watches, answers."""

import asyncio
from collections.abc import Callable

SLICE_S, MOST = 0.005, 20
"""Others wait so long at most, but for the one piece of work that is under way; and never for more
pieces than that, however small."""


class LoopTurns:
    """For one stretch of work, timed by `clock`: `await turns.end()` after each piece of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began, self._pieces = clock(), 0

    async def end(self) -> None:
        """A piece is done."""
        self._pieces += 1
        if self._pieces >= MOST or self._clock() - self._began >= SLICE_S:
            await asyncio.sleep(0)
            self._began, self._pieces = self._clock(), 0
