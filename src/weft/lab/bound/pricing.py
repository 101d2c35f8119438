"""Computes the most expensive configuration of each node type at given prices, exactly.

A configuration is the pieces that a node holds together; its worth is the sum of their prices.
Prices are integers, so the result is the exact maximum. A knapsack over levels and CPU gives the
worth of one GPU with an amount of CPU; another over GPUs, CPU and multi-GPU pods gives the worth of
a node. A piece may be used any number of times."""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.lab.bound.relaxation import NodeType, Piece, Relaxation

Values = npt.NDArray[np.int64]


class Dearest(NamedTuple):
    """The highest worth of a node of one type, and the pieces that reach it as (piece index,
    count)."""

    worth: int
    pieces: tuple[tuple[int, float], ...]


class _Step(NamedTuple):
    """A step of a rising function, which has the value `worth` from `cpu` on."""

    cpu: int
    worth: int


class _Item(NamedTuple):
    """A piece to pack into a node: it takes `level` levels (steps of a GPU's share) and `cpu` steps
    of CPU.

    `part` is the fraction of the piece: less than 1 if a multi-GPU piece is split."""

    piece: int
    part: float
    level: int
    cpu: int
    price: int

    @property
    def step(self) -> _Step:
        """The piece's CPU, and its price as the worth."""
        return _Step(self.cpu, self.price)


def dearest(relaxation: Relaxation, prices: Sequence[int]) -> list[Dearest]:
    """Return the most expensive configuration of each node type, in order, for one price per piece.

    Prices must not be negative, and must be 0 for pieces that are free."""
    dearest_of: dict[int, Dearest] = {}
    by_class: dict[int, list[int]] = {}
    for at, node_type in enumerate(relaxation.node_types):
        by_class.setdefault(node_type.node_class, []).append(at)
    for node_class, types in by_class.items():
        accepted = [
            (at, piece, price)
            for at, (piece, price) in enumerate(zip(relaxation.pieces, prices, strict=True))
            if price > 0 and piece.nodes[node_class]
        ]
        most = max(relaxation.node_types[at].cpu for at in types)
        pricing = _ClassPricing(relaxation.full, accepted, most)
        for at in types:
            dearest_of[at] = pricing.of(relaxation.node_types[at])
    return [dearest_of[at] for at in range(len(relaxation.node_types))]


