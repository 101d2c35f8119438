"""Lets policies recompute their prices after a number of pods, a time, or enough change.

Rules: prices change only here, at the end of an event. So a pod's filter, score and bind use the
same prices in every host, cached answers stay valid, and a decisions file replays. Until the first
pod comes, prices are recomputed with each change of the ledger, so that it makes no difference
whether a question (such as which nodes fit) was asked before.

A policy that fails to compute its prices keeps the last ones while the nodes are the same; after a
change of nodes it scores nothing (`unpriced`). It is tried again when prices are due, or nodes
change.

`Turnover` estimates which part of the capacity in use was freed by earlier pods: 0 if no pod ever
leaves, 1 if pods come and go. Amounts are CPU in thousandths of a core on nodes with GPUs, plus one
for each pod, so that pods without a CPU request count too.
"""

from collections.abc import Sequence

from weft.core.engine.decision_faults import SideTasks
from weft.core.framework import Policy
from weft.core.framework import policy as ask
from weft.core.framework.policy import PricesEvery
from weft.core.ledger import Holding, Ledger
from weft.core.ledger.table import LedgerTable

SECOND_NS = 10**9
PODS_PER_LOOK = 10
"""The cluster's free GPUs are compared with those at the last prices once for this many new
pods."""
PRICING = "making prices"
MOST_KNOWN = 100_000
"""At most this many arrived pods are remembered: the end of a pod that never had a place is not
reported."""

FEW_PODS = 200
"""Until this many pods have come, all held capacity counts as freed by earlier pods
(`Turnover`)."""


class Turnover:
    """Estimates which part of the held capacity was freed by earlier pods, from what is freed and
    taken between price lists. Capacity held when the first pod comes counts as reused, as after a
    restart of the scheduler it mostly is. Later, the estimate is an average over all held capacity,
    so that its past is forgotten as pods are replaced. Until `FEW_PODS` have come it is 1, as no
    pod can have left a cluster that is still filling."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._came = self._freed = self._held = 0
        self._part = 0.0

    def begin(self) -> None:
        """Record how much is held when the first pod comes."""
        self._freed, self._held = 0, self._holds()
        self._part = 1.0 if self._held else 0.0

    def comes(self) -> None:
        """Count a new pod."""
        self._came += 1

    def gone(self, uid: str) -> None:
        """Count the capacity that a pod is about to free, because it ended or was deleted."""
        holding, table = self._ledger.holdings.get(uid), self._ledger.table
        if holding is None:
            return
        row = table.row_of.get(holding.placement.node)
        if row is not None and table.gpus[row]:
            self._freed += _amount(holding)

    def settle(self) -> float:
        """Return the part of the held capacity that is reused, 0 to 1, and begin a new interval."""
        if not self._came:
            return 1.0
        before, freed = self._held, self._freed
        self._freed, self._held = 0, self._holds()
        taken = max(0, self._held - before + freed)
        if before + taken:
            self._part = min(1.0, (self._part * before + freed) / (before + taken))
        return self._part if self._came >= FEW_PODS else 1.0

    def _holds(self) -> int:
        table, count_on = self._ledger.table, self._ledger.count_on
        rows = table.gpus.nonzero()[0]
        pods = sum(count_on(table.nodes[row].name) for row in rows.tolist())
        return int((table.cpu_total - table.cpu_free).take(rows).sum()) + pods


def _amount(holding: Holding) -> int:
    """Return how much a pod counts: its CPU in thousandths of a core, plus one."""
    return holding.placement.cpu_milli + 1


class _PriceList:
    """One policy's prices: when they were computed last, and how many pods have come since then."""

    def __init__(self, policy: Policy, every: PricesEvery, side_tasks: SideTasks) -> None:
        self.policy, self._every, self._age_ns = policy, every, int(every.seconds * SECOND_NS)
        self._came = self._unseen = self._made_ns = self._free = 0
        self._side_tasks = side_tasks
        self._made_for: LedgerTable | None = None

    def make(self, table: LedgerTable, part: float, now_ns: int) -> None:
        self._made_ns, self._free = now_ns, _free_milli(table)

        def make() -> None:
            self.policy.take_turnover(part)
            ask.take_table(self.policy, table)
            self._made_for = table

        self._side_tasks.run(PRICING, make, None)
        self.policy.unpriced = self._made_for is not table

    def counts(self) -> None:
        self._came += 1
        self._unseen += 1

    def is_due(self, table: LedgerTable, now_ns: int) -> bool:
        enough = self._came >= self._every.pods
        if enough:
            self._came -= self._every.pods
        elif self._has_moved(table):
            enough, self._came = True, 0
        return enough or now_ns - self._made_ns >= self._age_ns

    def _has_moved(self, table: LedgerTable) -> bool:
        """Return True if the cluster's free GPUs changed enough since the last prices; compared
        once for `PODS_PER_LOOK` pods."""
        if not self._every.gpu_part or self._unseen < PODS_PER_LOOK:
            return False
        self._unseen = 0
        moved = abs(_free_milli(table) - self._free)
        return moved >= self._every.gpu_part * 1000 * table.devices


