"""Collects changes of nodes for a moment and applies them together, because computing a new layout
of the table takes long.

changed ──▶ a moment later: nudge ──▶ changed ──▶ lay
"""

import asyncio
from collections.abc import Callable

from weft.kube.clock import Clock

# Seconds that changes are collected, and the largest part of time that may be spent on layouts.
_GATHER_S = 0.03
_LAYING_SHARE = 0.2
_MOST_WAIT_S = 1.0


class NodeBatches:
    """A timer that collects changes. `lay` applies them; `nudge` causes another call of
    `changed`."""

    def __init__(self, clock: Clock, lay: Callable[[], None], nudge: Callable[[], None]) -> None:
        self._clock, self._lay, self._nudge = clock, lay, nudge
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def changed(self, *, at_once: bool) -> None:
        """Apply a change at once, or later together with changes that come soon."""
        if at_once or self._over:
            self.lay()
        elif self._timer is None:
            rest_s = self._not_before - self._clock.monotonic()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(_GATHER_S, rest_s), self._ends)

    def lay(self) -> None:
        """Apply the collected changes now."""
        began = self._clock.monotonic()
        self._over = False
        self._lay()
        ended = self._clock.monotonic()
        self._not_before = ended + min(_MOST_WAIT_S, (ended - began) / _LAYING_SHARE)

    def stop(self) -> None:
        """Stop the timer: from now on changes are only applied on demand."""
        if self._timer is not None:
            self._timer.cancel()

    def _ends(self) -> None:
        self._timer, self._over = None, True
        self._nudge()
