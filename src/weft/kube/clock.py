"""Clocks, timers and random delays, which tests can replace."""

import asyncio
import datetime
import functools
import random
import time
from collections.abc import Callable
from typing import Protocol

_SOURCE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A monotonic clock in seconds, the wall clock, and sleeping by the monotonic one."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; never decreases."""
        ...

    def wall(self) -> datetime.datetime:
        """Return the time of day, in UTC: for timestamps, never for decisions."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after this much monotonic time has passed."""
        ...


class SystemClock:
    """The machine's clock.

    Monotonic time goes on while the machine is suspended where the system offers such a clock
    (Linux: CLOCK_BOOTTIME): a leader that wakes up from a suspended virtual machine must not
    think that its lease is fresh.
    """

    monotonic = staticmethod(functools.partial(time.clock_gettime, _SOURCE))
    wall = staticmethod(functools.partial(datetime.datetime.now, datetime.UTC))

    async def sleep(self, seconds: float) -> None:
        """Sleep as `asyncio.sleep` does."""
        await asyncio.sleep(seconds)


def rfc3339_micro(moment: datetime.datetime) -> str:
    """Return a time as Kubernetes' MicroTime: `2026-01-31T08:00:00.000000Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Backoff:
    """Delays between attempts: they double from `first_s` to `most_s`, with jitter.

    Each delay is drawn between half and all of the doubled value, so that clients that failed at
    the same time do not retry at the same time.
    """

    def __init__(self, first_s: float, most_s: float, rng: random.Random) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._rng = rng
        self.failures = 0

    def next_s(self) -> float:
        """Return the delay before the next attempt."""
        step = min(self._first_s * 2.0 ** min(self.failures, 30), self._most_s)
        self.failures += 1
        return step * (0.5 + 0.5 * self._rng.random())

    def reset(self) -> None:
        """Begin with the shortest delay again, after a success."""
        self.failures = 0


class Alarm:
    """Calls `ring` at the time set by `at`, or slightly early: then the caller must set the alarm
    again."""

    def __init__(self, clock: Clock, ring: Callable[[], object]) -> None:
        self._clock, self._ring = clock, ring
        self._at_ns = 0

    def at(self, at_ns: int) -> None:
        """Set the alarm to this time of the clock's `monotonic`, in nanoseconds, unless it is set
        to an earlier time."""
        now_ns = int(self._clock.monotonic() * 1e9)
        if now_ns < self._at_ns <= at_ns:
            return
        self._at_ns = at_ns
        delay_s = max(0.001, (at_ns - now_ns) / 1e9)
        asyncio.get_running_loop().call_later(delay_s, self._goes_off)

    def _goes_off(self) -> None:
        self._at_ns = 0
        self._ring()
