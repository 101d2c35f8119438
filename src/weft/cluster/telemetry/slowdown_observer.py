"""Observes how fast co-resident pods run, reports it to the engine, and stores what it learns.

  counters ──rates──▶ ÷ rate alone ──┬─ProgressSeen──▶ engine ──Evict──▶ evictor ─┐
  (else SM_ACTIVE: only shown)       └──▶ experience ◀── ban, after an eviction ──┘
                                              └──PolicyInput──▶ policies

It runs as part of a poll, and only the leader reports. `explain` gets the last observations. An
error in this code loses one poll's observations, never the poll."""

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import msgspec
from msgspec.structs import replace
from prometheus_client.metrics_core import Metric

from weft.cluster.control.fault_log import LogOnce
from weft.cluster.control.interface import ClusterView
from weft.cluster.http.metric_families import counter, gauge
from weft.cluster.stores.slowdown_store import SlowdownStore
from weft.cluster.telemetry.running_pods import Gpu, RunningPod, SoloRateCache, running_pods
from weft.cluster.telemetry.solo_rates import SoloProfiles, slo_ms
from weft.core.engine import PodProgress, PolicyInput, ProgressSeen, SlowdownReason
from weft.core.engine.eviction_limits import WHYS, Why, why_withheld_in_words
from weft.core.explain.explanation import ObservedProgress, SeparatedPair
from weft.core.framework.signals import SignalsSnapshot
from weft.interference.observed_slowdown import TELL_NS, Ban
from weft.kube.configmap import OwnConfigMap
from weft.model import BadInputError
from weft.model.annotations import SLO_MS
from weft.model.interference_table import INTERFERENCE, InterferenceTable, to_input
from weft.model.request import LATENCY_CRITICAL
from weft.telemetry.meaning.progress_counters import CounterReader, PodName, Rate, Rates, latencies
from weft.telemetry.sources.source import MetricSource, SourceReading

log = logging.getLogger("weft.cluster")

FASTEST, SLOWEST = 0.5, 100.0
"""Limits of a plausible slowdown: beyond them the known rate of the pod alone must be wrong, and
nothing is reported."""
WINDOWS = 3
_HEIR = (
    "no pod is evicted for it: this process has led for less than 5 minutes, and the previous "
    "leader may have evicted a pod"
)
_UNTRUSTED = (
    "anyone who may create a Service may have added this metrics server, so no pod is evicted "
    "because of the progress it reports: set telemetry.url or telemetry.namespaces"
)
_TURN = 200  # pods processed before other tasks get their turn


