"""Jobs, their pods and their events, decoded with the timestamps that a trial reads."""

import datetime

from weft.kube import pods
from weft.kube.codec import MetaOnly, Resource
from weft.kube.pods import OwnedMeta, Pod, ScheduledStatus
from weft.kube.structs import Event
from weft.model.manifest import Api, Condition, ObjectMeta

JOB_NAME = "batch.kubernetes.io/job-name"
"""Label that the Job controller puts on a Job's pods."""


class JobStatus(Api, frozen=True, gc=False):
    """The status of a Job."""

    start_time: str | None = None
    completion_time: str | None = None
    conditions: list[Condition] | None = None


class KubeJob(Api, frozen=True, gc=False):
    """A batch/v1 Job."""

    metadata: ObjectMeta = ObjectMeta()
    status: JobStatus = JobStatus()

    @property
    def ended(self) -> bool:
        """True if the Job is complete or has failed."""
        return self._is("Complete") or self.failed

    @property
    def failed(self) -> bool:
        """True if the Job has failed, for example after `backoffLimit` restarts."""
        return self._is("Failed")

    def _is(self, type_: str) -> bool:
        conditions = self.status.conditions or ()
        return any(each.type == type_ and each.status == "True" for each in conditions)


class RanTerminated(pods.Terminated, frozen=True, gc=False):
    """A container's state.terminated, with its start time."""

    started_at: str | None = None


class RunningState(Api, frozen=True, gc=False):
    """A container's state.running."""

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
    """A pod's status, with the time at which the kubelet accepted the pod."""

    start_time: str | None = None
    message: str = ""
    container_statuses: list[RanContainer] | None = None  # type: ignore[assignment]


class TrialPod(Pod, frozen=True, gc=False):
    """A pod of a Job."""

    metadata: OwnedMeta = OwnedMeta()
    status: RanStatus = RanStatus()

    @property
    def job(self) -> str:
        """Name of the pod's Job; "" if it has none."""
        return (self.metadata.labels or {}).get(JOB_NAME, "")


class EventSource(Api, frozen=True, gc=False):
    """The author of an event in the older API."""

    component: str = ""


class BindingEvent(Event, frozen=True, gc=False):
    """An event with its author."""

    reporting_controller: str = ""
    deprecated_source: EventSource = EventSource()

    @property
    def reporter(self) -> str:
        """The controller that wrote the event; older clients set another field."""
        return self.reporting_controller or self.deprecated_source.component


JOBS = Resource("/apis/batch/v1", "jobs", KubeJob)
JOB_PODS = Resource("/api/v1", "pods", TrialPod)
NAMESPACES = Resource("/api/v1", "namespaces", MetaOnly)
BINDING_EVENTS = Resource("/apis/events.k8s.io/v1", "events", BindingEvent)


def moment_s(text: str | None) -> float | None:
    """Return an API timestamp as seconds since 1970; None for None or ""."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
