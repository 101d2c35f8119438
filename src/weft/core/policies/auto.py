"""Auto: little waste and little load, idle memory lent; each GPU by requests where unmeasured."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.policy import ExpectedSlowdown, SlowdownTolerance
from weft.core.ledger.residents import CoResidents
from weft.core.ledger.table import Bools, Ints
from weft.core.policies import gpu_readings
from weft.core.policies.fgd import Fgd
from weft.core.policies.gpu_amounts import by_memory
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache, is_critical
from weft.core.policies.interference_term import InterferenceTerm
from weft.core.policies.load_aware import FULL, gate, load
from weft.model import Shape
from weft.model.interference_table import INTERFERENCE, InterferenceTable

FRAGMENTS = 1000
"""Weight of fgd's 0 to 100 against load-aware's thousandths of 0 to 100: both count the same."""


class Auto(Policy):
    """FGD and load-aware in equal parts, behind CARMA's gate; where interference is predicted, it
    counts three times as much as both, and may refuse co-residents.

    It degrades by itself, GPU by GPU: without profiling metrics to GPU_UTIL; where memory is not
    FRESH, or compute is used up, nothing is lent; where the load is MISSING, fgd and binpack on
    requests.
    """

    name = "auto"
    summary = (
        "fgd and load-aware together; memory idle so far is lent; unmeasured GPUs go by requests"
    )
    source = "Weft"
    reads = frozenset({"signals", "occupants", "co_residents"})
    inputs: Mapping[str, Any] = {INTERFERENCE: InterferenceTable, **Fgd.inputs}
    harvests = True

    def __init__(self) -> None:
        self._seen = SnapshotCache(GpuReadingColumns)
        self._expected = InterferenceTerm()
        self._fgd = Fgd()
        self._fgd.every_device = True

    def take_input(self, name: str, value: Any) -> None:
        """Predicted interference, or what usually comes, as for fgd."""
        if name == INTERFERENCE:
            self._expected.predict_by(value)
        else:
            self._fgd.take_input(name, value)

    @property
    def tolerance(self) -> SlowdownTolerance | None:
        """As slow as they may get who share, where interference is predicted."""
        return self._expected.tolerance

    def filter_devices(self, query: Query) -> Bools:
        """Load-aware's gate where a GPU is shared; beyond requests only while memory is FRESH, and
        where there is compute for one pod more, [d]."""
        readings = self._seen.of(query)
        shut = gate(query, readings)
        if is_critical(query):
            shut |= ~query.take_devices(readings.known)
        lends = query.take_devices(readings.memory_is_fresh)
        lends &= gpu_readings.has_compute_left(query, readings)
        room = lends | gpu_readings.fits_requests(query)
        good = room & ((query.device_pods == 0) | ~shut)
        return np.asarray(good & self._expected.admits(query) if self._expected.known else good)

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Slowdown of the pod and of those it joins."""
        return self._expected.predict(shape, co_residents, model)

    def score_nodes(self, query: Query) -> Ints | None:
        """Scores nodes with one way to place a pod: fgd's score, [n]."""
        score = self._fgd.score_nodes(query)
        return None if score is None else FRAGMENTS * score

    def score_devices(self, query: Query) -> Ints | None:
        """fgd + 100·(1 − load), in thousandths; MISSING: fgd + 50·(1 − free), [d]."""
        readings = self._seen.of(query)
        calm = (FULL * (1.0 - load(query, readings))).astype(np.int64)
        full = FULL // 2000 * (1000 - np.clip(_unpromised(query), 0, 1000))
        points = np.where(query.take_devices(readings.known), calm, full)
        fragments = self._fgd.score_devices(query)
        if self._expected.known and fragments is not None:
            return self._expected.mix(query, fragments, points)
        return points if fragments is None else points + FRAGMENTS * fragments


def _unpromised(query: Query) -> Ints:
    """Unpromised part of each device, thousandths of what the pod shares by, [d]."""
    if not by_memory(query):
        return query.device_milli_free
    return query.device_memory_strict * 1000 // np.maximum(query.device_memory_total, 1)