def _free_milli(table: LedgerTable) -> int:
    return int(table.device_milli_free.sum())


class PriceLists:
    """Recomputes the prices of the policies that have any (`lists`); `has_begun`: the first pod has
    come."""

    def __init__(self, policies: Sequence[Policy], ledger: Ledger, side_tasks: SideTasks) -> None:
        self._ledger = ledger
        self.lists = [
            _PriceList(policy, policy.prices_every, side_tasks)
            for policy in policies
            if policy.prices_every is not None
        ]
        self._turnover, self._side_tasks = Turnover(ledger), side_tasks
        self._known: dict[str, None] = {}
        self.has_begun = False
        self._table: LedgerTable | None = None
        self._version = -1
        self.make(0)

    def expects(self, uid: str) -> bool:
        """Return True if this pod's arrival matters: some policy has prices, and the pod was not
        counted yet."""
        return bool(self.lists) and uid not in self._known

    def comes(self, uid: str, now_ns: int) -> bool:
        """Record a new pod; return True if prices were computed for it, as they are for the first
        pod."""
        if not self.expects(uid):
            return False
        self._known[uid] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        for price_list in self.lists:
            price_list.counts()
        if not self.has_begun:
            self._turnover.begin()
        self._turnover.comes()
        if self.has_begun:
            return False
        self.has_begun = True
        self.make(now_ns)
        return True

    def gone(self, uid: str) -> None:
        """Record that the pod leaves; call this while the ledger still holds it. If the pod comes
        again, it counts again."""
        self._known.pop(uid, None)
        if self.lists:
            self._turnover.gone(uid)

    def follow(self) -> bool:
        """Before the first pod comes, recompute prices if the ledger changed; return True if any
        were recomputed."""
        ledger = self._ledger
        if self.has_begun or ledger.on_trial or self._version == ledger.version:
            return False
        self.make(0)
        return bool(self.lists)

    def renew(self, now_ns: int) -> bool:
        """Recompute prices that are due at the end of an event; return True if scores are now
        outdated."""
        if not self.has_begun:
            return False
        due = [each for each in self.lists if each.is_due(self._ledger.table, now_ns)]
        self._make(due, now_ns)
        return bool(due)

    def nodes_changed(self, now_ns: int) -> bool:
        """Recompute prices after a change of nodes, as kinds of GPU may differ; return True if they
        were."""
        if not self.lists or self._ledger.table is self._table:
            return False
        self.make(now_ns)
        return True

    def make(self, now_ns: int) -> None:
        """Compute all prices from the present ledger."""
        self._table, self._version = self._ledger.table, self._ledger.version
        self._make(self.lists, now_ns)

    def _make(self, price_lists: Sequence[_PriceList], now_ns: int) -> None:
        if not price_lists:
            return
        part = self._side_tasks.run(PRICING, self._turnover.settle, 1.0)
        for price_list in price_lists:
            price_list.make(self._ledger.table, part, now_ns)
