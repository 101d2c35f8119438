"""Conservative backfill: a place is kept for every waiting pod, and lent as by EASY."""

from weft.core.policies.queue.easy import EasyBackfill

MOST_AT_ONCE = 100
"""Places kept for each profile and priority, at most: each is looked at in every decision."""


class ConservativeBackfill(EasyBackfill):
    """Keeps a place for each pod and group that waits for one, as far as there are places that are
    kept for nobody else, not only for the first. So a pod that passes delays none of them (after
    Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in
    Scheduling the IBM SP2 with Backfilling", 2001)."""

    name = "conservative"
    at_once = MOST_AT_ONCE
