"""Computes what policies read from samples and residents, for live and simulated clusters alike.

    samples ──▶ windows of GPUs and residents ──▶ columns ──▶ memory needs ──▶ SignalsSnapshot
    ledger  ──▶ residents, promised memory ──────────┴──────────────┘

A poll is `observe` (which pod holds which GPU), then `put` (samples), then `snapshot`. Pure: times
are passed in. `observe` copies from the ledger, so that the other steps may run in another thread.

The snapshot (`SnapshotBuilder`) has every column that policies may read, made in one pass. It
depends only on the windows and the forecasters' earlier errors: the same windows in the same order
give the same snapshots. Columns are listed in docs/reference/telemetry.md.

An application's load is compared with a GPU's as in Kube-Knots (`LoadCorrelation`). The series of
an application are those of a GPU that one of its pods had alone. Compared with the latest samples
of another GPU, they show whether both peak at the same time:

    correlation = the largest, over memory, SMs and memory bandwidth, of Spearman's rank correlation

A series that does not vary correlates with nothing.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.core.framework.signals import CORRELATION, MISSING, Bytes, SignalsSnapshot, snapshot
from weft.core.ledger import Ledger
from weft.core.ledger.table import Ints
from weft.model.metric import Metric
from weft.telemetry.feed import doubts
from weft.telemetry.feed.doubts import (
    GpuPods,
    MemoryReadings,
    PodArrivals,
    Readings,
    freshness_of,
    frozen_since,
    missing_after_s,
    never_idle,
    stuck_at_one,
)
from weft.telemetry.feed.memory_needs import USUAL, Gpu, ObservedResidents, ResidentMemory, WarmUp
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.forecast import Ar, Ewma, Forecast, FourierAr, Last, Selector
from weft.telemetry.forecast import statistics as stats
from weft.telemetry.forecast.statistics import lag_line, spearman
from weft.telemetry.meaning.answers import Floats
from weft.telemetry.meaning.join import Devices, JoinedSamples, PodSamples

Column = tuple[Floats, Bytes]

USED, FREE, RESERVED = (Metric.MEMORY_USED_MIB, Metric.MEMORY_FREE_MIB, Metric.MEMORY_RESERVED_MIB)
MEMORY = (USED, FREE, Metric.MEMORY_USED_RATIO)
FORECAST = (FREE, Metric.SM_ACTIVE_RATIO)
AT_WORK = (Metric.GPU_UTIL_RATIO, Metric.GRAPHICS_ACTIVE_RATIO)
COMPARED = (
    (USED,),
    (Metric.SM_ACTIVE_RATIO, Metric.GRAPHICS_ACTIVE_RATIO, Metric.GPU_UTIL_RATIO),
    (Metric.DRAM_ACTIVE_RATIO, Metric.MEMORY_COPY_RATIO),
)
"""Metrics by which applications are compared with GPUs: of each group the first metric that is
measured."""
PROMISED = "memory_promised_mib"
"""Column with the most memory of a GPU that was promised to pods at any time since the GPU's newest
sample was taken, MiB."""
LAG = 10
"""Ferikoglou's lag: the number of samples from a value back to the one that it is predicted
from."""
MEAN_S = 60.0
_CARRIED = 2
"""Maximum number of empty slots at the end that are filled with the last sample, as scrapes and
polls drift apart."""
SAMPLES = 20
"""Number of newest samples over which an application's load and a GPU's are correlated; with fewer
samples there is no correlation."""
MOST_APPLICATIONS = 32
"""Maximum number of applications with a column in a snapshot. Those whose pods last had a GPU alone
the longest ago are dropped first."""


class SnapshotSettings(msgspec.Struct, frozen=True):
    """`scrape_s`: seconds between two scrapes of the exporters. `horizon`: number of steps that
    forecasts look ahead, for the metrics in `forecast`. `peaks`, `trends`: whether there are
    columns of 95th percentiles, and of the statistics that the Kube-Knots rules compare."""

    scrape_s: float = 15.0
    horizon: int = 4
    forecast: tuple[Metric, ...] = FORECAST
    peaks: bool = True
    trends: bool = True


class SnapshotTime(NamedTuple):
    """The time of a snapshot, and what the ledger knows: the age of samples is computed from
    `wall_s`, `at_ns` is the engine's time.

    `alone` are GPUs (rows) that one pod of an application has had alone for `SAMPLES` slots;
    `arrivals` say when which pod was bound to which GPU."""

    wall_s: float
    at_ns: int
    residents: GpuPods
    alone: Mapping[int, str] = {}
    arrivals: PodArrivals = PodArrivals(np.zeros(0, dtype=np.int64), np.zeros(0), 0.0)


class FeedSettings(msgspec.Struct, frozen=True):
    """The series that a feed keeps: of each of the `metrics`, `samples` slots of `step_s` seconds.
    `memory_needs`: snapshots include residents' memory needs, which need used memory in `metrics`.
    """

    metrics: tuple[Metric, ...]
    samples: int
    step_s: float
    snapshot: SnapshotSettings = SnapshotSettings()
    memory_needs: bool = True
    warm_up: WarmUp = USUAL


class TelemetryFeed:
    """Makes one cluster's snapshots. Not thread-safe: the steps of a poll come one after
    another."""

    def __init__(self, settings: FeedSettings, devices: Devices, origin_s: float) -> None:
        self.settings, self.devices = settings, devices
        self.sole_tenants = SoleTenants()
        self._origin_s = origin_s
        self._memory = ResidentMemory(settings.samples, settings.step_s, origin_s, settings.warm_up)
        self._residents: ObservedResidents | None = None
        self._alone: dict[int, str] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the GPUs' samples: after a failed poll they may be incomplete."""
        settings = self.settings
        window = MetricWindow(
            settings.metrics, len(self.devices), settings.samples, settings.step_s, self._origin_s
        )
        self._builder = SnapshotBuilder(window, self.devices, settings.snapshot)

    @property
    def window(self) -> MetricWindow:
        """Window of the GPUs' samples."""
        return self._builder.window

    def follow(self, devices: Devices) -> None:
        """Change to other GPUs; the samples of GPUs that stay are kept."""
        self.devices = devices
        self._builder.realign(devices)

    def observe(self, ledger: Ledger, now_s: float, bound_s: Mapping[str, float]) -> None:
        """Copy from the ledger which pod holds which GPU, and since when. The ledger's GPUs must be
        in the order of `devices`."""
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
        """Add samples of one metric; ignored if the metric is not in the settings."""
        if samples.metric in self.settings.metrics:
            self.window.put(*samples, self._now.now_s)

    def put_scrape(self, at_s: float, values: Floats) -> None:
        """Add one sample of every metric of every GPU, [metrics, GPUs]; NaN where none arrived."""
        self.window.put_scrape(at_s, values, self._now.now_s)

    def put_pods(self, samples: Iterable[PodSamples]) -> None:
        """Add samples of single pods' own use of GPUs."""
        if self.settings.memory_needs:
            self._memory.put(samples, self.devices.gpus, self._now.now_s)

    def snapshot(self, at_ns: int, version: int = 0, why: str = "") -> SignalsSnapshot:
        """Return all columns as of the last `observe`. `version` 0 stands for the last snapshot's
        version plus 1."""
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
        """Return the most GPU memory that the pod was seen to use within the window, MiB; 0 if
        unknown."""
        return self._memory.peak_mib(uid)

    @property
    def _now(self) -> ObservedResidents:
        assert self._residents is not None, "observe first"
        return self._residents


