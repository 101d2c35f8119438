"""Auto: combines least-stranding with measured load, and lends idle memory. GPUs without
measurements are scored by requests alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.policy import ExpectedSlowdown, ScorePart, SlowdownTolerance
from weft.core.ledger.table import Bools, CoResidents, Ints, LedgerTable
from weft.core.policies import gpu_readings
from weft.core.policies.gpu_amounts import by_memory
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache, is_critical
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.load_aware import FULL, gate, load
from weft.core.policies.sharing_cost import MIX, NO_MIX, InterferenceTerm
from weft.model import Shape
from weft.model.interference_table import INTERFERENCE, InterferenceTable

SLOPE = 0.25
"""Slope of the sigmoid where stranding does not change: points of auto per point of
least-stranding."""
STEEPEST = 50.0
"""Changes in stranding beyond ± this many GPUs are clipped before the sigmoid."""


class Auto(Policy):
    """Weighs least-stranding and load-aware equally, on GPUs that pass CARMA's gate (neither busy
    nor short of memory). Predicted interference, if there is any, weighs three times as much as
    each of them, and may exclude GPUs because of the pods on them.

    A missing reading affects only its own GPU. Without profiling metrics, the GPU's load is
    GPU_UTIL. Memory is lent only if memory readings are FRESH and compute is left. If the load is
    MISSING, the GPU is scored by least-stranding and binpack on requests."""

    name = "auto"
    summary = (
        "least-stranding and load-aware; lends idle memory; scores unmeasured GPUs by requests"
    )
    source = "Weft"
    reads = frozenset({"signals", "occupants", "co_residents"})
    inputs: Mapping[str, Any] = {INTERFERENCE: InterferenceTable, **LeastStranding.inputs}
    harvests = True

    def __init__(self) -> None:
        self._seen = SnapshotCache(GpuReadingColumns)
        self._expected = InterferenceTerm()
        self._stranding = LeastStranding()
        self._stranding.is_part = True
        self.prices_every = self._stranding.prices_every

    def take_input(self, name: str, value: Any) -> None:
        """Take predicted interference, or pass typical pods to least-stranding."""
        if name == INTERFERENCE:
            self._expected.predict_by(value)
        else:
            self._stranding.take_input(name, value)

    def prepare_input(self, name: str, value: Any, table: LedgerTable) -> None:
        """Prepare an input of typical pods, as least-stranding does."""
        if name != INTERFERENCE:
            self._stranding.prepare_input(name, value, table)

    def take_turnover(self, part: float) -> None:
        """Pass the turnover (the part of held capacity that replaced freed capacity) to
        least-stranding."""
        self._stranding.take_turnover(part)

    def take_table(self, table: LedgerTable) -> None:
        """Compute least-stranding's prices for this table."""
        self._stranding.take_table(table)

    @property
    def tolerance(self) -> SlowdownTolerance | None:
        """Slowdown that running pods tolerate; None if no interference is predicted."""
        return self._expected.tolerance

    def filter_devices(self, query: Query) -> Bools:
        """Mask of devices that the pod may use, [d].

        A shared GPU must pass load-aware's gate. Memory beyond requests is lent only while readings
        are FRESH and enough compute is left for one more pod."""
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
        """Predict the slowdown of the pod and of its co-residents."""
        return self._expected.predict(shape, co_residents, model)

    def score_nodes(self, query: Query) -> Ints | None:
        """Score nodes as least-stranding does, converted to 0 to 100, in thousandths, [n]; None for
        a pod with one shared GPU request, which `score_devices` scores."""
        score = self._stranding.score_nodes(query)
        return None if score is None else _spared(score)

    def score_devices(self, query: Query) -> Ints | None:
        """Score 100·sigmoid(decrease of stranding in GPUs) + 100·(1 − load), in thousandths, [d];
        if the load is MISSING, the second term is 50·(1 − unreserved part). With predicted
        interference, three terms are weighted by `MIX`."""
        points = self._load_points(query)
        score = self._stranding.score_devices(query)
        if score is None:
            return points
        if self._expected.known:
            return self._expected.mix(query, _spared(score), points)
        return points + _spared(score)

    def _load_points(self, query: Query) -> Ints:
        readings = self._seen.of(query)
        calm = (FULL * (1.0 - load(query, readings))).astype(np.int64)
        full = FULL // 2000 * (1000 - np.clip(_unpromised(query), 0, 1000))
        return np.where(query.take_devices(readings.known), calm, full)

    def score_parts(self, query: Query, devices: Sequence[int]) -> tuple[ScorePart, ...]:
        """Return the parts of the score: least-stranding's, scaled to add up to auto's points for
        stranding minus 50 (the points for no change). For a single GPU request, also the points for
        load and, if interference is predicted, for co-residents, of the device with the most points
        for load."""
        parts = self._stranding.score_parts(query, devices)
        total = sum(part.points for part in parts)
        spared = int(_spared(np.array([total]))[0]) - FULL // 2
        weights = MIX if self._expected.known else NO_MIX
        scale = weights.stranding * (spared / total if total else SLOPE)
        told = [msgspec.structs.replace(part, points=scale * part.points) for part in parts]
        need = query.need
        if need is None or len(query.demand.needs) > 1 or not devices:
            return tuple(told)
        readings, points = self._seen.of(query), self._load_points(query)
        at = max(devices, key=lambda device: int(points[device]))
        known = bool(query.take_devices(readings.known)[at])
        facts: dict[str, float | int | str] = {
            "position": list(devices).index(at),
            "load": float(load(query, readings)[at]) if known else -1.0,
            "unpromised": int(_unpromised(query)[at]) / 1000,
        }
        told.append(ScorePart("load", weights.load * int(points[at]), facts))
        if self._expected.known and not need.whole:
            value = float(self._expected.value(query)[at])
            told.append(ScorePart("co-residents", weights.own * FULL * value, {"value": value}))
        return tuple(told)


def _spared(score: Ints) -> Ints:
    """Convert least-stranding's score (hundredths of a thousandth of a GPU) to 0 to 100, in
    thousandths, by a sigmoid: 50 where stranding does not change."""
    gpus = np.clip(score / FULL, -STEEPEST, STEEPEST)
    return np.rint(FULL / (1.0 + np.exp(-gpus))).astype(np.int64)


def _unpromised(query: Query) -> Ints:
    """Return the unreserved part of each device's memory, or of its cores if the pod requests no
    memory, thousandths, [d]."""
    if not by_memory(query):
        return query.device_milli_free
    return query.device_memory_strict * 1000 // np.maximum(query.device_memory_total, 1)
