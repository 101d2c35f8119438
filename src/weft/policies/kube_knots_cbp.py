"""Kube-Knots' CBP: share a GPU whose memory goes another way than the pod's; lend what is idle."""

from typing import Literal

import numpy as np

from weft.framework import Policy, Query
from weft.ledger.table import Bools, Ints
from weft.model import BadInputError, PodRequest
from weft.policies.amounts import standing
from weft.policies.memory_trend import MemoryTrend
from weft.policies.readings import (
    Kept,
    asked_mib,
    fits_requests,
    is_critical,
    room_by_requests,
)
from weft.policies.smallest_first import gpu_memory_mib
from weft.signals.knots import PUBLISHED

TIER = 1_000_000_000
"""More than any GPU has free: keeps one kind of GPU before the next."""

Reading = Literal["correlation", "cov"]


class KubeKnotsCbp(Policy):
    """Correlation-based provisioning, largest requests first.

    `reading` says what "correlation" is: of the pod's series with the GPU's, or the coefficient
    of variation of the GPU's free memory. A pod without a series of its own counts as uncorrelated
    where it is latency-critical and small, else the second reading decides.
    """

    name = "kube-knots-cbp"
    summary = "GPUs in use whose memory is steady, the most free first; idle memory is lent"
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
        self._trend = Kept(MemoryTrend)

    def queue_key(self, pod: PodRequest) -> tuple[int, ...]:
        """The GPU memory asked for, largest first; equal requests by priority, then age."""
        return (-gpu_memory_mib(pod), -pod.priority, pod.created_ns)

    def filter_devices(self, query: Query) -> Bools:
        """Idle GPUs, steady ones, and those of unknown trend where requests fit, [d]."""
        trend = self._trend.of(self.signals, query.table)
        trusted = query.take_devices(trend.fresh)
        admitted = np.where(trusted, self._admits(query, trend), fits_requests(query))
        return np.asarray((query.device_pods == 0) | admitted)

    def _admits(self, query: Query, trend: MemoryTrend) -> Bools:
        """Where the trend is known: may the pod share the GPU, [d]."""
        steady = query.take_devices(trend.cov) < PUBLISHED.steady_below
        if self.by_correlation and is_critical(query):
            steady |= 10 * asked_mib(query) <= query.device_memory_total
        return np.asarray(steady)

    def score_devices(self, query: Query) -> Ints:
        """In use and known: the most free first; then unknown ones as binpack; then idle, [d]."""
        if query.need is not None and query.need.whole:
            return -standing(query)
        trusted = query.take_devices(self._trend.of(self.signals, query.table).fresh)
        tightest = -room_by_requests(query)
        in_use = np.where(query.device_pods > 0, 2 * TIER + query.device_memory_free, tightest)
        return np.where(trusted, in_use, TIER + tightest)