# --- the snapshot --------------------------------------------------------------------------------


AllSeries = dict[Metric, Readings]
Freshness = dict[Metric, Bytes]


class SnapshotBuilder:
    """Makes snapshots from one window of GPUs' samples."""

    def __init__(self, window: MetricWindow, devices: Devices, settings: SnapshotSettings) -> None:
        self.window, self.devices, self.settings = window, devices, settings
        self.version = 0
        makers = (Last(), Ewma(0.3), Ar(1), Ar(2), FourierAr(8, 1))
        self._selectors = {
            metric: Selector(makers, len(devices), settings.horizon) for metric in settings.forecast
        }
        self._promised = PromisedMemory(window.samples * window.step_s)
        self._load_correlation = LoadCorrelation()
        self._seen_slot = window.complete
        self._forecast_of: dict[Metric, Forecast] = {}

    def realign(self, devices: Devices) -> None:
        """Change to other GPUs; the samples of GPUs that stay are kept."""
        before = self.devices.row_of
        rows: Ints = np.array([before.get(gpu, -1) for gpu in devices.gpus], dtype=np.int64)
        self.devices = devices
        self.window.realign(rows)
        for selector in self._selectors.values():
            selector.realign(rows)
        self._promised.realign(rows)
        self._forecast_of = {}

    def note(self, wall_s: float, promised_mib: Ints) -> None:
        """Record the memory promised of each GPU at this poll, whether or not a snapshot
        follows."""
        self._promised.note(wall_s, promised_mib)

    def refresh(self, now: SnapshotTime, *, version: int = 0, why: str = "") -> SignalsSnapshot:
        """Return all columns as of `now`. `version` 0 stands for the last snapshot's version plus
        1."""
        self.version = version or self.version + 1
        self.window.advance(now.wall_s)
        series = self._series()
        columns: dict[str, Column] = {}
        fresh: Freshness = {}
        for metric, samples in series.items():
            fresh[metric] = freshness_of(now.wall_s - samples.last_at_s, self.settings.scrape_s)
        self._doubt(series, fresh, now.residents)
        self._age_frozen(series, fresh, now)
        for metric, samples in series.items():
            if bool((fresh[metric] != MISSING).any()):
                columns.update(self._plain(metric, samples, fresh[metric]))
        if self.settings.trends:
            columns.update(self._memory(series, fresh))
        columns.update(self._promises(series, fresh))
        columns.update(self._forecasts(series, fresh))
        columns.update(self._correlations(series, fresh, now.alone))
        gpus = self.devices.gpus
        return snapshot(self.version, now.at_ns, gpus, columns, why=why)

    # --- what is there -------------------------------------------------------------------------

    def _series(self) -> AllSeries:
        """Return the readings of every metric of the window; used and free memory are also computed
        from each other where one is missing."""
        series = {
            m: Readings(self.window.history(m), *self.window.newest(m)) for m in self.window.metrics
        }
        nothing = np.zeros(self.devices.total_mib.shape)
        total = self.devices.total_mib.astype(np.float64)
        reserved = series.get(RESERVED)
        reserved_mib = nothing if reserved is None else np.nan_to_num(reserved.last)
        ratio = series.get(Metric.MEMORY_USED_RATIO)
        if USED in series and ratio is not None:
            whole = Readings(ratio.history * total[:, None], ratio.last * total, ratio.last_at_s)
            series[USED] = _or_else(series[USED], whole)
        if USED in series and FREE in series:
            used, free = series[USED], series[FREE]
            series[USED] = _or_else(used, _rest(total - reserved_mib, free))
            series[FREE] = _or_else(free, _rest(total - reserved_mib, used))
        return series

    def _doubt(self, series: AllSeries, fresh: Freshness, residents: GpuPods) -> None:
        """Set `fresh` to MISSING where the newest numbers cannot be true."""
        false = doubts.false_memory(self._memory_now(series), self.devices.total_mib, residents)
        for metric in MEMORY:
            if metric in fresh:
                fresh[metric][false] = MISSING
        recent: dict[Metric, Floats] = {
            metric: np.column_stack([samples.history[:, -self._slots_of(MEAN_S) :], samples.last])
            for metric, samples in series.items()
            if metric.endswith("_ratio") and metric is not Metric.MEMORY_USED_RATIO
        }
        for metric, values in recent.items():
            fresh[metric][stuck_at_one(values, residents)] = MISSING
        if Metric.SM_ACTIVE_RATIO in recent:
            sm = Metric.SM_ACTIVE_RATIO
            for work in (metric for metric in AT_WORK if metric in recent):
                false = doubts.false_activity(recent[sm], recent[work])
                fresh[sm][false] = fresh[work][false] = MISSING
        if Metric.DRAM_ACTIVE_RATIO in recent:
            dram = Metric.DRAM_ACTIVE_RATIO
            fresh[dram][never_idle(recent[dram])] = MISSING
        if Metric.POWER_W in series:
            fresh[Metric.POWER_W][series[Metric.POWER_W].last <= 0.0] = MISSING

    def _age_frozen(self, series: AllSeries, fresh: Freshness, now: SnapshotTime) -> None:
        """Lower the freshness of readings that should have changed but did not, by the age of their
        last change."""
        window, scrape_s = self.window, self.settings.scrape_s
        slots = np.arange(window.complete - window.samples + 1, window.complete + 1)
        ends_s: Floats = (window.origin_s + slots * window.step_s).astype(np.float64)
        gone_s = now.wall_s - missing_after_s(scrape_s)
        frozen = frozen_since(series, ends_s, now.arrivals, gone_s)
        for metric, at_s in frozen.items():
            age_s = np.where(np.isinf(at_s), 0.0, now.wall_s - at_s)
            fresh[metric] = np.minimum(fresh[metric], freshness_of(age_s, scrape_s))

    def _memory_now(self, series: AllSeries) -> MemoryReadings:
        """Return the newest readings of memory, and a mask of GPUs whose used and free memory were
        read together."""
        unknown = np.full(len(self.devices), np.nan)
        nothing = Readings(unknown[:, None], unknown, unknown)
        used, free, reserved = (series.get(metric, nothing) for metric in (USED, FREE, RESERVED))
        with np.errstate(invalid="ignore"):
            apart_s = np.abs(used.last_at_s - free.last_at_s)
            at_once = apart_s < 0.5 * self.window.step_s
        return MemoryReadings(used.last, free.last, np.nan_to_num(reserved.last), at_once)

    # --- columns -------------------------------------------------------------------------------

    def _slots_of(self, seconds: float) -> int:
        return max(1, round(seconds / self.window.step_s))

    def _plain(self, metric: Metric, series: Readings, fresh: Bytes) -> dict[str, Column]:
        """Return the columns of one metric: mean over the last minute, newest sample, and 95th
        percentile of the window."""
        recent = series.history[:, -self._slots_of(MEAN_S) :]
        known = ~np.isnan(recent)
        counts = known.sum(axis=1)
        mean = np.where(known, recent, 0.0).sum(axis=1) / np.maximum(counts, 1)
        # For samples older than a minute, but not MISSING, the newest counts.
        mean = np.where(counts > 0, mean, series.last)
        columns = {metric.value: (mean, fresh), f"{metric}.last": (series.last, fresh)}
        if self.settings.peaks:
            whole = stats.pack(series.history)
            peak = stats.quantile_interpolated(whole, 0.95)
            columns[f"{metric}.p95"] = (np.where(whole.counts > 0, peak, series.last), fresh)
        return columns

    def _memory(self, series: AllSeries, fresh: Freshness) -> dict[str, Column]:
        """Return the columns of memory statistics that the Kube-Knots rules compare."""
        columns: dict[str, Column] = {}
        if USED in series:
            used = stats.pack(series[USED].history)
            columns[f"{USED}.p80"] = (stats.quantile_at_index(used, 0.8), fresh[USED])
            columns["window.samples"] = (used.counts.astype(np.float64), fresh[USED])
        if FREE in series:
            free = stats.pack(series[FREE].history)
            line = lag_line(free, LAG)
            with np.errstate(invalid="ignore"):
                predicted = line.intercept + line.slope * _at_end(free)
            columns[f"{FREE}.cov"] = (stats.coefficient_of_variation(free), fresh[FREE])
            columns[f"{FREE}.autocorrelation"] = (stats.autocorrelation(free, LAG), fresh[FREE])
            columns[f"{FREE}.predicted"] = (predicted, fresh[FREE])
        return {name: (values, _known(values, age)) for name, (values, age) in columns.items()}

    def _promises(self, series: AllSeries, fresh: Freshness) -> dict[str, Column]:
        """Return the column of promised memory, which is needed to interpret free memory (see
        `PromisedMemory`)."""
        read = FREE if FREE in series else USED
        if read not in series:
            return {}
        most = self._promised.since(series[read].last_at_s)
        return {PROMISED: (most, _known(most, fresh[read]))}

    def _correlations(
        self, series: AllSeries, fresh: Freshness, alone: Mapping[int, str]
    ) -> dict[str, Column]:
        """Return the columns of each application's correlation with each GPU, by memory, SMs and
        bandwidth as far as measured."""
        known = {metric for metric, ages in fresh.items() if bool((ages != MISSING).any())}
        if USED not in known:
            return {}
        compared = [[metric for metric in kind if metric in known] for kind in COMPARED]
        metrics = [kind[0] for kind in compared if kind]
        histories = {metric.value: _carried(series[metric].history) for metric in metrics}
        oldest = np.min([fresh[metric] for metric in metrics], axis=0)
        return {
            f"{CORRELATION}.{application}": (values, _known(values, oldest))
            for application, values in self._load_correlation.observe(histories, alone).items()
        }

    def _forecasts(self, series: AllSeries, fresh: Freshness) -> dict[str, Column]:
        """Return columns of the best forecaster's predictions: each metric's mean at the end of
        the horizon, and for free memory also its bounds within the horizon; all clipped to the
        possible range."""
        columns: dict[str, Column] = {}
        passed = min(max(self.window.complete - self._seen_slot, 1), self.settings.horizon)
        again = self.window.complete == self._seen_slot
        self._seen_slot = self.window.complete
        for metric, selector in self._selectors.items():
            if metric not in series:
                continue
            history = _carried(series[metric].history)
            if metric not in self._forecast_of:
                selector.warm(history, self.settings.horizon + 1)
                self._forecast_of[metric] = selector.tick(history)
            elif not again:  # without new slots there is nothing to learn from
                for ago in range(passed - 1, 0, -1):
                    selector.tick(history[:, :-ago])
                self._forecast_of[metric] = selector.tick(history)
            forecast = self._forecast_of[metric]
            largest = self.devices.total_mib.astype(np.float64) if metric is FREE else 1.0
            named = {"next": forecast.mean[:, -1]}
            if metric is FREE:
                named["next_low"], named["next_high"] = (
                    forecast.lower.min(axis=1),
                    forecast.upper.max(axis=1),
                )
            for name, values in named.items():
                bounded = np.clip(values, 0.0, largest)
                columns[f"{metric}.{name}"] = (bounded, _known(bounded, fresh[metric]))
        return columns


