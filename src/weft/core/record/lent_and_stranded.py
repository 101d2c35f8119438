"""Sums up, during a replay, how much GPU memory is lent and borrowed, and how much GPU is busy,
stranded or borrowed by queues.
The ledger is read only when time advances, since a state without duration adds nothing. Amounts are
whole numbers, multiplied by nanoseconds."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from weft.core.engine import BindOn, Engine, PodAdded
from weft.core.engine.harvest import memory_on
from weft.core.explain.queue_rows import QueueCounts
from weft.core.framework.signals import FRESH
from weft.core.framework.stranded import StrandedMeter
from weft.core.ledger import Ledger
from weft.core.record.file import DecisionLine
from weft.model import Shape
from weft.model.metric import Metric

MOST_USUAL = 40
"""Number of the commonest pod shapes for which stranded GPU is computed."""
BUSY = f"{Metric.GPU_UTIL_RATIO}.last"
"""Name of the signal column with the part of time in which a GPU ran kernels
(`telemetry/feed/feed.py`)."""


def usual_shapes(lines: Iterable[DecisionLine]) -> list[Shape]:
    """Return the `MOST_USUAL` commonest shapes of a file's pods with GPU requests."""
    counts: Counter[Shape] = Counter()
    for line in lines:
        if isinstance(line.event, PodAdded | BindOn) and line.event.pod.shape.gpu_requests:
            counts[line.event.pod.shape] += 1
    return [shape for shape, _ in counts.most_common(MOST_USUAL)]


class Loan(NamedTuple):
    """MiB of GPU memory that a pod lends to other pods, and that it borrows from other pods."""

    lent_mib: int = 0
    borrowed_mib: int = 0


class LentMemory:
    """GPU memory that pods reserve beyond the size of their GPUs: pods that leave reserved memory
    idle lend it to others. `total_mib` is the sum over all nodes. On each GPU the pods that were
    bound first lend first, and those that were bound last borrow first."""

    def __init__(self, engine: Engine) -> None:
        self._ledger, self._in_order = engine.ledger, engine.harvest.in_order
        self._of_node: dict[str, tuple[int, dict[str, Loan]]] = {}
        self.total_mib = 0

    def look(self, node: str) -> set[str]:
        """Read a node's holdings again; return the UIDs of pods whose loans changed."""
        before, loans_before = self._of_node.pop(node, (0, {}))
        total, loans = self._look(node)
        if total:
            self._of_node[node] = total, loans
        self.total_mib += total - before
        return {
            uid for uid in loans.keys() | loans_before if loans.get(uid) != loans_before.get(uid)
        }

    def of(self, node: str, uid: str) -> Loan:
        """Return what this pod lends and borrows on this node, as of the last `look`."""
        _, loans = self._of_node.get(node, (0, {}))
        return loans.get(uid, Loan())

    def _look(self, node: str) -> tuple[int, dict[str, Loan]]:
        table, total = self._ledger.table, 0
        loans: dict[str, Loan] = {}
        row = table.row_of.get(node)
        for gpu in () if row is None else table.nodes[row].gpus:
            assert row is not None
            beyond = int(table.memory_used[table.device_row(row, gpu.index)]) - gpu.memory_mib
            if beyond > 0:
                total += beyond
                self._lend(node, gpu.index, beyond, loans)
        return total, loans

    def _lend(self, node: str, gpu: int, beyond: int, loans: dict[str, Loan]) -> None:
        residents = self._in_order(node, gpu)
        left = beyond
        for holding in residents:
            lent = min(left, memory_on(holding, gpu)[1])
            left -= lent
            _add(loans, holding.placement.uid, Loan(lent_mib=lent))
        left = beyond
        for holding in reversed(residents):
            borrowed = min(left, memory_on(holding, gpu)[0])
            left -= borrowed
            _add(loans, holding.placement.uid, Loan(borrowed_mib=borrowed))


def _add(loans: dict[str, Loan], uid: str, more: Loan) -> None:
    if any(more):
        before = loans.get(uid, Loan())
        loans[uid] = Loan(before.lent_mib + more.lent_mib, before.borrowed_mib + more.borrowed_mib)


class BusyGpus:
    """Utilisation of all GPUs added up, by the last measurement: `milli` thousandths of GPUs, None
    before the first measurement."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._version, self._generation = engine, -1, -1
        self.milli: int | None = None

    def look(self) -> None:
        """Recompute the sum if there is a new measurement or nodes changed. Values that are not
        FRESH count as 0."""
        signals, ledger = self._engine.signals, self._engine.ledger
        if (self._version, self._generation) == (signals.version, ledger.generation):
            return
        self._version, self._generation = signals.version, ledger.generation
        if BUSY not in signals.source.columns:
            self.milli = None if self.milli is None else 0
            return
        values, fresh = signals.over(ledger.table, BUSY)
        counts = (fresh == FRESH) & (ledger.table.device_parent < 0)
        self.milli = round(1000 * float(values[counts].sum()))


class StrandedGpu:
    """Idle GPU that no pod of the `usual` shapes can use: `milli` thousandths of GPUs on all
    nodes."""

    def __init__(self, ledger: Ledger, usual: Iterable[Shape]) -> None:
        self._ledger, self._usual = ledger, [*usual]
        self._meter: StrandedMeter | None = None
        self._seen = self._generation = -1
        self._by_node = np.zeros(0, dtype=np.int64)
        self.milli = 0

    def nodes_changed(self) -> None:
        """Compute everything again at the next `look`, because nodes changed."""
        self._meter = None

    def look(self) -> None:
        """Recompute the stranded GPU of nodes whose holdings changed, and the total `milli`."""
        ledger, table = self._ledger, self._ledger.table
        if not (self._usual and table.count):
            self.milli = 0
            return
        if self._generation != ledger.generation:
            self._meter = None
        if self._meter is None:
            self._meter, self._generation = StrandedMeter(table, self._usual), ledger.generation
            self._by_node = np.zeros(table.count, dtype=np.int64)
            rows = np.arange(table.count)
        else:
            rows = np.flatnonzero(table.changed_at > self._seen)
        self._seen = ledger.version
        if len(rows):
            found = self._meter.of(rows)
            self._by_node[rows] = found.idle - found.usable
            self.milli = int(self._by_node.sum())


class BorrowedGpus:
    """Sums up the GPUs that queues hold by borrowing, as `weft queues` counts them: the GPUs of
    pods without which the queue would still use its whole guarantee. Queues without a guarantee are
    left out.

    `milli_ns` has the sums by queue, thousandths of a GPU × nanoseconds; `queue_of` returns a pod's
    queue by UID, "" if unknown."""

    def __init__(self, engine: Engine, queue_of: Callable[[str], str]) -> None:
        self._engine, self._queue_of, self._counts = engine, queue_of, QueueCounts(engine)
        rules = engine.teams.rules
        self.promised = {terms.name for terms in rules.queues if not terms.guarantee.is_none}
        self.milli_ns: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self.is_stale = False

    def sum_up(self, lasted_ns: int) -> None:
        """Add the amounts that each queue borrowed during the last `lasted_ns` nanoseconds."""
        if self.is_stale and self.promised:
            held = self._engine.ledger.holdings
            queues = {uid: queue for uid in held if (queue := self._queue_of(uid))}
            self._now = self._counts.teams(queues).borrowed_milli(self.promised)
            self.is_stale = False
        for name, milli in self._now.items():
            self.milli_ns[name] = self.milli_ns.get(name, 0) + lasted_ns * milli
