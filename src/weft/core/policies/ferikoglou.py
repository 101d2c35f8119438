"""Ferikoglou's rules as published: requests, then steady memory, then its forecast; no reserve."""

import numpy as np

from weft.core.framework import Query
from weft.core.ledger.table import Bools, Ints
from weft.core.policies.gpu_amounts import standing
from weft.core.policies.gpu_readings import SnapshotCache, asked_mib, room_by_requests
from weft.core.policies.memory_trend import STEADY_BELOW, TREND_ABOVE, MemoryTrend
from weft.core.policies.smallest_first import SmallestFirst

TIER = 1_000_000_000
"""More than any GPU has free."""


class Ferikoglou(SmallestFirst):
    """Decides as the published scheduler for every GPU at once, on the snapshot's columns.

    It believes old samples, keeps no reserve and knows nothing of pods that still warm up. What
    the ledger lets it promise is the cluster's declared overcommit.
    """

    name = "ferikoglou"
    summary = "smallest first; beyond requests where memory is steady or forecast to be enough"
    source = "Ferikoglou et al. (PARMA-DITAM 2021), ECE-Diploma"
    reads = frozenset({"signals", "occupants"})
    unsafe = "as published: no reserve, old samples count, pods that warm up are not waited for"

    def __init__(self) -> None:
        self._trend = SnapshotCache(MemoryTrend)

    def filter_devices(self, query: Query) -> Bools:
        """The published decision for each GPU, [d]."""
        trend = self._trend.of(query)
        requested_mib = asked_mib(query)
        steady = query.take_devices(trend.cov) < STEADY_BELOW
        beside = query.device_memory_total - query.take_devices(trend.used_p80_mib)
        trending = query.take_devices(trend.autocorrelation) > TREND_ABOVE
        forecast = query.take_devices(trend.predicted_mib)
        by_trend = (steady & (requested_mib <= beside)) | (trending & (requested_mib <= forecast))
        return np.asarray(_fits_card(query) | (query.take_devices(self._trusted(trend)) & by_trend))

    def _trusted(self, trend: MemoryTrend) -> Bools:
        """GPUs whose samples are enough to go by, over the whole table, [D]."""
        return trend.long

    def score_devices(self, query: Query) -> Ints:
        """Prefers the tightest where requests fit; then the most that may still be given, [d].

        The original has one GPU; this keeps it from lending before cards are full.
        """
        if query.need is not None and query.need.whole:
            return -standing(query)
        tightest = TIER - room_by_requests(query)
        return np.where(_fits_card(query), tightest, query.device_memory_free)


def _fits_card(query: Query) -> Bools:
    """Mask of cards on which the request fits beside all others, whatever is measured, [d]."""
    unpromised = query.device_memory_total - query.device_memory_promised
    return np.asarray(asked_mib(query) <= unpromised)
