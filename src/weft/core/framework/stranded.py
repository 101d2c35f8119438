"""How much of what is idle could be used at all by the pods that usually come, and what strands it.

For each node the most that any number of usual pods could take of its free GPU, one limit after
the other, in the order of `LIMITS`: what each takes away is stranded by it, and what is left is
usable. A node's part is an upper bound: CPU and memory beside GPUs limit it one by one, at the
rate of the usual pods that need least of them.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.framework.demand import Demand
from weft.core.framework.feasibility import declared_codes
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Shape

LIMITS = ("shares", "slots", "nodes", "models", "cpu", "memory")
"""Free shares that usual shares do not fill; pods of several GPUs where fewer are idle; nodes that
take no such pods; GPU models and sizes; CPU and memory beside GPUs."""

_BY_MODEL = [int(Code.WRONG_MODEL), int(Code.GPU_TOO_SMALL)]
_BY_SIZE = [int(Code.FITS), int(Code.TOO_FEW_GPUS)]
_LEVELS = 100
_ANY = 1 << 40


class StrandedGpus(NamedTuple):
    """Thousandths of a GPU, per node, [n]: idle, usable, and stranded by each of `LIMITS`, [6, n].

    Usable and stranded together are what is idle.
    """

    idle: Ints
    usable: Ints
    by: Ints


class _UsualPod(NamedTuple):
    """A usual shape: its level on each kind of GPU, how many, CPU, memory, and where it may run."""

    levels: tuple[int, ...]
    gpus: int
    cpu_milli: int
    memory_mib: int
    open_nodes: Bools
    good_nodes: Bools


def stranded_gpus(table: LedgerTable, usual: Iterable[Shape]) -> StrandedGpus:
    """What is idle on each node, in the table's order, by the pods that usually come.

    Shapes without a GPU say nothing here. What no shape is told of is all stranded as `shares`.
    """
    demands = [Demand(shape, table) for shape in usual if shape.gpu_requests]
    pods = [pod for pod in (_usual_pod(table, one) for one in demands) if any(pod.levels)]
    total = np.maximum(table.device_memory_total, 1)
    share = np.minimum(table.device_milli_free, table.device_memory_free * 1000 // total)
    share = np.where(table.device_usable > 0, np.maximum(share, 0), 0)
    idle = _per_node(table, share)
    everywhere = np.ones(table.count, dtype=np.bool_)
    slots = [table.idle >= pod.gpus if pod.gpus > 1 else everywhere for pod in pods]
    may_run = [slot & pod.open_nodes for pod, slot in zip(pods, slots, strict=True)]
    good = [slot & pod.good_nodes for pod, slot in zip(pods, slots, strict=True)]
    cpu = [pod.cpu_milli for pod in pods]
    memory = [pod.memory_mib for pod in pods]
    left = [
        idle,
        _filled(table, share, pods, [everywhere] * len(pods)),
        _filled(table, share, pods, slots),
        _filled(table, share, pods, may_run),
        _filled(table, share, pods, good),
        _most_beside(pods, good, table.cpu_free, cpu),
        _most_beside(pods, good, table.memory_free, memory),
    ]
    # One limit after the other: each only takes away.
    falling = np.minimum.accumulate(np.stack(left), axis=0)
    return StrandedGpus(idle, falling[-1], falling[:-1] - falling[1:])


def _usual_pod(table: LedgerTable, demand: Demand) -> _UsualPod:
    codes = declared_codes(table, demand)
    good = np.isin(codes, _BY_SIZE)
    levels = [
        max(
            -(-need.milli * _LEVELS // kind.milli),
            -(-int(need.memory_mib[number]) * _LEVELS // max(1, kind.memory_mib)),
        )
        for number, kind in enumerate(table.kinds)
        for need in demand.needs[:1]
    ]
    open_nodes = good | np.isin(codes, _BY_MODEL)
    beside = demand.cpu_milli, demand.memory_mib
    return _UsualPod(tuple(levels), demand.gpus, *beside, open_nodes, good)


def _filled(
    table: LedgerTable, share: Ints, pods: Sequence[_UsualPod], accepted: Sequence[Bools]
) -> Ints:
    """The most of each node's free shares that pods accepted there fill, GPU by GPU, [n]."""
    if not pods:
        return np.zeros(table.count, dtype=np.int64)
    # Nodes that accept the same pods are of one class: its bits in a few bytes.
    bits = np.ascontiguousarray(np.packbits(np.stack(accepted), axis=0).T)
    packed = bits.view(np.dtype((np.void, bits.shape[1]))).ravel()
    _, first, of_node = np.unique(packed, return_index=True, return_inverse=True)
    fills = np.zeros((len(first), len(table.kinds), _LEVELS + 1), dtype=np.int64)
    for number, node in enumerate(first.tolist()):
        chosen = [pod for pod, where in zip(pods, accepted, strict=True) if where[node]]
        for kind in range(len(table.kinds)):
            fills[number, kind] = _most_filled(frozenset(pod.levels[kind] for pod in chosen))
    level = np.minimum(share * _LEVELS // 1000, _LEVELS)
    filled = fills[of_node.ravel()[table.device_node], table.device_kind, level]
    return _per_node(table, filled * 1000 // _LEVELS)


@functools.lru_cache(maxsize=256)
def _most_filled(levels: frozenset[int]) -> Ints:
    """Of each free level of a GPU, how much sums of these levels fill at most, [101]."""
    fills = np.zeros(_LEVELS + 1, dtype=np.int64)
    sizes = np.array(sorted(size for size in levels if 0 < size <= _LEVELS), dtype=np.int64)
    for level in range(1, _LEVELS + 1):
        usable = sizes[sizes <= level]
        fills[level] = max(int(fills[level - 1]), *(fills[level - usable] + usable).tolist(), 0)
    return fills


def _most_beside(
    pods: Sequence[_UsualPod], accepted: Sequence[Bools], free: Ints, needs: Sequence[int]
) -> Ints:
    """The most GPU for which what is free beside GPUs is enough, thousandths, [n]."""
    most = np.zeros(len(free), dtype=np.int64)
    for pod, where, need in zip(pods, accepted, needs, strict=True):
        milli = max(pod.levels) * pod.gpus * 1000 // _LEVELS
        worth = np.full(len(free), _ANY) if need == 0 else np.maximum(free, 0) * milli // need
        most = np.maximum(most, np.where(where & (free >= need), worth, 0))
    return most


def _per_node(table: LedgerTable, values: Ints) -> Ints:
    sums = np.bincount(table.device_node, weights=values, minlength=table.count)
    return sums.astype(np.int64)
