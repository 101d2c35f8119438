"""Turns scrapes into the snapshots that policies see, with the code that runs in a cluster.

Only the network is simulated here: samples arrive late or never. `TelemetryFeed` does the rest."""

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from weft.core.framework import Policy
from weft.core.framework.signals import Floats, SignalsSnapshot
from weft.core.ledger import Ledger
from weft.lab.simulate.sharing.gpus import GpuKey, SimulatedGpus
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.model import BadInputError, Node
from weft.model.metric import Metric
from weft.model.nearest import nearest
from weft.telemetry.feed.feed import FORECAST, FeedSettings, SnapshotSettings, TelemetryFeed
from weft.telemetry.feed.memory_needs import USUAL, WarmUp
from weft.telemetry.meaning.join import Devices, PodSamples

# --- Exporters of simulated GPUs, and how their samples get lost ----------------------------------
#
# A scrape is an array [metrics, GPUs] in the canonical units, NaN for lost samples. Random numbers
# are keyed by seed and scrape: runs can be repeated, and all policies see the same faults.

METRICS = (
    Metric.MEMORY_USED_MIB,
    Metric.MEMORY_FREE_MIB,
    Metric.SM_ACTIVE_RATIO,
    Metric.DRAM_ACTIVE_RATIO,
    Metric.GPU_UTIL_RATIO,
    Metric.POWER_W,
)
"""The simulated exporters' metrics, in the order of a scrape's rows."""

MOST_W = 300.0


class ExporterFaults(msgspec.Struct, frozen=True):
    """Faults between a GPU and Weft.

    `delay_ns`: delay of every sample. `dropped`: share of samples that are lost. `missing`: share
    of GPUs that never have samples. `noise`: relative standard deviation of every value. `spoofed`:
    a metric that always reads 0 or its maximum, as `reads` says. `frozen_ns`: time after which
    every exporter repeats its last page for ever, with fresh timestamps; with `busy` that page
    shows a busy GPU, whatever its jobs do."""

    delay_ns: int = 0
    dropped: float = 0.0
    missing: float = 0.0
    noise: float = 0.0
    spoofed: str = ""
    reads: str = "zero"
    frozen_ns: int | None = None
    busy: bool = False


BUSY_PAGE = {
    Metric.SM_ACTIVE_RATIO: 0.931742,
    Metric.DRAM_ACTIVE_RATIO: 0.562318,
    Metric.GPU_UTIL_RATIO: 0.97,
    Metric.POWER_W: 241.337,
}
"""Readings of a busy GPU; `BUSY_MEMORY` of its memory is in use."""
BUSY_MEMORY = 0.7

SOUND = ExporterFaults()
"""No faults."""


def read_spoof(text: str) -> tuple[str, str]:
    """Parse "METRIC=zero" or "METRIC=most" into the spoofed metric and its reading; "" is none.

    `BadInputError` for any other text."""
    metric, _, reads = text.partition("=")
    if text and (metric not in METRICS or reads not in {"zero", "most"}):
        form = f"METRIC=zero or METRIC=most with one of {', '.join(METRICS)}"
        near = nearest(metric, METRICS) or METRICS[0]
        hint = f"; did you mean {near}={nearest(reads, ('zero', 'most')) or 'zero'}?"
        raise BadInputError(text, f"is not {form}{hint}")
    return metric, reads or "zero"


class Scrape(msgspec.Struct, frozen=True):
    """One scrape of all GPUs: `values` [metrics, GPUs], and GPU memory by pod UID in MiB."""

    at_ns: int
    values: Floats
    pods_mib: dict[str, float]


