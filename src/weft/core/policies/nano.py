"""nano-gpu's raters, plain and load-aware, which prefer or avoid GPUs measured in use.

- nano-binpack  the fullest node, and on it the GPU with the least percent left
- nano-spread   the node with the most idle GPUs, and on it the GPU with the most percent left
- nano-load-…   the same with the measured load added to the score"""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.signals import SignalsView
from weft.core.ledger.table import Ints, LedgerTable
from weft.core.policies.gpu_amounts import free_share
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache


class NanoBinpack(Policy):
    """Prefers full nodes, rated before placement. Containers are placed largest first; of equally
    large ones the last goes first."""

    name = "nano-binpack"
    summary = "the fullest node with few GPUs, and on it the GPU with the smallest free share"
    source = "nano-gpu-scheduler v0.3, rater Binpack"
    last_request_first = True

    def score_nodes(self, query: Query) -> Ints:
        """Score the percentage of the GPUs' cores in use, less the number of GPUs, [n]."""
        gpus = query.usable_gpus
        used = 1000 * gpus - query.milli_free
        return np.asarray(used // (10 * np.maximum(gpus, 1)) - gpus)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the GPU with the least free (see `percent_left`), the first of equals."""
        return int(percent_left(query).take(fits).argmin())


def percent_left(query: Query) -> Ints:
    """Return the amount by which nano-gpu orders GPUs, [d]: free cores, or free memory if no cores
    are requested."""
    by_cores = query.need is not None and query.need.milli
    return query.device_milli_free if by_cores else query.room


class NanoSpread(Policy):
    """Prefers empty nodes, rated before placement. Containers are placed largest first; of equally
    large ones the last goes first."""

    name = "nano-spread"
    summary = "the node with the most idle GPUs, and on it the GPU with the largest free share"
    source = "nano-gpu-scheduler v0.3, rater Spread"
    last_request_first = True

    def score_nodes(self, query: Query) -> Ints:
        """Score 100 · idle GPUs + free percent / 10 − GPUs, [n]."""
        return 100 * query.idle + query.milli_free // 100 - query.usable_gpus

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the GPU with the most free (see `percent_left`), the last of equals."""
        free = percent_left(query).take(fits)
        return len(fits) - 1 - int(free[::-1].argmax())


class MeasuredLoads:
    """Loads of GPUs as Elastic GPU's raters count them: the sum of the used parts of cores and
    memory, 0 to 2; an unknown part counts as 0."""

    def __init__(self) -> None:
        self._tenths = SnapshotCache(_load_tenths)

    def of_gpus(self, query: Query) -> Ints:
        """Return each GPU's load in tenths, [d]."""
        return query.take_devices(self._tenths.of(query))

    def of_nodes(self, query: Query) -> Ints:
        """Return ⌊Σ load⌋ over each node's GPUs in service, [n]."""
        return query.sum(np.where(query.device_usable, self.of_gpus(query), 0)) // 10

    def order(self, query: Query) -> Ints:
        """Return the numbers by which GPUs are ordered, [d]: percent free + 50·(2 − ⌊load⌋), in
        tenths of a percent."""
        free = free_share(query) if _by_memory_alone(query) else query.device_milli_free
        return free + 500 * (2 - self.of_gpus(query) // 10)


def _load_tenths(view: SignalsView, table: LedgerTable) -> Ints:
    """Compute ⌈10·cores⌉ + ⌈10·memory⌉ in use on each GPU, [D]."""
    readings = GpuReadingColumns(view, table)
    parts = np.array([readings.share("gpu_util_ratio"), readings.memory])
    return np.asarray(np.ceil(10.0 * np.nan_to_num(parts)).sum(axis=0)).astype(np.int64)


def _by_memory_alone(query: Query) -> bool:
    """Return True if the GPU request is for memory and not for cores."""
    need = query.need
    return need is not None and need.asks_memory and not need.milli


class NanoLoadBinpack(NanoBinpack):
    """Packs by measured load, as Elastic's load-aware rater with the two metrics of its policy
    file: cores and memory used."""

    name = "nano-load-binpack"
    summary = "as nano-binpack, but prefers GPUs measured in use"
    source = "elastic-gpu-scheduler, pull request 11, rater Binpack"
    reads = frozenset({"signals"})

    def __init__(self) -> None:
        self._loads = MeasuredLoads()

    def score_nodes(self, query: Query) -> Ints:
        """Score as nano-binpack, plus ⌊50·⌊Σ load⌋ / GPUs⌋, [n]."""
        more = 50 * self._loads.of_nodes(query) // np.maximum(query.usable_gpus, 1)
        return np.asarray(super().score_nodes(query) + more)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the GPU with the smallest sum of percent free and 50 for each idle metric, the
        first of equals."""
        return int(self._loads.order(query).take(fits).argmin())


class NanoLoadSpread(NanoSpread):
    """Spreads by measured load, with the same loads as nano-load-binpack."""

    name = "nano-load-spread"
    summary = "as nano-spread, but avoids GPUs measured in use"
    source = "elastic-gpu-scheduler, pull request 11, rater Spread"
    reads = frozenset({"signals"})

    def __init__(self) -> None:
        self._loads = MeasuredLoads()

    def score_nodes(self, query: Query) -> Ints:
        """Score as nano-spread, less ⌊⌊Σ load⌋ / GPUs⌋, [n]."""
        less = self._loads.of_nodes(query) // np.maximum(query.usable_gpus, 1)
        return np.asarray(super().score_nodes(query) - less)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the GPU that is last in nano-load-binpack's order, the last of equals."""
        ranks = self._loads.order(query).take(fits)
        return len(fits) - 1 - int(ranks[::-1].argmax())
