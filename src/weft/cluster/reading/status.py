"""Collects Weft's state on a cluster for `weft status`. Writes nothing."""

import datetime
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from weft.cluster.reading import node_findings as on_nodes
from weft.cluster.reading.claims import claim_findings
from weft.cluster.reading.finding import DoctorFinding, advice, good, wrong
from weft.cluster.reading.more_nodes import room_findings
from weft.cluster.reading.pod_findings import holders
from weft.cluster.reading.promises import NodeReport, promises, troubles_of
from weft.cluster.reading.reading import (
    ClusterReading,
    HowToRead,
    read_cluster,
    rights_finding,
)
from weft.cluster.rights import STATUS
from weft.cluster.scheduler.leader_label import LEADER
from weft.dialects.dialect import DialectSettings
from weft.dialects.foreign import foreign_requests
from weft.dialects.registry import parse_pod
from weft.kube.client import ApiClient
from weft.kube.codec import LEASES, TOLD_EVENTS
from weft.kube.errors import ApiError, NotFoundError
from weft.kube.pods import Pod
from weft.kube.services import SERVING_PODS, ServingPod, everything
from weft.kube.structs import Event, Lease
from weft.model import BadInputError
from weft.model.annotations import ROLE
from weft.model.nearest import nearest

SCHEDULERS = "app.kubernetes.io/name=weft-scheduler"
WITHOUT_AGENT = "without agent"
_FORBIDDEN = 403
_DIGEST_SHOWN = len("sha256:") + 12
_SCHEDULERS_WARNING = "FailedScheduling"


class LeaderStatus(msgspec.Struct):
    """The leader: its Lease, the holder ("" if none), and `leads` if the Lease is being renewed.

    `known` is False if the caller may not read the Lease."""

    lease: str
    holder: str = ""
    term: int = 0
    renewed_at: str = ""
    leads: bool = False
    known: bool = True


class VersionCount(msgspec.Struct):
    """Number of processes of a part that run a version: a scheduler's image tag, or an agent's
    version."""

    part: str
    version: str
    count: int


class NodeGroup(msgspec.Struct):
    """GPU nodes with the same delivery and isolation modes, and the memory reserved on their
    GPUs."""

    delivery: str
    isolation: tuple[str, ...]
    nodes: list[str]
    gpus: int = 0
    memory_mib: int = 0
    promised_mib: int = 0
    ready: int = 0


class PodGroup(msgspec.Struct):
    """Pods with GPU requests, or of Weft's profiles, in one state for one reason; `oldest` is the
    name of the oldest pod, on `node`."""

    state: str
    reason: str
    count: int
    oldest: str
    node: str = ""


class StatusReport(msgspec.Struct):
    """Everything that `weft status` prints."""

    leader: LeaderStatus
    schedulers: int
    schedulers_ready: int
    versions: list[VersionCount]
    nodes: list[NodeGroup]
    pods: list[PodGroup]
    findings: list[DoctorFinding]

    @property
    def wrong(self) -> bool:
        """True if any finding is an error."""
        return any(finding.level == "wrong" for finding in self.findings)


class StatusWish(NamedTuple):
    """The Lease, Weft's schedulerNames, and the settings by which pods and nodes are read."""

    lease_namespace: str
    lease_name: str
    names: frozenset[str]
    how: HowToRead = HowToRead()


FurtherChecks = Callable[
    [ApiClient, ClusterReading, Collection[str]], Awaitable[list[DoctorFinding]]
]


async def status_of(
    client: ApiClient, wish: StatusWish, also: FurtherChecks | None = None
) -> StatusReport:
    """Read the present state, and make the further checks `also` of the same objects; raises the
    client's errors."""
    lacking = await rights_finding(client, STATUS, "yours")
    if lacking.level == "wrong":
        leader = LeaderStatus(f"{wish.lease_namespace}/{wish.lease_name}", known=False)
        return StatusReport(leader, 0, 0, [], [], [], [lacking])
    leader = await _leader(client, wish)
    read = await read_cluster(client, wish.how)
    schedulers = await _schedulers(client)
    reports, _ = promises(read.gpu_nodes, read.pods, read.how, read.claims)
    pods = await _pods(client, read, wish)
    ready = sum(pod.ready for pod in schedulers)
    findings = [
        _leader_finding(leader, schedulers),
        *_two_leaders(schedulers),
        on_nodes.agents_per_node(read),
        *await on_nodes.heartbeats(client, read),
        on_nodes.offers(read),
        on_nodes.runtimes(read),
        on_nodes.other_resources(read),
        *_node_findings(reports),
        *holders(read, wish.names, client.clock.wall()),
        *claim_findings(read.claims, read.pods),
        *_pod_findings(pods),
        *room_findings(read, wish.names),
    ]
    more = [] if also is None else await also(client, read, wish.names)
    findings += [finding for finding in more if finding not in findings]
    versions = _versions(schedulers, reports)
    return StatusReport(
        leader, len(schedulers), ready, versions, _node_groups(reports), pods, findings
    )


