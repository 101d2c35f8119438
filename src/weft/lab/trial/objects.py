"""Jobs, their pods and their events, decoded with the timestamps that a trial reads."""

import datetime

import msgspec

from weft.kube import pods
from weft.kube.client import ApiClient
from weft.kube.codec import MetaOnly, Resource, SkippedObjects
from weft.kube.errors import NotFoundError
from weft.kube.pods import OwnedMeta, Pod, ScheduledStatus
from weft.kube.structs import Event
from weft.model import BadInputError, ObjectMeta
from weft.model.annotations import EXPERIMENT, TURN
from weft.model.manifest import Api, Condition

JOB_NAME = "batch.kubernetes.io/job-name"
"""Label that the Job controller puts on a Job's pods."""


class JobStatus(Api, frozen=True, gc=False):
    """The status of a Job."""

    start_time: str | None = None
    completion_time: str | None = None
    conditions: list[Condition] | None = None


class KubeJob(Api, frozen=True, gc=False):
    """A batch/v1 Job, with the fields that a trial reads."""

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
    """The state.terminated of a container, with its start time."""

    started_at: str | None = None


class RunningState(Api, frozen=True, gc=False):
    """The state.running of a container."""

    started_at: str | None = None


class RanState(pods.ContainerState, frozen=True, gc=False):
    """The state of a container, with its times."""

    running: RunningState | None = None
    terminated: RanTerminated | None = None


class RanContainer(pods.ContainerStatus, frozen=True, gc=False):
    """An entry of a pod's status.containerStatuses, with start and end times."""

    state: RanState = RanState()
    last_state: RanState = RanState()


class RanStatus(ScheduledStatus, frozen=True, gc=False):
    """A pod's status, with the time at which the kubelet accepted the pod (`start_time`)."""

    start_time: str | None = None
    message: str = ""
    container_statuses: list[RanContainer] | None = None  # type: ignore[assignment]


class TrialPod(Pod, frozen=True, gc=False):
    """A pod of a Job, with the fields that a trial reads."""

    metadata: OwnedMeta = OwnedMeta()
    status: RanStatus = RanStatus()

    @property
    def job(self) -> str:
        """Name of the pod's Job; "" if it has none."""
        return (self.metadata.labels or {}).get(JOB_NAME, "")


class EventSource(Api, frozen=True, gc=False):
    """The component that wrote an event through the older events API."""

    component: str = ""


class BindingEvent(Event, frozen=True, gc=False):
    """An event with the component that wrote it."""

    reporting_controller: str = ""
    deprecated_source: EventSource = EventSource()

    @property
    def reporter(self) -> str:
        """The component that wrote the event; older clients set `deprecated_source`."""
        return self.reporting_controller or self.deprecated_source.component


JOBS = Resource("/apis/batch/v1", "jobs", KubeJob)
JOB_PODS = Resource("/api/v1", "pods", TrialPod)
NAMESPACES = Resource("/api/v1", "namespaces", MetaOnly)
BINDING_EVENTS = Resource("/apis/events.k8s.io/v1", "events", BindingEvent)


def moment_s(text: str | None) -> float | None:
    """Return an API timestamp as seconds since 1970; None for None or ""."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None


# --- Creates and removes a turn's namespace -------------------------------------------------------
#
# Every object of an experiment is labelled with its name. So if a turn is killed, the next start
# finds and removes its objects.

_GONE_WITHIN_S, _LOOK_S = 300.0, 0.5


class TurnLabels(msgspec.Struct, frozen=True):
    """Labels of the objects of a turn (one scheduler's run of one seed's Jobs): the experiment's
    name, and a hash that identifies the turn."""

    experiment: str
    turn: str

    @property
    def namespace(self) -> str:
        """Name of the turn's namespace."""
        return f"weft-{self.experiment[:45].rstrip('-')}-{self.turn[:8]}"

    def labels(self) -> dict[str, str]:
        """Return the labels for every object that the turn creates."""
        return {EXPERIMENT: self.experiment, TURN: self.turn}


async def make_namespace(client: ApiClient, labels: TurnLabels) -> ObjectMeta:
    """Create the turn's namespace, and return its metadata."""
    metadata = {"name": labels.namespace, "labels": labels.labels()}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    return (await client.create(NAMESPACES, "", msgspec.json.encode(body))).metadata


async def remove_namespaces(client: ApiClient, experiment: str) -> list[str]:
    """Remove the namespaces of all earlier runs of this experiment, and return their names.

    `BadInputError` if a namespace still exists after `_GONE_WITHIN_S`, as its pods may still hold
    GPUs."""
    query = {"labelSelector": f"{EXPERIMENT}={experiment}"}
    body = await client.call("GET", NAMESPACES.of(""), query=query)
    names = [each.metadata.name for each in NAMESPACES.decode_page(body, SkippedObjects()).items]
    for name in names:
        await remove_namespace(client, name)
    return names


async def remove_namespace(client: ApiClient, name: str) -> None:
    """Delete the namespace and wait until it is gone; `BadInputError` after `_GONE_WITHIN_S`
    seconds."""
    deadline_s = client.clock.monotonic() + _GONE_WITHIN_S
    try:
        await client.delete(NAMESPACES, "", name)
        while client.clock.monotonic() < deadline_s:
            await client.clock.sleep(_LOOK_S)
            await client.get(NAMESPACES, "", name)
    except NotFoundError:
        return
    what = f"is still there {_GONE_WITHIN_S:g} s after its deletion; `kubectl get namespace {name} "
    raise BadInputError(f"namespace {name}", f"{what}-o yaml` shows what blocks it")
