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
        seen = self._seen.of(query)
        shut = gate(query, seen)
        if gpu_readings.is_critical(query):
            shut |= ~query.take_devices(seen.known)
        return np.asarray((query.device_pods == 0) | ~shut)

    def score_devices(self, query: Query) -> Ints:
        """100·(1 − load), MISSING: 50 − 10 for each pod on it; in thousandths, [d]."""
        seen = self._seen.of(query)
        missing = FULL // 2 - FULL // 10 * query.device_pods
        free = (FULL * (1.0 - load(query, seen))).astype(np.int64)
        points = np.where(query.take_devices(seen.known), free, missing)
        return points + np.where(query.device_idle, self.idle_points, 0)


def gate(query: Query, seen: GpuReadingColumns) -> Bools:
    """Mask of devices where a pod would wait for SM or DRAM, or find too little memory, [d]."""
    short = short_of_memory(query, seen, gpu_readings.MARGIN_MIB)
    return np.asarray(query.take_devices(seen.busy) | short)


def load(query: Query, seen: GpuReadingColumns) -> Floats:
    """All readings as one load, 0..1; promised memory where none is measured, [d]."""
    found = query.take_devices(seen.load)
    unknown = np.isnan(found).nonzero()[0]
    if len(unknown):
        rest = (query.take_devices(one).take(unknown) for one in (seen.sm, seen.dram, seen.power))
        found = found.copy()
        found[unknown] = gpu_readings.load_of(
            gpu_readings.promised_share(query).take(unknown), *rest
        )
    return np.asarray(found)
