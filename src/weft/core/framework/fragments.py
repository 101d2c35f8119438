"""The fragmentation measure of FGD, bit for bit as published, over arrays of node states.

For a typical pod m on a node, F(m) is all free GPU of the node if m does not fit (by GPU, CPU or
model, or because m requests no GPU), otherwise the free part of GPUs too small for m. F is the sum
of F(m) weighted by m's popularity. The order of the float sums is part of the measure: a last-bit
difference at a change of exactly 0 moves the truncated score by one, and with it ties. So the terms
are added in typical-pod order within six categories, and the categories in a fixed order. Source:
Weng et al., ATC'23 (section 4), and the authors' simulator."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from weft.core.framework.demand import Demand
from weft.core.framework.query import Query
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import DeviceRule, GpuRequest, Shape

Floats = npt.NDArray[np.float64]
Type = tuple[int, int, int, str]
TYPICAL_PODS = "fgd"
"""Name of the policy input with the typical pods; named after the first policy that took this
input."""
POPULAR = 0.95
FEW = 2
"""Number of nodes up to which a loop is faster than arrays."""
KEPT = 16_384
"""Number of node states whose F is cached; when exceeded, the cache is emptied."""


class NodeState(NamedTuple):
    """State of one node. `shares` are the free parts of its usable GPUs, ascending, in thousandths
    of a GPU; `whole_taken` is the number of its idle GPUs that are already taken."""

    shares: tuple[int, ...]
    cpu_free: int
    kind: int
    whole_taken: int = 0


class TypicalPods:
    """Target workload: the most common pod types that cover 95 % of pods, with their popularity.

    A type is (CPU milli, milli per GPU, GPUs, raw model string); most common first, ties by that
    tuple, descending. If a pod requests a share by memory alone, its milli is the share of a GPU of
    `card_mib`."""

    def __init__(
        self, shapes: Iterable[Shape] | Mapping[Shape, int], card_mib: int = 16_384
    ) -> None:
        counts: Counter[Type] = Counter()
        rules: dict[Type, DeviceRule] = {}
        for shape, times in Counter(shapes).items():
            kind = request_type(shape, card_mib)
            counts[kind] += times
            rules.setdefault(kind, shape.devices)
        ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
        wanted, covered = POPULAR * counts.total(), 0
        popular: list[tuple[Type, int]] = []
        for kind, count in ordered:
            if covered >= wanted:
                break
            popular.append((kind, count))
            covered += count
        # The authors divide each popularity by the sum of the kept popularities. count / covered is
        # the same number but for its last bit, and one placement in gpushare100 depends on that
        # bit.
        total = counts.total()
        share = {kind: (count / total) / (covered / total) for kind, count in popular}
        gpu = [(kind, share[kind]) for kind, _ in popular if kind[1] * kind[2]]
        cpu = [(kind, share[kind]) for kind, _ in popular if not kind[1] * kind[2]]
        self.types = tuple(kind for kind, _ in popular)
        self.gpu_types = [kind for kind, _ in gpu]
        self.gpu_share: Floats = np.array([share for _, share in gpu], dtype=np.float64)
        self.cpu_only_milli: Ints = np.array([kind[0] for kind, _ in cpu], dtype=np.int64)
        self.cpu_only_share: Floats = np.array([share for _, share in cpu], dtype=np.float64)
        self.rules = [rules[kind] for kind in self.gpu_types]

    @staticmethod
    def shape(cpu_milli: int, milli: int, count: int = 1) -> Shape:
        """Return a plain shape for an expected pod: `count` GPUs of `milli` each (1000: whole)."""
        whole = milli >= 1000
        return Shape((GpuRequest(count, milli=0 if whole else milli, whole=whole),), cpu_milli)


def typical_input(shapes: Iterable[Shape]) -> Any:
    """Count shapes and return the value of the input `TYPICAL_PODS`: pairs [shape, count]."""
    return msgspec.to_builtins(list(Counter(shapes).items()))


def request_type(shape: Shape, card_mib: int) -> Type:
    """Return (CPU milli, milli per GPU, GPUs, raw model string) of a shape, as `TypicalPods` counts
    it."""
    milli = 0
    for gpu_request in shape.gpu_requests:
        by_memory = -(-gpu_request.memory.mib_on(card_mib) * 1000 // card_mib)
        milli = max(milli, 1000 if gpu_request.whole else min(1000, gpu_request.milli or by_memory))
    spec = shape.trace_spec or "|".join(shape.devices.models)
    return shape.cpu_milli, milli, shape.gpus, spec


class Fragments:
    """FGD's measure for one target workload on one cluster's device kinds."""

    def __init__(self, typical: TypicalPods, models: list[str]) -> None:
        column = (-1, 1)
        types = typical.gpu_types
        self.sizes: Ints = np.array(sorted({kind[1] for kind in types}), dtype=np.int64)
        self.size_column = self.sizes.reshape(column)
        self.size_of: Ints = np.searchsorted(self.sizes, [kind[1] for kind in types])
        self.cpu = np.array([kind[0] for kind in types], dtype=np.int64).reshape(column)
        self.gpus = np.array([kind[2] for kind in types], dtype=np.int64).reshape(column)
        self.share = typical.gpu_share.reshape(column)
        self.cpu_only = typical.cpu_only_milli.reshape(column)
        self.cpu_only_share = typical.cpu_only_share.reshape(column)
        accepts = [[rule.accepts_model(model) for model in (*models, "")] for rule in typical.rules]
        self.accepts: Bools = np.array(accepts, dtype=np.bool_).reshape(len(types), len(models) + 1)
        self.accepts_all = bool(self.accepts[:, :-1].all())
        self._sizes: list[int] = self.sizes.tolist()
        self._cpu_steps = sorted({*(kind[0] for kind in types), *typical.cpu_only_milli.tolist()})
        self._types = list(
            zip(
                self.share.ravel().tolist(),
                self.cpu.ravel().tolist(),
                self.gpus.ravel().tolist(),
                self.size_of.tolist(),
                self.accepts.tolist(),
                strict=True,
            )
        )
        cpu_only = self.cpu_only_share.ravel().tolist(), self.cpu_only.ravel().tolist()
        self._cpu_only_types = list(zip(*cpu_only, strict=True))
        self._known: dict[tuple[tuple[int, ...], int, int, int], float] = {}

    def of_nodes(self, states: Sequence[NodeState]) -> list[float]:
        """Return the fragmentation (FGD's F) of each node state, cached: pods of a few shapes
        leave few distinct states. CPU counts only by the number of typical CPU requests that it
        satisfies."""
        if len(self._known) > KEPT:
            self._known.clear()
        keys = [
            (shares, bisect_right(self._cpu_steps, cpu_free), kind, taken)
            for shares, cpu_free, kind, taken in states
        ]
        new = {
            key: state for key, state in zip(keys, states, strict=True) if key not in self._known
        }
        if len(new) <= FEW:
            self._known.update((key, self._of_node(state)) for key, state in new.items())
        else:
            lost, fitting = zip(*(self.split(state.shares) for state in new.values()), strict=True)
            free = [sum(state.shares) - 1000 * state.whole_taken for state in new.values()]
            columns = np.array([state[1:] for state in new.values()], dtype=np.int64).T
            fragments = self.fragments(
                np.array(free),
                columns[0],
                np.array(lost, dtype=np.int64).T,
                np.array(fitting, dtype=np.int64).T - columns[2],
                columns[1],
            )
            self._known.update(zip(new, fragments.tolist(), strict=True))
        return [self._known[key] for key in keys]

    def _of_node(self, state: NodeState) -> float:
        """Compute F of one node without arrays, which are slower for a single node. Sums are added
        in the same order, so that the last bit is the same."""
        lost, fitting = self.split(state.shares)
        whole_taken, cpu_free = state.whole_taken, state.cpu_free
        free = sum(state.shares) - 1000 * whole_taken
        short_of_both = with_cpu = no_cpu = foreign = 0.0
        for share, cpu, gpus, size, accepts in self._types:
            if not accepts[state.kind]:
                foreign += share * free
            elif cpu_free >= cpu:
                with_cpu += share * (lost[size] if fitting[size] - whole_taken >= gpus else free)
            elif fitting[size] - whole_taken >= gpus:
                no_cpu += share * free
            else:
                short_of_both += share * free
        fits = too_small = 0.0
        for share, cpu in self._cpu_only_types:
            if cpu_free >= cpu:
                fits += share * free
            else:
                too_small += share * free
        return short_of_both + with_cpu + no_cpu + fits + too_small + foreign

    def split(self, shares: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return, for each share of a GPU that typical pods request, the sum of the free shares
        that are smaller, and the number of GPUs that have at least this share free; `shares` as
        in `NodeState`."""
        sums = [0, *accumulate(shares)]
        small = [bisect_left(shares, size) for size in self._sizes]
        return [sums[count] for count in small], [len(shares) - count for count in small]

    def fragments(
        self, free: Ints, cpu_free: Ints, lost: Ints, fitting: Ints, kind: Ints
    ) -> Floats:
        """Return F of k node states, in thousandths of a GPU, [k].

        `free` is the node's free GPU milli, `lost[s]` the part of it on GPUs with less than
        `sizes[s]`, `fitting[s]` the number of the other GPUs, both [sizes, k]; `kind` is the device
        kind."""
        cpu_fits = cpu_free >= self.cpu
        gpu_fits = fitting.take(self.size_of, axis=0) >= self.gpus
        all_of_it = self.share * free
        some_of_it = self.share * lost.take(self.size_of, axis=0)
        with_cpu = np.where(gpu_fits, some_of_it, all_of_it)
        foreign: Floats | None = None
        if not self.accepts_all:
            accepted = self.accepts.take(kind, axis=1)
            foreign = _sum(np.where(accepted, 0.0, all_of_it))
            with_cpu *= accepted
            all_of_it *= accepted
        if cpu_fits.all():
            total = _sum(with_cpu)
        else:
            no_cpu = np.where(cpu_fits, 0.0, all_of_it)
            short_of_both = _sum(np.where(gpu_fits, 0.0, no_cpu))
            total = short_of_both + _sum(np.where(cpu_fits, with_cpu, 0.0))
            total = total + _sum(np.where(gpu_fits, no_cpu, 0.0))
        total = self._add_cpu_only(total, free, cpu_free)
        return total if foreign is None else total + foreign

    def _add_cpu_only(self, total: Floats, free: Ints, cpu_free: Ints) -> Floats:
        if len(self.cpu_only) == 0:
            return total
        terms = self.cpu_only_share * free
        fits = cpu_free >= self.cpu_only
        total = total + _sum(np.where(fits, terms, 0.0))
        return np.asarray(total + _sum(np.where(fits, 0.0, terms)))


def _sum(terms: Floats) -> Floats:
    """Sum columns, strictly from the first row to the last.

    NumPy adds whole rows in order if there are several columns. It would sum a single column
    pairwise, in another order, so a single column is accumulated."""
    if terms.shape[1] == 1:
        return np.asarray(np.add.accumulate(terms, axis=0)[-1:].ravel() if len(terms) else [0.0])
    return np.asarray(np.add.reduce(terms, axis=0))


class NodeShares:
    """Node columns of FGD's measure: `free`, `lost`, `fitting` and `fragments` (see `Fragments`).

    A GPU's free share is the smaller of its free cores and its free memory, in thousandths."""

    __slots__ = (
        "_card_mib",
        "_nothing",
        "fitting",
        "fragments",
        "free",
        "lost",
        "pattern",
        "table",
        "version",
    )

    def __init__(self, pattern: Fragments, table: LedgerTable, count: int | None = None) -> None:
        self.pattern, self.table, self.version = pattern, table, -1
        self._card_mib = [max(kind.memory_mib, 1) for kind in table.kinds]
        self._nothing: Demand | None = None
        count = table.count if count is None else count
        sizes = len(pattern.sizes)
        self.free: Ints = np.zeros(count, dtype=np.int64)
        self.lost: Ints = np.zeros((sizes, count), dtype=np.int64)
        self.fitting: Ints = np.zeros((sizes, count), dtype=np.int64)
        self.fragments: Floats = np.zeros(count, dtype=np.float64)

    @classmethod
    def of_query(cls, pattern: Fragments, query: Query) -> "NodeShares":
        """Compute the columns from the nodes of a query."""
        self = cls(pattern, query.table, query.n)
        total = np.maximum(query.device_memory_total, 1)
        share = np.minimum(query.device_milli_free, query.device_memory_free * 1000 // total)
        small = share < pattern.size_column
        self.free = query.sum(share)
        self.lost = query.sum(np.where(small, share, 0))
        self.fitting = query.usable_gpus - query.sum((small & query.device_usable).view(np.int8))
        self.fragments = pattern.fragments(
            self.free, query.cpu_free, self.lost, self.fitting, query.node_kind
        )
        return self

    def only(self, rows: Ints) -> "NodeShares":
        """Return the columns for these rows only."""
        part = NodeShares(self.pattern, self.table, 0)
        part.free = self.free.take(rows)
        part.lost = self.lost.take(rows, axis=1)
        part.fitting = self.fitting.take(rows, axis=1)
        part.fragments = self.fragments.take(rows)
        return part

    def mend(self) -> None:
        """Update the columns from the table, only for nodes that changed."""
        rows = np.flatnonzero(self.table.changed_at > self.version)
        if len(rows) == 0:
            return
        self.version = int(self.table.changed_at.take(rows).max())
        if len(rows) <= FEW:
            self._mend_few(rows.tolist())
            return
        if self._nothing is None:
            self._nothing = Demand(Shape(), self.table)
        part = NodeShares.of_query(self.pattern, Query(self.table, self._nothing, rows))
        self.free[rows] = part.free
        self.lost[:, rows] = part.lost
        self.fitting[:, rows] = part.fitting
        self.fragments[rows] = part.fragments

    def _mend_few(self, rows: list[int]) -> None:
        cpu_free = self.table.cpu_free
        states = [self.state(row, self.shares(row).values(), int(cpu_free[row])) for row in rows]
        for row, state, fragments in zip(rows, states, self.pattern.of_nodes(states), strict=True):
            self.free[row] = sum(state.shares)
            self.lost[:, row], self.fitting[:, row] = self.pattern.split(state.shares)
            self.fragments[row] = fragments

    def shares(self, row: int) -> dict[int, int]:
        """Return the free share of each usable GPU of this node, by position, from the table's
        present state."""
        table, begin = self.table, self.table.start[row]
        return {
            device - begin: self.share(device, state.milli, state.memory)
            for device, state in enumerate(table.state[begin : table.start[row + 1]], begin)
            if state.usable
        }

    def share(self, device: int, milli: int, memory_mib: int) -> int:
        """Return the free share of a device with this much milli and memory free."""
        return min(milli, memory_mib * 1000 // self._card_mib[self.table.kind_of[device]])

    def state(
        self, row: int, shares: Iterable[int], cpu_free: int, whole_taken: int = 0
    ) -> NodeState:
        """Return the state of this node as if its usable GPUs had these free shares."""
        kind = int(self.table.node_kind[row])
        return NodeState(tuple(sorted(shares)), cpu_free, kind, whole_taken)

    def with_change(
        self, on: Ints, before: Ints, after: Ints, cpu_free: Ints, kind: Ints
    ) -> Floats:
        """Return F after one GPU of node `on[k]` goes from share `before[k]` to `after[k]`, [k]."""
        sizes = self.pattern.size_column
        was_small, is_small = before < sizes, after < sizes
        lost = self.lost.take(on, axis=1) + after * is_small - before * was_small
        fitting = self.fitting.take(on, axis=1) - (was_small ^ is_small)
        free = self.free.take(on) - (before - after)
        return self.pattern.fragments(free, cpu_free, lost, fitting, kind)
