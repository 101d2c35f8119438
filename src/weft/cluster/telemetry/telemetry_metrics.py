"""Metrics about the metrics: how old, how complete, how long it took. For Prometheus to ask.

Labels are Weft's own names of metrics and words of the code: bounded, whatever the cluster's size.
"""

from collections.abc import Iterator

import numpy as np
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from weft.cluster.telemetry.telemetry_loop import TelemetryLoop
from weft.core.framework.signals import FRESH, MISSING, STALE, SignalsView
from weft.telemetry.sources.answers import KINDS

_STATES = {FRESH: "fresh", STALE: "stale", MISSING: "missing"}


class TelemetryMetrics:
    """A collector of prometheus-client over one `TelemetryLoop`."""

    def __init__(self, loop: TelemetryLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Everything, as of the last tick."""
        loop = self._loop
        yield from self._freshness()
        yield from self._ages()
        yield from self._whom()
        queries = GaugeMetricFamily(
            "weft_telemetry_query_seconds",
            "How long the last questions took, longest and sum.",
            labels=["of"],
        )
        took = list(loop.took_s.values())
        queries.add_metric(["longest"], max(took, default=0.0))
        queries.add_metric(["sum"], sum(took))
        yield queries
        yield _gauge(
            "weft_telemetry_refresh_seconds",
            "From answers to the last snapshot.",
            loop.digesting_s,
        )
        errors = CounterMetricFamily(
            "weft_telemetry_errors", "Questions without an answer, by kind.", labels=["kind"]
        )
        kinds: dict[str, int] = {}
        for (_, kind), count in loop.errors.items():
            kinds[kind] = kinds.get(kind, 0) + count
        for kind, count in sorted(kinds.items()):
            errors.add_metric([kind], count)
        yield errors
        unjoined = GaugeMetricFamily(
            "weft_telemetry_unjoined_series",
            "Series of the last look that belong to no GPU.",
            labels=["why"],
        )
        for why, count in sorted(loop.unjoined.items()):
            unjoined.add_metric([why], count)
        yield unjoined
        snapshot = loop.snapshot
        yield _gauge(
            "weft_telemetry_snapshot_version",
            "Looks that have become a snapshot.",
            snapshot.version if snapshot else 0,
        )

    def _whom(self) -> Iterator[Metric]:
        """Backends: who answers, changes of it, and how queries went."""
        loop = self._loop
        backend = GaugeMetricFamily(
            "weft_telemetry_backend", "1: whom the last look asked.", labels=["backend"]
        )
        if loop.where:
            backend.add_metric([loop.where], 1)
        yield backend
        changes = CounterMetricFamily(
            "weft_telemetry_backend_changes", "Times that somebody else was asked."
        )
        changes.add_metric([], loop.changes)
        yield changes
        queries = CounterMetricFamily(
            "weft_telemetry_queries", "Questions, by whether an answer came.", labels=["result"]
        )
        failed = sum(n for (_, kind), n in loop.errors.items() if kind in KINDS)
        queries.add_metric(["answered"], loop.answered)
        queries.add_metric(["failed"], failed)
        yield queries

    def _freshness(self) -> Iterator[Metric]:
        """GPUs by how old their newest sample is, metric by metric."""
        family = GaugeMetricFamily(
            "weft_telemetry_gpus",
            "GPUs by how old their newest sample of a metric is.",
            labels=["metric", "state"],
        )
        loop = self._loop
        if loop.snapshot is not None:
            view = SignalsView(loop.snapshot)
            rows = {name: row for row, name in enumerate(view.source.columns)}
            gpus = len(view.source.gpus)
            for metric in loop.options.metrics:
                row = rows.get(metric.value)
                ages = view.freshness[row] if row is not None else np.full(gpus, MISSING)
                for state, word in _STATES.items():
                    family.add_metric([metric.value, word], int((ages == state).sum()))
        yield family

    def _ages(self) -> Iterator[Metric]:
        """The median age of what is known; a metric that nobody has is left out."""
        family = GaugeMetricFamily(
            "weft_telemetry_age_seconds",
            "Median age of GPUs' newest samples of a metric.",
            labels=["metric"],
        )
        loop = self._loop
        if loop.feed is not None:
            now_s = loop.now_s()
            window = loop.feed.window
            for metric in loop.options.metrics:
                at_s = window.newest(metric)[1]
                known = at_s[np.isfinite(at_s)]
                if len(known):
                    family.add_metric([metric.value], float(now_s - np.median(known)))
        yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
