"""A pod as the hollow kubelet reads it from the API, and the resources it must be given there.

The structs of `weft.kube` with what only a kubelet needs: restart policy, grace, container states.
"""

import datetime

import msgspec

from weft.kube import pods
from weft.kube.codec import Resource
from weft.kube.pods import OwnedMeta, Pod, PodContainer, ScheduledSpec, ScheduledStatus
from weft.model import parse_quantity
from weft.model.manifest import Api, ManifestContainer, Quantities

DEFAULT_GRACE_S = 30


class HollowMeta(OwnedMeta, frozen=True, gc=False):
    """metadata; the grace period is that of the deletion under way."""

    deletion_grace_period_seconds: int | None = None


class HollowContainer(PodContainer, frozen=True, gc=False):
    """A container, and what becomes of its last words."""

    termination_message_policy: str = "File"

    @property
    def says_why(self) -> bool:
        """True if its status quotes its log where it fails. No hollow one writes a message."""
        return self.termination_message_policy == "FallbackToLogsOnError"


class HollowSpec(ScheduledSpec, frozen=True, gc=False):
    """spec; an empty restart policy is Always."""

    containers: list[HollowContainer] = msgspec.field(  # type: ignore[assignment]
        default_factory=list
    )
    restart_policy: str = ""


class HollowRunning(Api, frozen=True, gc=False):
    """state.running."""

    started_at: str | None = None


class HollowTerminated(pods.Terminated, frozen=True, gc=False):
    """state.terminated, with its times."""

    started_at: str | None = None
    finished_at: str | None = None


class State(pods.ContainerState, frozen=True, gc=False):
    """A container's state; neither is waiting."""

    running: HollowRunning | None = None
    terminated: HollowTerminated | None = None


class HollowContainerStatus(pods.ContainerStatus, frozen=True, gc=False):
    """One entry of status.containerStatuses."""

    state: State = State()
    last_state: State = State()


class HollowStatus(ScheduledStatus, frozen=True, gc=False):
    """status, with what a kubelet wrote before it was restarted."""

    start_time: str | None = None
    container_statuses: list[HollowContainerStatus] | None = None  # type: ignore[assignment]


class HollowPod(Pod, frozen=True, gc=False):
    """A pod as a kubelet reads it."""

    metadata: HollowMeta = HollowMeta()
    spec: HollowSpec = HollowSpec()
    status: HollowStatus = HollowStatus()

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def restarts_after(self) -> tuple[bool, bool]:
        """True if its containers start again after success, and after failure."""
        policy = self.spec.restart_policy or "Always"
        return policy == "Always", policy in ("Always", "OnFailure")


HOLLOW_PODS: Resource[HollowPod] = Resource("/api/v1", "pods", HollowPod)


def time_text(moment_s: float) -> str:
    """Seconds since 1970 as the API writes a time, which knows whole seconds only."""
    moment = datetime.datetime.fromtimestamp(int(moment_s), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """Seconds since 1970 of a time as the API writes it."""
    return datetime.datetime.fromisoformat(text).timestamp()


def devices_asked(pod: HollowPod) -> dict[str, int]:
    """Extended resources that a node must have for the pod: its containers', or more for init."""
    sums: dict[str, int] = {}
    sidecars = [c for c in pod.spec.init_containers or () if c.restart_policy == "Always"]
    for container in (*pod.spec.containers, *sidecars):
        for name, amount in _extended(container).items():
            sums[name] = sums.get(name, 0) + amount
    for container in pod.spec.init_containers or ():
        for name, amount in _extended(container).items():
            sums[name] = max(sums.get(name, 0), amount)
    return sums


def _extended(container: ManifestContainer) -> dict[str, int]:
    resources = container.resources
    quantities: Quantities = {**(resources.requests or {}), **(resources.limits or {})}
    return {name: parse_quantity(text, name) for name, text in quantities.items() if "/" in name}