class SlowdownObserverOptions(msgspec.Struct, frozen=True):
    """Names of the metrics, "" for none; seconds between two polls, and between two scrapes; and
    `trusted`: if False, values of the metrics' source are shown, but cause no eviction and are not
    learnt from."""

    progress_metric: str = "weft_progress_total"
    latency_metric: str = ""
    interval_s: float = 15.0
    scrape_s: float = 15.0
    trusted: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics to query."""
        return tuple(filter(None, (self.progress_metric, self.latency_metric)))


class _Seen:
    """Last observations of a pod, with their time (seconds since 1970): `last` are those reported
    to the engine, `counted_s` is when its progress was last counted."""

    __slots__ = ("at_s", "counted_s", "last", "progress")

    def __init__(self) -> None:
        self.progress, self.at_s = ObservedProgress(), 0.0
        self.last: deque[PodProgress] = deque(maxlen=WINDOWS)
        self.counted_s = -math.inf


class SlowdownObserver:
    """Observes the pods of one live cluster. `errors` counts errors in Weft itself, `counts` the
    pods of the last poll: by the source of their speed, `late` if their p99 latency is above their
    SLO, and `slow` if they are slower than their slowdown limit allows. Observations are stored in
    `config_map`, and complement the predictions `base`."""

    def __init__(
        self,
        live: ClusterView,
        source: MetricSource,
        config_map: OwnConfigMap | None,
        base: InterferenceTable,
        solos: SoloProfiles,
        options: SlowdownObserverOptions | None = None,
    ) -> None:
        self.options = options or SlowdownObserverOptions()
        tell = partial(self._tell_policies, at_once=True)
        may_write = live.may_write
        self.slowdown_store = SlowdownStore(live.client, config_map, base, may_write, tell)
        self.errors = 0
        self.counts: Counter[str] = Counter()
        self._live, self._source = live, source
        self._alone = SoloRateCache(live, solos)
        self._reader = CounterReader()
        self._rates = Rates(self.options.interval_s, self.options.scrape_s)
        self._seen: dict[str, _Seen] = {}
        self._told_s = -math.inf
        self._bans: tuple[Ban, ...] = ()
        self._logged = LogOnce()
        if not self.options.trusted:
            log.warning("progress: %s", _UNTRUSTED)
        live.stores.append(self.slowdown_store)
        live.hooks.slowdown_evictions.append(self.goes)

    async def read(self, back_s: float) -> SourceReading:
        """Return the samples of the counters; never raises."""
        return await self._source.series(self.options.metrics, back_s)

    async def observe(self, reading: SourceReading, made: SignalsSnapshot) -> None:
        """Process the samples, and report. `made` is the GPUs' snapshot of the same poll."""
        try:
            await self._observe(reading, made)
        except Exception as error:
            self.errors += 1
            if self._logged.is_new(f"{type(error).__name__}: {error}"):
                log.exception("progress: the poll failed; the speed of pods is unknown")

    def goes(self, slowed: SlowdownReason) -> None:
        """Note that a pod is, or may be, evicted because it made another pod too slow: the
        applications of the two pods are kept off each other's GPUs from now on.

        The ban is stored immediately, for the next leader; storing is retried until it succeeds."""
        slow, evicted = slowed.applications
        slowdown_store = self.slowdown_store
        try:
            slowdown_store.experience.ban(slowed.gpu_model, slow, evicted, slowdown_store.now_ns())
            slowdown_store.soon()
            if self._live.leadership.here:
                self._tell_policies(at_once=True)
        except Exception:
            self.errors += 1
            log.exception("progress: %s and %s cannot be kept apart", slow, evicted)

    # --- for users ---

    def about(self, uid: str) -> ObservedProgress | None:
        """Return the pod's last observed progress, and the applications kept off its GPU; None if
        there is neither."""
        seen, holding = self._seen.get(uid), self._live.engine.ledger.holdings.get(uid)
        name = holding.placement.application if holding is not None else self._application(uid)
        now_s = self._now_s()
        apart = tuple(
            SeparatedPair(
                ban.other if ban.application == name else ban.application,
                ban.gpu_model,
                ban.until_ns / 1e9 - now_s,
            )
            for ban in self._bans_now()
            if name and name in (ban.application, ban.other)
        )
        if seen is None:
            return ObservedProgress(apart=apart) if apart else None
        engine = self._live.engine
        why = engine.slowdown_eviction.withheld_evictions.get(uid)
        reason = why_withheld_in_words(why) if why is not None else ""
        now_ns = int(self._live.client.clock.monotonic() * 1e9)
        if (
            not reason
            and seen.progress.broken
            and engine.slowdown_eviction.is_quiet_after_takeover(now_ns)
        ):
            reason = _HEIR
        age_s = max(0.0, now_s - seen.at_s)
        return replace(seen.progress, age_s=age_s, apart=apart, withheld=reason)

    @property
    def withheld_evictions(self) -> Counter[Why]:
        """Number of pods that are too slow but for which no pod was evicted at their last poll, by
        reason."""
        return Counter(self._live.engine.slowdown_eviction.withheld_evictions.values())

    @property
    def unjoined(self) -> Mapping[str, int]:
        """Number of series in the last answer that belong to no pod with a GPU, by reason."""
        return self._reader.unjoined

    @property
    def banned(self) -> int:
        """Number of pairs of applications that are kept apart now."""
        return len(self._bans_now())

    # --- one poll ---

    async def _observe(self, reading: SourceReading, made: SignalsSnapshot) -> None:
        pods = await running_pods(self._live)
        self._alone.keep(pods)
        now_s = self._live.client.clock.wall().timestamp()
        rates: dict[PodName, Rate] = {}
        p99_ms: dict[PodName, float] = {}
        if reading.answers:
            co_residents: dict[PodName, Hashable] = {
                name: (running.uid, running.beside) for name, running in pods.items()
            }
            rates, p99_ms = await asyncio.to_thread(self._digest, reading, co_residents, now_s)
        sm_active = self._alone.sm_active(made)
        seen = {running.uid: self._seen.get(running.uid) or _Seen() for running in pods.values()}
        progress: list[tuple[RunningPod, PodProgress]] = []
        for number, (name, running) in enumerate(pods.items(), 1):
            new = self._of_pod(running, seen[running.uid], rates.get(name), p99_ms.get(name, 0.0))
            if running.parting:
                new = None  # its co-residents are changing: skip this sample
            if new is not None:
                progress.append((running, new))
            self._show(running, seen[running.uid], new, sm_active)
            if number % _TURN == 0:
                await asyncio.sleep(0)
        self._seen, self.counts = seen, _counts(seen.values())
        if self._live.leadership.here and self.options.trusted:
            self._learn(progress, pods.values())
            await self._report(progress)
        if self._live.leadership.here:
            self._tell_policies()

    def _show(
        self,
        running: RunningPod,
        seen: _Seen,
        new: PodProgress | None,
        sm_active: Mapping[Gpu, float],
    ) -> None:
        """Update the facts that users are shown about the pod."""
        if new is not None:
            seen.last.append(new)
        if not self._recent(seen):
            seen.at_s, slowdown = self._now_s(), self._alone.guess(running, sm_active)
            rates = {"rate_per_s": 0.0, "alone_per_s": 0.0}
            source = "sm-active" if slowdown else ""
            seen.progress = replace(seen.progress, source=source, slowdown=slowdown, **rates)
        bound = 0.0
        if self._live.engine.harvest.class_of(running.held) == LATENCY_CRITICAL:
            tolerance = self._live.engine.tolerance_of(running.uid)
            bound = tolerance.critical if tolerance is not None else 0.0
        broken = sum(t.late or (not t.proxy and 0 < bound < t.slowdown) for t in seen.last)
        seen.progress = replace(seen.progress, bound=bound, broken=broken, windows=len(seen.last))

    async def _report(self, progress: Sequence[tuple[RunningPod, PodProgress]]) -> None:
        """Report progress to the engine in batches, so that other tasks run in between; a node's
        pods are in one batch."""
        holdings = self._live.engine.ledger.holdings
        part: list[PodProgress] = []
        for at, (running, new) in enumerate(progress):
            if running.uid in holdings:  # else it went meanwhile
                part.append(new)
            last = at + 1 == len(progress)
            node = running.held.placement.node
            node_ends = last or progress[at + 1][0].held.placement.node != node
            if part and node_ends and (last or len(part) >= _TURN):
                self._live.handle(ProgressSeen(tuple(part)))
                part = []
                await asyncio.sleep(0)

    def _digest(
        self, reading: SourceReading, co_residents: Mapping[PodName, Hashable], now_s: float
    ) -> tuple[dict[PodName, Rate], dict[PodName, float]]:
        """Compute rates and p99 latencies (ms), in a thread. No other code uses the reader and the
        rates meanwhile."""
        options = self.options
        (answer,) = reading.answers
        samples = self._reader.read(answer, co_residents, now_s)
        rates = self._rates.update(samples.get(options.progress_metric, {}), co_residents, now_s)
        stale_s = 2.0 * options.scrape_s + options.interval_s
        gauges = samples.get(options.latency_metric, {}) if options.latency_metric else {}
        return rates, latencies(gauges, options.latency_metric, now_s, stale_s)

    def _of_pod(
        self, running: RunningPod, seen: _Seen, rate: Rate | None, p99_ms: float
    ) -> PodProgress | None:
        """Return the progress to report to the engine, None for none; store the observations in
        `seen`."""
        alone, slo = self._alone.of(running.pod, running.gpu_model), slo_ms(running.pod) or 0.0
        now_s, slowdown = self._now_s(), 0.0
        problem = alone.problem or ("" if self.options.trusted else _UNTRUSTED)
        if SLO_MS in (running.pod.metadata.annotations or {}) and not slo:
            problem = f"{SLO_MS} is not a number of milliseconds"
        young = self._young(running)
        if rate is not None and not young and not math.isnan(alone.per_s):
            slowdown = alone.per_s / rate.per_s
            if not FASTEST <= slowdown <= SLOWEST:
                problem = f"{alone.per_s:g}/s alone and {rate.per_s:g}/s now cannot both be true"
                slowdown = 0.0
        late = 0.0 < slo < p99_ms
        seen.progress = replace(seen.progress, p99_ms=p99_ms, slo_ms=slo, problem=problem)
        if slowdown and rate is not None:
            seen.counted_s, seen.at_s = now_s, rate.at_s
            rates = {"rate_per_s": rate.per_s, "alone_per_s": alone.per_s}
            seen.progress = replace(seen.progress, source="progress", slowdown=slowdown, **rates)
            return PodProgress(running.uid, round(slowdown, 4), late=late)
        if not (p99_ms and slo) or young or self._recent(seen):
            return None  # or its window is not over: report both together
        return PodProgress(running.uid, 1.0, proxy=True, late=late)

    def _recent(self, seen: _Seen) -> bool:
        """Return True if the pod's progress was counted recently, so that its last rate is still
        valid."""
        return seen.counted_s >= self._now_s() - 2.0 * self._rates.rests_s

    # --- results of a poll ---

    def _learn(
        self, progress: Sequence[tuple[RunningPod, PodProgress]], pods: Iterable[RunningPod]
    ) -> None:
        """Learn from pods with one GPU whose co-residents all have a known application and have run
        for long enough; of several pods of the same applications the median, as they were measured
        at the same time."""
        known = {
            running.uid: running.held.placement.application
            for running in pods
            if running.pod.status.phase == "Running" and not self._young(running)
        }
        windows: dict[tuple[str, str, tuple[str, ...]], list[float]] = {}
        for running, new in progress:
            others = [known.get(uid, "") for uid in running.beside]
            mine = running.held.placement.application
            if new.proxy or len(running.gpus) != 1 or not mine or not others or not all(others):
                continue
            key = running.gpu_model, mine, tuple(sorted(others))
            windows.setdefault(key, []).append(new.slowdown)
        for (gpu_model, mine, beside), slowdowns in windows.items():
            self.slowdown_store.experience.saw(gpu_model, mine, beside, median(slowdowns))
            self.slowdown_store.changed()

    def _young(self, running: RunningPod) -> bool:
        """Return True if the pod has run for less than the time that pods take to start."""
        return self._now_s() - running.bound_s < self._rates.rests_s

    def _tell_policies(self, *, at_once: bool = False) -> bool:
        """Pass the updated table to policies, if it changed; return True if it was passed."""
        policies = (p for profile in self._live.engine.profiles.values() for p in profile.policies)
        now_s, bans = self._live.client.clock.monotonic(), self._bans_now()
        soon = at_once or bans != self._bans or now_s - self._told_s >= TELL_NS / 1e9
        if not soon or all(policy.tolerance is None for policy in policies):
            return False
        self._told_s, self._bans = now_s, bans
        table = self.slowdown_store.experience.due(self.slowdown_store.now_ns())
        if table is not None:
            self._live.handle(PolicyInput(INTERFERENCE, to_input(table)))
        return table is not None

    def _bans_now(self) -> tuple[Ban, ...]:
        return self.slowdown_store.experience.bans(self.slowdown_store.now_ns())

    def _application(self, uid: str) -> str:
        """Return the application of a pod that is not placed; "" if unknown."""
        pod = self._live.pod_by_uid(uid)
        try:
            return self._live.parse(pod).shape.application if pod is not None else ""
        except BadInputError:
            return ""

    def _now_s(self) -> float:
        return self._live.client.clock.wall().timestamp()


