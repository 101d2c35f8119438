"""The extender's metrics, as a prometheus-client collector."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from weft.cluster.http.metric_families import counter

BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
REQUESTS = "weft_extender_requests"
DURATION = "weft_extender_request_duration_seconds"
REJECTED = "weft_extender_rejected"


class ExtenderMetrics(Collector):
    """Metrics of the extender: requests by path, verb and result, their durations, and rejected
    requests by reason.

    Labels come from routes and from fixed words in the code, never from requests, so that their
    number is bounded."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        self.rejected: dict[str, int] = {}
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def answered(self, path: str, verb: str, result: str, took_s: float) -> None:
        """Count one request; `result` is "ok" or "error"."""
        key = (path, verb, result)
        self.requests[key] = self.requests.get(key, 0) + 1
        buckets = self._buckets.setdefault((path, verb), [0] * (len(BUCKETS_S) + 1))
        buckets[bisect_left(BUCKETS_S, took_s)] += 1
        self._sums[path, verb] = self._sums.get((path, verb), 0.0) + took_s

    def turned_away(self, why: str) -> None:
        """Count one request that was rejected without being read."""
        self.rejected[why] = self.rejected.get(why, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their present values."""
        yield counter(REQUESTS, "Requests answered.", self.requests, "path", "verb", "result")
        yield counter(REJECTED, "Requests refused unread.", self.rejected, "why")
        text = "From the last byte of a request to the answer's first."
        durations = HistogramMetricFamily(DURATION, text, labels=("path", "verb"))
        bounds = (*map(str, BUCKETS_S), "+Inf")
        for where, buckets in self._buckets.items():
            counts = list(zip(bounds, accumulate(buckets), strict=True))
            durations.add_metric(where, counts, self._sums[where])
        yield durations

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self).decode()
