"""The engine's timer, set to the earliest time that the engine asked for."""

import asyncio
from collections.abc import Callable

from weft.kube.clock import Clock


class Alarm:
    """Calls `ring` at the time set by `at`, or slightly early, in which case the engine sets it
    again."""

    def __init__(self, clock: Clock, ring: Callable[[], object]) -> None:
        self._clock, self._ring = clock, ring
        self._at_ns = 0

    def at(self, at_ns: int) -> None:
        """Set the alarm to this time of the clock's `monotonic`, ns, unless an earlier one is
        set."""
        now_ns = int(self._clock.monotonic() * 1e9)
        if now_ns < self._at_ns <= at_ns:
            return
        self._at_ns = at_ns
        delay_s = max(0.001, (at_ns - now_ns) / 1e9)
        asyncio.get_running_loop().call_later(delay_s, self._goes_off)

    def _goes_off(self) -> None:
        self._at_ns = 0
        self._ring()
