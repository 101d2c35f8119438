"""Polls metrics, and passes the engine a new snapshot after each poll.

  source ──samples──▶ joiner ──▶ TelemetryFeed ──SignalsChanged──▶ engine
                         ▲ ledger: pods on each GPU; API: when they were bound

A poll never fails. Without an answer the snapshot is made from the samples still in the window:
ages grow, values become STALE and then MISSING. Errors are logged once per kind, and counted. The
heavy part runs in a thread; the engine gets the snapshot on the event loop, and no decision waits
for it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from prometheus_client.metrics_core import Metric as MetricFamily

from weft.cluster.control.fault_log import LogOnce
from weft.cluster.control.interface import ClusterView
from weft.cluster.http.metric_families import counter, gauge
from weft.cluster.telemetry.running_pods import time_s
from weft.cluster.telemetry.slowdown_observer import SlowdownObserver
from weft.core.engine import SignalsChanged
from weft.core.framework.signals import FRESH, MISSING, STALE, SignalsSnapshot, SignalsView
from weft.core.ledger.table import LedgerTable
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias
from weft.telemetry.feed.feed import FeedSettings, SnapshotSettings, TelemetryFeed
from weft.telemetry.feed.memory_needs import USUAL, WarmUp
from weft.telemetry.meaning.answers import KINDS
from weft.telemetry.meaning.join import Devices, JoinFailure, SeriesJoiner
from weft.telemetry.sources.source import DEFAULT_METRICS, MetricSource, QueryOutcome, SourceReading

log = logging.getLogger("weft.cluster")


def addresses_of(live: ClusterView) -> dict[str, str]:
    """Return the first internal address of each node that has GPUs, by node name."""
    nodes = live.nodes
    return {
        name: address.address
        for name, node in nodes.nodes.items()
        if node.gpus and name in nodes.objects
        for address in reversed(nodes.objects[name].status.addresses or [])
        if address.type == "InternalIP"
    }


def devices_of(live: ClusterView) -> Devices:
    """Return the ledger's GPUs, with all addresses by which a series may name their nodes."""
    addresses = {
        address.address: name
        for name, node in live.nodes.objects.items()
        for address in node.status.addresses or ()
    }
    return Devices(live.engine.ledger.table.nodes, addresses)


class TelemetryLoopOptions(msgspec.Struct, frozen=True):
    """Settings of the loop. `interval_s` is the time between two polls, and the length of a slot of
    the window; `window_s` is the length of the window.

    `scrape_s` is how often exporters are scraped, which determines freshness. `horizon_s`: how far
    forecasts look ahead. `warm_up`: how long a pod must hold a GPU before its measured memory
    counts."""

    interval_s: float = 15.0
    window_s: float = 300.0
    scrape_s: float = 15.0
    horizon_s: float = 60.0
    warm_up: WarmUp = USUAL
    metrics: tuple[Metric, ...] = DEFAULT_METRICS


