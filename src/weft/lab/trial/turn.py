"""Runs one scheduler's turn on a cluster: a namespace, a probe, Jobs at their times, results.

    clear what is left ─▶ namespace ─▶ clocks ─▶ probe ─▶ Jobs ─▶ all ended ─▶ logs, events
                              └────────────── removed, whatever happens ◀──────────┘

The scheduler under test places the pods. Results are the API server's timestamps; this machine's
clock only determines when the next Job is due."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from weft.kube.client import ApiClient
from weft.kube.clock import Clock
from weft.kube.codec import SkippedObjects
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.oom_ends import out_of_memory
from weft.kube.services import everything
from weft.kube.structs import KubeObject
from weft.lab.experiment.run.cluster_jobs import PlannedJob, job_manifest, pod_template
from weft.lab.experiment.spec.cluster import Cluster, ClusterScheduler
from weft.lab.trial.job_rows import MOST_CLOCK_ERROR_S, LoggedQueryTimes, read_query_times
from weft.lab.trial.objects import (
    BINDING_EVENTS,
    JOB_PODS,
    JOBS,
    BindingEvent,
    KubeJob,
    TrialPod,
    TurnLabels,
    make_namespace,
    moment_s,
    remove_namespace,
    remove_namespaces,
)
from weft.model import BadInputError
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.sources.prometheus import Prometheus

# --- the probe ------------------------------------------------------------------------------------
# Checks before a turn that the scheduler under test, and no other, binds the turn's pods.
#
# It creates one pod for this scheduler, and one for a scheduler that does not exist, which must
# stay pending. The first pod's `Scheduled` event and its annotations show which scheduler bound it.


PROBE, NOBODYS = "probe", "nobodys-pod"
NOBODY = "weft-experiment-nobody"
_LOOK_S, _EVENT_WITHIN_S = 0.2, 10.0


async def probe(
    client: ApiClient, cluster: Cluster, scheduler: ClusterScheduler, labels: TurnLabels
) -> None:
    """Return once the scheduler has bound the probe pod; the pod named `NOBODYS` is left pending.

    `BadInputError` names the fault and the command that fixes it."""
    for name, scheduler_name in ((NOBODYS, NOBODY), (PROBE, scheduler.scheduler_name)):
        body = msgspec.json.encode(_pod(name, scheduler_name, cluster, scheduler, labels))
        await client.create(JOB_PODS, labels.namespace, body)
    pod = await _running(client, cluster, scheduler, labels.namespace)
    wrong = lacking(pod, scheduler)
    if not wrong:
        wrong = await _reported(client, scheduler, labels.namespace)
    if not wrong and (await client.get(JOB_PODS, labels.namespace, NOBODYS)).spec.node_name:
        wrong = f"a pod of schedulerName {NOBODY}, which does not exist, was bound"
    if wrong:
        raise _not_in_path(scheduler, wrong)
    await client.delete(JOB_PODS, labels.namespace, PROBE)
    await _gone(client, labels.namespace)


def lacking(pod: TrialPod, scheduler: ClusterScheduler) -> str:
    """Return a text that names the first annotation that the scheduler's binding should have
    written but did not; "" if none."""
    there = pod.metadata.annotations or {}
    absent = [name for name in scheduler.annotations if name not in there]
    if not absent:
        return ""
    return f"pod {pod.metadata.name} was bound without the annotation {absent[0]}"


async def binding_events(client: ApiClient, namespace: str) -> dict[str, BindingEvent]:
    """Return the `Scheduled` event of each pod in the namespace, by pod name."""
    path, query = BINDING_EVENTS.of(namespace), {"fieldSelector": "reason=Scheduled"}
    page = BINDING_EVENTS.decode_page(await client.call("GET", path, query=query), SkippedObjects())
    return {event.regarding.name: event for event in page.items}


def bound_by_another(event: BindingEvent, scheduler: ClusterScheduler) -> str:
    """Return a text that names the event's author if it is another scheduler; else ""."""
    if event.reporter == scheduler.says:
        return ""
    return f"pod {event.regarding.name} was bound by {event.reporter or '(unknown)'}"


