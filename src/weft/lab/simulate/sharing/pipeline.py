"""Turns scrapes into the snapshots that policies see, with the code of a live cluster.

Only the network is simulated here: samples arrive late or never. Everything else is
`TelemetryFeed`'s."""

from collections import deque
from collections.abc import Sequence

import msgspec

from weft.core.framework import Policy
from weft.core.framework.signals import SignalsSnapshot
from weft.core.ledger import Ledger
from weft.lab.simulate.sharing.exporter import METRICS, Scrape, SimulatedExporters
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.model import Node
from weft.model.metric import Metric
from weft.telemetry.feed.feed import FORECAST, FeedSettings, SnapshotSettings, TelemetryFeed
from weft.telemetry.feed.memory_needs import USUAL, WarmUp
from weft.telemetry.meaning.join import Devices, PodSamples

READ_TRENDS = frozenset({"kube-knots-cbp", "kube-knots-pp", "ferikoglou", "ferikoglou-safe"})
"""Weft's policies that read memory trends over the window."""
READ_FORECASTS = frozenset({"kube-knots-pp"})


class ScrapeOptions(msgspec.Struct, frozen=True):
    """How GPUs are watched: the period of scrapes, the window, and the warm-up during which pods'
    full requests count.

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
        plugins get all columns, since what they read is unknown."""
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
        """The corresponding settings of a cluster's feed."""
        scrape_s, forecast = self.scrape_ns / SECOND_NS, FORECAST if self.forecasts else ()
        shown = SnapshotSettings(scrape_s, forecast=forecast, peaks=self.peaks, trends=self.trends)
        samples = max(1, self.window_ns // self.scrape_ns)
        return FeedSettings(METRICS, samples, scrape_s, shown, self.holds, self.warm_up)


class SimulatedTelemetry:
    """Takes scrapes as they happen, and builds snapshots of those that have arrived."""

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
        """Add scrapes of idle GPUs from before the first job, which are still to arrive.

        Exporters that are frozen from the start have been so for a whole window."""
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
        """Return the snapshot at `now_ns`; `version` 0 means one more than the last."""
        return self._feed.snapshot(now_ns, version)

    @property
    def can_wait(self) -> bool:
        """True if snapshots may be skipped until needed, as each is independent of those before."""
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
