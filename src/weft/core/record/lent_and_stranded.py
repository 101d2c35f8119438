"""Sums up, during a replay, how much GPU memory is lent, and how much GPU is stranded or borrowed.
The ledger is read only when time advances, since a state without duration adds nothing. Amounts are
whole numbers, multiplied by nanoseconds."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from weft.core.engine import BindOn, Engine, PodAdded
from weft.core.explain.queue_rows import QueueCounts
from weft.core.framework.stranded import StrandedMeter
from weft.core.ledger import Ledger
from weft.core.record.file import DecisionLine
from weft.model import Shape

MOST_USUAL = 40
"""Number of the commonest pod shapes for which stranded GPU is computed."""


def usual_shapes(lines: Iterable[DecisionLine]) -> list[Shape]:
    """Return the `MOST_USUAL` commonest shapes of a file's pods with GPU requests."""
    counts: Counter[Shape] = Counter()
    for line in lines:
        if isinstance(line.event, PodAdded | BindOn) and line.event.pod.shape.gpu_requests:
            counts[line.event.pod.shape] += 1
    return [shape for shape, _ in counts.most_common(MOST_USUAL)]


class LentMemory:
    """GPU memory reserved beyond the size of the GPUs, which is lent by pods that leave part of
    theirs idle. `total_mib` is the sum over all nodes. On each GPU the pods that came first lend
    first."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._of_node: dict[str, tuple[int, dict[str, int]]] = {}
        self.total_mib = 0

    def look(self, node: str) -> set[str]:
        """Read a node's holdings again; return the UIDs of pods whose lent amount changed."""
        before, lent_before = self._of_node.pop(node, (0, {}))
        total, lent = self._look(node)
        if total:
            self._of_node[node] = total, lent
        self.total_mib += total - before
        return {
            uid for uid in lent.keys() | lent_before if lent.get(uid, 0) != lent_before.get(uid, 0)
        }

    def of(self, node: str, uid: str) -> int:
        """Return the MiB that this pod lends on this node, as of the last `look`."""
        _, lent = self._of_node.get(node, (0, {}))
        return lent.get(uid, 0)

    def _look(self, node: str) -> tuple[int, dict[str, int]]:
        table, total = self._ledger.table, 0
        lent: dict[str, int] = {}
        row = table.row_of.get(node)
        for gpu in () if row is None else table.nodes[row].gpus:
            assert row is not None
            beyond = table.memory_used[table.device_row(row, gpu.index)] - gpu.memory_mib
            if beyond > 0:
                total += beyond
                self._lenders(node, gpu.index, beyond, lent)
        return total, lent

    def _lenders(self, node: str, gpu: int, left: int, lent: dict[str, int]) -> None:
        for uid in self._ledger.occupants(node, gpu):
            holding = self._ledger.holdings[uid]
            for share, idle in zip(holding.placement.shares, holding.idle_mib, strict=False):
                if share.gpu == gpu and (mib := min(idle, left)):
                    lent[uid] = lent.get(uid, 0) + mib
                    left -= mib


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
    pods that could end and the queue would still use its whole guarantee. Only queues with a
    guarantee count.

    `milli_ns` is by queue; `queue_of` returns a pod's queue by UID, "" if unknown."""

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
