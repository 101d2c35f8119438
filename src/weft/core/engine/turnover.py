"""Learns whether capacity comes back: how much of what pods hold took the place of what was freed.

Where nobody leaves that is nothing, where pods come and go all of it. Amounts are thousandths of a
core on nodes with GPUs, and one for each pod, so that pods without a CPU request count too.
"""

from weft.core.ledger import Holding, Ledger

FEW_PODS = 200
"""Until so many have come nothing is concluded: capacity is taken to come back."""


class Turnover:
    """Counts what is freed and taken between price lists.

    What is held when the first pod comes counts as having taken others' place, as it mostly has
    where a scheduler is started again; in an empty cluster nothing has. From then on the part is
    that of everything held: the past is forgotten as the pods change. While few came it is 1, for
    while a small cluster fills nobody can have left yet.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._came = self._freed = self._held = 0
        self._part = 0.0

    def begin(self) -> None:
        """The first pod comes."""
        self._freed, self._held = 0, self._holds()
        self._part = 1.0 if self._held else 0.0

    def comes(self) -> None:
        """A pod came."""
        self._came += 1

    def gone(self, uid: str) -> None:
        """The pod is about to be released, as it ended or was deleted."""
        holding, table = self._ledger.holdings.get(uid), self._ledger.table
        if holding is None:
            return
        row = table.row_of.get(holding.placement.node)
        if row is not None and table.gpus[row]:
            self._freed += _amount(holding)

    def settle(self) -> float:
        """The part by now, 0 to 1."""
        if not self._came:
            return 1.0
        before, freed = self._held, self._freed
        self._freed, self._held = 0, self._holds()
        taken = max(0, self._held - before + freed)
        if before + taken:
            self._part = min(1.0, (self._part * before + freed) / (before + taken))
        return self._part if self._came >= FEW_PODS else 1.0

    def _holds(self) -> int:
        with_gpus = {node.name for node in self._ledger.table.nodes if node.gpus}
        held = self._ledger.holdings.values()
        return sum(_amount(each) for each in held if each.placement.node in with_gpus)


def _amount(holding: Holding) -> int:
    """The amount that counts of a pod, also while it is being bound."""
    return holding.placement.cpu_milli + 1
