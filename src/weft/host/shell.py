"""Runs any Weft process: starts, restarts and closes its parts, and ends the process.

Background  runs once, from start to close; a failure is logged
Kept        runs for ever: a failure is logged and counted, and the part restarted
Shell       starts parts in order, and ends the process when a task that should never end ends
"""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol

from weft.model import WeftError

_AGAIN_S = 1.0
_MOST_AGAIN_S = 30.0


class Part(Protocol):
    """A part of a process, with a start and an end."""

    async def start(self) -> str:
        """Begin; return what the part does or listens on, for the log ("" to log nothing)."""
        ...

    async def close(self) -> None:
        """Stop after the work in progress."""
        ...


class Runnable(Protocol):
    """Work that runs until it is cancelled."""

    async def run(self) -> None:
        """Work until cancelled, then clean up."""
        ...


class Background:
    """Runs one coroutine from start to close; `what` is logged at the start, `last` awaited at the
    end."""

    def __init__(
        self,
        what: str,
        run: Callable[[], Coroutine[None, None, None]],
        last: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.what, self._run, self._last = what, run, last
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start the coroutine as a task."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        return self.what

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Log a failure: the process continues without this part."""
        if not task.cancelled() and (error := task.exception()) is not None:
            text = "%s failed, and stays off until this process restarts"
            log = logging.getLogger("weft.scheduler")
            log.error(text, self.what or "a part of this process", exc_info=error)

    async def close(self) -> None:
        """Cancel the task, then await `last`."""
        if self._task is not None:
            await cancel({self._task})
        if self._last is not None:
            await self._last()


class Kept:
    """Keeps a part running, by restarting it after failures, which do not affect other parts.
    `broken` counts restarts by `name`."""

    def __init__(
        self, name: str, runnable: Runnable, broken: Counter[str], log: logging.Logger
    ) -> None:
        self.name, self._runnable, self._broken, self._log = name, runnable, broken, log
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start a task that runs the part, and restarts it whenever it ends; return "", as
        there is nothing to log."""
        self._task = asyncio.create_task(self._keep())
        return ""

    async def close(self) -> None:
        """Cancel the part, which cleans up."""
        if self._task is not None:
            await cancel({self._task})

    async def _keep(self) -> None:
        delay_s = _AGAIN_S
        while True:
            try:
                await self._runnable.run()
                self._log.error("%s ended", self.name)
            except (OSError, WeftError) as error:
                self._log.error("%s: %s", self.name, error)
            except Exception:
                self._log.exception("%s failed, and is restarted", self.name)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                return  # it failed while it ended
            self._broken[self.name] += 1
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MOST_AGAIN_S)


class Shell:
    """Runs the parts and tasks of one process. `serving` are the running parts, in the order of
    their start."""

    def __init__(self, log: logging.Logger) -> None:
        self.serving: list[Part] = []
        self._log = log
        self._endless: set[asyncio.Future[Any]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, parts: Iterable[Part]) -> None:
        """Start these parts, one after the other."""
        for part in parts:
            if what := await part.start():
                self._log.info("%s", what)
            self.serving.append(part)

    def beside(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a task whose end ends the process, with the task's error if it has one."""
        task = asyncio.ensure_future(work)
        self._endless.add(task)
        task.add_done_callback(self._one_ended)

    def _one_ended(self, task: "asyncio.Future[Any]") -> None:
        if task.cancelled() or self._ended.done():
            return
        error = task.exception()
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def live(self, life: Coroutine[Any, Any, None]) -> None:
        """Return when `life` or one of the endless tasks ends, and raise that one's error, if any;
        cancel `life` if it still runs."""
        living = asyncio.ensure_future(life)
        try:
            await asyncio.wait({living, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            (living if living.done() else self._ended).result()
        finally:
            await cancel({living})

    async def close(self, parts: Iterable[Part]) -> None:
        """Close these parts, one after the other."""
        for part in parts:
            await part.close()

    async def close_together(self) -> None:
        """Close all parts at once."""
        await asyncio.gather(*(part.close() for part in self.serving), return_exceptions=True)

    async def end(self, *others: "asyncio.Future[Any]") -> None:
        """Cancel the endless tasks, and `others`."""
        await cancel({*others, *self._endless})
        if self._ended.done():
            self._ended.exception()  # marks the error as retrieved


def stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def cancel(tasks: "Collection[asyncio.Future[Any]]") -> None:
    """Cancel these tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
