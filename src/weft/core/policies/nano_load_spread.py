"""nano-gpu's spread, load-aware: as nano-spread, and what is measured in use comes last."""

import numpy as np

from weft.core.framework import Query
from weft.core.ledger.table import Ints
from weft.core.policies.gpu_readings import SnapshotCache
from weft.core.policies.nano_load_binpack import load_tenths, order
from weft.core.policies.nano_spread import NanoSpread


class NanoLoadSpread(NanoSpread):
    """The counterpart of nano-load-binpack; what is not known counts as no load."""

    name = "nano-load-spread"
    summary = "as nano-spread, what is measured in use last"
    source = "elastic-gpu-scheduler, pull request 11, rater Spread"
    reads = frozenset({"signals"})

    def __init__(self) -> None:
        self._tenths = SnapshotCache(load_tenths)

    def score_nodes(self, query: Query) -> Ints:
        """nano-spread's less ⌊⌊Σ load⌋ / GPUs⌋, [n]."""
        tenths = query.take_devices(self._tenths.of(query))
        loads = query.sum(np.where(query.device_usable, tenths, 0)) // 10
        return np.asarray(super().score_nodes(query) - loads // np.maximum(query.usable_gpus, 1))

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The most by nano-load-binpack's order, the last of equals."""
        tenths = query.take_devices(self._tenths.of(query))
        ranks = order(query, tenths).take(fits)
        return len(fits) - 1 - int(ranks[::-1].argmax())
