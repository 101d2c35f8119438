"""Kube-Knots and its successors: lend memory that pods leave idle, judged by its trend.

- smallest-first   the order in which Kube-Knots' scheduler takes its pods
- res-ag           first-fit decreasing by request, without metrics: Kube-Knots' main baseline
- kube-knots-cbp   shares a GPU whose memory is uncorrelated with the pod's, and lends idle memory
- kube-knots-pp    as cbp; if that refuses, free memory forecast by a regression decides
- ferikoglou       rules as published: requests, then steady memory, then its forecast; no reserve
- ferikoglou-safe  these rules within the ledger: lends idle memory, less a reserve, if readings are
                   FRESH"""

from typing import Literal

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.signals import CORRELATION, FRESH, Floats, SignalsView
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.core.policies import gpu_readings
from weft.core.policies.gpu_amounts import standing
from weft.core.policies.gpu_readings import (
    SnapshotCache,
    asked_mib,
    is_critical,
    may_borrow,
    reserve_mib,
    room_by_requests,
)
from weft.model import BadInputError, PodRequest

CARD_MIB = 32_510
"""GPU memory assumed for whole GPUs and percentages, as in the original's experiments."""


class SmallestFirst(Policy):
    """Orders pods by the GPU memory that they request, the smallest first, and scores no place. Put
    it first in a profile, before a policy that scores."""

    name = "smallest-first"
    summary = "any node that fits; pods that request the least GPU memory go first"
    source = "Kube-Knots' scheduler (ECE-Diploma)"

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """Return the GPU memory requested, MiB; equal requests by priority, then age."""
        return (gpu_memory_mib(pod), -pod.priority, pod.created_ns)


def gpu_memory_mib(pod: PodRequest) -> int:
    """Return the GPU memory requested over all GPUs, MiB."""
    gpu_requests = pod.shape.gpu_requests
    return sum(c.count * (CARD_MIB if c.whole else c.memory.mib_on(CARD_MIB)) for c in gpu_requests)


ROUND_NS = 5_000_000_000
"""Pods that arrived within this time (5 s) are ordered by size, as in Kube-Knots. Without such
rounds a small pod would wait for as long as larger pods keep arriving."""


