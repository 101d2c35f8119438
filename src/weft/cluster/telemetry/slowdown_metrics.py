"""Metrics of how fast pods go beside each other. For Prometheus to ask.

Labels are words of the code: bounded, whatever the cluster's size.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from weft.cluster.telemetry.slowdown_observer import Observing
from weft.core.engine.eviction_limits import WHYS

_SOURCES = ("progress", "sm-active", "none")


class ObservedMetrics:
    """A collector of prometheus-client over one `Observing`."""

    def __init__(self, observing: Observing) -> None:
        self._observing = observing

    def collect(self) -> Iterator[Metric]:
        """Everything, as of the last look."""
        observing, counts = self._observing, self._observing.counts
        remembering = observing.remembering
        yield _family(
            GaugeMetricFamily,
            "weft_observed_pods",
            "Running pods with GPUs, by what tells how fast they go.",
            "source",
            {source: counts[source] for source in _SOURCES},
        )
        for name, text, value in (
            (
                "weft_observed_slow_pods",
                "Pods slower than their bound at the last look.",
                counts["slow"],
            ),
            (
                "weft_observed_late_pods",
                "Pods whose p99 was above their SLO at the last look.",
                counts["late"],
            ),
            (
                "weft_observed_banned_pairs",
                "Pairs of applications that are kept apart now.",
                observing.banned,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        held_back = observing.held_back
        yield _family(
            GaugeMetricFamily,
            "weft_observed_held_back_pods",
            "Pods that are too slow and for which nobody was evicted at the last look.",
            "why",
            {why: held_back[why] for why in WHYS},
        )
        yield _family(
            GaugeMetricFamily,
            "weft_observed_unjoined_series",
            "Series of the last look that belong to no running pod with a GPU.",
            "why",
            dict(sorted(observing.unjoined.items())),
        )
        yield _family(
            CounterMetricFamily,
            "weft_observed_writes",
            "Writes of what was observed, by outcome.",
            "outcome",
            remembering.counts,
        )
        for name, text, value in (
            (
                "weft_observed_unreadable",
                "Times that what was kept could not be read.",
                remembering.unreadable,
            ),
            (
                "weft_observed_faults",
                "Mistakes of Weft's own in looking at progress.",
                observing.errors,
            ),
        ):
            yield CounterMetricFamily(name, text, value=value)


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
