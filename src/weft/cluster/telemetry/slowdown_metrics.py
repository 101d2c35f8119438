"""Metrics of how fast pods go beside each other. For Prometheus to ask.

Labels are words of the code: bounded, whatever the cluster's size.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from weft.cluster.telemetry.slowdown_observer import SlowdownObserver
from weft.core.engine.eviction_limits import WHYS

_SOURCES = ("progress", "sm-active", "none")


class SlowdownMetrics:
    """A collector of prometheus-client over one `SlowdownObserver`."""

    def __init__(self, slowdown_observer: SlowdownObserver) -> None:
        self._observer = slowdown_observer

    def collect(self) -> Iterator[Metric]:
        """Everything, as of the last look."""
        seen = self._observer
        yield from self._pods()
        yield _family(
            GaugeMetricFamily,
            "weft_observed_unjoined_series",
            "Series of the last look that belong to no running pod with a GPU.",
            "why",
            dict(sorted(seen.unjoined.items())),
        )
        yield _family(
            CounterMetricFamily,
            "weft_observed_writes",
            "Writes of what was observed, by outcome.",
            "outcome",
            seen.slowdown_store.counts,
        )
        unreadable = "Times that what was kept could not be read."
        yield CounterMetricFamily(
            "weft_observed_unreadable", unreadable, seen.slowdown_store.unreadable
        )
        faults = "Mistakes of Weft's own in looking at progress."
        yield CounterMetricFamily("weft_observed_faults", faults, seen.errors)

    def _pods(self) -> Iterator[Metric]:
        seen = self._observer
        yield _family(
            GaugeMetricFamily,
            "weft_observed_pods",
            "Running pods with GPUs, by what tells how fast they go.",
            "source",
            {source: seen.counts[source] for source in _SOURCES},
        )
        slow = "Pods slower than their bound at the last look."
        yield GaugeMetricFamily("weft_observed_slow_pods", slow, seen.counts["slow"])
        late = "Pods whose p99 was above their SLO at the last look."
        yield GaugeMetricFamily("weft_observed_late_pods", late, seen.counts["late"])
        banned = "Pairs of applications that are kept apart now."
        yield GaugeMetricFamily("weft_observed_banned_pairs", banned, seen.banned)
        held_back = seen.held_back
        yield _family(
            GaugeMetricFamily,
            "weft_observed_held_back_pods",
            "Pods that are too slow and for which nobody was evicted at the last look.",
            "why",
            {why: held_back[why] for why in WHYS},
        )


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, int],
) -> Metric:
    family = kind(name, text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family