class _ClassPricing:
    """Tables shared by nodes of one class, which accept the same pods: the worth of one GPU, and of
    several GPUs together."""

    def __init__(
        self, full: Sequence[int], accepted: Sequence[tuple[int, Piece, int]], most_cpu: int
    ) -> None:
        self._full, self._accepted, self._most = full, accepted, most_cpu
        beside = [
            _Item(at, 1, 0, piece.cpu, price) for at, piece, price in accepted if not piece.gpus
        ]
        several: dict[int, list[_Item]] = {}
        for at, piece, price in accepted:
            if piece.gpus > 1:
                several.setdefault(piece.gpus, []).append(_Item(at, 1, 0, piece.cpu, price))
        self._alone = _NodeWorth(_undominated(beside), several, most_cpu)
        self._torn = self._alone.without_several()
        self._gpus: dict[tuple[object, ...], _OneGpu] = {}
        self._nodes: dict[tuple[int, ...], _NodeWorth] = {}

    def of(self, node_type: NodeType) -> Dearest:
        """Return the most expensive configuration of a node of this type."""
        mixed = len(node_type.gpus) > 1
        worth = self._torn if mixed else self._alone
        key: tuple[int, ...] = (mixed,)
        for kind, count in node_type.gpus:
            gpu = self._one_gpu(kind, mixed)
            for _ in range(count):
                key = (*key, id(gpu))
                if key not in self._nodes:
                    self._nodes[key] = worth.with_gpu(gpu)
                worth = self._nodes[key]
        return Dearest(int(worth.tables[-1][node_type.cpu]), worth.pieces(node_type.cpu))

    def _one_gpu(self, kind: int, mixed: bool) -> "_OneGpu":
        """Return the table of the worth of one GPU of this kind; `mixed` nodes have several kinds
        of GPUs, on which multi-GPU pods are split into single GPUs."""
        full = self._full[kind]
        items = [
            _Item(at, 1, piece.levels[kind], piece.cpu, price)
            for at, piece, price in self._accepted
            if piece.gpus == 1 and piece.levels[kind] <= full
        ]
        if mixed:
            items += [
                _Item(at, 1 / piece.gpus, full, piece.cpu // piece.gpus, -(-price // piece.gpus))
                for at, piece, price in self._accepted
                if piece.gpus > 1
            ]
        key = (full, *items)
        if key not in self._gpus:
            self._gpus[key] = _OneGpu(items, full, self._most)
        return self._gpus[key]


def _undominated(items: Sequence[_Item]) -> list[_Item]:
    """Return the items that no other item dominates; an item dominates another if it takes at most
    the same level and CPU and has at least the same price."""
    undominated: list[_Item] = []
    for item in sorted(
        items, key=lambda candidate: (candidate.level, candidate.cpu, -candidate.price)
    ):
        if not any(
            candidate.cpu <= item.cpu and candidate.price >= item.price for candidate in undominated
        ):
            undominated.append(item)
    return undominated


class _OneGpu:
    """The worth of one GPU: `worth[l, c]` is the highest sum of prices of pieces that fit into l of
    its levels and c steps of CPU."""

    def __init__(self, items: Sequence[_Item], full: int, most_cpu: int) -> None:
        self._items, self._full = _undominated(items), full
        self.worth: Values = np.zeros((full + 1, most_cpu + 1), dtype=np.int64)
        for level in range(1, full + 1):
            row = self.worth[level]
            row[:] = self.worth[level - 1]
            for item in self._items:
                if item.level > level:
                    break
                if item.cpu <= most_cpu:
                    below = self.worth[level - item.level, : most_cpu + 1 - item.cpu]
                    np.maximum(row[item.cpu :], below + item.price, out=row[item.cpu :])
        self.steps = _steps(self.worth[full])

    def pieces(self, cpu: int) -> list[tuple[int, float]]:
        """Return the pieces that together reach the highest worth of a whole GPU with `cpu`
        steps of CPU: each piece's index, and the part of it that is used (less than 1 of a piece
        of several GPUs)."""
        taken, level = [], self._full
        while self.worth[level, cpu]:
            now = self.worth[level, cpu]
            item = next(
                item
                for item in self._items
                if item.level <= level
                and item.cpu <= cpu
                and now == self.worth[level - item.level, cpu - item.cpu] + item.price
            )
            taken.append((item.piece, item.part))
            level, cpu = level - item.level, cpu - item.cpu
        return taken


class _NodeWorth:
    """The worth of a node: `tables[g][c]` is the highest sum of prices of pieces that fit into the
    first g GPUs and c steps of CPU."""

    def __init__(
        self, beside: Sequence[_Item], several: dict[int, list[_Item]], most_cpu: int
    ) -> None:
        self._beside = beside
        self._several = {size: _undominated(items) for size, items in several.items()}
        alone: Values = np.zeros(most_cpu + 1, dtype=np.int64)
        _fill_beside(alone, beside)
        self.tables = [alone]
        self._gpus: list[_OneGpu] = []

    def without_several(self) -> "_NodeWorth":
        """Return a copy without multi-GPU pods."""
        other = copy(self)
        other._several = {}
        return other

    def with_gpu(self, gpu: _OneGpu) -> "_NodeWorth":
        """Return a copy with one more GPU."""
        longer = copy(self)
        longer._gpus = [*self._gpus, gpu]
        last = self.tables[-1].copy()
        _join(last, self.tables[-1], gpu.steps)
        for size, items in self._several.items():
            if size <= len(longer._gpus):
                steps = [_Step(item.cpu, item.price) for item in items]
                _join(last, self.tables[-size], steps)
        longer.tables = [*self.tables, last]
        return longer

    def pieces(self, cpu: int) -> tuple[tuple[int, float], ...]:
        """Return the pieces that reach the highest worth of all GPUs with `cpu` steps of CPU."""
        counts: dict[int, float] = {}

        def take(piece: int, part: float) -> None:
            counts[piece] = counts.get(piece, 0) + part

        gpus = len(self._gpus)
        while gpus:
            now, below = self.tables[gpus][cpu], self.tables[gpus - 1]
            last = self._gpus[gpus - 1]
            step_taken = next((step for step in last.steps if _gives(below, cpu, step, now)), None)
            if step_taken is not None:
                for piece, part in last.pieces(step_taken.cpu):
                    take(piece, part)
                gpus, cpu = gpus - 1, cpu - step_taken.cpu
                continue
            size, item = self._last_several(gpus, cpu)
            take(item.piece, 1)
            gpus, cpu = gpus - size, cpu - item.cpu
        alone = self.tables[0]
        while alone[cpu]:
            item = next(item for item in self._beside if _gives(alone, cpu, item.step, alone[cpu]))
            take(item.piece, 1)
            cpu -= item.cpu
        return tuple(sorted(counts.items()))

    def _last_several(self, gpus: int, cpu: int) -> tuple[int, _Item]:
        """Return a multi-GPU piece that ends the best packing of the first `gpus` GPUs, and its
        size in GPUs."""
        return next(
            (size, item)
            for size, items in self._several.items()
            if size <= gpus
            for item in items
            if _gives(self.tables[gpus - size], cpu, item.step, self.tables[gpus][cpu])
        )


def _gives(below: Values, cpu: int, step: _Step, now: int) -> bool:
    return step.cpu <= cpu and bool(below[cpu - step.cpu] + step.worth == now)


def _join(into: Values, below: Values, steps: Sequence[_Step]) -> None:
    """Raise each entry of `into` (by CPU) to a step's worth plus the entry of `below` for the
    CPU that the step leaves, if that is higher."""
    for cpu, worth in steps:
        if cpu < len(into):
            np.maximum(into[cpu:], below[: len(into) - cpu] + worth, out=into[cpu:])


def _steps(worth: Values) -> list[_Step]:
    """Return the first entry of a rising row, and each entry at which it increases."""
    rises = [0, *(np.flatnonzero(np.diff(worth)) + 1).tolist()]
    return [_Step(at, int(worth[at])) for at in rises]


def _fill_beside(row: Values, items: Sequence[_Item]) -> None:
    """Raise a rising row to its worth with any number of pieces that take CPU but no GPU."""
    if not items:
        return
    cpus = np.array([item.cpu for item in items], dtype=np.int64)
    prices = np.array([item.price for item in items], dtype=np.int64)
    for cpu in range(int(cpus.min()), len(row)):
        usable = cpus <= cpu
        most = int((row[cpu - cpus[usable]] + prices[usable]).max())
        row[cpu] = max(int(row[cpu]), int(row[cpu - 1]), most)
