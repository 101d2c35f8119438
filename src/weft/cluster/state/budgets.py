"""Disruption budgets as the API shows them, made the engine's events."""

from collections.abc import Callable

from weft.cluster.state.volume_rules import labels_of
from weft.core.engine import BudgetsChanged
from weft.core.preempt import Budget
from weft.kube.budgets import DisruptionBudget
from weft.kube.watch import Change, Deleted
from weft.model.selectors import PodSelector


class BudgetView:
    """The budgets that changed since `news` was asked last. `uid_of` gives the UID of a pod of this
    namespace and name, "" where there is none."""

    def __init__(self, uid_of: Callable[[str, str], str]) -> None:
        self._uid_of = uid_of
        self._changed: dict[str, Budget | None] = {}

    def take(self, change: Change[DisruptionBudget]) -> None:
        """Take over one change."""
        if (shown := getattr(change, "object", None)) is None:
            return
        name = f"{shown.metadata.namespace}/{shown.metadata.name}"
        if isinstance(change, Deleted):
            self._changed[name] = None
        else:
            self._changed[name] = self._read(name, shown)

    def news(self) -> BudgetsChanged | None:
        """The event that tells of them; None where nothing changed."""
        changed, self._changed = self._changed, {}
        if not changed:
            return None
        there = tuple(budget for budget in changed.values() if budget is not None)
        return BudgetsChanged(there, tuple(n for n, budget in changed.items() if budget is None))

    def _read(self, name: str, shown: DisruptionBudget) -> Budget:
        """The budget, in the engine's words. Without selector it has no pods, with an empty one
        all of its namespace."""
        namespace = shown.metadata.namespace
        pods = PodSelector((namespace,), labels_of(shown.spec.selector))
        ending = (self._uid_of(namespace, pod) for pod in shown.status.disrupted_pods or ())
        allowed = shown.status.disruptions_allowed
        return Budget(name, pods, allowed, tuple(uid for uid in ending if uid))
