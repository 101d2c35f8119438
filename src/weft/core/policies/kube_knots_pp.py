"""Kube-Knots' PP: CBP, and where that refuses, what a regression says will be free."""

import numpy as np

from weft.core.framework import Query
from weft.core.ledger.table import Bools
from weft.core.policies.gpu_readings import asked_mib, is_critical, reserve_mib
from weft.core.policies.kube_knots_cbp import KubeKnotsCbp, Reading
from weft.core.policies.memory_trend import MemoryTrend

INFERENCE_SM = 0.15
"""The share of SMs that a latency-critical pod is taken to need."""


class KubeKnotsPp(KubeKnotsCbp):
    """Peak prediction: a GPU with a trend in its free memory is judged by its forecast.

    `trend_above` is what its autocorrelation must exceed. A latency-critical pod shares no GPU
    that is forecast to have no SMs left for it.
    """

    name = "kube-knots-pp"
    summary = "as kube-knots-cbp, and GPUs whose forecast free memory is enough"
    source = "Kube-Knots (CLUSTER'19), CBP + PP"

    def __init__(self, reading: Reading = "correlation", trend_above: float = 0.0) -> None:
        super().__init__(reading)
        self.trend_above = trend_above

    def filter_devices(self, query: Query) -> Bools:
        """CBP's, but a critical pod shares no GPU that is forecast to have no SMs for it, [d]."""
        admitted = super().filter_devices(query)
        if not is_critical(query):
            return admitted
        trend = self._trend.of(query)
        full = query.take_devices(trend.fresh & (trend.next_sm + INFERENCE_SM > 1.0))
        return np.asarray(admitted & ~(full & (query.device_pods > 0)))

    def _admits(self, query: Query, trend: MemoryTrend) -> Bools:
        """CBP's yes, or the forecast's, [d]."""
        predicted = np.minimum(query.take_devices(trend.predicted_mib), query.device_memory_total)
        enough = predicted - reserve_mib(query) >= asked_mib(query)
        trending = query.take_devices(trend.autocorrelation) > self.trend_above
        return np.asarray(super()._admits(query, trend) | (trending & enough))
