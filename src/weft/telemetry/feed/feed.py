"""The feed from samples and residents to what policies read, for live and simulated clusters alike.

    samples ──▶ windows of GPUs and residents ──▶ columns ──▶ memory needs ──▶ SignalsSnapshot
    ledger  ──▶ residents, promised memory ──────────┴──────────────┘

A tick is `observe` (who holds which GPU), then `put` (samples), then `snapshot`. Pure: times are
passed in. `observe` copies what the ledger has, so that the rest may run in another thread.
"""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from weft.core.framework.signals import Floats, SignalsSnapshot
from weft.core.ledger import Ledger
from weft.model.metric import Metric
from weft.telemetry.feed.doubts import GpuPods
from weft.telemetry.feed.load_correlation import SAMPLES, SoleTenants
from weft.telemetry.feed.memory_needs import USUAL, WarmUp
from weft.telemetry.feed.resident_memory import ObservedResidents, ResidentMemory
from weft.telemetry.feed.snapshot import SnapshotBuilder, SnapshotSettings, SnapshotTime
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.frozen import PodArrivals
from weft.telemetry.meaning.join import Devices, JoinedSamples, PodSamples


class FeedSettings(msgspec.Struct, frozen=True):
    """`samples` slots of `step_s` each are kept of `metrics`. `memory_needs`: whether snapshots say
    what residents need, for which `metrics` must have used memory."""

    metrics: tuple[Metric, ...]
    samples: int
    step_s: float
    snapshot: SnapshotSettings = SnapshotSettings()
    memory_needs: bool = True
    warm_up: WarmUp = USUAL


class TelemetryFeed:
    """Makes a cluster's snapshots. Not thread-safe: the steps of a tick come one after another."""

    def __init__(self, settings: FeedSettings, devices: Devices, origin_s: float) -> None:
        self.settings, self.devices = settings, devices
        self.sole_tenants = SoleTenants()
        self._origin_s = origin_s
        self._memory = ResidentMemory(settings.samples, settings.step_s, origin_s, settings.warm_up)
        self._residents: ObservedResidents | None = None
        self._alone: dict[int, str] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget GPUs' samples: after a tick that failed, they may be half taken in."""
        settings = self.settings
        window = MetricWindow(
            settings.metrics, len(self.devices), settings.samples, settings.step_s, self._origin_s
        )
        self._builder = SnapshotBuilder(window, self.devices, settings.snapshot)

    @property
    def window(self) -> MetricWindow:
        """The GPUs' samples."""
        return self._builder.window

    def follow(self, devices: Devices) -> None:
        """Change to other GPUs; what is known of those that stay is kept."""
        self.devices = devices
        self._builder.realign(devices)

    def observe(self, ledger: Ledger, now_s: float, bound_s: Mapping[str, float]) -> None:
        """Take over who holds which GPU, and since when. The table's GPUs are ordered as ours."""
        self._residents = residents = ObservedResidents.of(ledger, now_s, bound_s)
        self.window.advance(now_s)
        if self.settings.memory_needs:
            self._memory.observe(residents, self.devices.gpus)
        pods = np.bincount(residents.keys.gpu, minlength=len(self.devices))
        rows = dict(zip(residents.keys.gpu.tolist(), residents.keys.uids, strict=True))
        only = {self.devices.gpus[row]: uid for row, uid in rows.items() if pods[row] == 1}
        alone = self.sole_tenants.observe(only, now_s, SAMPLES * self.settings.step_s)
        applications = {
            self.devices.row_of[gpu]: ledger.holdings[uid].placement.application
            for gpu, uid in alone.items()
        }
        self._alone = {row: name for row, name in applications.items() if name}
        self._builder.note(now_s, residents.promised_mib)

    def put(self, samples: JoinedSamples) -> None:
        """Take in samples of one metric, if it is one that is kept."""
        if samples.metric in self.settings.metrics:
            self.window.put(*samples, self._now.now_s)

    def put_scrape(self, at_s: float, values: Floats) -> None:
        """Take in one sample of every metric of every GPU, [metrics, GPUs]; NaN where none came."""
        self.window.put_scrape(at_s, values, self._now.now_s)

    def put_pods(self, samples: Iterable[PodSamples]) -> None:
        """Take in what residents themselves use."""
        if self.settings.memory_needs:
            self._memory.put(samples, self.devices.gpus, self._now.now_s)

    def snapshot(self, at_ns: int, version: int = 0, why: str = "") -> SignalsSnapshot:
        """All that policies may read, as of the last `observe`; `version` 0: one more than last."""
        observed, gpus = self._now, len(self.devices)
        warm = observed.keys.gpu[observed.age_s >= self.settings.warm_up.warm_s]
        pods, warm = (np.bincount(rows, minlength=gpus) for rows in (observed.keys.gpu, warm))
        residents = GpuPods(pods, warm)
        bound_s = observed.now_s - observed.age_s
        arrivals = PodArrivals(observed.keys.gpu, bound_s, self.settings.warm_up.warm_s)
        now = SnapshotTime(observed.now_s, at_ns, residents, self._alone, arrivals)
        made = self._builder.refresh(now, version=version, why=why)
        return (
            self._memory.measure(made, self.window, observed)
            if self.settings.memory_needs
            else made
        )

    def peak_mib(self, uid: str) -> int:
        """The most that the pod was seen to use of a GPU in the window; 0 where nobody saw it."""
        return self._memory.peak_mib(uid)

    @property
    def _now(self) -> ObservedResidents:
        assert self._residents is not None, "observe first"
        return self._residents
