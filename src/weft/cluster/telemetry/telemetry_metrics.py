"""Prometheus metrics about the polls: age and completeness of samples, and duration.

Labels are Weft's own names of metrics and words of the code, so their number is bounded for any
size of cluster."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from prometheus_client.metrics_core import Metric

from weft.cluster.http.metric_families import counter, gauge
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop
from weft.core.framework.signals import FRESH, MISSING, STALE, SignalsView
from weft.telemetry.meaning.answers import KINDS

_STATES = {FRESH: "fresh", STALE: "stale", MISSING: "missing"}


class TelemetryMetrics:
    """Collector for prometheus-client over one `TelemetryLoop`."""

    def __init__(self, loop: TelemetryLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as of the last poll."""
        loop = self._loop
        yield from self._freshness()
        yield from self._ages()
        yield from self._whom()
        took = list(loop.took_s.values())
        took_s = {"longest": max(took, default=0.0), "sum": sum(took)}
        queries = "How long the queries of the last poll took, longest and sum."
        yield gauge("weft_telemetry_query_seconds", queries, took_s, "of")
        refresh = "Time from the answers to the last snapshot."
        yield gauge("weft_telemetry_refresh_seconds", refresh, loop.digesting_s)
        errors: Counter[str] = Counter()
        for (_, kind), count in loop.errors.items():
            errors[kind] += count
        unanswered = "Questions without an answer, by kind."
        yield counter("weft_telemetry_errors", unanswered, dict(sorted(errors.items())), "kind")
        unjoined = dict(sorted(loop.unjoined.items()))
        outside = "Series of the last poll that belong to no GPU."
        yield gauge("weft_telemetry_unjoined_series", outside, unjoined, "why")
        version = loop.snapshot.version if loop.snapshot else 0
        newest = "Version of the newest snapshot of GPUs' metrics; grows by one with each poll."
        yield gauge("weft_telemetry_snapshot_version", newest, version)

    def _whom(self) -> Iterator[Metric]:
        """Yield the backend that answers, and the outcomes of queries."""
        loop = self._loop
        asked = {loop.where: 1} if loop.where else {}
        yield gauge(
            "weft_telemetry_backend", "1: the source that the last poll asked.", asked, "backend"
        )
        failed = sum(n for (_, kind), n in loop.errors.items() if kind in KINDS)
        results = {"answered": loop.answered, "failed": failed}
        queries = "Queries, by outcome."
        yield counter("weft_telemetry_queries", queries, results, "result")

    def _freshness(self) -> Iterator[Metric]:
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

    def _ages(self) -> Iterator[Metric]:
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
