"""Jobs, their pods and events, decoded with the times that a trial reads."""

import datetime

from weft.kube import pods
from weft.kube.codec import MetaOnly, Resource
from weft.kube.pods import OwnedMeta, Pod, ScheduledStatus
from weft.kube.structs import Event
from weft.model.manifest import Api, Condition, ObjectMeta

JOB_NAME = "batch.kubernetes.io/job-name"
"""The Job controller's own label of a Job's pods."""


class JobStatus(Api, frozen=True, gc=False):
    """status of a Job."""

    start_time: str | None = None
    completion_time: str | None = None
    conditions: list[Condition] | None = None


class KubeJob(Api, frozen=True, gc=False):
    """batch/v1 Job."""

    metadata: ObjectMeta = ObjectMeta()
    status: JobStatus = JobStatus()

    @property
    def ended(self) -> bool:
        """True if it is complete, or was given up."""
        return self._is("Complete") or self.failed

    @property
    def failed(self) -> bool:
        """True if it was given up, as after `backoffLimit` restarts."""
        return self._is("Failed")

    def _is(self, type_: str) -> bool:
        conditions = self.status.conditions or ()
        return any(each.type == type_ and each.status == "True" for each in conditions)


class RanTerminated(pods.Terminated, frozen=True, gc=False):
    """state.terminated, with when the container started."""

    started_at: str | None = None


class RunningState(Api, frozen=True, gc=False):
    """state.running."""

    started_at: str | None = None


class RanState(pods.ContainerState, frozen=True, gc=False):
    """A container's state, with its times."""

    running: RunningState | None = None
    terminated: RanTerminated | None = None


class RanContainer(pods.ContainerStatus, frozen=True, gc=False):
    """One entry of status.containerStatuses."""

    state: RanState = RanState()
    last_state: RanState = RanState()


class RanStatus(ScheduledStatus, frozen=True, gc=False):
    """status, with when the kubelet took the pod."""

    start_time: str | None = None
    message: str = ""
    container_statuses: list[RanContainer] | None = None  # type: ignore[assignment]


class TrialPod(Pod, frozen=True, gc=False):
    """A pod of a Job."""

    metadata: OwnedMeta = OwnedMeta()
    status: RanStatus = RanStatus()

    @property
    def job(self) -> str:
        """The name of its Job; "" if it has none."""
        return (self.metadata.labels or {}).get(JOB_NAME, "")


class EventSource(Api, frozen=True, gc=False):
    """The author of an event of the older API."""

    component: str = ""


class BindingEvent(Event, frozen=True, gc=False):
    """An event, with who wrote it."""

    reporting_controller: str = ""
    deprecated_source: EventSource = EventSource()

    @property
    def reporter(self) -> str:
        """The controller that says it; older clients leave it in another field."""
        return self.reporting_controller or self.deprecated_source.component


JOBS = Resource("/apis/batch/v1", "jobs", KubeJob)
JOB_PODS = Resource("/api/v1", "pods", TrialPod)
NAMESPACES = Resource("/api/v1", "namespaces", MetaOnly)
BINDING_EVENTS = Resource("/apis/events.k8s.io/v1", "events", BindingEvent)


def moment_s(text: str | None) -> float | None:
    """Seconds since 1970 of a time as the API writes it; None for none."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
