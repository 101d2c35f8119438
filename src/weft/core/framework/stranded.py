"""Measures how much idle GPU the usual pods could use, and what strands the remaining part.

For each node it computes the most that any number of usual pods could take of its free GPU,
applying one limit after the other, in the order of `LIMITS`: the part that a limit takes away is
stranded by it, and the part left at the end is usable. That part is an upper bound: CPU and memory
limit it one by one, at the rate of the usual pods that need least of them."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from weft.core.framework.demand import Demand
from weft.core.framework.feasibility import declared_codes
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Shape

LIMITS = ("shares", "slots", "nodes", "models", "cpu", "memory")
"""Limits, in the order in which they are applied: parts of GPUs that no sum of usual pods' shares
fills; nodes with fewer idle GPUs than usual pods with several request; nodes that refuse usual pods
for other reasons than their GPUs; GPU models and sizes; free CPU and memory of the node."""

_BY_MODEL = [int(Code.WRONG_MODEL), int(Code.GPU_TOO_SMALL)]
_BY_SIZE = [int(Code.FITS), int(Code.TOO_FEW_GPUS)]
_LEVELS = 100
_ANY = 1 << 40


class StrandedGpus(NamedTuple):
    """Thousandths of a GPU per node, [n]: idle, usable, and stranded by each of `LIMITS`, [6, n].
    Usable and stranded add up to idle."""

    idle: Ints
    usable: Ints
    by: Ints


class StrandedMeter:
    """Measures stranded GPU in a table whose accounts change, for the same usual pods. The table's
    layout must not change. Shapes without a GPU are ignored."""

    def __init__(self, table: LedgerTable, usual: Iterable[Shape]) -> None:
        self._table = table
        demands = [Demand(shape, table) for shape in usual if shape.gpu_requests]
        levels = [_levels(table, demand) for demand in demands]
        nonzero = [at for at, level in enumerate(levels) if any(level)]
        demands, self._levels = [demands[at] for at in nonzero], [levels[at] for at in nonzero]
        codes = [declared_codes(table, demand) for demand in demands]
        shape = (len(demands), table.count)
        self._good = np.array([np.isin(row, _BY_SIZE) for row in codes], bool).reshape(shape)
        by_model = np.array([np.isin(row, _BY_MODEL) for row in codes], bool).reshape(shape)
        self._open = self._good | by_model
        self._gpus = _column(demand.gpus for demand in demands)
        self._cpu = _column(demand.cpu_milli for demand in demands)
        self._memory = _column(demand.memory_mib for demand in demands)
        most = (max(level) for level in self._levels)
        self._milli = _column(most) * self._gpus * 1000 // _LEVELS

    def of(self, rows: Ints | None = None) -> StrandedGpus:
        """Return the idle, usable and stranded GPU of these nodes, or of all, in the table's
        order."""
        table = self._table
        nodes = np.arange(table.count) if rows is None else rows
        sizes = table.gpus[nodes]
        owner = np.repeat(np.arange(len(nodes)), sizes)
        first = np.repeat(table.starts[nodes] - np.cumsum(sizes) + sizes, sizes)
        devices = first + np.arange(len(owner))
        share = self._shares(devices)
        idle = _per_node(owner, share, len(nodes))
        slots = (self._gpus <= 1) | (table.idle[nodes] >= self._gpus)
        good = slots & self._good[:, nodes]
        filled = functools.partial(self._filled, table.device_kind[devices], owner, share)
        left = [
            idle,
            filled(np.ones_like(slots)),
            filled(slots),
            filled(slots & self._open[:, nodes]),
            filled(good),
            self._most_beside(good, table.cpu_free[nodes], self._cpu),
            self._most_beside(good, table.memory_free[nodes], self._memory),
        ]
        # One limit after the other: each can only reduce the usable part.
        falling = np.minimum.accumulate(np.stack(left), axis=0)
        return StrandedGpus(idle, falling[-1], falling[:-1] - falling[1:])

    def _shares(self, devices: Ints) -> Ints:
        """Return the free share of each of these devices, the smaller of cores and memory,
        thousandths."""
        table = self._table
        total = np.maximum(table.device_memory_total[devices], 1)
        by_memory = table.device_memory_free[devices] * 1000 // total
        share = np.minimum(table.device_milli_free[devices], by_memory)
        return np.where(table.device_usable[devices] > 0, np.maximum(share, 0), 0)

    def _filled(self, kinds: Ints, owner: Ints, share: Ints, accepted: Bools) -> Ints:
        """Return the most of each node's free shares that pods accepted there can fill, GPU by
        GPU."""
        if not len(accepted):
            return np.zeros(accepted.shape[1], dtype=np.int64)
        # Nodes that accept the same pods are of one class, identified by the mask's packed bits.
        bits = np.ascontiguousarray(np.packbits(accepted, axis=0).T)
        packed = bits.view(np.dtype((np.void, bits.shape[1]))).ravel()
        _, first, of_node = np.unique(packed, return_index=True, return_inverse=True)
        fills = np.zeros((len(first), len(self._table.kinds), _LEVELS + 1), dtype=np.int64)
        needed = set(zip(of_node.ravel()[owner].tolist(), kinds.tolist(), strict=True))
        for number, kind in needed:
            chosen = np.flatnonzero(accepted[:, first[number]]).tolist()
            levels = frozenset(self._levels[at][kind] for at in chosen)
            fills[number, kind] = _most_filled(levels)
        level = np.minimum(share * _LEVELS // 1000, _LEVELS)
        filled = fills[of_node.ravel()[owner], kinds, level]
        return _per_node(owner, filled * 1000 // _LEVELS, accepted.shape[1])

    def _most_beside(self, accepted: Bools, free: Ints, needs: Ints) -> Ints:
        """Return the most GPU that typical pods could use with the free CPU or memory,
        thousandths."""
        worth = np.maximum(free, 0) * self._milli // np.maximum(needs, 1)
        worth = np.where(needs == 0, _ANY, worth)
        enough = np.where(accepted & (free >= needs), worth, 0)
        return np.asarray(enough.max(axis=0, initial=0))


def stranded_gpus(table: LedgerTable, usual: Iterable[Shape]) -> StrandedGpus:
    """Return the idle, usable and stranded GPU of each node, in the table's order.

    Shapes without a GPU are ignored. Without any shape all idle GPU is stranded as `shares`."""
    return StrandedMeter(table, usual).of()


def _levels(table: LedgerTable, demand: Demand) -> tuple[int, ...]:
    """Return the part of one GPU that the pod's first GPU request takes, by kind of GPU, in
    hundredths, rounded up."""
    return tuple(
        max(
            -(-need.milli * _LEVELS // kind.milli),
            -(-int(need.memory_mib[number]) * _LEVELS // max(1, kind.memory_mib)),
        )
        for number, kind in enumerate(table.kinds)
        for need in demand.needs[:1]
    )


def _column(values: Iterable[int]) -> Ints:
    """Return the values as a column, one per usual pod, [pods, 1]."""
    return np.array(list(values), dtype=np.int64).reshape(-1, 1)


@functools.lru_cache(maxsize=256)
def _most_filled(levels: frozenset[int]) -> Ints:
    """Return, for each free part of a GPU from 0 to 100 hundredths, the most of it that requests of
    these sizes (`levels`, hundredths) can fill together, [101]."""
    fills = np.zeros(_LEVELS + 1, dtype=np.int64)
    sizes = np.array(sorted(size for size in levels if 0 < size <= _LEVELS), dtype=np.int64)
    for level in range(1, _LEVELS + 1):
        usable = sizes[sizes <= level]
        fills[level] = max(int(fills[level - 1]), *(fills[level - usable] + usable).tolist(), 0)
    return fills


def _per_node(owner: Ints, values: Ints, nodes: int) -> Ints:
    return np.bincount(owner, weights=values, minlength=nodes).astype(np.int64)


# --- by GPU model ---------------------------------------------------------------------------------


class StrandedModel(NamedTuple):
    """One GPU model: the number of its GPUs, and the sums of their free parts, in GPUs: `idle`,
    `usable` by typical pods, and stranded `by` each of `LIMITS`."""

    model: str
    gpus: int
    idle: float
    usable: float
    by: dict[str, float]


def stranded_by_model(table: LedgerTable, usual: tuple[Shape, ...]) -> list[StrandedModel]:
    """Return one row for each GPU model, by name; a node with several models counts under its
    first."""
    stranded = stranded_gpus(table, usual)
    models = [node.gpus[0].model if node.gpus else "" for node in table.nodes]
    rows = []
    for model in sorted(
        {model for model, node in zip(models, table.nodes, strict=True) if node.gpus}
    ):
        of = np.array(
            [
                bool(node.gpus) and own == model
                for own, node in zip(models, table.nodes, strict=True)
            ]
        )
        by = stranded.by[:, of].sum(axis=1).tolist()
        rows.append(
            StrandedModel(
                model or "unknown",
                int(table.gpus[of].sum()),
                round(int(stranded.idle[of].sum()) / 1000, 3),
                round(int(stranded.usable[of].sum()) / 1000, 3),
                {name: round(milli / 1000, 3) for name, milli in zip(LIMITS, by, strict=True)},
            )
        )
    return rows
