"""nano-gpu's raters, alone and load-aware: what is measured in use comes first, or last.

nano-binpack  the fullest node, and on it the GPU with the least percent left
nano-spread   the node with the most idle GPUs, and on it the GPU with the most percent left
nano-load-…   the same, and then what is measured
"""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.signals import SignalsView
from weft.core.ledger.table import Ints, LedgerTable
from weft.core.policies.gpu_amounts import free_share
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache


class NanoBinpack(Policy):
    """Nodes as they are before placement; containers are placed largest first, last of equals."""

    name = "nano-binpack"
    summary = "the fullest node with few GPUs, the GPU with the least percent left"
    source = "nano-gpu-scheduler v0.3, rater Binpack"
    last_request_first = True

    def score_nodes(self, query: Query) -> Ints:
        """Percent of the GPUs' cores in use, less the number of GPUs, [n]."""
        gpus = query.usable_gpus
        used = 1000 * gpus - query.milli_free
        return np.asarray(used // (10 * np.maximum(gpus, 1)) - gpus)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The least left, the first of equals."""
        return int(percent_left(query).take(fits).argmin())


def percent_left(query: Query) -> Ints:
    """Order of GPUs in nano-gpu, [d]: free cores, or free memory where no cores are asked."""
    by_cores = query.need is not None and query.need.milli
    return query.device_milli_free if by_cores else query.room


class NanoSpread(Policy):
    """Nodes as they are before placement; containers are placed largest first, last of equals."""

    name = "nano-spread"
    summary = "the node with the most idle GPUs, the GPU with the most percent left"
    source = "nano-gpu-scheduler v0.3, rater Spread"
    last_request_first = True

    def score_nodes(self, query: Query) -> Ints:
        """100 · idle GPUs + free percent / 10 − GPUs, [n]."""
        return 100 * query.idle + query.milli_free // 100 - query.usable_gpus

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The most left, the last of equals."""
        free = percent_left(query).take(fits)
        return len(fits) - 1 - int(free[::-1].argmax())


class MeasuredLoads:
    """Loads of GPUs as elastic's raters count them: cores and memory in use, 0 to 2; what is not
    known counts as no load."""

    def __init__(self) -> None:
        self._tenths = SnapshotCache(_load_tenths)

    def of_gpus(self, query: Query) -> Ints:
        """Tenths of each GPU's load, [d]."""
        return query.take_devices(self._tenths.of(query))

    def of_nodes(self, query: Query) -> Ints:
        """⌊Σ load⌋ of each node's GPUs in service, [n]."""
        return query.sum(np.where(query.device_usable, self.of_gpus(query), 0)) // 10

    def order(self, query: Query) -> Ints:
        """Raters' order of GPUs: percent left + 50·(2 − ⌊load⌋), in tenths of a percent, [d]."""
        free = free_share(query) if _by_memory_alone(query) else query.device_milli_free
        return free + 500 * (2 - self.of_gpus(query) // 10)


def _load_tenths(view: SignalsView, table: LedgerTable) -> Ints:
    """⌈10·cores⌉ + ⌈10·memory⌉ in use on each GPU, [D]."""
    readings = GpuReadingColumns(view, table)
    parts = np.array([readings.share("gpu_util_ratio"), readings.memory])
    return np.asarray(np.ceil(10.0 * np.nan_to_num(parts)).sum(axis=0)).astype(np.int64)


def _by_memory_alone(query: Query) -> bool:
    """True if the GPU request asks memory and no cores; then that is what is left of a GPU."""
    need = query.need
    return need is not None and need.asks_memory and not need.milli


class NanoLoadBinpack(NanoBinpack):
    """Elastic's load-aware rater with the two metrics of its policy file: cores and memory used."""

    name = "nano-load-binpack"
    summary = "as nano-binpack, what is measured in use first"
    source = "elastic-gpu-scheduler, pull request 11, rater Binpack"
    reads = frozenset({"signals"})

    def __init__(self) -> None:
        self._loads = MeasuredLoads()

    def score_nodes(self, query: Query) -> Ints:
        """nano-binpack's, and ⌊50·⌊Σ load⌋ / GPUs⌋, [n]."""
        more = 50 * self._loads.of_nodes(query) // np.maximum(query.usable_gpus, 1)
        return np.asarray(super().score_nodes(query) + more)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The least percent left, and 50 for each of two metrics that is idle; first of equals."""
        return int(self._loads.order(query).take(fits).argmin())


class NanoLoadSpread(NanoSpread):
    """The counterpart of nano-load-binpack."""

    name = "nano-load-spread"
    summary = "as nano-spread, what is measured in use last"
    source = "elastic-gpu-scheduler, pull request 11, rater Spread"
    reads = frozenset({"signals"})

    def __init__(self) -> None:
        self._loads = MeasuredLoads()

    def score_nodes(self, query: Query) -> Ints:
        """nano-spread's less ⌊⌊Σ load⌋ / GPUs⌋, [n]."""
        less = self._loads.of_nodes(query) // np.maximum(query.usable_gpus, 1)
        return np.asarray(super().score_nodes(query) - less)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """The most by nano-load-binpack's order, the last of equals."""
        ranks = self._loads.order(query).take(fits)
        return len(fits) - 1 - int(ranks[::-1].argmax())
