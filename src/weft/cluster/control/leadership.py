"""Tracks whether this process or another one leads (decides and binds), and runs a leader's work in
the background.

A process begins as a follower. Without a lease it leads as soon as it has read everything; with a
lease, once it holds the lease and has read everything again. A process that lost leadership never
leads again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

log = logging.getLogger("weft.cluster")
NOBODY = "no Weft process leads yet; ask again in some seconds"


class LeaseHolder(Protocol):
    """A process that waits for the lease, or holds it (`weft.kube.lease.Elector`)."""

    @property
    def other(self) -> str:
        """Name of another process that holds the lease, if known; else ""."""
        ...

    def may_bind(self, seconds: float) -> bool:
        """Return True if a write that takes up to `seconds` ends before the lease does."""
        ...


class Leadership:
    """The state of leadership: `here` is True while this process leads. Without a `lease` no other
    process leads."""

    def __init__(self, lease: LeaseHolder | None, *, here: bool = False) -> None:
        self._lease = lease
        self.here = False
        self._begun = asyncio.Event()
        if here:
            self.begin()

    @property
    def elsewhere(self) -> str:
        """Name of another process that leads, if known; else ""."""
        return self._lease.other if self._lease is not None else ""

    @property
    def lacking(self) -> str:
        """Reason why the cluster has no leader; "" if this process leads or follows one."""
        return "" if self.here or self.elsewhere else NOBODY

    def begin(self) -> None:
        """Begin to lead."""
        self.here = True
        self._begun.set()

    def end(self) -> None:
        """Stop leading."""
        self.here = False
        self._begun.clear()

    async def why_not(self, within_s: float) -> str:
        """Return the reason why this process binds nothing; "" if it leads. While no process leads,
        wait at most `within_s` seconds, as this one may soon lead."""
        if self.lacking:
            try:
                async with asyncio.timeout(within_s):
                    await self._begun.wait()
            except TimeoutError:
                pass
        if self.here:
            return ""
        other = self.elsewhere
        return f"another Weft process is the leader: {other}; ask there" if other else NOBODY


class LeaderTask:
    """Work that a leader does in the background whenever it is `due`: one run at a time, which ends
    when nothing is due any more. `name` is what the log calls a run that fails."""

    def __init__(
        self, work: Callable[[], Coroutine[Any, Any, None]], due: Callable[[], object], name: str
    ) -> None:
        self._work, self._due, self._name = work, due, name
        self._task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """True while a run is under way."""
        return self._task is not None

    def start(self) -> None:
        """Begin a run if the work is due and no run is under way."""
        if self._task is None and self._due():
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(self._done)

    async def stop(self) -> None:
        """Cancel the run that is under way, and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("%s: this is a mistake in Weft", self._name, exc_info=error)
        else:
            self.start()  # what became due after the run's last check
