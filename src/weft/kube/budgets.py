"""Disruption budgets, decoded only in the fields that Weft reads."""

from weft.kube.codec import Resource
from weft.kube.pods import LabelSelector
from weft.model.manifest import Api, ObjectMeta


class DisruptionBudgetSpec(Api, frozen=True, gc=False):
    """The spec of a PodDisruptionBudget."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class DisruptionBudgetStatus(Api, frozen=True, gc=False):
    """The status of a PodDisruptionBudget: how many of its pods may be evicted now."""

    disruptions_allowed: int = 0


class DisruptionBudget(Api, frozen=True, gc=False):
    """A policy/v1 PodDisruptionBudget."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


DISRUPTION_BUDGETS = Resource("/apis/policy/v1", "poddisruptionbudgets", DisruptionBudget)