def _or_else(first: Readings, second: Readings) -> Readings:
    """Return, for each GPU, the readings of `first` if it has any sample, else those of
    `second`."""
    use = np.isneginf(first.last_at_s)
    return Readings(
        np.where(use[:, None], second.history, first.history),
        np.where(use, second.last, first.last),
        np.where(use, second.last_at_s, first.last_at_s),
    )


def _rest(total: Floats, part: Readings) -> Readings:
    """Return `total` less `part`, never below 0."""
    return Readings(
        np.maximum(total[:, None] - part.history, 0.0),
        np.maximum(total - part.last, 0.0),
        part.last_at_s,
    )


def _known(values: Floats, fresh: Bytes) -> Bytes:
    """Return the freshness of a column: MISSING where it has no value, however fresh its source
    is."""
    return np.where(np.isnan(values), MISSING, fresh).astype(np.int8)


def _at_end(series: stats.PackedSeries) -> Floats:
    """Return the newest sample of packed series."""
    if series.values.shape[1] == 0:
        return np.full(len(series.counts), np.nan)
    last = np.maximum(series.counts - 1, 0)
    return np.asarray(np.take_along_axis(series.values, last[:, None], axis=1)[:, 0])


def _carried(history: Floats) -> Floats:
    """Return the history with up to `_CARRIED` empty slots at its end filled with the last
    sample."""
    filled = history.copy()
    for back in range(min(_CARRIED, history.shape[1] - 1), 0, -1):
        column, before = filled[:, -back], filled[:, -back - 1]
        filled[:, -back] = np.where(np.isnan(column), before, column)
    return filled


