"""Prometheus metrics of how fast co-resident pods run.

Labels are words of the code, so their number is bounded for any size of cluster."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from weft.cluster.http.metric_families import counter, gauge
from weft.cluster.telemetry.slowdown_observer import SlowdownObserver
from weft.core.engine.eviction_limits import WHYS

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
        store, writes = observer.slowdown_store, "Writes of what was observed, by outcome."
        yield counter("weft_observed_writes", writes, store.counts, "outcome")
        unreadable = "Failed reads of the stored observations."
        yield counter("weft_observed_unreadable", unreadable, store.unreadable)
        faults = "Mistakes of Weft's own in looking at progress."
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
