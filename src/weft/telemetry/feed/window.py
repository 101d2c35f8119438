"""Keeps the last minutes of every metric of every GPU, as rings of float32.

Time is divided into slots of `step_s` seconds; slot k ends at `origin_s + k · step_s`. A sample
belongs to the slot of its own time, whenever it arrives and however often: late, repeated and
out-of-order samples need nothing else, and in one slot the newest counts. Samples older than the
rings are dropped, and so are those further in the future than `most_ahead_s` (the clocks disagree);
samples less far ahead belong to the newest slot.

`rings[metric, gpu, slot % slots]` are NaN without a sample. `last` and `last_at_s` are the newest
sample of all and its time, even if it has left the window.
"""

from collections.abc import Sequence

import numpy as np

from weft.core.ledger.table import Ints
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import Floats

_EPSILON = 1e-6
_NEVER = -(1 << 62)


class MetricWindow:
    """The last samples of every metric of every GPU, in slots of `step_s` seconds. Not thread-safe:
    one task puts and reads."""

    def __init__(
        self, metrics: Sequence[Metric], gpus: int, samples: int, step_s: float, origin_s: float
    ) -> None:
        self.metrics = tuple(metrics)
        self.samples, self.step_s, self.origin_s = samples, step_s, origin_s
        self.most_ahead_s = 2.0 * step_s + 1.0
        self.dropped = {"old": 0, "ahead": 0}
        self._row = {metric: row for row, metric in enumerate(self.metrics)}
        self._slots = samples + 1  # one more: the slot of the present time
        shape = (len(self.metrics), gpus, self._slots)
        self._rings = np.full(shape, np.nan, dtype=np.float32)
        self._into = np.full(shape, -np.inf, dtype=np.float32)  # seconds into the slot
        self.last: Floats = np.full(shape[:2], np.nan)
        self.last_at_s: Floats = np.full(shape[:2], -np.inf)
        self._open = 1
        self._newest_slot = _NEVER
        self.advance(origin_s)

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self._rings.shape[1]

    @property
    def complete(self) -> int:
        """Number (index) of the last slot that has ended."""
        return self._open - 1

    def advance(self, now_s: float) -> int:
        """Drop slots that have left the window at `now_s`; return how many slots ended.

        If the clock was set back by more than the window, the window starts empty."""
        now = int(np.floor((now_s - self.origin_s) / self.step_s + _EPSILON)) + 1
        ended = now - self._open
        if ended < -self.samples or ended >= self._slots:
            self._rings[:], self._into[:] = np.nan, -np.inf
            if ended < 0:
                self.last[:], self.last_at_s[:] = np.nan, -np.inf
                self._newest_slot = _NEVER
            self._open = now
            return abs(ended)
        for slot in range(self._open + 1, now + 1):
            self._rings[:, :, slot % self._slots] = np.nan
            self._into[:, :, slot % self._slots] = -np.inf
        self._open = max(now, self._open)
        return max(ended, 0)

    def put(self, metric: Metric, rows: Ints, times: Floats, values: Floats, now_s: float) -> None:
        """Add samples, in any order; `advance` must have been called with `now_s`."""
        at = self._row[metric]
        if not _in_order(rows, times):  # of several samples in one slot the last one stays
            order = np.argsort(times, kind="stable")
            rows, times, values = rows[order], times[order], values[order]
        slots = np.ceil((times - self.origin_s) / self.step_s - _EPSILON).astype(np.int64)
        ahead = times > now_s + self.most_ahead_s
        old = slots <= self._open - self._slots
        self.dropped["ahead"] += int(ahead.sum())
        self.dropped["old"] += int(old.sum())
        self._newest(at, rows[~ahead], times[~ahead], values[~ahead])
        keep = ~ahead & ~old
        rows, times, values, slots = rows[keep], times[keep], values[keep], slots[keep]
        slots = np.minimum(slots, self._open)
        self._newest_slot = int(slots.max(initial=self._newest_slot))
        into = (times - self.origin_s - (slots - 1) * self.step_s).astype(np.float32)
        ring = slots % self._slots
        newer = into >= self._into[at, rows, ring]
        rows, ring = rows[newer], ring[newer]
        self._into[at, rows, ring] = into[newer]
        self._rings[at, rows, ring] = values[newer]

    def put_scrape(self, at_s: float, values: Floats, now_s: float) -> None:
        """Add one scrape of all GPUs, in the way of `put`: a sample of every metric at `at_s`,
        [metrics, GPUs], NaN where none arrived."""
        came = ~np.isnan(values)
        slot = int(np.ceil((at_s - self.origin_s) / self.step_s - _EPSILON))
        if at_s > now_s + self.most_ahead_s:
            self.dropped["ahead"] += int(came.sum())
            return
        newest = came & (at_s >= self.last_at_s)
        self.last[newest], self.last_at_s[newest] = values[newest], at_s
        if slot <= self._open - self._slots:
            self.dropped["old"] += int(came.sum())
            return
        slot = min(slot, self._open)
        self._newest_slot = max(self._newest_slot, slot)
        into = np.float32(at_s - self.origin_s - (slot - 1) * self.step_s)
        ring = slot % self._slots
        newer = came & (into >= self._into[:, :, ring])
        self._into[:, :, ring][newer] = into
        self._rings[:, :, ring][newer] = values[newer]

    def _newest(self, at: int, rows: Ints, times: Floats, values: Floats) -> None:
        newer = times >= self.last_at_s[at, rows]
        self.last[at, rows[newer]] = values[newer]
        self.last_at_s[at, rows[newer]] = times[newer]

    def slots(self) -> Ints:
        """Return the indexes of the window's slots from the oldest to the newest that has a sample,
        as later slots are empty for all GPUs; only the oldest if there is no sample."""
        oldest = self.complete - self.samples + 1
        return np.arange(oldest, max(oldest, self._newest_slot) + 1)

    def history(self, metric: Metric, slots: Ints | None = None) -> Floats:
        """Return the samples in the complete slots, or in `slots`, oldest first, [g, samples]; NaN
        without a sample."""
        if slots is None:
            slots = np.arange(self.complete - self.samples + 1, self.complete + 1)
        slots = slots % self._slots
        return np.asarray(self._rings[self._row[metric]][:, slots], dtype=np.float64)

    def newest(self, metric: Metric) -> tuple[Floats, Floats]:
        """Return each GPU's newest sample and its time; NaN and −∞ without one."""
        at = self._row[metric]
        return self.last[at], self.last_at_s[at]

    def realign(self, rows: Ints) -> None:
        """Change to other GPUs: new row i is old row `rows[i]`, or an unknown GPU if −1."""
        if self.gpus == 0:
            metrics = len(self.metrics)
            self._rings = np.full((metrics, 1, self._slots), np.nan, dtype=np.float32)
            self._into = np.full((metrics, 1, self._slots), -np.inf, dtype=np.float32)
            self.last, self.last_at_s = (
                np.full((metrics, 1), np.nan),
                np.full((metrics, 1), -np.inf),
            )
        fresh = rows < 0
        self._rings, self._into = self._rings[:, rows], self._into[:, rows]
        self.last, self.last_at_s = self.last[:, rows], self.last_at_s[:, rows]
        self._rings[:, fresh], self.last[:, fresh] = np.nan, np.nan
        self._into[:, fresh], self.last_at_s[:, fresh] = -np.inf, -np.inf


def _in_order(rows: Ints, times: Floats) -> bool:
    """Return True if each GPU's samples are together and oldest first, as servers send them."""
    if len(rows) == 0:
        return True
    same = rows[1:] == rows[:-1]
    if bool((same & (times[1:] < times[:-1])).any()):
        return False
    begins = rows[np.flatnonzero(np.concatenate([[True], ~same]))]
    return len(np.unique(begins)) == len(begins)
