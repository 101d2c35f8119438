"""Reads a cluster's nodes and pods for a simulation under other policies.

Pods are read by the dialects as the scheduler reads them, nodes by the dialects' inventory.
Constraints that a simulation cannot honour are left out and reported.
"""

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from weft.cluster.state import pod_reader
from weft.cluster.state.pod_reader import UnknownVolumes
from weft.dialects.catalog import ASKING_ANNOTATIONS
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import InventoryFallback, inventory
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.model import BadInputError, Constraints, Gang, GpuMemoryRequest, Node, Shape

_ALWAYS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The taints that Kubernetes makes every pod tolerate for a while."""


class PodTimes(NamedTuple):
    """The times when a pod was created, was bound and ended, seconds since 1970; None for what has
    not happened."""

    created_s: float
    scheduled_s: float | None = None
    ended_s: float | None = None


class ObservedPod(NamedTuple):
    """One pod: its request, the system whose resources it uses, its times, and its gang. `queue` is
    its team's queue; `names_queue` is True if the pod names that queue, False if the queue is the
    pod's namespace."""

    name: str
    shape: Shape
    dialect: str
    priority: int
    times: PodTimes
    gang: Gang | None = None
    queue: str = ""
    names_queue: bool = False


class ObservedCluster(NamedTuple):
    """An observed cluster. `left_out` counts, by reason, the pods and constraints that are not
    simulated."""

    nodes: list[Node]
    pods: list[ObservedPod]
    warnings: list[str]
    left_out: Counter[str]


def observe(
    nodes: Iterable[KubeNode],
    pods: Iterable[Pod],
    settings: DialectSettings,
    rules: Sequence[InventoryFallback] = (),
    times_of: Callable[[Pod], PodTimes] | None = None,
) -> ObservedCluster:
    """Read all nodes and pods. A pod that no dialect can read is left out, with a warning that
    names it."""
    seen = ObservedCluster([], [], [], Counter())
    for known in nodes:
        node, warnings = inventory(known, rules=rules)
        seen.nodes.append(node)
        seen.warnings.extend(f"node {node.name}: {warning}" for warning in warnings)
    for pod in pods:
        _add_pod(pod, settings, times_of or times_in_status, seen)
    _forget_what_nobody_asks(seen)
    return seen


def _add_pod(
    pod: Pod, settings: DialectSettings, times_of: Callable[[Pod], PodTimes], seen: ObservedCluster
) -> None:
    name = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
    try:
        times = times_of(pod)
        request = pod_reader.read(pod, settings, UnknownVolumes())
    except BadInputError as error:
        seen.left_out["pods that cannot be read"] += 1
        seen.warnings.append(f"pod {name} is left out: {error}")
        return
    if times.ended_s is not None and times.scheduled_s is None:
        seen.left_out["pods that ended without ever having had a node"] += 1
        return
    if request.shape.constraints.unsupported or request.shape.constraints.pods:
        seen.left_out["pods whose affinity to pods, spreading or claims is not simulated"] += 1
    shape, gang = _simulated(request.shape), request.gang or None
    seen.pods.append(
        ObservedPod(
            name,
            shape,
            request.dialect,
            request.priority,
            times,
            gang,
            request.team_queue,
            bool(request.queue),
        )
    )


def _simulated(shape: Shape) -> Shape:
    """Return the shape without constraints and annotations that a simulation does not model, and
    with whole GPUs written alike for all systems."""
    tolerations = tuple(t for t in shape.constraints.tolerations if t.key not in _ALWAYS)
    constraints = replace(
        shape.constraints, tolerations=tolerations, unsupported="", volumes=(), pods=UNSET
    )
    requests = tuple(
        replace(request, memory=GpuMemoryRequest())
        if request.whole and request.memory.kind == "whole"
        else request
        for request in shape.gpu_requests
    )
    # Only agents count these annotations, and a simulation assumes agents on all nodes.
    resources = tuple(name for name in shape.resources if name not in ASKING_ANNOTATIONS)
    return replace(shape, constraints=constraints, gpu_requests=requests, resources=resources)


def _forget_what_nobody_asks(seen: ObservedCluster) -> None:
    """Drop node labels that no pod selects, and UUIDs that no pod names: they do not affect a
    simulation."""
    shapes = {pod.shape for pod in seen.pods}
    labels = {key for shape in shapes for key in _label_keys(shape.constraints)}
    by_uuid = any(shape.devices.uuids or shape.devices.not_uuids for shape in shapes)
    for index, node in enumerate(seen.nodes):
        asked_labels = {key: value for key, value in node.labels.items() if key in labels}
        gpus = node.gpus if by_uuid else tuple(replace(gpu, uuid="") for gpu in node.gpus)
        seen.nodes[index] = replace(node, labels=asked_labels, gpus=gpus)


def _label_keys(constraints: Constraints) -> set[str]:
    keys = {rule.key for term in constraints.affinity or () for rule in term.labels}
    return keys | {key for key, _ in constraints.selector}


def times_in_status(pod: Pod) -> PodTimes:
    """Read the times from the pod's metadata and status."""
    created = _seconds(pod.metadata.creation_timestamp, "metadata.creationTimestamp")
    if created is None:
        raise BadInputError(
            "metadata.creationTimestamp", "is missing: only pods from a cluster have it"
        )
    ended = None
    if pod.ended:
        ends = [
            _seconds(status.state.terminated.finished_at, "status.containerStatuses.finishedAt")
            for status in pod.status.container_statuses or ()
            if status.state.terminated is not None
        ]
        ended = max((end for end in ends if end is not None), default=created)
    scheduled = _seconds(pod.bound_at, "status.conditions.lastTransitionTime")
    if scheduled is None and pod.spec.node_name:
        scheduled = created  # DaemonSet pods of old versions, and static pods
    return PodTimes(created, scheduled, None if ended is None else max(ended, scheduled or ended))


def _seconds(text: str | None, field: str) -> float | None:
    if not text:
        return None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise BadInputError(field, f"{text!r} is not a time in Kubernetes' format") from None