async def _schedulers(client: ApiClient) -> list[ServingPod]:
    """Return Weft's scheduler pods, by name label and by role label, since Weft may be installed
    under another name."""
    by_name = await everything(client, SERVING_PODS, selector=SCHEDULERS)
    by_role = await everything(client, SERVING_PODS, selector=ROLE)
    pods = {(pod.metadata.namespace, pod.metadata.name): pod for pod in (*by_name, *by_role)}
    return [pods[key] for key in sorted(pods)]


# --- leader ---------------------------------------------------------------------------------------


async def _leader(client: ApiClient, wish: StatusWish) -> LeaderStatus:
    """Read the leader's status; if the Lease looks expired, read it again after its duration, since
    clocks may differ."""
    status = LeaderStatus(f"{wish.lease_namespace}/{wish.lease_name}")
    try:
        lease = await _lease(client, wish)
        leads = _renewed(lease, client.clock.wall())
        if not leads and lease.spec.holder_identity:
            await client.clock.sleep(lease.spec.lease_duration_seconds or 0)
            before, lease = lease, await _lease(client, wish)
            leads = lease.spec.renew_time != before.spec.renew_time
    except NotFoundError:
        return status
    except ApiError as error:
        if error.code != _FORBIDDEN:
            raise
        status.known = False
        return status
    spec = lease.spec
    status.holder, status.renewed_at = spec.holder_identity or "", spec.renew_time or ""
    status.term, status.leads = spec.lease_transitions or 0, leads
    return status


async def _lease(client: ApiClient, wish: StatusWish) -> Lease:
    return await client.get(LEASES, wish.lease_namespace, wish.lease_name)


def _renewed(lease: Lease, now: datetime.datetime) -> bool:
    spec = lease.spec
    try:
        renewed = datetime.datetime.fromisoformat(spec.renew_time or "")
        age_s = (now - renewed).total_seconds()
    except (ValueError, TypeError):
        return False
    return bool(spec.holder_identity) and age_s <= (spec.lease_duration_seconds or 0)


def _leader_finding(leader: LeaderStatus, schedulers: Sequence[ServingPod]) -> DoctorFinding:
    check = "scheduler"
    if not leader.known:
        mend = "ask for the right to get leases in that namespace"
        return advice(check, f"you may not read Lease {leader.lease}: the leader is unknown", mend)
    unready = [pod for pod in schedulers if not pod.ready]
    if not leader.leads:
        if not schedulers and not leader.holder:
            text = f"no scheduler runs, and the Lease {leader.lease} was never held"
            return wrong(check, text, "kubectl apply -f deploy/scheduler.yaml")
        mend = "see the scheduler's log"
        if schedulers:
            meta = (unready or schedulers)[0].metadata
            mend = f"kubectl -n {meta.namespace} logs {meta.name}"
        if leader.holder:
            text = f"no leader: {leader.holder} last renewed the Lease at {leader.renewed_at}"
            return wrong(check, text, mend)
        return wrong(check, f"no leader: the Lease {leader.lease} is free", mend)
    if unready:
        meta = unready[0].metadata
        mend = f"kubectl -n {meta.namespace} describe pod {meta.name}"
        return advice(
            check, f"{len(unready)} of {len(schedulers)} scheduler pods are not ready", mend
        )
    return good(check, f"{leader.holder} leads")


def _two_leaders(schedulers: Sequence[ServingPod]) -> list[DoctorFinding]:
    """Report several leaders: their Leases have different names, but they bind the same pods."""
    leading = [
        f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in schedulers
        if pod.ready and (pod.metadata.labels or {}).get(ROLE) == LEADER
    ]
    if len(leading) < 2:
        return []
    text = f"{len(leading)} schedulers lead, and allocate the same GPUs: {', '.join(leading)}"
    mend = (
        "uninstall all but one of these releases, or give them different schedulerNames and nodes"
    )
    return [wrong("scheduler", text, mend)]


