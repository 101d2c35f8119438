"""Finds the pods to end so that a pod of higher priority fits: a pure search over the ledger.

In: pods that may be ended (priority, start, disruption budgets), the resources of each node without
them, and the cheapest sets on the best nodes. Out: checking by trial that the pod then fits
(`core/engine/`), and ending pods."""

from weft.core.preempt.lower_pods import FreedByNode, LowerPods
from weft.core.preempt.search import FoundVictims, VictimSearch
from weft.core.preempt.victims import Budget, PreemptionCost, Victim, cost_of, uids_of, violations

__all__ = [
    "Budget",
    "FoundVictims",
    "FreedByNode",
    "LowerPods",
    "PreemptionCost",
    "Victim",
    "VictimSearch",
    "cost_of",
    "uids_of",
    "violations",
]