class TelemetryLoop:
    """Polls metrics for one live cluster. `TelemetryMetrics` reads its counters."""

    def __init__(
        self,
        live: ClusterView,
        source: MetricSource,
        slowdown_observer: SlowdownObserver | None,
        options: TelemetryLoopOptions | None = None,
        aliases: Mapping[str, Alias] = ALIASES,
    ) -> None:
        self.options = options or TelemetryLoopOptions()
        self.snapshot: SignalsSnapshot | None = None
        self.errors: Counter[tuple[str, str]] = Counter()
        self.answered = 0
        self.where = ""
        self.took_s: dict[str, float] = {}
        self.digesting_s = 0.0
        self._live, self._source, self._aliases = live, source, aliases
        self._table: LedgerTable | None = None
        self._devices = Devices([])
        self._joiner = SeriesJoiner(self._devices, aliases)
        self.feed: TelemetryFeed | None = None
        """The window of the GPUs' samples; None before the first poll."""
        self._good_at_s = 0.0
        self.slowdown_observer = slowdown_observer
        live.hooks.peaks.append(self.peak_mib)
        self._logged = LogOnce()

    @property
    def devices(self) -> Devices:
        """GPUs of the last poll."""
        return self._devices

    @property
    def unjoined(self) -> Mapping[JoinFailure, int]:
        """Number of series in the last answers that were joined to no GPU, by reason."""
        return self._joiner.unjoined

    def now_s(self) -> float:
        """Return the present time in seconds since 1970, on the clock of samples' ages."""
        return self._live.client.clock.wall().timestamp()

    async def run(self) -> None:
        """Poll until cancelled."""
        clock = self._live.client.clock
        due = clock.monotonic()
        while True:
            try:
                await self.refresh()
            except Exception as error:  # an error in Weft: drop the old snapshot
                self.errors["", "failed"] += 1
                self._forget(f"{type(error).__name__}: {error}")
                if self._logged.is_new(f"failed {_kind(error)}"):
                    log.exception("metrics: the poll failed; policies get no readings")
            due += self.options.interval_s
            late = clock.monotonic() - due
            if late > self.options.interval_s:
                due += late  # never two ticks in a row to catch up
            await clock.sleep(max(0.0, due - clock.monotonic()))

    async def refresh(self) -> SignalsSnapshot:
        """Poll once, and pass the snapshot to the engine."""
        clock = self._live.client.clock
        began_s = clock.wall().timestamp()
        back_s = began_s - self._good_at_s + 2.0 * self.options.scrape_s + 5.0
        back_s = min(back_s, self.options.window_s + self.options.interval_s)
        reading, counters = await asyncio.gather(
            self._source.read(self.options.metrics, back_s), self._counters(back_s)
        )
        self._note(reading, began_s, counters.asked)
        feed = self._follow_nodes(began_s)
        feed.observe(self._live.engine.ledger, clock.wall().timestamp(), self._bound())
        at_ns, version = int(clock.monotonic() * 1e9), self._live.engine.signals.version + 1
        began = clock.monotonic()
        made = await asyncio.to_thread(self._digest, reading, feed, at_ns, version)
        self.digesting_s = clock.monotonic() - began
        self.snapshot = made
        self._live.handle(SignalsChanged(made))
        if self.slowdown_observer is not None:
            await self.slowdown_observer.observe(counters, made)
        return made

    async def _counters(self, back_s: float) -> SourceReading:
        """Read the applications' counters, if there is a slowdown observer."""
        if self.slowdown_observer is None:
            return SourceReading([], [])
        return await self.slowdown_observer.read(back_s)

    def _forget(self, why: str) -> None:
        """Tell the engine that nothing is known, and begin with an empty window, as unfinished data
        may be wrong."""
        clock = self._live.client.clock
        version = self._live.engine.signals.version + 1
        if self.feed is not None:
            self.feed.begin_anew()
        self._good_at_s = 0.0
        self.snapshot = SignalsSnapshot(version, int(clock.monotonic() * 1e9), why=why)
        self._live.handle(SignalsChanged(self.snapshot))

    # --- answers -------------------------------------------------------------------------------

    def _note(
        self, reading: SourceReading, began_s: float, more: Sequence[QueryOutcome] = ()
    ) -> None:
        """Count failed queries; log a failure when it is new, and when all queries succeed again.

        `more` are further queries, which are not about GPUs."""
        wrong = [asked for asked in reading.asked if asked.error is not None]
        self.took_s = {asked.about: asked.took_s for asked in (*reading.asked, *more)}
        beside = [asked for asked in more if asked.error is not None]
        for asked in (*wrong, *beside):
            assert asked.error is not None
            self.errors[asked.about, asked.error.kind] += 1
            self._say(f"error {asked.error.kind}", "metrics: %s: %s", asked.about, asked.error)
        self.answered += len(reading.asked) + len(more) - len(wrong) - len(beside)
        if len(wrong) < len(reading.asked):
            self._good_at_s = began_s
        self.where = reading.where or self.where
        is_well = reading.asked and not wrong and not beside
        if is_well and self._logged.topics and self._logged.forget("error "):
            log.info("metrics: the server answers again")
        for answer in reading.answers:
            for warning in answer.warnings:
                self.errors["", "warning"] += 1
                self._say(f"warning {warning}", "metrics: the server warns: %s", warning)

    def _say(self, what: str, text: str, *values: object) -> None:
        if self._logged.is_new(what):
            log.warning(text, *values)

    def _digest(
        self, reading: SourceReading, feed: TelemetryFeed, at_ns: int, version: int
    ) -> SignalsSnapshot:
        """Join samples, store them and compute the snapshot, in a thread. No other code uses the
        joiner and the feed meanwhile."""
        joiner = self._joiner
        joiner.begin()
        for answer in reading.answers:
            for samples in joiner.join(answer):
                feed.put(samples)
            feed.put_pods(joiner.pods(answer, self._resident_of))
        for why, count in joiner.unjoined.items():
            example = joiner.examples.get(why, "")
            text = "metrics: %d series belong to no GPU (%s), for example %s"
            self._say(f"unjoined {why}", text, count, why, example)
        why_less = "; ".join(sorted({str(a.error) for a in reading.asked if a.error}))[:500]
        return feed.snapshot(at_ns, version, why_less)

    # --- facts of the ledger -------------------------------------------------------------------

    def _follow_nodes(self, now_s: float) -> TelemetryFeed:
        """Return the feed for the present GPUs."""
        table, options = self._live.engine.ledger.table, self.options
        if self.feed is None:
            self._devices = devices_of(self._live)
            samples = max(2, round(options.window_s / options.interval_s))
            horizon = max(1, round(options.horizon_s / options.interval_s))
            made = SnapshotSettings(options.scrape_s, horizon)
            metrics, interval_s, warm_up = options.metrics, options.interval_s, options.warm_up
            settings = FeedSettings(metrics, samples, interval_s, made, warm_up=warm_up)
            self.feed = TelemetryFeed(settings, self._devices, now_s)
            self._joiner = SeriesJoiner(self._devices, self._aliases)
        elif table is not self._table and not (devices := devices_of(self._live)).same(
            self._devices
        ):
            if set(devices.gpus) - set(self._devices.gpus):
                self._good_at_s = 0.0  # what the new ones did is worth asking for
            self._devices = devices
            self._joiner = SeriesJoiner(devices, self._aliases)
            self.feed.follow(devices)
        self._table = table
        return self.feed

    def _bound(self) -> dict[str, float]:
        """Return the time at which each pod in the ledger was bound, by UID, seconds since 1970;
        NaN if unknown."""
        pods = map(self._live.pod_by_uid, self._live.engine.ledger.holdings)
        return {pod.metadata.uid: time_s(pod.bound_at) for pod in pods if pod is not None}

    def peak_mib(self, uid: str) -> int:
        """Return the most GPU memory that the pod was seen to use in the window; 0 if not
        measured."""
        return self.feed.peak_mib(uid) if self.feed is not None else 0

    def _resident_of(self, row: int, namespace: str, name: str) -> str:
        """Return the UID of the pod if the ledger has it on this GPU, otherwise ""."""
        pod = self._live.pod(namespace, name)
        holding = self._live.engine.ledger.holdings.get(pod.metadata.uid) if pod else None
        if pod is None or holding is None:
            return ""
        node, gpu = self._devices.gpus[row]
        here = holding.placement.node == node and any(
            s.gpu == gpu for s in holding.placement.shares
        )
        return pod.metadata.uid if here else ""


