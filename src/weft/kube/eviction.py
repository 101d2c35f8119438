"""Evicts one pod by the Eviction API, and interprets the answer."""

from typing import Literal, NamedTuple

from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.pods import LabelSelector
from weft.model.manifest import Api, ObjectMeta

# --- disruption budgets ---------------------------------------------------------------------------


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


_TOO_MANY, _TOO_LATE = 429, 504


class EvictionAnswer(NamedTuple):
    """Outcome: the pod is `evicted`, `gone` (or replaced by another of its name), `blocked` by a
    disruption budget, or the attempt `failed`, for example by concurrent writes to the pod or its
    budget. `error` says why the pod is not evicted."""

    outcome: Literal["evicted", "gone", "blocked", "failed"]
    error: ApiError | LostError | NotSentError | None = None

    @property
    def may_go(self) -> bool:
        """True if the pod may be ending: the API server accepted the eviction, or its answer was
        lost."""
        late = isinstance(self.error, ApiError) and self.error.code == _TOO_LATE
        return self.outcome == "evicted" or late or isinstance(self.error, LostError)

    @property
    def is_conflict(self) -> bool:
        """True if concurrent writes prevented the eviction: nothing happened, and it may be
        repeated."""
        return self.outcome == "failed" and isinstance(self.error, ConflictError)

    @property
    def retry_after_s(self) -> float:
        """Seconds that the API server asks to wait before another attempt; 0 if it does not say."""
        return self.error.retry_after_s if isinstance(self.error, ApiError) else 0.0

    @property
    def reason(self) -> str:
        """The API server's message; "" if there is none."""
        return self.error.status.message if isinstance(self.error, ApiError) else ""


async def evict(
    client: ApiClient, namespace: str, name: str, uid: str, timeout_s: float = 0
) -> EvictionAnswer:
    """Try once to evict the pod with this UID."""
    try:
        await client.evict(namespace, name, uid, timeout_s)
    except NotFoundError:
        return EvictionAnswer("gone")
    except ApiError as error:
        if isinstance(error, ConflictError) and error.is_another:
            return EvictionAnswer("gone")
        return EvictionAnswer("blocked" if error.code == _TOO_MANY else "failed", error)
    except (LostError, NotSentError) as error:
        return EvictionAnswer("failed", error)
    return EvictionAnswer("evicted")