def largest_first(pod: PodRequest) -> tuple[int, ...]:
    """Return the sort key: round of arrival (5 s), then GPU memory requested, the largest first;
    then priority and age."""
    return (pod.created_ns // ROUND_NS, -gpu_memory_mib(pod), -pod.priority, pod.created_ns)


class ResAg(Policy):
    """Places the largest request of a round first, on the first GPU where requests fit.

    The cluster's declared overcommit, not the policy, limits how far requests may exceed a GPU."""

    name = "res-ag"
    summary = "the largest requests first, each on the first GPU that fits"
    source = "Kube-Knots (CLUSTER'19), baseline Res-Ag"

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """Return the sort key: pods that arrived within 5 s by GPU memory requested, the largest
        first."""
        return largest_first(pod)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the first device that fits."""
        return 0


STEADY_BELOW = 0.5
"""Free memory with a coefficient of variation below this is steady (as published)."""
TREND_ABOVE = 0.35
"""Free memory has a trend if its autocorrelation is above this (as published)."""
LEAST_SAMPLES = 20
"""Least number of samples for a decision (as published)."""
SERIES = ("memory_free_mib.cov", "window.samples")
"""Columns that must be FRESH for a GPU's memory trend to be trusted."""


class MemoryTrend:
    """Statistics of memory for all devices of a table, [D] each, NaN if unknown.

    `cov` (coefficient of variation) and `autocorrelation` are those of free memory; `used_p80_mib`
    is the 80th percentile of used memory, `predicted_mib` the forecast free memory, `next_sm` the
    forecast share of SMs in use. `long` marks windows with enough samples, `fresh` those whose
    readings are FRESH too."""

    def __init__(self, view: SignalsView, table: LedgerTable) -> None:
        self.cov = view.over(table, "memory_free_mib.cov")[0]
        self.autocorrelation = view.over(table, "memory_free_mib.autocorrelation")[0]
        self.used_p80_mib = _truncated(view.over(table, "memory_used_mib.p80")[0])
        self.predicted_mib = _truncated(view.over(table, "memory_free_mib.predicted")[0])
        self.next_sm = view.over(table, "sm_active_ratio.next")[0]
        with np.errstate(invalid="ignore"):
            samples = view.over(table, "window.samples")[0]
            self.long: Bools = samples >= LEAST_SAMPLES
        now = [view.over(table, column)[1] == FRESH for column in SERIES]
        self.fresh: Bools = self.long & now[0] & now[1]


def _truncated(values: Floats) -> Floats:
    """Truncate towards zero, as the original converts to whole MiB."""
    return np.asarray(np.trunc(values))


TIER = 1_000_000_000
"""Larger than any GPU's free memory: separates one class of GPUs from the next."""

TOGETHER = 0.5
"""Pods with at least this correlation peak together and are kept apart (Kube-Knots IV-C)."""

Reading = Literal["correlation", "cov"]


class KubeKnotsCbp(Policy):
    """Correlation-based provisioning (CBP), the largest requests of a round first.

    `reading` chooses what must be low for a pod to share a GPU: `correlation`, of the application's
    series with the GPU's, or `cov`, the coefficient of variation of the GPU's free memory. If the
    application was never seen alone on a GPU, a small latency-critical pod counts as uncorrelated,
    and for all other pods `cov` decides."""

    name = "kube-knots-cbp"
    summary = "GPUs in use whose memory is steady, the most free first; lends idle memory"
    source = "Kube-Knots (CLUSTER'19), CBP"
    reads = frozenset({"signals", "occupants"})
    harvests = True

    def __init__(self, reading: Reading = "correlation") -> None:
        if reading not in {"correlation", "cov"}:
            raise BadInputError(
                f"policy {self.name}, option reading",
                f"{reading!r} is unknown; write correlation or cov",
            )
        self.by_correlation = reading == "correlation"
        self._trend = SnapshotCache(MemoryTrend)

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """Return the sort key: pods that arrived within 5 s by GPU memory requested, the largest
        first."""
        return largest_first(pod)

    def filter_devices(self, query: Query) -> Bools:
        """Mask of idle GPUs, of GPUs that fit by requests, and of GPUs on which the pod may borrow
        memory because their trend admits it, [d]."""
        lends = self._willing(query) & may_borrow(query)
        return np.asarray((query.device_pods == 0) | gpu_readings.fits_requests(query) | lends)

    def _willing(self, query: Query) -> Bools:
        """Mask of GPUs whose memory trend is known and admits the pod, [d]."""
        trend = self._trend.of(query)
        return np.asarray(query.take_devices(trend.fresh) & self._admits(query, trend))

    def _admits(self, query: Query, trend: MemoryTrend) -> Bools:
        """Mask of devices that the pod may share if their trend is known, [d]."""
        steady = query.take_devices(trend.cov) < STEADY_BELOW
        if not self.by_correlation:
            return np.asarray(steady)
        if is_critical(query):
            steady |= 10 * gpu_readings.asked_mib(query) <= query.device_memory_total
        application = query.demand.shape.application
        together = query.measured(f"{CORRELATION}.{application}")[0]
        return np.where(np.isnan(together), steady, together < TOGETHER)

    def score_devices(self, query: Query) -> Ints:
        """Score in four classes, [d], the best first: shared GPUs with a known trend that admits
        the pod, the most free first; GPUs of unknown trend, as binpack; idle GPUs; all others."""
        if query.need is not None and query.need.whole:
            return -standing(query)
        trusted = query.take_devices(self._trend.of(query).fresh)
        tightest = -room_by_requests(query)
        shared = query.device_pods > 0
        known = np.where(shared, 2 * TIER + query.device_memory_free, tightest)
        known = np.where(shared & ~self._willing(query), tightest - TIER, known)
        return np.where(trusted, known, TIER + tightest)


INFERENCE_SM = 0.15
"""Share of SMs that a latency-critical pod is assumed to need."""


class KubeKnotsPp(KubeKnotsCbp):
    """Peak prediction (PP): as CBP, and admits GPUs whose free memory has a trend and is forecast
    to be enough.

    The trend's autocorrelation must exceed `trend_above`. A latency-critical pod shares no GPU that
    is forecast to have no SMs left for it."""

    name = "kube-knots-pp"
    summary = "as kube-knots-cbp, and GPUs whose forecast free memory is enough"
    source = "Kube-Knots (CLUSTER'19), CBP + PP"

    def __init__(self, reading: Reading = "correlation", trend_above: float = 0.0) -> None:
        super().__init__(reading)
        self.trend_above = trend_above

    def filter_devices(self, query: Query) -> Bools:
        """Filter as CBP does; for a latency-critical pod, also exclude shared GPUs forecast to have
        no SMs left, [d]."""
        admitted = super().filter_devices(query)
        if not is_critical(query):
            return admitted
        trend = self._trend.of(query)
        full = query.take_devices(trend.fresh & (trend.next_sm + INFERENCE_SM > 1.0))
        return np.asarray(admitted & ~(full & (query.device_pods > 0)))

    def _admits(self, query: Query, trend: MemoryTrend) -> Bools:
        """Mask of devices that CBP admits, or whose forecast free memory is enough, [d]."""
        predicted = np.minimum(query.take_devices(trend.predicted_mib), query.device_memory_total)
        enough = predicted - reserve_mib(query) >= asked_mib(query)
        trending = query.take_devices(trend.autocorrelation) > self.trend_above
        return np.asarray(super()._admits(query, trend) | (trending & enough))


class Ferikoglou(SmallestFirst):
    """Decides as the published scheduler does, for every GPU at once, from the snapshot's columns.

    It accepts stale samples, keeps no reserve, and does not wait for pods that are still warming
    up. The ledger limits it to the cluster's declared overcommit."""

    name = "ferikoglou"
    summary = (
        "smallest pods first; exceeds requests where memory is steady or forecast to be enough"
    )
    source = "Ferikoglou et al. (PARMA-DITAM 2021), ECE-Diploma"
    reads = frozenset({"signals", "occupants"})
    unsafe = "as published: no reserve, old samples count, pods that warm up are not waited for"

    def __init__(self) -> None:
        self._trend = SnapshotCache(MemoryTrend)

    def filter_devices(self, query: Query) -> Bools:
        """Mask of GPUs that the published rules accept, [d]."""
        trend = self._trend.of(query)
        requested_mib = asked_mib(query)
        steady = query.take_devices(trend.cov) < STEADY_BELOW
        beside = query.device_memory_total - query.take_devices(trend.used_p80_mib)
        trending = query.take_devices(trend.autocorrelation) > TREND_ABOVE
        forecast = query.take_devices(trend.predicted_mib)
        by_trend = (steady & (requested_mib <= beside)) | (trending & (requested_mib <= forecast))
        return np.asarray(_fits_card(query) | (query.take_devices(self._trusted(trend)) & by_trend))

    def _trusted(self, trend: MemoryTrend) -> Bools:
        """Mask of GPUs with enough samples for a decision, over the whole table, [D]."""
        return trend.long

    def score_devices(self, query: Query) -> Ints:
        """Prefer the tightest GPU where requests fit; then the GPU with the most free memory,
        [d]."""
        if query.need is not None and query.need.whole:
            return -standing(query)
        tightest = TIER - room_by_requests(query)
        return np.where(_fits_card(query), tightest, query.device_memory_free)


def _fits_card(query: Query) -> Bools:
    """Mask of GPUs on which the request fits next to all others, ignoring measurements, [d]."""
    unpromised = query.device_memory_total - query.device_memory_promised
    return np.asarray(asked_mib(query) <= unpromised)


class FerikoglouSafe(Ferikoglou):
    """Applies Ferikoglou's three rules, but samples must be FRESH and the ledger limits lending.

    Only memory that the GPU's pods were measured not to need is lent, less a reserve, and within
    the declared harvest limit. The smallest of the pods that arrived within `round_s` seconds goes
    first; with 0 the smallest of all, as published, so that larger pods wait while smaller ones
    arrive."""

    name = "ferikoglou-safe"
    summary = "ferikoglou with a reserve, on fresh samples, after the GPU's pods have warmed up"
    source = "Ferikoglou's rules on Weft's ledger"
    unsafe = ""
    harvests = True

    def __init__(self, round_s: int = 5) -> None:
        super().__init__()
        self.round_ns = 1_000_000_000 * round_s

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """Return the sort key: round of arrival (`round_s`), then GPU memory requested, the
        smallest first."""
        came = pod.created_ns // self.round_ns if self.round_ns > 0 else 0
        return (came, *super().queue_key(pod))

    def filter_devices(self, query: Query) -> Bools:
        """Mask of GPUs that the published rules accept, [d]; for pods of unknown need, at most one
        GPU per node may lend."""
        return np.asarray(super().filter_devices(query) & may_borrow(query))

    def _trusted(self, trend: MemoryTrend) -> Bools:
        """Mask of GPUs with enough samples of which the newest are FRESH, [D]."""
        return trend.fresh
