"""Gathers changed nodes for a moment and takes them over together, because laying out a table takes
long.

changed ──▶ a moment later: nudge ──▶ changed ──▶ lay
"""

import asyncio
from collections.abc import Callable

from weft.kube.clock import Clock

# Changed nodes are gathered for so long, seconds, and then so that laying takes only this part.
_GATHER_S = 0.03
_LAYING_SHARE = 0.2
_MOST_WAIT_S = 1.0


class NodeBatches:
    """A timer that gathers changes. A timer that gathers changes. `lay` takes over what changed;
    `nudge` has `changed` called again, in its turn."""

    def __init__(self, clock: Clock, lay: Callable[[], None], nudge: Callable[[], None]) -> None:
        self._clock, self._lay, self._nudge = clock, lay, nudge
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def changed(self, *, at_once: bool) -> None:
        """Take over a change at once, or later together with changes that come soon."""
        if at_once or self._over:
            self.lay()
        elif self._timer is None:
            rest_s = self._not_before - self._clock.monotonic()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(_GATHER_S, rest_s), self._ends)

    def lay(self) -> None:
        """Take over what changed, now."""
        began = self._clock.monotonic()
        self._over = False
        self._lay()
        ended = self._clock.monotonic()
        self._not_before = ended + min(_MOST_WAIT_S, (ended - began) / _LAYING_SHARE)

    def stop(self) -> None:
        """Stop the timer: changes are taken over only on demand."""
        if self._timer is not None:
            self._timer.cancel()

    def _ends(self) -> None:
        self._timer, self._over = None, True
        self._nudge()