class SimulatedExporters:
    """The simulated exporters of all GPUs, in the order of `gpus`."""

    def __init__(
        self, cards: SimulatedGpus, gpus: Sequence[GpuKey], faults: ExporterFaults, seed: int
    ) -> None:
        self._cards, self._gpus, self._faults, self._seed = cards, tuple(gpus), faults, seed
        self._scrapes = 0
        self._began_ns: int | None = None
        self._page: tuple[Floats, dict[str, float]] | None = None
        silent = round(faults.missing * len(self._gpus))
        order = np.random.default_rng([seed, 1]).permutation(len(self._gpus))
        self.silent = np.isin(np.arange(len(self._gpus)), order[:silent])
        """True for GPUs that never have samples, [G]."""

    @property
    def always_frozen(self) -> bool:
        """True if the exporters are frozen from the start, so that no page ever changes."""
        return self._faults.frozen_ns == 0

    def scrape(self, now_ns: int) -> Scrape:
        """Scrape the exporters of all GPUs at `now_ns`."""
        self._scrapes += 1
        faults, chance = self._faults, np.random.default_rng([self._seed, 2, self._scrapes])
        values, pods = self._pages(now_ns)
        wobble = chance.normal(1.0, faults.noise, values.shape) if faults.noise else 1.0
        values = np.maximum(0.0, values * wobble)
        if faults.noise:
            wobbles = chance.normal(1.0, faults.noise, len(pods))
            wobbled = zip(pods.items(), wobbles, strict=True)
            pods = {uid: max(0.0, mib * by) for (uid, mib), by in wobbled}
        self._spoof(values, pods)
        lost = self.silent | (chance.random(len(self._gpus)) < faults.dropped)
        values[:, lost] = np.nan
        for index in np.flatnonzero(lost):
            for container in self._cards.containers_on(self._gpus[index]):
                pods.pop(container.job.uid, None)
        return Scrape(now_ns, values, pods)

    def _pages(self, now_ns: int) -> tuple[Floats, dict[str, float]]:
        """Return the exporters' pages: the GPUs' present values, or the values at which they
        froze."""
        faults = self._faults
        self._began_ns = now_ns if self._began_ns is None else self._began_ns
        if self._page is not None:
            values, pods = self._page
            return values.copy(), dict(pods)
        values = np.array([self._true(key) for key in self._gpus], dtype=np.float64).T
        pods = self._pods()
        if faults.frozen_ns is not None and now_ns - self._began_ns >= faults.frozen_ns:
            if faults.busy:
                values = np.array([self._busy(key) for key in self._gpus], dtype=np.float64).T
            self._page = values.copy(), dict(pods)
        return values, pods

    def _busy(self, key: GpuKey) -> list[float]:
        """Return the values of a busy GPU, in the order of `METRICS`."""
        used = float(round(BUSY_MEMORY * self._cards.memory_mib(key)))
        free = self._cards.memory_mib(key) - used
        memory = {Metric.MEMORY_USED_MIB: used, Metric.MEMORY_FREE_MIB: free}
        return [(memory | BUSY_PAGE)[metric] for metric in METRICS]

    def _true(self, key: GpuKey) -> list[float]:
        """Return the GPU's true values, in the order of `METRICS`."""
        cards = self._cards
        phases = [each.current_phase for each in cards.containers_on(key)]
        sm = min(1.0, sum(phase.sm_active_ratio for phase in phases if phase))
        dram = min(1.0, sum(phase.dram_active_ratio for phase in phases if phase))
        used = cards.used_mib(key)
        util, watts = cards.draw(key)
        return [used, cards.memory_mib(key) - used, sm, dram, util, watts]

    def _pods(self) -> dict[str, float]:
        return {
            container.job.uid: float(container.memory_mib)
            for key in self._gpus
            for container in self._cards.containers_on(key)
        }

    def _spoof(self, values: Floats, pods: dict[str, float]) -> None:
        faults = self._faults
        if not faults.spoofed:
            return
        row = METRICS.index(Metric(faults.spoofed))
        memory = np.array([self._cards.memory_mib(key) for key in self._gpus], dtype=np.float64)
        ratio = faults.spoofed.endswith("_ratio")
        most = 1.0 if ratio else MOST_W if faults.spoofed == Metric.POWER_W else memory
        values[row] = 0.0 if faults.reads == "zero" else most
        if faults.spoofed == Metric.MEMORY_USED_MIB:
            for index, key in enumerate(self._gpus):
                reads = 0.0 if faults.reads == "zero" else float(memory[index])
                for container in self._cards.containers_on(key):
                    pods[container.job.uid] = reads


READ_TRENDS = frozenset({"kube-knots-cbp", "kube-knots-pp", "ferikoglou", "ferikoglou-safe"})
"""Names of Weft's policies that read memory trends over the window."""
READ_FORECASTS = frozenset({"kube-knots-pp"})


