"""What pods of a live cluster leave idle of their GPUs' memory: `telemetry/feed/memory_needs.py`,
fed by a look.

The GPUs' series are the looker's; the pods' own are kept here, a value for each slot of the same
time. A pod is as old as its binding in the API, so that a new process knows it at once. Of pods
that were there before it, it says since when they are watched.

`note` copies on the loop what the cluster has; `measure` works on that alone, in any thread.
"""

import datetime
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from weft.cluster.state.pods import PodView
from weft.core.framework.signals import FRESH, Bytes, Floats, SignalsSnapshot, SignalsView
from weft.core.ledger import Holding, Ledger
from weft.core.ledger.table import Ints, LedgerTable
from weft.kube.pods import Pod
from weft.telemetry.feed import memory_needs
from weft.telemetry.feed.load_correlation import Gpu
from weft.telemetry.feed.peaks import PeakWatch
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.join import Devices, PodSamples
from weft.telemetry.meaning.metric_names import Metric

PAUSE_S = 60.0
"""Who was bound longer ago than that was not seen to come, though the last look was before it."""
_USED = f"{Metric.MEMORY_USED_MIB}.last"


class ObservedCluster(NamedTuple):
    """What a look goes by of the cluster at `now_s`, seconds since 1970: `pods` are by UID."""

    now_s: float
    table: LedgerTable
    total_mib: Ints
    held: list[Holding]
    pods: dict[str, Pod | None]