def _counts(seen: Iterable[_Seen]) -> Counter[str]:
    """Count pods by the source of their speed, and those that are `late` or `slow`."""
    counts: Counter[str] = Counter()
    for progress in (pod.progress for pod in seen):
        counts[progress.source or "none"] += 1
        counts["late"] += 0 < progress.slo_ms < progress.p99_ms
        counts["slow"] += progress.source == "progress" and 0 < progress.bound < progress.slowdown
    return counts


# --- metrics --------------------------------------------------------------------------------------


_SOURCES = ("progress", "sm-active", "none")


class SlowdownMetrics:
    """Collector for prometheus-client over one `SlowdownObserver`."""

    def __init__(self, slowdown_observer: SlowdownObserver) -> None:
        self._observer = slowdown_observer

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as of the last poll."""
        observer = self._observer
        yield from self._pods()
        unjoined = "Series of the last poll that belong to no running pod with a GPU."
        by_reason = dict(sorted(observer.unjoined.items()))
        yield gauge("weft_observed_unjoined_series", unjoined, by_reason, "why")
        store, writes = (
            observer.slowdown_store,
            "Writes of observations to their ConfigMap, by outcome.",
        )
        yield counter("weft_observed_writes", writes, store.counts, "outcome")
        unreadable = "Failed reads of the stored observations."
        yield counter("weft_observed_unreadable", unreadable, store.unreadable)
        faults = "Errors in Weft itself while evaluating pods' progress."
        yield counter("weft_observed_faults", faults, observer.errors)

    def _pods(self) -> Iterator[Metric]:
        counts, evicted_none = self._observer.counts, self._observer.withheld_evictions
        running = "Running pods with GPUs, by the source of their progress."
        sources = {source: counts[source] for source in _SOURCES}
        yield gauge("weft_observed_pods", running, sources, "source")
        slow = "Pods slower than their bound at the last poll."
        yield gauge("weft_observed_slow_pods", slow, counts["slow"])
        late = "Pods whose p99 was above their SLO at the last poll."
        yield gauge("weft_observed_late_pods", late, counts["late"])
        banned = "Pairs of applications that are kept apart now."
        yield gauge("weft_observed_banned_pairs", banned, self._observer.banned)
        stay_slow = "Pods that are too slow and for which no pod was evicted at the last poll."
        by_reason = {why: evicted_none[why] for why in WHYS}
        yield gauge("weft_observed_held_back_pods", stay_slow, by_reason, "why")
