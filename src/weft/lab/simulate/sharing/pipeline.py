"""From scrapes to the snapshot that policies see, by the code that does it on a live cluster.

Only what a live cluster has from the network is made up here: samples that arrive late or never.
All that is made of them is `TelemetryFeed`'s.
"""

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
"""Policies of Weft's that read how memory went over the window."""
READ_FORECASTS = frozenset({"kube-knots-pp"})


class ScrapeOptions(msgspec.Struct, frozen=True):
    """Options of watching the cards: the period of scrapes, how much is kept, and how long
    pods are held at what they asked.

    `forecasts`, `holds`, `peaks` and `trends` say whether the snapshots have such columns. They are
    most of the work; `read_by` leaves out those that a policy does not read.
    """

    scrape_ns: int = 5 * SECOND_NS
    window_ns: int = 300 * SECOND_NS
    forecasts: bool = True
    holds: bool = True
    peaks: bool = True
    trends: bool = True
    warm_up: WarmUp = USUAL

    def read_by(self, policies: Sequence[Policy]) -> "ScrapeOptions":
        """The same without columns that none of these reads: they decide the same, sooner.

        Only one that lends is shown holds, and none of Weft's reads 95th percentiles. Of policies
        that are not Weft's nothing is known: they are shown all.
        """
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
        """The settings of the cluster's feed."""
        scrape_s, forecast = self.scrape_ns / SECOND_NS, FORECAST if self.forecasts else ()
        shown = SnapshotSettings(scrape_s, forecast=forecast, peaks=self.peaks, trends=self.trends)
        samples = max(1, self.window_ns // self.scrape_ns)
        return FeedSettings(METRICS, samples, scrape_s, shown, self.holds, self.warm_up)


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
        self._feed = TelemetryFeed(watching.feed, Devices(nodes), 0.0)
        self._under_way: deque[Scrape] = deque()
        self.bound_s: dict[str, float] = {}
        """When each pod with a place got it."""

    def begin(self, now_ns: int) -> None:
        """Exporters are older than the first job: scrapes of idle cards are under way.

        Those that are frozen from the start are so for as long as a server's history goes back.
        """
        period_ns = self._watching.scrape_ns
        before = self._watching.feed.samples if self._exporters.always_frozen else 0
        for ago in range(max(before, -(-self._delay_ns // period_ns)), 0, -1):
            self._under_way.append(self._exporters.scrape(now_ns - ago * period_ns))

    def scrape(self, now_ns: int, ledger: Ledger) -> None:
        """One scrape period is over: look at the cards, and take in what has arrived by now."""
        self._under_way.append(self._exporters.scrape(now_ns))
        self._feed.observe(ledger, now_ns / SECOND_NS, self.bound_s)
        while self._under_way and self._under_way[0].at_ns + self._delay_ns <= now_ns:
            self._arrive(self._under_way.popleft(), ledger)

    def snapshot(self, now_ns: int, version: int = 0) -> SignalsSnapshot:
        """The snapshot at `now_ns`: the last one, as nothing has happened since.

        `version` 0: one more than last time.
        """
        return self._feed.snapshot(now_ns, version)

    @property
    def can_wait(self) -> bool:
        """True if looks that nobody asks about need not be told: each stands for itself."""
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