class MemoryNeedsFeed:
    """Keeps what is needed from one look to the next."""

    def __init__(
        self, ledger: Ledger, pods: PodView, warm_up: memory_needs.WarmUp = memory_needs.USUAL
    ) -> None:
        self._ledger, self._pods = ledger, pods
        self._own: Mapping[tuple[str, Gpu], Mapping[int, float]] = {}
        self._origin_s = 0.0
        self._warmed: dict[str, bool] = {}
        self._since: dict[str, float] = {}
        self._looked_s = np.inf
        self._watch, self._warm_up = PeakWatch(warm_up), warm_up

    def note(self, now_s: float) -> ObservedCluster:
        """On the loop: what `measure` needs. Nothing of it changes any more."""
        table, held = self._ledger.table, list(self._ledger.holdings.values())
        pods = {one.placement.uid: self._pods.by_uid(one.placement.uid) for one in held}
        return ObservedCluster(now_s, table, table.device_memory_total.copy(), held, pods)

    def measure(
        self,
        made: SignalsSnapshot,
        window: MetricWindow,
        devices: Devices,
        samples: Collection[PodSamples],
        noted: ObservedCluster,
    ) -> SignalsSnapshot:
        """The snapshot with what GPUs need and pods leave idle, at this time of day."""
        table, now_s = noted.table, noted.now_s
        rows = memory_needs.rows_of(table, noted.held)
        slots = np.arange(window.complete - window.samples + 1, window.complete + 1)
        self._keep(samples, window, devices, int(slots[0]) if len(slots) else 0)
        gpus = [(node.name, gpu.index) for node in table.nodes for gpu in node.gpus]
        at_row = np.array([devices.row_of.get(gpu, -1) for gpu in gpus], dtype=np.int64)
        ages = np.append(now_s - (window.origin_s + slots * window.step_s), 0.0)
        ages = np.maximum(ages, 0.0)
        history = np.column_stack(
            [window.history(Metric.MEMORY_USED_MIB), window.newest(Metric.MEMORY_USED_MIB)[0]]
        )
        history = np.vstack([history, np.full(len(ages), np.nan)])
        used = history[at_row]  # −1: the last row, of a GPU that nobody looks at
        fresh = SignalsView(made).over(table, _USED)[1]
        cards = memory_needs.GpuMemory(noted.total_mib, used, fresh)
        residents = self._residents(rows, gpus, slots, noted)
        residents = residents._replace(watched_s=self._watched_s(rows, residents, fresh, noted))
        answer = memory_needs.holds(residents, cards, ages, self._warm_up)
        found = dict(zip(rows.uids, answer.warm.tolist(), strict=True))
        self._warmed = {uid: found.get(uid, self._warmed.get(uid, False)) for uid in noted.pods}
        idle = memory_needs.idle_by_uid(table, noted.held, rows, answer.idle_mib)
        peaks = self._watch.look(rows.uids, residents, answer)
        return memory_needs.told(made, table, answer, idle, peaks)

    def peak_mib(self, uid: str) -> int:
        """The most that the pod was seen to use of a GPU in the window; 0 where nobody saw it."""
        seen = [max(of.values()) for (pod, _), of in self._own.items() if pod == uid and of]
        return int(np.ceil(max(seen, default=0.0)))

    def _keep(
        self, samples: Collection[PodSamples], window: MetricWindow, devices: Devices, oldest: int
    ) -> None:
        """Put each pod's newest value into its slot, and forget what left the window.

        Another window counts its slots from another time.
        """
        moved = round((self._origin_s - window.origin_s) / window.step_s) if self._own else 0
        own: dict[tuple[str, Gpu], dict[int, float]] = {}
        for one in samples:
            key = one.pod, devices.gpus[one.row]
            before = self._own.get(key, {}).items()
            series = {at + moved: value for at, value in before if at + moved >= oldest}
            slot = int(np.ceil((one.at_s - window.origin_s) / window.step_s - 1e-6))
            if slot >= oldest and np.isfinite(one.value):
                series[slot] = one.value
            own[key] = series
        self._own, self._origin_s = own, window.origin_s  # at once: the loop may ask for a peak

    def _residents(
        self, rows: memory_needs.ResidentKeys, gpus: list[Gpu], slots: Ints, noted: ObservedCluster
    ) -> memory_needs.ResidentRows:
        own = np.full((len(rows.uids), len(slots) + 1), np.nan)
        ages = np.full(len(rows.uids), np.nan)
        numbers = slots.tolist()
        for at, (uid, device) in enumerate(zip(rows.uids, rows.gpu.tolist(), strict=True)):
            series = self._own.get((uid, gpus[device]), {})
            if series:
                own[at, :-1] = [series.get(slot, np.nan) for slot in numbers]
            newest = max(series, default=None)
            if newest is not None and newest >= slots[-1] - 1:
                own[at, -1] = series[newest]
            pod = noted.pods.get(uid)
            if pod is not None:
                ages[at] = _age_s(pod.bound_at, noted.now_s)
        warmed = np.array([self._warmed.get(uid, False) for uid in rows.uids], dtype=np.bool_)
        return memory_needs.ResidentRows(
            rows.gpu, rows.asked_mib, ages, rows.lends, warmed, own, rows.expected_mib
        )

    def _watched_s(
        self,
        rows: memory_needs.ResidentKeys,
        residents: memory_needs.ResidentRows,
        fresh: Bytes,
        noted: ObservedCluster,
    ) -> Floats:
        """How long each row's pod has been watched: infinite for whoever came between two looks.

        Another is watched from when its GPU was FRESH first; NaN says that it has not been yet.
        """
        since = {uid: at_s for uid, at_s in self._since.items() if uid in noted.pods}
        first = not np.isfinite(self._looked_s)
        passed_s = min(noted.now_s - self._looked_s, PAUSE_S) + 1.0  # told in whole seconds
        seen = zip(
            rows.uids, residents.age_s.tolist(), (fresh[rows.gpu] == FRESH).tolist(), strict=True
        )
        for uid, age_s, is_fresh in seen:
            came = not first and (np.isnan(age_s) or age_s <= passed_s)
            at_s = since.setdefault(uid, -np.inf if came else np.nan)
            if np.isnan(at_s) and is_fresh:
                since[uid] = noted.now_s
        self._since, self._looked_s = since, noted.now_s
        watched = noted.now_s - np.array([since[uid] for uid in rows.uids], dtype=np.float64)
        return np.asarray(np.nan_to_num(watched, nan=0.0, posinf=np.inf), dtype=np.float64)


def _age_s(bound_at: str, now_s: float) -> float:
    """How long ago; NaN where nobody says."""
    try:
        return now_s - datetime.datetime.fromisoformat(bound_at).timestamp()
    except ValueError:
        return float("nan")
