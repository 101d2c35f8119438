"""Turns disruption budgets of the API into the engine's events."""

from weft.cluster.state.volume_rules import labels_of
from weft.core.engine import BudgetsChanged
from weft.core.preempt import Budget
from weft.kube.budgets import DisruptionBudget
from weft.kube.watch import Change, Deleted
from weft.model.selectors import PodSelector


class BudgetView:
    """Collects the budgets that changed since the last `news`."""

    def __init__(self) -> None:
        self._changed: dict[str, Budget | None] = {}

    def take(self, change: Change[DisruptionBudget]) -> None:
        """Apply one change."""
        if (shown := getattr(change, "object", None)) is None:
            return
        name = f"{shown.metadata.namespace}/{shown.metadata.name}"
        if isinstance(change, Deleted):
            self._changed[name] = None
        else:
            self._changed[name] = _read(name, shown)

    def news(self) -> BudgetsChanged | None:
        """Return the changes as an event; None if nothing changed."""
        changed, self._changed = self._changed, {}
        if not changed:
            return None
        there = tuple(budget for budget in changed.values() if budget is not None)
        return BudgetsChanged(there, tuple(n for n, budget in changed.items() if budget is None))


def _read(name: str, shown: DisruptionBudget) -> Budget:
    """Return the budget in the engine's form. Without a selector it selects no pods, with an empty
    one all pods of its namespace."""
    namespace = shown.metadata.namespace
    pods = PodSelector((namespace,), labels_of(shown.spec.selector))
    return Budget(name, pods, shown.status.disruptions_allowed)
