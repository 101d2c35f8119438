"""The engine's alarm clock: one timer, for the earliest time that it asked for."""

import asyncio
from collections.abc import Callable

from weft.kube.clock import Clock


class Alarm:
    """Rings at the time that `at` names, or a little early: the engine then asks again."""

    def __init__(self, clock: Clock, ring: Callable[[], object]) -> None:
        self._clock, self._ring = clock, ring
        self._at_ns = 0

    def at(self, at_ns: int) -> None:
        """Ring then, by the clock's `monotonic`, in nanoseconds; if not earlier."""
        now_ns = int(self._clock.monotonic() * 1e9)
        if now_ns < self._at_ns <= at_ns:
            return
        self._at_ns = at_ns
        delay_s = max(0.001, (at_ns - now_ns) / 1e9)
        asyncio.get_running_loop().call_later(delay_s, self._goes_off)

    def _goes_off(self) -> None:
        self._at_ns = 0
        self._ring()
