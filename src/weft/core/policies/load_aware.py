"""Policies that use the measured load of GPUs.

- load-aware  the GPU with the least measured load; requests decide where none is measured
- horus       the GPU with the lowest cost of memory, expected utilisation and co-residents"""

from typing import Annotated, Literal

import msgspec
import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.signals import Floats
from weft.core.ledger.table import Bools, Ints
from weft.core.policies import gpu_readings
from weft.core.policies.gpu_readings import (
    GpuReadingColumns,
    SnapshotCache,
    asked_mib,
    short_of_memory,
)
from weft.model import BadInputError

FULL = 100_000
"""Score of a GPU without load, in thousandths of a point."""

Bonus = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""Points that idle GPUs lose; the maximum, in thousandths, still sums within 64 bits."""


class LoadAware(Policy):
    """Prefers the GPU with the least load over the last minute; GPUs to be shared must pass a gate.

    With `mode` pack, idle GPUs lose `bonus` points, so that GPUs in use fill first."""

    name = "load-aware"
    summary = "the GPU with the least measured load; busy GPUs are not shared"
    source = "CARMA's gate; Genius' idea, repaired"
    reads = frozenset({"signals", "occupants"})

    def __init__(self, mode: Literal["spread", "pack"] = "spread", bonus: Bonus = 50) -> None:
        if mode not in {"spread", "pack"}:
            raise BadInputError(
                f"policy {self.name}, option mode", f"{mode!r} is unknown; write spread or pack"
            )
        self.idle_points = -1000 * bonus if mode == "pack" else 0
        self._seen = SnapshotCache(GpuReadingColumns)

    def filter_devices(self, query: Query) -> Bools:
        """Mask of idle GPUs, and of shared GPUs that pass CARMA's gate, [d]. A latency-critical pod
        shares no GPU whose load is MISSING.

        An idle GPU always passes: its readings are those of its last pod."""
        readings = self._seen.of(query)
        shut = gate(query, readings)
        if gpu_readings.is_critical(query):
            shut |= ~query.take_devices(readings.known)
        return np.asarray((query.device_pods == 0) | ~shut)

    def score_devices(self, query: Query) -> Ints:
        """Score 100·(1 − load), or 50 − 10 per pod on the GPU if the load is MISSING; in
        thousandths, [d]."""
        readings = self._seen.of(query)
        missing = FULL // 2 - FULL // 10 * query.device_pods
        free = (FULL * (1.0 - load(query, readings))).astype(np.int64)
        points = np.where(query.take_devices(readings.known), free, missing)
        return points + np.where(query.device_idle, self.idle_points, 0)


def gate(query: Query, readings: GpuReadingColumns) -> Bools:
    """Mask of devices that are closed to a further pod, [d]: it would wait for SM or DRAM, or find
    too little memory."""
    short = short_of_memory(query, readings, gpu_readings.MARGIN_MIB)
    return np.asarray(query.take_devices(readings.busy) | short)


def load(query: Query, readings: GpuReadingColumns) -> Floats:
    """Return the weighted mean of all readings, 0..1, [d]; if memory is not measured, reserved
    memory counts instead."""
    loads = query.take_devices(readings.load)
    unknown = np.isnan(loads).nonzero()[0]
    if len(unknown):
        other_readings = (
            query.take_devices(column).take(unknown)
            for column in (readings.sm, readings.dram, readings.power)
        )
        loads = loads.copy()
        loads[unknown] = gpu_readings.load_of(
            gpu_readings.promised_share(query).take(unknown), *other_readings
        )
    return np.asarray(loads)


MEMORY, OVERLOAD = 1.3, 1.6
"""Weights of memory, and of utilisation above 100 %."""

PRIOR_PERCENT = {"latency-critical": 15}
"""GPU utilisation expected of a pod of this class, which is for inference."""
TRAINING_PERCENT = 90
"""GPU utilisation expected of all other pods, which train, and of running pods without
measurements."""


class Horus(Policy):
    """Chooses the GPU with the lowest cost: 1.3·memory + distance of the expected utilisation from
    100 % (1.6 times above 100 %) + pods on the GPU."""

    name = "horus"
    summary = "the GPU with the lowest cost of memory, expected utilisation and co-residents"
    source = "Horus (Yeung et al., TPDS 2022)"
    reads = frozenset({"signals", "occupants"})

    def __init__(self) -> None:
        self._seen = SnapshotCache(GpuReadingColumns)

    def score_devices(self, query: Query) -> Ints:
        """Score minus the cost, in thousandths, [d].

        Memory in use is the larger of measured and reserved memory; utilisation is the measured
        value while FRESH, otherwise an expectation for each pod on the GPU."""
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
