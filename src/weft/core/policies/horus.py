"""Horus: the GPU where memory, expected utilisation and co-residents cost the least."""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache, asked_mib

MEMORY, OVERLOAD = 1.3, 1.6
"""Weights of memory, and of utilisation above 100 %."""

PRIOR_PERCENT = {"latency-critical": 15}
"""GPU utilisation to expect of a pod of this class: inference."""
TRAINING_PERCENT = 90
"""The use of all others: training. Residents that nobody measures are taken for this too."""


class Horus(Policy):
    """Cost = 1.3·memory + expected utilisation + pods on the GPU; the lowest wins."""

    name = "horus"
    summary = "the GPU with the lowest cost of memory, expected utilisation and co-residents"
    source = "Horus (Yeung et al., TPDS 2022)"
    reads = frozenset({"signals", "occupants"})

    def __init__(self) -> None:
        self._seen = SnapshotCache(GpuReadingColumns)

    def score_devices(self, query: Query) -> Ints:
        """Minus the cost, in thousandths, [d].

        Memory in use is what is measured or promised, whichever is more; utilisation what is
        measured while FRESH, else what one expects of the residents.
        """
        readings = self._seen.of(query)
        total = np.maximum(query.device_memory_total, 1)
        used = np.fmax(query.device_memory_promised, query.take_devices(readings.memory) * total)
        memory = (used + asked_mib(query)) / total
        now = 100.0 * query.take_devices(readings.utilisation)
        now = np.where(np.isnan(now), float(TRAINING_PERCENT) * query.device_pods, now)
        expected = now + PRIOR_PERCENT.get(query.demand.shape.job_class, TRAINING_PERCENT)
        mismatch = np.where(expected > 100.0, OVERLOAD * (expected - 100.0), 100.0 - expected)
        cost = MEMORY * memory + mismatch / 100.0 + query.device_pods
        return np.asarray(-1000.0 * cost).astype(np.int64)
