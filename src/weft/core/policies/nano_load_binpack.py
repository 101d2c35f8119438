"""nano-gpu's binpack, load-aware: as nano-binpack, and what is measured in use comes first."""

import numpy as np

from weft.core.framework import Query
from weft.core.framework.signals import SignalsView
from weft.core.ledger.table import Ints, LedgerTable
from weft.core.policies.gpu_amounts import free_share
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache
from weft.core.policies.nano_binpack import NanoBinpack


class NanoLoadBinpack(NanoBinpack):
    """Elastic's load-aware rater with the two metrics of its policy file: cores and memory used.

    As in the original, what is not known counts as no load.
    """

    name = "nano-load-binpack"
    summary = "as nano-binpack, what is measured in use first"
    source = "elastic-gpu-scheduler, pull request 11, rater Binpack"
    reads = frozenset({"signals"})

    def __init__(self) -> None:
        self._tenths = SnapshotCache(load_tenths)

    def score_nodes(self, query: Query) -> Ints:
        """nano-binpack's, and ⌊50·⌊Σ load⌋ / GPUs⌋, [n]."""
        tenths = query.take_devices(self._tenths.of(query))
        loads = query.sum(np.where(query.device_usable, tenths, 0)) // 10
        more = 50 * loads // np.maximum(query.usable_gpus, 1)
        return np.asarray(super().score_nodes(query) + more)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The least percent left, and 50 for each of two metrics that is idle; first of equals."""
        tenths = query.take_devices(self._tenths.of(query))
        return int(order(query, tenths).take(fits).argmin())


def load_tenths(view: SignalsView, table: LedgerTable) -> Ints:
    """⌈10·cores⌉ + ⌈10·memory⌉ in use on each GPU, [D]."""
    readings = GpuReadingColumns(view, table)
    parts = np.array([readings.share("gpu_util_ratio"), readings.memory])
    return np.asarray(np.ceil(10.0 * np.nan_to_num(parts)).sum(axis=0)).astype(np.int64)


def by_memory_alone(query: Query) -> bool:
    """True if the GPU request asks memory and no cores; then that is what is left of a GPU."""
    need = query.need
    return need is not None and need.asks_memory and not need.milli


def order(query: Query, tenths: Ints) -> Ints:
    """Raters' order of GPUs: percent left + 50·(2 − ⌊load⌋), in tenths of a percent, [d]."""
    free = free_share(query) if by_memory_alone(query) else query.device_milli_free
    return free + 500 * (2 - tenths // 10)