def _kind(error: Exception) -> str:
    """Return the error's class and the line that raised it, which distinguish one error from
    another."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last is not None else ""
    return f"{type(error).__name__} {where}"


# --- metrics --------------------------------------------------------------------------------------


_STATES = {FRESH: "fresh", STALE: "stale", MISSING: "missing"}


class TelemetryMetrics:
    """Collector for prometheus-client over one `TelemetryLoop`."""

    def __init__(self, loop: TelemetryLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[MetricFamily]:
        """Yield all metrics, as of the last poll."""
        loop = self._loop
        yield from self._freshness()
        yield from self._ages()
        yield from self._whom()
        took = list(loop.took_s.values())
        took_s = {"longest": max(took, default=0.0), "sum": sum(took)}
        queries = "Seconds that the queries of the last poll took, longest and sum."
        yield gauge("weft_telemetry_query_seconds", queries, took_s, "of")
        refresh = "Seconds from the answers of the last poll to its snapshot."
        yield gauge("weft_telemetry_refresh_seconds", refresh, loop.digesting_s)
        errors: Counter[str] = Counter()
        for (_, kind), count in loop.errors.items():
            errors[kind] += count
        unanswered = "Queries without an answer, by kind of error."
        yield counter("weft_telemetry_errors", unanswered, dict(sorted(errors.items())), "kind")
        unjoined = dict(sorted(loop.unjoined.items()))
        outside = "Series of the last poll that belong to no GPU."
        yield gauge("weft_telemetry_unjoined_series", outside, unjoined, "why")
        version = loop.snapshot.version if loop.snapshot else 0
        newest = "Version of the newest snapshot of GPUs' metrics; grows by one with each poll."
        yield gauge("weft_telemetry_snapshot_version", newest, version)

    def _whom(self) -> Iterator[MetricFamily]:
        """Yield the backend that answers, and the outcomes of queries."""
        loop = self._loop
        asked = {loop.where: 1} if loop.where else {}
        yield gauge(
            "weft_telemetry_backend",
            "Source of metrics that the last poll queried; always 1.",
            asked,
            "backend",
        )
        failed = sum(n for (_, kind), n in loop.errors.items() if kind in KINDS)
        results = {"answered": loop.answered, "failed": failed}
        queries = "Queries, by outcome."
        yield counter("weft_telemetry_queries", queries, results, "result")

    def _freshness(self) -> Iterator[MetricFamily]:
        """Yield the number of GPUs by freshness of their newest sample, for each metric."""
        counts: dict[tuple[str, str], int] = {}
        loop = self._loop
        if loop.snapshot is not None:
            view = SignalsView(loop.snapshot)
            rows = {name: row for row, name in enumerate(view.source.columns)}
            gpus = len(view.source.gpus)
            for metric in loop.options.metrics:
                row = rows.get(metric.value)
                ages = view.freshness[row] if row is not None else np.full(gpus, MISSING)
                for state, word in _STATES.items():
                    counts[metric.value, word] = int((ages == state).sum())
        text = "GPUs by how old their newest sample of a metric is."
        yield gauge("weft_telemetry_gpus", text, counts, "metric", "state")

    def _ages(self) -> Iterator[MetricFamily]:
        """Yield the median age of the newest samples; a metric without samples is left out."""
        ages_s: dict[str, float] = {}
        loop = self._loop
        if loop.feed is not None:
            now_s = loop.now_s()
            window = loop.feed.window
            for metric in loop.options.metrics:
                at_s = window.newest(metric)[1]
                known = at_s[np.isfinite(at_s)]
                if len(known):
                    ages_s[metric.value] = float(now_s - np.median(known))
        text = "Median age of GPUs' newest samples of a metric."
        yield gauge("weft_telemetry_age_seconds", text, ages_s, "metric")
