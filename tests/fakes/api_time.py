"""Time that costs nothing: an event loop whose clock leaps to the next timer when all wait.

A minute of time-outs, back-offs and leases passes in milliseconds, in the same order as it would.
Only what waits on timers and on other tasks can run here: there are no sockets and no threads.
What is handed to a thread is done in one go, between two turns of the loop.

    run(work())
"""

import asyncio
import datetime
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_START_S = 1_000.0
_EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class NothingLeftError(RuntimeError):
    """Everybody waits for something that nobody will do."""


class _Leap(selectors.SelectSelector):
    """Instead of waiting for `timeout`, it has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = _START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeftError
        self.now += max(0.0, timeout)
        return []


class LeapingLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` are its own seconds."""

    def __init__(self) -> None:
        self._leap = _Leap()
        super().__init__(self._leap)

    def time(self) -> float:
        """Seconds, by this loop's clock."""
        return self._leap.now

    def run_in_executor(  # type: ignore[override]
        self, _: object, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Do it later, where a thread would: its caller sees what happened meanwhile."""
        done: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:  # its caller's, as a thread's is
                done.set_exception(error)

        self.call_soon(work)
        return done


class LoopClock:
    """The clock of the running loop; `wall_offset_s` is how wrong the time of day is."""

    def __init__(self) -> None:
        self.wall_offset_s = 0.0

    def monotonic(self) -> float:
        """The loop's seconds."""
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime.datetime:
        """The first of January 2026 at the loop's start, and on from there."""
        return _EPOCH + datetime.timedelta(seconds=self.monotonic() + self.wall_offset_s)

    async def sleep(self, seconds: float) -> None:
        """As asyncio does."""
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in time that leaps."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(work)
