"""Finds the pods to end (evict) so that a pod of higher priority fits: a pure search over the
ledger.

Contents: which pods may be ended (priority, start, disruption budgets), what each node would have
free without them, and the cheapest sets on the best nodes. Not here: checking by trial that the pod
then fits, and evicting pods (`core/engine/`)."""

from weft.core.preempt.lower_pods import FreedByNode, LowerPods
from weft.core.preempt.search import FoundVictims, VictimSearch
from weft.core.preempt.victims import (
    BorrowingQueue,
    Budget,
    PreemptionCost,
    Victim,
    cost_of,
    uids_of,
    violations,
)

__all__ = [
    "BorrowingQueue",
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
