"""Collects the findings of `weft status` and `weft doctor` for the health page, at most twice a
minute."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import msgspec

from weft.cluster.reading.finding import DoctorFinding
from weft.cluster.reading.status import PodGroup, StatusReport

FRESH_S = 30.0
"""Seconds for which a page is reused: to make one, all pods and nodes are listed."""
_ORDER = ("wrong", "advice", "good")


class HealthPage(msgspec.Struct, frozen=True):
    """The answer of /api/health: the first lines, checks with remedies, pods by state."""

    head: list[str]
    findings: list[DoctorFinding]
    pods: list[PodGroup]


class Health:
    """Reads the cluster's status on request; `head` returns the page's first lines."""

    def __init__(
        self,
        read: Callable[[], Awaitable[StatusReport]],
        head: Callable[[StatusReport], list[str]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._read, self._head, self._clock = read, head, clock
        self._page: HealthPage | None = None
        self._until_s, self._reading = 0.0, asyncio.Lock()

    async def page(self) -> HealthPage:
        """Return the page, at most `FRESH_S` old; raises the client's errors."""
        async with self._reading:
            if self._page is None or self._clock() >= self._until_s:
                report = await self._read()
                findings = sorted(report.findings, key=lambda found: _ORDER.index(found.level))
                self._page = HealthPage(self._head(report), findings, report.pods)
                self._until_s = self._clock() + FRESH_S
            return self._page
