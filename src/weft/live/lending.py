"""What pods of a live cluster leave idle of their GPUs' memory: `signals/holds.py`, fed by a look.

The GPUs' series are the looker's; the pods' own are kept here, a value for each slot of the same
time. A pod is as old as its binding in the API, so that a new process knows it at once.
"""

import datetime
from collections.abc import Collection

import numpy as np

from weft.dialects.requests import CLASS
from weft.framework.signals import SignalsSnapshot, SignalsView
from weft.ledger import Ledger
from weft.ledger.table import Ints
from weft.live.pods import PodView
from weft.model.request import LATENCY_CRITICAL
from weft.signals import holds
from weft.signals.peaks import Watch
from weft.signals.telemetry.join import Devices, PodSamples
from weft.signals.telemetry.names import Metric
from weft.signals.telemetry.window import Window

_USED = f"{Metric.MEMORY_USED_MIB}.last"


class Measuring:
    """Keeps what is needed from one look to the next."""

    def __init__(self, ledger: Ledger, pods: PodView) -> None:
        self._ledger, self._pods = ledger, pods
        self._own: dict[tuple[str, int], dict[int, float]] = {}
        self._warmed: dict[str, bool] = {}
        self._watch = Watch()

    def measure(
        self, made: SignalsSnapshot, window: Window, devices: Devices,
        samples: Collection[PodSamples], now_s: float,
    ) -> SignalsSnapshot:  # fmt: skip
        """The snapshot with what GPUs need and pods leave idle, at this time of day."""
        table = self._ledger.table
        held = list(self._ledger.holdings.values())
        rows = holds.rows_of(table, held)
        slots = np.arange(window.complete - window.samples + 1, window.complete + 1)
        self._keep(samples, window, int(slots[0]) if len(slots) else 0)
        at_row = np.array(
            [devices.row_of.get((node.name, gpu.index), -1)
             for node in table.nodes for gpu in node.gpus], dtype=np.int64,
        )  # fmt: skip
        ages = np.append(now_s - (window.origin_s + slots * window.step_s), 0.0)
        ages = np.maximum(ages, 0.0)
        history = np.column_stack(
            [window.history(Metric.MEMORY_USED_MIB), window.newest(Metric.MEMORY_USED_MIB)[0]]
        )
        history = np.vstack([history, np.full(len(ages), np.nan)])
        used = history[at_row]  # −1: the last row, of a GPU that nobody looks at
        fresh = SignalsView(made).over(table, _USED)[1]
        cards = holds.Cards(table.device_memory_total, used, fresh)
        residents = self._residents(rows, at_row, slots, now_s)
        answer = holds.holds(residents, cards, ages)
        self._warmed = dict(zip(rows.uids, answer.warm.tolist(), strict=True))
        idle = holds.idle_by_uid(table, held, rows, answer.idle_mib)
        peaks = self._watch.look(rows.uids, residents, answer)
        return holds.told(made, table, answer, idle, peaks)

    def peak_mib(self, uid: str) -> int:
        """The most that the pod was seen to use of a GPU in the window; 0 where nobody saw it."""
        seen = [max(of.values()) for (pod, _), of in self._own.items() if pod == uid and of]
        return int(np.ceil(max(seen, default=0.0)))

    def _keep(self, samples: Collection[PodSamples], window: Window, oldest: int) -> None:
        """Put each pod's newest value into its slot, and forget what left the window."""
        for one in samples:
            slot = int(np.ceil((one.at_s - window.origin_s) / window.step_s - 1e-6))
            self._own.setdefault((one.pod, one.row), {})[slot] = one.value
        known = {(one.pod, one.row) for one in samples}
        self._own = {
            key: {slot: value for slot, value in series.items() if slot >= oldest}
            for key, series in self._own.items() if key in known
        }  # fmt: skip

    def _residents(
        self, rows: holds.Rows, at_row: Ints, slots: Ints, now_s: float
    ) -> holds.Residents:
        own = np.full((len(rows.uids), len(slots) + 1), np.nan)
        ages = np.full(len(rows.uids), np.nan)
        lends = np.ones(len(rows.uids), dtype=np.bool_)
        for at, (uid, device) in enumerate(zip(rows.uids, rows.gpu.tolist(), strict=True)):
            series = self._own.get((uid, int(at_row[device])), {})
            own[at, :-1] = [series.get(int(slot), np.nan) for slot in slots]
            newest = max(series, default=None)
            if newest is not None and newest >= slots[-1] - 1:
                own[at, -1] = series[newest]
            pod = self._pods.by_uid(uid)
            if pod is None:
                continue
            ages[at] = _age_s(pod.bound_at, now_s)
            lends[at] = (pod.metadata.annotations or {}).get(CLASS) != LATENCY_CRITICAL
        warmed = np.array([self._warmed.get(uid, False) for uid in rows.uids], dtype=np.bool_)
        return holds.Residents(
            rows.gpu, rows.asked_mib, ages, lends, warmed, own, rows.expected_mib
        )


def _age_s(bound_at: str, now_s: float) -> float:
    """How long ago; NaN where nobody says."""
    try:
        return now_s - datetime.datetime.fromisoformat(bound_at).timestamp()
    except ValueError:
        return float("nan")
