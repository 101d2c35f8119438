"""From scrapes to the snapshot that policies see, by the code that does it on a live cluster.

Only what a live cluster has from the network is made up here: samples that arrive late or never.
Window, columns, freshness, doubts and what residents leave idle are `signals/`' own.
"""

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from weft.core.framework.signals import MISSING, Bytes, Floats, SignalsSnapshot, SignalsView
from weft.core.ledger import Ledger
from weft.core.ledger.table import Ints
from weft.lab.simulate.sharing.exporter import METRICS, Scrape, SimulatedExporters
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.model import Node
from weft.telemetry.feed import memory_needs
from weft.telemetry.feed.load_correlation import SAMPLES, Gpu, SoleTenants
from weft.telemetry.feed.memory_needs import USUAL, WarmUp
from weft.telemetry.feed.peaks import PeakWatch
from weft.telemetry.feed.snapshot import SnapshotBuilder, SnapshotSettings, SnapshotTime
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.doubts import GpuPods
from weft.telemetry.meaning.join import Devices
from weft.telemetry.meaning.metric_names import Metric

_USED = METRICS.index(Metric.MEMORY_USED_MIB)


class ScrapeOptions(msgspec.Struct, frozen=True):
    """How the cards are watched: the period of scrapes, how much of the past is kept, and how long
    pods are held at what they asked.

    `forecasts`, `holds`, `peaks` and `trends` say whether the snapshots have such columns. They are
    most of the work, and no policy of Weft's decides otherwise where it does not lend (holds), no
    pod is latency-critical (forecasts), without 95th percentiles (peaks), or where it is not after
    Kube-Knots (trends).
    """

    scrape_ns: int = 5 * SECOND_NS
    window_ns: int = 300 * SECOND_NS
    forecasts: bool = True
    holds: bool = True
    peaks: bool = True
    trends: bool = True
    warm_up: WarmUp = USUAL

    @property
    def samples(self) -> int:
        """Scrapes in the window."""
        return max(1, self.window_ns // self.scrape_ns)


class SimulatedTelemetry:
    """Takes scrapes as they happen and says what has arrived."""

    def __init__(
        self,
        exporters: SimulatedExporters,
        nodes: Sequence[Node],
        watching: ScrapeOptions,
        delay_ns: int,
    ) -> None:
        self._exporters, self._watching, self._delay_ns = exporters, watching, delay_ns
        self._devices = Devices(nodes)
        scrape_s = watching.scrape_ns / SECOND_NS
        self._window = MetricWindow(METRICS, len(self._devices), watching.samples, scrape_s, 0.0)
        settings = SnapshotSettings(scrape_s, peaks=watching.peaks, trends=watching.trends)
        if not watching.forecasts:
            settings = msgspec.structs.replace(settings, forecast=())
        self._refresher = SnapshotBuilder(self._window, self._devices, settings)
        self._under_way: deque[Scrape] = deque()
        self._arrived: deque[Scrape] = deque(maxlen=watching.samples)
        self._warmed: dict[str, bool] = {}
        self._watch = PeakWatch(watching.warm_up)
        self.bound_ns: dict[str, int] = {}
        """When each pod with a place got it."""
        self.application_of: dict[str, str] = {}
        self._alone = SoleTenants()
        self._applications: dict[int, str] = {}

    def look(self, now_ns: int, ledger: Ledger) -> None:
        """One scrape period is over: look at the cards, and take in what has arrived by now."""
        self._under_way.append(self._exporters.scrape(now_ns))
        now_s = now_ns / SECOND_NS
        self._window.advance(now_s)
        while self._under_way and self._under_way[0].at_ns + self._delay_ns <= now_ns:
            self._arrive(self._under_way.popleft(), now_ns)
        long_s = SAMPLES * self._watching.scrape_ns / SECOND_NS
        alone = self._alone.look(self._only(ledger), now_s, long_s)
        row_of = self._devices.row_of
        self._applications = {row_of[gpu]: self.application_of[uid] for gpu, uid in alone.items()}
        self._refresher.note(now_s, ledger.table.device_memory_promised.copy())

    def told(self, now_ns: int, ledger: Ledger, version: int = 0) -> SignalsSnapshot:
        """What the look at `now_ns` says: the last one, and nothing has happened since.

        `version` 0: one more than last time.
        """
        residents = self._residents(ledger, now_ns)
        now = SnapshotTime(now_ns / SECOND_NS, now_ns, residents, self._applications)
        found = self._refresher.refresh(now, version=version)
        return self._with_holds(ledger, found, now_ns) if self._watching.holds else found

    @property
    def can_wait(self) -> bool:
        """Whether looks that nobody asks about need not be told: each stands for itself."""
        return not self._watching.holds and not self._watching.forecasts

    def _arrive(self, scrape: Scrape, now_ns: int) -> None:
        self._arrived.append(scrape)
        self._window.put_look(scrape.at_ns / SECOND_NS, scrape.values, now_ns / SECOND_NS)

    def _age_s(self, uid: str, now_ns: int) -> float:
        """How long the pod has been bound."""
        return (now_ns - self.bound_ns[uid]) / SECOND_NS if uid in self.bound_ns else np.nan

    def _residents(self, ledger: Ledger, now_ns: int) -> GpuPods:
        """Pods of each GPU, those of them that have warmed up, and what they were promised."""
        pods, warm = np.zeros((2, len(self._devices)), dtype=np.int64)
        for row, (node, gpu) in enumerate(self._devices.gpus):
            ages = [self._age_s(uid, now_ns) for uid in ledger.occupants(node, gpu)]
            pods[row] = len(ages)
            warm[row] = sum(age >= self._watching.warm_up.warm_s for age in ages)
        return GpuPods(pods, warm, ledger.table.device_memory_promised.copy())

    def _only(self, ledger: Ledger) -> dict[Gpu, str]:
        """GPUs with one pod whose application is known."""
        there = {gpu: ledger.occupants(*gpu) for gpu in self._devices.gpus}
        return {
            gpu: uids[0]
            for gpu, uids in there.items()
            if len(uids) == 1 and uids[0] in self.application_of
        }

    def _with_holds(self, ledger: Ledger, found: SignalsSnapshot, now_ns: int) -> SignalsSnapshot:
        """The snapshot with what pods were measured to need of their GPUs, and what not."""
        table = ledger.table
        held = list(ledger.holdings.values())
        rows = memory_needs.rows_of(table, held)
        if not rows.uids or not self._arrived:
            return found
        residents = memory_needs.ResidentRows(
            rows.gpu,
            rows.asked_mib,
            np.array([self._age_s(uid, now_ns) for uid in rows.uids]),
            rows.lends,
            np.array([self._warmed.get(uid, False) for uid in rows.uids]),
            self._series(rows.uids),
            rows.expected_mib,
        )
        _, ages = SignalsView(found).over(table, f"{Metric.MEMORY_USED_MIB}.last")
        answer = memory_needs.holds(
            residents,
            self._cards(table.device_memory_total, ages),
            np.array([(now_ns - one.at_ns) / SECOND_NS for one in self._arrived]),
            self._watching.warm_up,
        )
        self._warmed = dict(zip(rows.uids, answer.warm.tolist(), strict=True))
        idle = memory_needs.idle_by_uid(table, held, rows, answer.idle_mib)
        peaks = self._watch.look(rows.uids, residents, answer)
        return memory_needs.told(found, table, answer, idle, peaks)

    def _series(self, uids: Sequence[str]) -> Floats:
        """Each pod's own use in every scrape that arrived, [P, T], NaN where it was not in it."""
        series = [[one.pods_mib.get(uid, np.nan) for one in self._arrived] for uid in uids]
        return np.array(series, dtype=np.float64)

    def _cards(self, total_mib: Ints, ages: Bytes) -> memory_needs.GpuMemory:
        """The table's devices are in the order of ours: the nodes never change here."""
        used: Floats = np.stack([one.values[_USED] for one in self._arrived], axis=1)
        ages = np.where(np.isnan(used).all(axis=1), MISSING, ages).astype(np.int8)
        return memory_needs.GpuMemory(total_mib, used, ages)