# --- what was promised, and who was alone ---------------------------------------------------------


class PromisedMemory:
    """Memory promised to pods at each poll of the last `keep_s` seconds.

    A reading of free memory still includes the use by pods that have left since it was taken. The
    promises to these pods explain that use: otherwise a card would look full for as long as samples
    are late."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._ticks: deque[tuple[float, Ints]] = deque()

    def note(self, wall_s: float, promised_mib: Ints) -> None:
        """Record one poll: MiB promised of each GPU, [g]. If the clock was set back, earlier polls
        are dropped."""
        if self._ticks and wall_s < self._ticks[-1][0]:
            self._ticks.clear()
        self._ticks.append((wall_s, promised_mib))
        while len(self._ticks) > 1 and self._ticks[1][0] <= wall_s - self._keep_s:
            self._ticks.popleft()

    def since(self, sampled_s: Floats) -> Floats:
        """Return the most that was promised of each GPU from the last poll before `sampled_s` until
        now, MiB, [g]; NaN if unknown."""
        if not self._ticks:
            return np.full(len(sampled_s), np.nan)
        until = [*(at for at, _ in list(self._ticks)[1:]), np.inf]
        counts = np.array(until)[:, None] > sampled_s
        promises = np.where(counts, np.array([promised for _, promised in self._ticks]), 0)
        return np.asarray(promises.max(axis=0), dtype=np.float64)

    def realign(self, rows: Ints) -> None:
        """Reorder the GPUs: GPU i was GPU `rows[i]`, or is new (−1) and had nothing promised."""
        self._ticks = deque(
            (at, np.where(rows < 0, 0, np.append(promised, 0)[rows]))
            for at, promised in self._ticks
        )


class SoleTenants:
    """Pods that have a GPU alone, and since when."""

    def __init__(self) -> None:
        self.since: dict[Gpu, tuple[str, float]] = {}

    def observe(self, only: Mapping[Gpu, str], now_s: float, for_s: float) -> dict[Gpu, str]:
        """Take the UID of the only pod on each GPU that has just one (`only`). Return the UIDs, by
        GPU, of pods that have been alone on it for at least `for_s` seconds."""
        before = self.since
        self.since = {
            gpu: before[gpu] if before.get(gpu, ("", 0.0))[0] == uid else (uid, now_s)
            for gpu, uid in only.items()
        }
        return {gpu: uid for gpu, (uid, at_s) in self.since.items() if now_s - at_s >= for_s}


class LoadCorrelation:
    """Correlates applications, by their series from a GPU that they had alone, with other GPUs;
    series are [g, samples] for each metric."""

    def __init__(self) -> None:
        self._metrics: tuple[str, ...] = ()
        self._known: dict[str, Floats] = {}

    def observe(self, series: Mapping[str, Floats], alone: Mapping[int, str]) -> dict[str, Floats]:
        """Return every known application's correlation with each GPU, [g]; `series` has the GPUs'
        samples by metric.

        `alone` are GPUs (rows) that one pod of an application has had alone for `SAMPLES` slots.
        The result is NaN where a GPU's series has gaps. Only the newest `SAMPLES` samples are
        compared."""
        if tuple(series) != self._metrics:
            self._metrics = tuple(series)
            self._known.clear()  # known series of other metrics cannot be compared
        self._learn([*series.values()], alone)
        return self._correlations([*series.values()])

    def _learn(self, series: Sequence[Floats], alone: Mapping[int, str]) -> None:
        for row, application in sorted(alone.items()):
            newest = np.array([values[row, -SAMPLES:] for values in series])
            if newest.shape[1] < SAMPLES or bool(np.isnan(newest).any()):
                continue
            self._known.pop(application, None)
            self._known[application] = newest
        for application in list(self._known)[:-MOST_APPLICATIONS]:
            del self._known[application]

    def _correlations(self, series: Sequence[Floats]) -> dict[str, Floats]:
        if not self._known or series[0].shape[1] < SAMPLES:
            return {}
        known = np.array([*self._known.values()])
        by_metric = [
            spearman(known[:, metric], values[:, -SAMPLES:]) for metric, values in enumerate(series)
        ]
        return dict(zip(self._known, np.maximum.reduce(by_metric), strict=True))
