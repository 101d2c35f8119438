"""Conservative backfill: places are kept for all waiting pods, and lent to pods that end before
the places are needed."""

from weft.core.policies.queue.easy import EasyBackfill

MOST_AT_ONCE = 100
"""Maximum number of places kept for each profile and priority, as every decision checks each of
them."""


class ConservativeBackfill(EasyBackfill):
    """Keeps a place for each waiting pod and group, not only for the first, as far as there are
    places that are not kept for others. So a backfilled pod delays none of them (after Mu'alem and
    Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the
    IBM SP2 with Backfilling", 2001)."""

    name = "conservative"
    at_once = MOST_AT_ONCE