# --- versions and nodes ---------------------------------------------------------------------------


def _versions(
    schedulers: Sequence[ServingPod], reports: Sequence[NodeReport]
) -> list[VersionCount]:
    images = [
        ("scheduler", _tag(c.image)) for pod in schedulers for c in (pod.spec.containers or ())[:1]
    ]
    parts = images + [("agent", node.agent.version) for node in reports if node.agent is not None]
    counts: dict[tuple[str, str], int] = {}
    for each in sorted(parts, key=lambda named: (named[0] != "scheduler", named[1])):
        counts[each] = counts.get(each, 0) + 1
    return [VersionCount(part, version, count) for (part, version), count in counts.items()]


def _tag(image: str) -> str:
    """Return the image's tag; without one the beginning of its digest, or else "no tag (IMAGE)"; ""
    for no image."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if tag or digest:
        return tag or digest[:_DIGEST_SHOWN]
    return f"no tag ({image})" if image else ""


def _node_groups(reports: Iterable[NodeReport]) -> list[NodeGroup]:
    groups: dict[tuple[str, tuple[str, ...]], NodeGroup] = {}
    for node in reports:
        offer = node.agent
        delivery = offer.delivery if offer is not None else WITHOUT_AGENT
        modes = tuple(sorted(offer.isolation)) if offer is not None else ()
        group = groups.setdefault((delivery, modes), NodeGroup(delivery, modes, []))
        cards = [gpu for gpu in node.gpus if gpu.parent is None]
        group.nodes.append(node.name)
        group.gpus += len(cards)
        group.memory_mib += sum(gpu.memory_mib for gpu in cards)
        group.promised_mib += sum(gpu.promised_mib for gpu in node.gpus)
        group.ready += node.ready
    return [groups[key] for key in sorted(groups)]


def _node_findings(reports: Sequence[NodeReport]) -> list[DoctorFinding]:
    findings = []
    for node in reports:
        for text in troubles_of(node):
            level = wrong if "promised" in text or "is gone" in text else advice
            findings.append(level("nodes", text, f"weft inspect {node.name} --details"))
    return findings


# --- pods by reason ------------------------------------------------------------------------------


async def _pods(client: ApiClient, read: ClusterReading, wish: StatusWish) -> list[PodGroup]:
    chosen = [pod for pod in read.pods if pod.status.phase != "Succeeded" and _concerns(pod, wish)]
    messages = await _told(client) if any(_silent(pod) for pod in chosen) else {}
    ready = {node.metadata.name: node.ready for node in read.nodes}
    groups: dict[tuple[str, str], PodGroup] = {}
    for pod in sorted(chosen, key=lambda pod: pod.metadata.creation_timestamp or ""):
        message = messages.get(pod.metadata.uid, "") or _node_away(pod.spec.node_name, ready)
        key = _state(pod, message, wish.names)
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        group = groups.setdefault(key, PodGroup(*key, 0, name, pod.spec.node_name or ""))
        group.count += 1
    order = {state: number for number, state in enumerate(_STATES)}
    return sorted(groups.values(), key=lambda g: (order[g.state], -g.count, g.reason))


# Parts of the container runtime's message when a required agent is missing, and of the agent's
# message when a GPU is already reserved.
_AGENT_AWAY = ("required plugin", "validator plugin")
_ACCOUNT = "promised to pods that run"
_AWAY, _GONE = "the node {} is not ready", "there is no node {}"
_STATES = ("running", "starting", "ending", "pending", "gated", "failed")

# Reasons of a waiting container that is being started, or that started and crashed.
_ON_ITS_WAY = ("", "ContainerCreating", "PodInitializing", "CrashLoopBackOff")


def _concerns(pod: Pod, wish: StatusWish) -> bool:
    """Return True if the pod requests GPUs in any system's form, or has one of Weft's
    schedulerNames."""
    if pod.spec.scheduler_name in wish.names:
        return True
    try:
        asks = parse_pod(pod, DialectSettings()).shape
    except BadInputError:
        return True
    gpus = bool(asks.gpu_requests) or asks.needs_gpu_node
    return gpus or bool(foreign_requests(pod))


def _state(pod: Pod, message: str, names: frozenset[str]) -> tuple[str, str]:
    """Return the pod's state and reason; `message` is the newest warning about the pod, or the
    problem with its node."""
    if pod.status.phase == "Failed":
        return "failed", pod.status.reason or message
    if pod.spec.node_name:
        if pod.metadata.deletion_timestamp:
            return "ending", ""
        if refused := _kept_from_starting(pod):
            return "starting", refused
        return ("running", "") if pod.status.phase == "Running" else ("starting", message)
    if pod.spec.scheduling_gates:
        return "gated", ", ".join(gate.name for gate in pod.spec.scheduling_gates)
    name = pod.spec.scheduler_name or "default-scheduler"
    waits = "no scheduler has reported anything yet" if name in names else f"waits for {name}"
    guess = "" if name in names or not pod.spec.scheduler_name else nearest(name, names)
    if guess and name != "default-scheduler":
        waits += f", which has not reported anything; did you mean {guess}?"
    return "pending", _condition(pod) or message or waits


def _kept_from_starting(pod: Pod) -> str:
    """Return why the kubelet cannot start one of the pod's containers now, including one that ran
    and ended; "" if it can."""
    status = pod.status
    for each in [*(status.init_container_statuses or []), *(status.container_statuses or [])]:
        waiting = each.state.waiting
        if waiting is not None and waiting.reason not in _ON_ITS_WAY:
            return waiting.message or waiting.reason
    return ""


def _node_away(node: str, ready: Mapping[str, bool]) -> str:
    """Return why no pod of this node can start, as far as the node object shows; "" if pods may
    start."""
    if not node or ready.get(node):
        return ""
    return (_AWAY if node in ready else _GONE).format(node)


def _condition(pod: Pod) -> str:
    """Return why the scheduler left the pod pending, from its PodScheduled condition; "" if
    unknown."""
    said = (c for c in pod.status.conditions or () if c.type == "PodScheduled")
    return next((c.message or c.reason for c in said if c.status == "False"), "")


def _silent(pod: Pod) -> bool:
    """Return True if only an event can tell why the pod does not run."""
    if pod.spec.node_name:
        return pod.status.phase not in ("Running", "") and not pod.status.reason
    return not pod.spec.scheduling_gates and not _condition(pod)


async def _told(client: ApiClient) -> Mapping[str, str]:
    """Return the newest warning event for each pod, by UID; empty if the caller may not read
    events.

    The scheduler's own warnings are left out: the pod's condition repeats the latest one."""
    try:
        events = await everything(client, TOLD_EVENTS)
    except ApiError:
        return {}
    warnings = [
        event
        for event in events
        if event.type == "Warning" and event.regarding.kind == "Pod" and event.note
        if event.reason != _SCHEDULERS_WARNING
    ]
    return {event.regarding.uid: event.note for event in sorted(warnings, key=_when)}


def _when(event: Event) -> str:
    series = event.series.last_observed_time if event.series is not None else ""
    return series or event.metadata.creation_timestamp or ""


def _pod_findings(groups: Sequence[PodGroup]) -> list[DoctorFinding]:
    findings = [
        wrong("pods", _cannot_start(group), _start_mend(group))
        for group in groups
        if group.state == "starting" and group.reason
    ]
    for state, words, mend in (
        ("pending", ("pod is pending", "pods are pending"), "weft explain pod {}"),
        ("failed", ("pod has failed", "pods have failed"), "kubectl -n {0} describe pod {1}"),
    ):
        those = [group for group in groups if group.state == state]
        if those:
            count, oldest = sum(group.count for group in those), those[0].oldest
            command = mend.format(*oldest.split("/")) if "{0}" in mend else mend.format(oldest)
            text = f"{count} {words[count > 1]}: {oldest}"
            if count > 1:
                text += " is the oldest of those with the most common reason"
            findings.append(advice("pods", text, command))
    return findings


def _cannot_start(group: PodGroup) -> str:
    more = f" (and {group.count - 1} more pods)" if group.count > 1 else ""
    return f"{group.oldest} is bound to {group.node} and cannot start{more}: {group.reason}"


def _start_mend(group: PodGroup) -> str:
    """Return the command that shows what keeps the pods from starting."""
    if any(words in group.reason for words in _AGENT_AWAY):
        where = f"--field-selector spec.nodeName={group.node}"
        return f"kubectl get pods -A -l app.kubernetes.io/name=weft-agent {where}"
    namespace, _, name = group.oldest.partition("/")
    if group.reason == _AWAY.format(group.node):
        return f"kubectl describe node {group.node}"
    if group.reason == _GONE.format(group.node):
        return f"kubectl -n {namespace} delete pod {name}"
    if _ACCOUNT in group.reason:
        return f"weft inspect {group.node} --details"
    return f"kubectl -n {namespace} describe pod {name}"
