"""Kube-Knots' CBP: share a GPU whose memory goes another way than the pod's; lend what is idle."""

from typing import Literal

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.signals import CORRELATION
from weft.core.ledger.table import Bools, Ints
from weft.core.policies import gpu_readings
from weft.core.policies.gpu_amounts import standing
from weft.core.policies.gpu_readings import SnapshotCache, is_critical, may_borrow, room_by_requests
from weft.core.policies.memory_trend import STEADY_BELOW, MemoryTrend
from weft.core.policies.res_ag import largest_first
from weft.model import BadInputError, PodRequest

TIER = 1_000_000_000
"""More than any GPU has free: keeps one kind of GPU before the next."""

TOGETHER = 0.5
"""From this correlation on two peak together, and are kept apart (Kube-Knots IV-C)."""

Reading = Literal["correlation", "cov"]


class KubeKnotsCbp(Policy):
    """Correlation-based provisioning, the largest requests of a round first.

    `reading` says what "correlation" is: of the series of the pod's application with the GPU's, or
    the coefficient of variation of the GPU's free memory. Where the application was never seen
    alone, a small latency-critical pod counts as uncorrelated, else the second reading decides.
    """

    name = "kube-knots-cbp"
    summary = "GPUs in use whose memory is steady, the most free first; memory idle so far is lent"
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
        """The largest first of those that came together."""
        return largest_first(pod)

    def filter_devices(self, query: Query) -> Bools:
        """Idle GPUs, those that admit the pod, and where requests fit: as a last resort, [d]."""
        lends = self._willing(query) & may_borrow(query)
        return np.asarray((query.device_pods == 0) | gpu_readings.fits_requests(query) | lends)

    def _willing(self, query: Query) -> Bools:
        """GPUs whose trend is known and admits the pod, [d]."""
        trend = self._trend.of(query)
        return np.asarray(query.take_devices(trend.fresh) & self._admits(query, trend))

    def _admits(self, query: Query, trend: MemoryTrend) -> Bools:
        """Mask of devices that the pod may share, where the trend is known, [d]."""
        steady = query.take_devices(trend.cov) < STEADY_BELOW
        if not self.by_correlation:
            return np.asarray(steady)
        if is_critical(query):
            steady |= 10 * gpu_readings.asked_mib(query) <= query.device_memory_total
        application = query.demand.shape.application
        together = query.measured(f"{CORRELATION}.{application}")[0]
        return np.where(np.isnan(together), steady, together < TOGETHER)

    def score_devices(self, query: Query) -> Ints:
        """In use and willing, the most free first; unknown, as binpack; idle; the others, [d]."""
        if query.need is not None and query.need.whole:
            return -standing(query)
        trusted = query.take_devices(self._trend.of(query).fresh)
        tightest = -room_by_requests(query)
        shared = query.device_pods > 0
        known = np.where(shared, 2 * TIER + query.device_memory_free, tightest)
        known = np.where(shared & ~self._willing(query), tightest - TIER, known)
        return np.where(trusted, known, TIER + tightest)
