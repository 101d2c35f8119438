"""Finds the pods to end so that one of higher priority fits: a pure search over the ledger.

In: pods that may be ended (priority, start, disruption budgets), what each node would have without
them, the least set on the best few nodes. Out: whether the pod then fits, which the engine answers
on trial, and ending any pod.
"""

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
