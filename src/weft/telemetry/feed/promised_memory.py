"""Memory promised of each GPU while its newest sample was taken, and since then.

A reading of free memory is of the pods that were there when it was taken. Whoever left meanwhile is
still in it: without this a card would look full for as long as samples are late.
"""

from collections import deque

import numpy as np

from weft.core.ledger.table import Ints
from weft.telemetry.meaning.metric_values import Floats


class PromisedMemory:
    """The ledger's promises at the last ticks, as long ago as `keep_s`."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._ticks: deque[tuple[float, Ints]] = deque()

    def note(self, wall_s: float, promised_mib: Ints) -> None:
        """Keep one tick: MiB promised of each GPU, [g]. A clock that was put back begins anew."""
        if self._ticks and wall_s < self._ticks[-1][0]:
            self._ticks.clear()
        self._ticks.append((wall_s, promised_mib))
        while len(self._ticks) > 1 and self._ticks[1][0] <= wall_s - self._keep_s:
            self._ticks.popleft()

    def since(self, sampled_s: Floats) -> Floats:
        """The most that was promised from the last tick before `sampled_s` on, [g]; NaN unknown."""
        if not self._ticks:
            return np.full(len(sampled_s), np.nan)
        until = [*(at for at, _ in list(self._ticks)[1:]), np.inf]
        counts = np.array(until)[:, None] > sampled_s
        promises = np.where(counts, np.array([promised for _, promised in self._ticks]), 0)
        return np.asarray(promises.max(axis=0), dtype=np.float64)

    def realign(self, rows: Ints) -> None:
        """GPUs changed: new GPU i is old GPU `rows[i]`, or a new one where −1, promised nothing."""
        self._ticks = deque(
            (at, np.where(rows < 0, 0, np.append(promised, 0)[rows]))
            for at, promised in self._ticks
        )