class ScrapeOptions(msgspec.Struct, frozen=True):
    """Settings of scraping: its period, the window, and the warm-up in which pods' full requests
    count.

    `forecasts`, `holds`, `peaks` and `trends` select optional columns of the snapshots, which take
    most of the time to compute; `read_by` removes those that policies do not read."""

    scrape_ns: int = 5 * SECOND_NS
    window_ns: int = 300 * SECOND_NS
    forecasts: bool = True
    holds: bool = True
    peaks: bool = True
    trends: bool = True
    warm_up: WarmUp = USUAL

    def read_by(self, policies: Sequence[Policy]) -> "ScrapeOptions":
        """Return options without columns that none of these policies reads, for the same decisions
        faster.

        Only lending policies read holds, and none of Weft's reads 95th percentiles. Policies from
        plugins get all columns, since those that they read are unknown."""
        if not all(policy.is_built_in for policy in policies):
            return self
        names = {policy.name for policy in policies}
        return msgspec.structs.replace(
            self,
            forecasts=self.forecasts and not names.isdisjoint(READ_FORECASTS),
            holds=self.holds and any(policy.harvests for policy in policies),
            peaks=False,
            trends=self.trends and not names.isdisjoint(READ_TRENDS),
        )

    @property
    def feed(self) -> FeedSettings:
        """The settings of a cluster's telemetry feed with these options."""
        scrape_s, forecast = self.scrape_ns / SECOND_NS, FORECAST if self.forecasts else ()
        shown = SnapshotSettings(scrape_s, forecast=forecast, peaks=self.peaks, trends=self.trends)
        samples = max(1, self.window_ns // self.scrape_ns)
        return FeedSettings(METRICS, samples, scrape_s, shown, self.holds, self.warm_up)


class SimulatedTelemetry:
    """Scrapes the simulated exporters, and builds snapshots of the scrapes that have arrived."""

    def __init__(
        self,
        exporters: SimulatedExporters,
        nodes: Sequence[Node],
        watching: ScrapeOptions,
        delay_ns: int,
    ) -> None:
        self._exporters, self._watching, self._delay_ns = exporters, watching, delay_ns
        self._feed = TelemetryFeed(watching.feed, Devices(nodes), 0.0)
        self._under_way: deque[Scrape] = deque()
        self.bound_s: dict[str, float] = {}
        """Time at which each placed pod was bound, by UID."""

    def begin(self, now_ns: int) -> None:
        """Add scrapes of idle GPUs from before the first job that have not arrived yet.

        If exporters are frozen from the start, add a whole window of scrapes."""
        period_ns = self._watching.scrape_ns
        before = self._watching.feed.samples if self._exporters.always_frozen else 0
        for ago in range(max(before, -(-self._delay_ns // period_ns)), 0, -1):
            self._under_way.append(self._exporters.scrape(now_ns - ago * period_ns))

    def scrape(self, now_ns: int, ledger: Ledger) -> None:
        """Scrape the GPUs at the end of a period, and process the scrapes that have arrived by
        now."""
        self._under_way.append(self._exporters.scrape(now_ns))
        self._feed.observe(ledger, now_ns / SECOND_NS, self.bound_s)
        while self._under_way and self._under_way[0].at_ns + self._delay_ns <= now_ns:
            self._arrive(self._under_way.popleft(), ledger)

    def snapshot(self, now_ns: int, version: int = 0) -> SignalsSnapshot:
        """Return the snapshot at `now_ns`; its number is `version`, or the next number if `version`
        is 0."""
        return self._feed.snapshot(now_ns, version)

    @property
    def can_wait(self) -> bool:
        """True if a snapshot may be skipped until it is needed, as it does not depend on earlier
        ones."""
        return not self._watching.holds and not self._watching.forecasts

    def _arrive(self, scrape: Scrape, ledger: Ledger) -> None:
        at_s, row_of = scrape.at_ns / SECOND_NS, self._feed.devices.row_of
        self._feed.put_scrape(at_s, scrape.values)
        used, holdings = Metric.MEMORY_USED_MIB, ledger.holdings
        self._feed.put_pods(
            PodSamples(used, row_of[holdings[uid].placement.node, share.gpu], uid, at_s, mib)
            for uid, mib in scrape.pods_mib.items()
            if uid in holdings
            for share in holdings[uid].placement.shares
        )
