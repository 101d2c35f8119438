"""Estimates for each GPU how long it is held, from the expected running times of its pods. This is
needed whenever a place to keep is chosen. As a large cluster has too many pods to compute all of
them each time, only changed GPUs are updated, and the oldest of the outdated ones."""

import numpy as np

from weft.core.engine.durations import AGAIN_NS, SECOND_NS, RunHistory
from weft.core.ledger import FAR, Ledger
from weft.core.ledger.table import Bools, Ints

UNKNOWN_WAIT_S = 30 * 86_400
"""Where places are compared, a pod of unknown end is taken to hold its GPU for this long."""
MOST_CHANGED, MOST_OLD = 8, 64
"""Changed nodes are updated at once if there are more than `MOST_CHANGED`; each time waits are
asked for (`seconds`), at most `MOST_OLD` nodes with outdated values are updated."""


class GpuWaits:
    """The time at which each GPU is free, [D]: 0 if it is free now, `FAR` if unknown."""

    def __init__(self, ledger: Ledger, durations: RunHistory) -> None:
        self._ledger, self._durations = ledger, durations
        self._changed = ledger.follow()
        self._generation = -1
        self._ends: Ints = np.zeros(0, dtype=np.int64)
        self._start: Ints = np.zeros(0, dtype=np.int64)
        self._asked_ns: Ints = np.zeros(0, dtype=np.int64)

    def seconds(self, now_ns: int) -> Ints:
        """Return the seconds until the holders of each GPU are expected to have ended, [D]."""
        self.keep_up(now_ns, 0)
        for row in self._old(now_ns):
            self._work_out(row, now_ns)
        left = np.maximum((self._ends - now_ns) // SECOND_NS, 1)
        waits = np.where(self._ends >= FAR, UNKNOWN_WAIT_S, left)
        return np.where(self._ends == 0, 0, waits)

    def keep_up(self, now_ns: int, most: int = MOST_CHANGED) -> None:
        """Update the values of changed nodes, if these are more than `most`."""
        if len(self._changed) <= most and self._generation == self._ledger.generation:
            return
        self._follow_layout()
        for row in self._changed:
            self._work_out(row, now_ns)
        self._changed.clear()

    def _follow_layout(self) -> None:
        """Carry the values of unchanged nodes over to a new layout of nodes."""
        ledger, table = self._ledger, self._ledger.table
        if self._generation == ledger.generation:
            return
        then = ledger.rows_then(self._generation)
        if then is None:
            then = np.full(table.count, -1, dtype=np.int64)
        ends: Ints = np.zeros(table.devices, dtype=np.int64)
        asked: Ints = np.zeros(table.count, dtype=np.int64)
        before = then.take(table.device_node)
        devices = np.flatnonzero(before >= 0)
        start: Ints = np.asarray(table.start, dtype=np.int64)
        at = devices - start.take(table.device_node.take(devices))
        ends[devices] = self._ends.take(self._start.take(before.take(devices)) + at)
        known = np.flatnonzero(then >= 0)
        asked[known] = self._asked_ns.take(then.take(known))
        self._changed.update(np.flatnonzero(then < 0).tolist())
        self._generation, self._start = ledger.generation, start
        self._ends, self._asked_ns = ends, asked

    def _old(self, now_ns: int) -> list[int]:
        """Return the rows of nodes with outdated values (a pod should have ended, or its end was
        unknown a while ago): the oldest, at most `MOST_OLD`."""
        table = self._ledger.table
        over = (self._ends > 0) & (self._ends <= now_ns)
        unknown = self._ends >= FAR
        held: Bools = np.zeros(table.count, dtype=np.bool_)
        held[table.device_node.take(np.flatnonzero(over | unknown))] = True
        rows = np.flatnonzero(held)
        rows = rows[self._asked_ns.take(rows) + AGAIN_NS <= now_ns]
        oldest = np.argsort(self._asked_ns.take(rows), kind="stable")
        found: list[int] = rows.take(oldest[:MOST_OLD]).tolist()
        return found

    def _work_out(self, row: int, now_ns: int) -> None:
        table = self._ledger.table
        begin = int(self._start[row])
        ends = [0] * int(table.gpus[row])
        for holding in self._ledger.pods_on(table.nodes[row].name):
            place = holding.placement
            half_ns = self._durations.ends_at(place.uid, now_ns)
            for share in place.shares:
                if (at := table.device_row(row, share.gpu) - begin) >= 0:
                    ends[at] = max(ends[at], FAR if half_ns is None else half_ns)
        self._ends[begin : begin + len(ends)] = ends
        self._asked_ns[row] = now_ns
