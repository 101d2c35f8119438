"""Checks before a turn that the scheduler under test, and no other, binds the turn's pods.

It creates one pod for this scheduler, and one for a scheduler that does not exist, which must stay
pending. The first pod's `Scheduled` event and its annotations show which scheduler bound it."""

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import SkippedObjects
from weft.kube.errors import NotFoundError
from weft.lab.experiment.run.cluster_jobs import PlannedJob, pod_template
from weft.lab.experiment.spec.cluster import Cluster, ClusterScheduler
from weft.lab.trial.objects import BINDING_EVENTS, JOB_PODS, BindingEvent, TrialPod, TurnLabels
from weft.model import BadInputError

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
    """Name the first annotation that the scheduler's binding should have written but did not; "" if
    none."""
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
            at = f"was bound to {pod.spec.node_name} but does not run"
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
