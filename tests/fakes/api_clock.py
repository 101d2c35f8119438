"""A clock that tests move by hand, or that moves on by itself as soon as someone sleeps."""

import asyncio
import datetime
import heapq


class VirtualClock:
    """Time that passes only when told: `advance`, or with `auto` at once with every sleep.

    `slept` are the lengths of all sleeps, in seconds, in order.
    """

    def __init__(self, *, auto: bool = False) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []
        self._auto = auto
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._changed = asyncio.Event()

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def wall(self) -> datetime.datetime:
        """The first of January 2026, and the seconds since the clock was made."""
        start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        return start + datetime.timedelta(seconds=self.now - 1_000)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved on by so much."""
        self.slept.append(seconds)
        if self._auto:
            self.now += max(0.0, seconds)
            await asyncio.sleep(0)
            return
        self._count += 1
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, self._count, waiter))
        self._changed.set()
        await waiter

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake whoever slept for less."""
        self.now += seconds
        while self._sleepers and self._sleepers[0][0] <= self.now:
            waiter = heapq.heappop(self._sleepers)[2]
            if not waiter.done():
                waiter.set_result(None)

    @property
    def sleepers(self) -> int:
        """Number of sleepers now."""
        self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[2].done()]
        heapq.heapify(self._sleepers)
        return len(self._sleepers)

    async def asleep(self, count: int = 1) -> None:
        """Return when so many sleep: everything else they had to do is done."""
        while self.sleepers < count:
            self._changed.clear()
            await self._changed.wait()