def _pod(
    name: str,
    scheduler_name: str,
    cluster: Cluster,
    scheduler: ClusterScheduler,
    labels: TurnLabels,
) -> dict[str, object]:
    job = PlannedJob(
        name=name, kind=name, arrival_s=0, image=cluster.probe_image, memory_mib=1, memory_gib=1
    )
    template = pod_template(job, scheduler, cluster, 0)
    metadata = template["metadata"]
    metadata |= {"name": name, "labels": {**metadata.get("labels", {}), **labels.labels()}}
    spec = {**template["spec"], "schedulerName": scheduler_name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def _running(
    client: ApiClient, cluster: Cluster, scheduler: ClusterScheduler, namespace: str
) -> TrialPod:
    deadline_s = client.clock.monotonic() + cluster.probe_seconds
    while True:
        pod = await client.get(JOB_PODS, namespace, PROBE)
        if pod.status.phase in ("Running", "Succeeded"):
            return pod
        if pod.status.phase == "Failed":
            why = pod.status.message or pod.status.reason
            raise _not_in_path(scheduler, f"the probe failed on {pod.spec.node_name}: {why}")
        if client.clock.monotonic() >= deadline_s:
            at = f"was bound to {pod.spec.node_name} but did not run"
            said = next((f": {c.message}" for c in pod.status.conditions or () if c.message), "")
            state = at if pod.spec.node_name else "was not bound"
            raise _not_in_path(
                scheduler,
                f"the probe {state} within {cluster.probe_seconds:g} s{said}",
            )
        await client.clock.sleep(_LOOK_S)


async def _reported(client: ApiClient, scheduler: ClusterScheduler, namespace: str) -> str:
    """Return a text if another scheduler wrote the probe's event or no event came in time, else "".

    Without an event, a scheduler is accepted if the annotations that it writes are known."""
    deadline_s = client.clock.monotonic() + _EVENT_WITHIN_S
    while client.clock.monotonic() < deadline_s:
        event = (await binding_events(client, namespace)).get(PROBE)
        if event is not None:
            return bound_by_another(event, scheduler)
        await client.clock.sleep(_LOOK_S)
    if scheduler.annotations:
        return ""
    return (
        "no event says which scheduler bound the probe; name an annotation that the scheduler "
        "writes "
        f"(cluster.schedulers, {scheduler.name}, `annotations`)"
    )


async def _gone(client: ApiClient, namespace: str) -> None:
    """Wait until the probe pod has ended or is deleted, so that it no longer holds a GPU."""
    try:
        while not (await client.get(JOB_PODS, namespace, PROBE)).ended:
            await client.clock.sleep(_LOOK_S)
    except NotFoundError:
        return


def _not_in_path(scheduler: ClusterScheduler, wrong: str) -> BadInputError:
    mend = f"; to fix it: {scheduler.mend}" if scheduler.mend else ""
    return BadInputError(
        f"scheduler {scheduler.name}", f"does not bind the turn's pods: {wrong}{mend}"
    )


# Checks that the clocks of the API server and the metrics server agree, as their times are
# compared.
#
# Each server is asked for its time between two readings of this machine's clock, so a clock's
# offset is known up to the duration of the request, and for the API server up to a whole second.


class ClockOffset(NamedTuple):
    """Seconds by which a clock is ahead of this machine's, as a range that contains the true
    value."""

    least_s: float
    most_s: float


def offset_of(told_s: float, step_s: float, asked_s: float, answered_s: float) -> ClockOffset:
    """Return a clock's offset, if it answered `told_s` to a request.

    `step_s` is the clock's resolution; this machine's clock showed `asked_s` before the request and
    `answered_s` after it. All times are seconds."""
    return ClockOffset(told_s - answered_s, told_s + step_s - asked_s)


async def prometheus_clock_marks(
    source: Prometheus, api_server: ClockOffset, clock: Clock
) -> list[str]:
    """Return a mark (a fault's text) if Prometheus' clock is certainly more than a second off the
    API server's, or cannot be read."""
    asked_s = clock.wall().timestamp()
    try:
        seconds = (await source.query("vector(time())")).values.tolist()
    except TelemetryError as error:
        return [f"cannot read Prometheus' clock: {error}"]
    if not seconds:
        return ["cannot read Prometheus' clock: it returned no value"]
    return apart(offset_of(seconds[0], 0.0, asked_s, clock.wall().timestamp()), api_server)


def apart(prometheus: ClockOffset, api_server: ClockOffset) -> list[str]:
    """Return a mark (a fault's text) if the clocks are more than a second apart, whatever their
    true offsets are within these ranges."""
    ahead_s = prometheus.least_s - api_server.most_s
    behind_s = api_server.least_s - prometheus.most_s
    if max(ahead_s, behind_s) <= MOST_CLOCK_ERROR_S:
        return []
    which = f"{ahead_s:.1f} s ahead of" if ahead_s > behind_s else f"{behind_s:.1f} s behind"
    return [f"Prometheus' clock is {which} the API server's; set the machines' clocks (NTP)"]


T = TypeVar("T", bound=KubeObject)

_EVENTS_EVERY_S = 60.0
_ATTEMPTS, _AGAIN_S = 5, 1.0
_LOG_LINES, _LOGS_AT_ONCE = "100", 8


class TurnPlan(msgspec.Struct, frozen=True):
    """A turn, which is one scheduler's run of one seed's Jobs on a cluster; `percent` is the
    over-provisioning of memory requests."""

    labels: TurnLabels
    cluster: Cluster
    scheduler: ClusterScheduler
    percent: int
    jobs: Sequence[PlannedJob]


class TurnObjects(msgspec.Struct):
    """The last seen state of each object of a turn, including deleted pods.

    `ooms` are identifiers of container ends for lack of GPU memory, by Job; `marks` describe faults
    of the turn. `api_clock` is the API server's clock relative to this machine's."""

    jobs: dict[str, KubeJob] = {}
    pods: dict[str, TrialPod] = {}
    ooms: dict[str, set[str]] = {}
    queries: dict[str, LoggedQueryTimes] = {}
    marks: list[str] = []
    api_clock: ClockOffset = ClockOffset(0.0, 0.0)


class Turn:
    """Runs the turn of one `TurnPlan`; `tell` is called with a line of progress at every poll."""

    def __init__(self, client: ApiClient, plan: TurnPlan, tell: Callable[[str], None]) -> None:
        self._client, self._plan, self._tell = client, plan, tell
        self._namespace = plan.labels.namespace
        self._seen = TurnObjects()
        self._bound_by_others: dict[str, str] = {}

    async def run(self) -> TurnObjects:
        """Run the turn, with clean-up before and after; `BadInputError` if the probe finds that
        another scheduler binds the pods."""
        client, plan = self._client, self._plan
        self._tell(f"{plan.scheduler.name}: removing namespaces of earlier turns")
        await remove_namespaces(client, plan.labels.experiment)
        try:
            await self._make_namespace()
            self._tell(f"{plan.scheduler.name}: probing")
            await probe(client, plan.cluster, plan.scheduler, plan.labels)
            await self._run_jobs()
            await self._look_at_events()
            await self._read_logs()
            self._check_bindings()
        finally:
            self._tell(f"{plan.scheduler.name}: removing namespace {self._namespace}")
            await remove_namespace(client, self._namespace)
        return self._seen

    async def _make_namespace(self) -> None:
        clock = self._client.clock
        asked_s = clock.wall().timestamp()
        made = await make_namespace(self._client, self._plan.labels)
        told_s = moment_s(made.creation_timestamp) or asked_s
        self._seen.api_clock = offset_of(told_s, 1.0, asked_s, clock.wall().timestamp())

    async def _run_jobs(self) -> None:
        """Create Jobs at their times, and poll them until all have ended or the turn's time is
        over."""
        clock, plan = self._client.clock, self._plan
        began_s = clock.monotonic()
        creating = asyncio.create_task(self._create_jobs(began_s))
        events_s = began_s
        try:
            while True:
                await clock.sleep(plan.cluster.look_seconds)
                await self._look()
                if creating.done():
                    creating.result()
                    if self._ended() == len(plan.jobs):
                        return
                if clock.monotonic() - events_s >= _EVENTS_EVERY_S:
                    events_s = clock.monotonic()
                    await self._look_at_events()
                if clock.monotonic() - began_s >= plan.cluster.turn_seconds:
                    left = len(plan.jobs) - self._ended()
                    self._seen.marks.append(
                        f"{left} of {len(plan.jobs)} Jobs had not ended after "
                        f"{plan.cluster.turn_seconds:g} s (cluster.turnSeconds)"
                    )
                    return
        finally:
            creating.cancel()

    async def _create_jobs(self, began_s: float) -> None:
        clock, plan = self._client.clock, self._plan
        for job in plan.jobs:
            await clock.sleep(max(0.0, began_s + job.arrival_s - clock.monotonic()))
            manifest = job_manifest(job, plan.scheduler, plan.cluster, plan.percent)
            for metadata in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
                metadata["labels"] = {**metadata.get("labels", {}), **plan.labels.labels()}
            await self._create(job.name, msgspec.json.encode(manifest))

    async def _create(self, name: str, body: bytes) -> None:
        """Create the Job exactly once, even if the API server's response is lost."""
        for attempt in range(_ATTEMPTS):
            try:
                await self._client.create(JOBS, self._namespace, body)
            except ConflictError:
                return
            except (LostError, NotSentError):
                if attempt + 1 == _ATTEMPTS:
                    raise
                await self._client.clock.sleep(_AGAIN_S)
            except ApiError as error:
                raise BadInputError(f"Job {name}", f"the API server refused it: {error}") from error
            else:
                return

    async def _look(self) -> None:
        """Poll Jobs and pods once."""
        seen = self._seen
        for job in await everything(self._client, JOBS, self._namespace):
            seen.jobs[job.metadata.name] = job
        for pod in await everything(self._client, JOB_PODS, self._namespace):
            if pod.job:
                seen.pods[pod.metadata.uid] = pod
                ends = out_of_memory(pod)
                if ends:
                    seen.ooms.setdefault(pod.job, set()).update(end.name for end in ends)
            elif pod.metadata.name == NOBODYS and pod.spec.node_name:
                self._bound_by_others[NOBODYS] = (
                    "a pod of a scheduler that does not exist was bound"
                )
        bound = sum(bool(pod.spec.node_name) and not pod.ended for pod in seen.pods.values())
        ended = self._ended()
        self._tell(
            f"{self._plan.scheduler.name}: {ended} of {len(self._plan.jobs)} Jobs ended, "
            f"{bound} have a node, {len(seen.jobs) - ended - bound} are pending"
        )

    async def _look_at_events(self) -> None:
        for name, event in (await binding_events(self._client, self._namespace)).items():
            wrong = bound_by_another(event, self._plan.scheduler)
            if wrong:
                self._bound_by_others[name] = wrong

    async def _read_logs(self) -> None:
        """Read query latencies from the logs of completed pods; a missing log is skipped."""
        turns = asyncio.Semaphore(_LOGS_AT_ONCE)

        async def read(pod: TrialPod) -> None:
            path = JOB_PODS.of(self._namespace, pod.metadata.name, "log")
            async with turns:
                try:
                    log = await self._client.call(
                        "GET", path, query={"tailLines": _LOG_LINES}, attempts=1
                    )
                except (ApiError, LostError, NotSentError):
                    return
            times = read_query_times(log.decode("utf-8", "replace"))
            if times is not None:
                self._seen.queries[pod.job] = times

        done = [pod for pod in self._seen.pods.values() if pod.status.phase == "Succeeded"]
        await asyncio.gather(*(read(pod) for pod in done))

    def _check_bindings(self) -> None:
        """Add a mark if another scheduler bound pods, or if bound pods lack this scheduler's
        annotations."""
        wrong = list(self._bound_by_others.values())
        bound = [pod for pod in self._seen.pods.values() if pod.spec.node_name]
        wrong += filter(None, (lacking(pod, self._plan.scheduler) for pod in bound))
        if wrong:
            more = f" ({len(wrong)} such pods)" if len(wrong) > 1 else ""
            self._seen.marks.append(
                f"{self._plan.scheduler.name} did not bind all pods of the turn: {wrong[0]}{more}"
            )

    def _ended(self) -> int:
        return sum(job.ended for job in self._seen.jobs.values())
