"""Load-aware: the GPU with the least to do, by measurement; requests alone where none is known."""

from typing import Annotated, Literal

import msgspec
import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.signals import Floats
from weft.core.ledger.table import Bools, Ints
from weft.core.policies import gpu_readings
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache, short_of_memory
from weft.model import BadInputError

FULL = 100_000
"""A GPU with nothing to do, in thousandths of a point."""

Bonus = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""Points; times a thousand they add up within 64 bits."""


class LoadAware(Policy):
    """Least load wins, as a mean over the last minute; GPUs that are shared must pass a gate.

    With `mode` pack, idle GPUs lose `bonus` points, so that GPUs in use fill first.
    """

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
        """CARMA's gate where the GPU is shared; a latency-critical pod shares no MISSING one, [d].

        An idle GPU always passes: its readings are its last pod's.
        """
        readings = self._seen.of(query)
        shut = gate(query, readings)
        if gpu_readings.is_critical(query):
            shut |= ~query.take_devices(readings.known)
        return np.asarray((query.device_pods == 0) | ~shut)

    def score_devices(self, query: Query) -> Ints:
        """100·(1 − load), MISSING: 50 − 10 for each pod on it; in thousandths, [d]."""
        readings = self._seen.of(query)
        missing = FULL // 2 - FULL // 10 * query.device_pods
        free = (FULL * (1.0 - load(query, readings))).astype(np.int64)
        points = np.where(query.take_devices(readings.known), free, missing)
        return points + np.where(query.device_idle, self.idle_points, 0)


def gate(query: Query, readings: GpuReadingColumns) -> Bools:
    """Mask of devices where a pod would wait for SM or DRAM, or find too little memory, [d]."""
    short = short_of_memory(query, readings, gpu_readings.MARGIN_MIB)
    return np.asarray(query.take_devices(readings.busy) | short)


def load(query: Query, readings: GpuReadingColumns) -> Floats:
    """All readings as one load, 0..1; promised memory where none is measured, [d]."""
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
