"""Each resident's own memory, and since when it has been observed: memory needs go by these.

A pod on a GPU has a row of its own in a `MetricWindow` whose slots are those of the GPUs' window. A
pod is as old as its binding, so that a new process knows it at once. Of pods that were there before
it, it says since when they are observed.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from weft.core.framework.signals import FRESH, Bytes, Floats, SignalsSnapshot, SignalsView
from weft.core.ledger import Holding, Ledger
from weft.core.ledger.table import Ints, LedgerTable
from weft.model.metric import Metric
from weft.telemetry.feed import memory_needs
from weft.telemetry.feed.load_correlation import Gpu
from weft.telemetry.feed.peaks import PeakWatch
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.join import PodSamples

PAUSE_S = 60.0
"""A pod bound longer ago than that was not seen to come, though the last tick was before it."""
USED = Metric.MEMORY_USED_MIB


class ObservedResidents(NamedTuple):
    """Holders of GPUs at `now_s`: a copy, which a thread may read while the ledger goes on.

    `age_s` is how long ago each row of `keys` was bound, NaN where that is not known.
    """

    now_s: float
    table: LedgerTable
    total_mib: Ints
    promised_mib: Ints
    holdings: list[Holding]
    keys: memory_needs.ResidentKeys
    age_s: Floats

    @staticmethod
    def of(ledger: Ledger, now_s: float, bound_s: Mapping[str, float]) -> "ObservedResidents":
        """`bound_s` is when pods were bound, by UID."""
        table, holdings = ledger.table, list(ledger.holdings.values())
        keys = memory_needs.rows_of(table, holdings)
        bound = np.array([bound_s.get(uid, np.nan) for uid in keys.uids], dtype=np.float64)
        total, promised = table.device_memory_total.copy(), table.device_memory_promised.copy()
        return ObservedResidents(now_s, table, total, promised, holdings, keys, now_s - bound)


class ResidentMemory:
    """Keeps what is needed from one tick to the next."""

    def __init__(self, samples: int, step_s: float, origin_s: float, warm_up: memory_needs.WarmUp):
        self._window = MetricWindow([USED], 0, samples, step_s, origin_s)
        self._row_of: dict[tuple[str, Gpu], int] = {}
        self._warmed: dict[str, bool] = {}
        self._since: dict[str, float] = {}
        self._observed_s = np.inf
        self._watch, self._warm_up = PeakWatch(warm_up), warm_up
        self._most: dict[str, float] = {}

    def observe(self, residents: ObservedResidents, gpus: tuple[Gpu, ...]) -> None:
        """Give each resident a row; `gpus` are the table's devices."""
        keys = residents.keys
        pairs = [(uid, gpus[row]) for uid, row in zip(keys.uids, keys.gpu.tolist(), strict=True)]
        if pairs != [*self._row_of]:
            rows = [self._row_of.get(pair, -1) for pair in pairs]
            self._window.realign(np.array(rows, dtype=np.int64))
            self._row_of = {pair: row for row, pair in enumerate(pairs)}
        self._window.advance(residents.now_s)

    def put(self, samples: Iterable[PodSamples], gpus: tuple[Gpu, ...], now_s: float) -> None:
        """Take in what residents use; samples of others, and what is no number, say nothing."""
        rows = (
            (self._row_of.get((sample.pod, gpus[sample.row]), -1), sample.at_s, sample.value)
            for sample in samples
            if sample.metric is USED
        )
        known = [row for row in rows if row[0] >= 0 and np.isfinite(row[2])]
        if known:
            row, times, values = (np.array(column) for column in zip(*known, strict=True))
            self._window.put(USED, row, times, values, now_s)

    def measure(
        self, made: SignalsSnapshot, window: MetricWindow, residents: ObservedResidents
    ) -> SignalsSnapshot:
        """The snapshot with what GPUs need and pods leave idle. `window` is the GPUs'."""
        table, keys = residents.table, residents.keys
        slots = window.slots()
        used, own = (each.history(USED, slots) for each in (window, self._window))
        ages = np.maximum(0.0, residents.now_s - (window.origin_s + slots * window.step_s))
        older = np.isnan(used).all(axis=1)  # than the window
        used[older, -1] = window.newest(USED)[0][older]
        fresh = SignalsView(made).over(table, f"{USED}.last")[1]
        warm = np.array([self._warmed.get(uid, False) for uid in keys.uids], dtype=np.bool_)
        watched_s = self._watched_s(residents, fresh)
        rows = memory_needs.ResidentRows(
            keys.gpu,
            keys.asked_mib,
            residents.age_s,
            keys.lends,
            warm,
            own,
            keys.expected_mib,
            watched_s,
        )
        gpus = memory_needs.GpuMemory(residents.total_mib, used, fresh)
        answer = memory_needs.measure(rows, gpus, ages, self._warm_up)
        now_warm = dict(zip(keys.uids, answer.warm.tolist(), strict=True))
        uids = [holding.placement.uid for holding in residents.holdings]
        self._warmed = {uid: now_warm.get(uid, self._warmed.get(uid, False)) for uid in uids}
        most: dict[str, float] = {}
        for uid, mib in zip(keys.uids, np.nan_to_num(own).max(axis=1).tolist(), strict=True):
            most[uid] = max(most.get(uid, 0.0), mib)
        self._most = most  # at once: another thread may ask for a peak
        idle = memory_needs.idle_by_uid(table, residents.holdings, keys, answer.idle_mib)
        peaks = self._watch.observe(keys.uids, rows, answer)
        return memory_needs.with_memory_needs(made, table, answer, idle, peaks)

    def peak_mib(self, uid: str) -> int:
        """The most that the pod was seen to use of a GPU in the window; 0 where nobody saw it."""
        return int(np.ceil(self._most.get(uid, 0.0)))

    def _watched_s(self, residents: ObservedResidents, fresh: Bytes) -> Floats:
        """Time that each row's pod has been watched: infinite for whoever came between two ticks.

        Another is watched from when its GPU was FRESH first; NaN says that it has not been yet.
        """
        now_s, keys = residents.now_s, residents.keys
        uids = {holding.placement.uid for holding in residents.holdings}
        since = {uid: at_s for uid, at_s in self._since.items() if uid in uids}
        first = not np.isfinite(self._observed_s)
        passed_s = min(now_s - self._observed_s, PAUSE_S) + 1.0  # the API tells whole seconds
        ages_s, is_known = residents.age_s.tolist(), (fresh[keys.gpu] == FRESH).tolist()
        for uid, age_s, is_fresh in zip(keys.uids, ages_s, is_known, strict=True):
            came = not first and (np.isnan(age_s) or age_s <= passed_s)
            at_s = since.setdefault(uid, -np.inf if came else np.nan)
            if np.isnan(at_s) and is_fresh:
                since[uid] = now_s
        self._since, self._observed_s = since, now_s
        watched = now_s - np.array([since[uid] for uid in keys.uids], dtype=np.float64)
        return np.asarray(np.nan_to_num(watched, nan=0.0, posinf=np.inf), dtype=np.float64)
