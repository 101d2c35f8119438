"""Relaxes a cluster and its workload for the bound: coarser, and never more constrained.

Node memory is left out, and per GPU kind only cores or only memory counts, the one in higher
demand. CPU and shares are counted in steps, rounded down for pods and up for nodes. Pods with
several GPU requests or shares may be split. So any set of pods that fits the cluster also fits its
relaxation."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from weft.core.framework.demand import Demand, Need
from weft.core.framework.feasibility import declared_codes
from weft.core.ledger.table import LedgerTable
from weft.model import Code, Node, Shape

MOST_CPU_STEPS = 2560
MOST_LEVELS = 200
"""Limits on the steps of a node's CPU and of a GPU's share; if exact steps need more, steps are
coarser."""

_BY_SIZE = {int(Code.FITS), int(Code.NO_GPU), int(Code.TOO_FEW_GPUS)}
"""Codes that do not exclude a node: the pod fits, or free GPUs are lacking, which the relaxation
counts itself."""


class Piece(msgspec.Struct, frozen=True):
    """A pod or part of a pod that is placed on one node.

    It takes `cpu` steps of CPU, and `gpus` whole GPUs, or if `gpus` is 1, `levels[k]` levels (steps
    of a GPU's share) of a GPU of kind k. Nodes of class c accept it if `nodes[c]`. Without GPUs
    `levels` is empty."""

    gpus: int
    levels: tuple[int, ...]
    cpu: int
    nodes: tuple[bool, ...]

    @property
    def is_free(self) -> bool:
        """True if the piece takes neither CPU nor GPUs."""
        return self.cpu == 0 and not self.gpus


class AlikePods(msgspec.Struct, frozen=True):
    """Pods with the same request: thousandths of a GPU per pod, and their pieces: (piece index,
    count)."""

    milli: int
    pieces: tuple[tuple[int, int], ...]


class NodeType(msgspec.Struct, frozen=True):
    """`count` identical nodes: class, CPU steps, and GPUs of each kind, as (kind, GPUs)."""

    node_class: int
    cpu: int
    gpus: tuple[tuple[int, int], ...]
    count: int


class Relaxation(msgspec.Struct, frozen=True):
    """Pieces, groups of pods and node types; `full[k]` is the number of levels of a GPU of kind k.

    `group_of` gives a pod's group for (shape, thousandths of a GPU)."""

    pieces: tuple[Piece, ...]
    groups: tuple[AlikePods, ...]
    node_types: tuple[NodeType, ...]
    full: tuple[int, ...]
    group_of: dict[tuple[Shape, int], int]
    capacity_milli: int

    def counts(self, pods: Iterable[tuple[Shape, int]]) -> list[int]:
        """Return the number of these pods in each group; a pod is (shape, thousandths of a GPU)."""
        counts = [0] * len(self.groups)
        for pod, times in Counter(pods).items():
            counts[self.group_of[pod]] += times
        return counts


def relax(nodes: Sequence[Node], pods: Iterable[tuple[Shape, int]]) -> Relaxation:
    """Return the relaxation of these nodes and pods; each pod is (shape, thousandths of a GPU)."""
    counted = Counter(pods)
    table = LedgerTable(nodes)
    demands = {shape: Demand(shape, table) for shape, _ in counted}
    class_of, accepts = _classes(table, demands)
    step = _cpu_step(table, demands)
    weights: Counter[Shape] = Counter()
    for (shape, _), times in counted.items():
        weights[shape] += times
    levels = _Levels(table, [(demand, weights[shape]) for shape, demand in demands.items()])
    pieces: dict[Piece, int] = {}
    groups: dict[AlikePods, int] = {}
    group_of: dict[tuple[Shape, int], int] = {}
    for shape, milli in counted:
        parts = Counter(_pieces(demands[shape], levels, step, accepts[shape]))
        numbered = sorted((pieces.setdefault(piece, len(pieces)), n) for piece, n in parts.items())
        group = AlikePods(milli, tuple(numbered))
        group_of[shape, milli] = groups.setdefault(group, len(groups))
    capacity = sum(gpu.milli for node in nodes for gpu in node.gpus)
    types = _node_types(table, class_of, step)
    return Relaxation(tuple(pieces), tuple(groups), types, levels.full, group_of, capacity)


def _classes(
    table: LedgerTable, demands: dict[Shape, Demand]
) -> tuple[list[int], dict[Shape, tuple[bool, ...]]]:
    """Return the class of each node (nodes that accept the same shapes), and for each shape whether
    each class accepts it, provided that its GPUs are free."""
    columns = [
        [int(code) in _BY_SIZE for code in declared_codes(table, demand)]
        for demand in demands.values()
    ]
    numbers: dict[tuple[bool, ...], int] = {}
    rows = zip(*columns, strict=True) if columns else [()] * table.count
    class_of = [numbers.setdefault(tuple(row), len(numbers)) for row in rows]
    accepts = {shape: tuple(row[at] for row in numbers) for at, shape in enumerate(demands)}
    return class_of, accepts


def _cpu_step(table: LedgerTable, demands: dict[Shape, Demand]) -> int:
    """Return the thousandths of a core that count as one step of CPU: the greatest common divisor
    of all amounts if no node then has over `MOST_CPU_STEPS` steps, else a multiple of 50."""
    most = max(table.cpu_total.tolist(), default=0)
    exact = math.gcd(*table.cpu_total.tolist(), *(demand.cpu_milli for demand in demands.values()))
    if exact and most <= exact * MOST_CPU_STEPS:
        return exact
    return max(1, -(-most // (MOST_CPU_STEPS * 50)) * 50)


class _Levels:
    """The number of levels (steps of a GPU's share) per GPU of each kind, and the levels that a
    request takes."""

    def __init__(self, table: LedgerTable, demands: Sequence[tuple[Demand, int]]) -> None:
        self._memory, self._total, full = [], [], []
        shares = [
            (need, times) for demand, times in demands for need in demand.needs if not need.whole
        ]
        for number, kind in enumerate(table.kinds):
            cores = sum(need.milli * need.count * times for need, times in shares)
            memory = sum(int(need.memory_mib[number]) * need.count * n for need, n in shares)
            by_memory = memory * kind.milli > cores * kind.memory_mib
            total = kind.memory_mib if by_memory else kind.milli
            self._memory.append(by_memory)
            self._total.append(total)
            exact = math.gcd(total, *(self._amount(need, number) for need, _ in shares))
            full.append(total // exact if exact and total <= exact * MOST_LEVELS else 100)
        self.full = tuple(full)

    def _amount(self, need: Need, kind: int) -> int:
        return int(need.memory_mib[kind]) if self._memory[kind] else need.milli

    def of(self, need: Need) -> tuple[int, ...]:
        """Return, for each kind of GPU, how many levels (steps of a GPU's share) of one GPU the
        request takes; more than `full` if it cannot fit."""
        if need.whole:
            return self.full
        return tuple(
            self._amount(need, kind) * full // max(1, total)
            for kind, (full, total) in enumerate(zip(self.full, self._total, strict=True))
        )


def _pieces(demand: Demand, levels: _Levels, step: int, nodes: tuple[bool, ...]) -> Iterable[Piece]:
    """Yield the pieces of one pod."""
    needs = [need for need in demand.needs if not need.gpu_request.split]
    count = sum(need.count for need in needs)
    if not needs:
        yield Piece(0, (), demand.cpu_milli // step, nodes)
    elif len(needs) == 1 == len(demand.needs) and needs[0].whole:
        yield Piece(count, levels.full, demand.cpu_milli // step, nodes)
    else:
        cpu = demand.cpu_milli // (count * step)
        for need in needs:
            for _ in range(need.count):
                taken = levels.of(need)
                # A share that rounds down to no level takes only CPU.
                yield Piece(1, taken, cpu, nodes) if all(taken) else Piece(0, (), cpu, nodes)


def _node_types(table: LedgerTable, class_of: list[int], step: int) -> tuple[NodeType, ...]:
    counts: Counter[tuple[int, int, tuple[tuple[int, int], ...]]] = Counter()
    for row, node in enumerate(table.nodes):
        kinds = table.device_kind[table.start[row] : table.start[row + 1]].tolist()
        serving = Counter(
            kind for kind, gpu in zip(kinds, node.gpus, strict=True) if gpu.in_service
        )
        counts[class_of[row], -(-node.cpu_milli // step), tuple(sorted(serving.items()))] += 1
    return tuple(NodeType(*key, count) for key, count in counts.items())
