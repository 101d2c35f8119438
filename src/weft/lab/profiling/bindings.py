"""Reads from pods' annotations which pod held which GPU, from when to when.

A pod that requests GPUs but has no such annotations may hold any GPU of its node: while it is on
the node, no other pod there counts as alone."""

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from weft.dialects import registry
from weft.dialects.application import ApplicationClues
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.system import timestamp_ns
from weft.kube.client import ApiClient
from weft.kube.codec import NODES, PODS
from weft.kube.pods import Pod
from weft.kube.services import everything
from weft.kube.structs import KubeObject
from weft.lab.profiling.history import ClusterRecord, ProfiledStay
from weft.lab.profiling.solo_samples import NOBODY_KNOWS, Card
from weft.model import BadInputError, Gpu, Node

T = TypeVar("T", bound=KubeObject)

SETTINGS = DialectSettings(interference_table=True)
"""Settings with which the Co-scheML dialect reads container names as application names."""


async def bindings(client: ApiClient) -> ClusterRecord:
    """List all nodes and pods of the cluster, and return each pod's stays on GPUs."""
    nodes = [inventory(node)[0] for node in await everything(client, NODES)]
    pods = await everything(client, PODS)
    return cluster_record(nodes, pods)


def cluster_record(nodes: Sequence[Node], pods: Sequence[Pod]) -> ClusterRecord:
    """Return the stays on GPUs of these pods, and the GPUs of these nodes. Pure."""
    by_name = {node.name: node for node in nodes}
    residencies = [
        residency
        for pod in pods
        if pod.spec.node_name in by_name
        for residency in _residencies(pod, by_name[pod.spec.node_name])
    ]
    models = {card_of(node, gpu): gpu.model for node in nodes for gpu in node.gpus if gpu.model}
    cards = {}
    for node in nodes:
        for gpu in node.gpus:
            cards[f"{node.name}/{gpu.index}"] = card_of(node, gpu)
            if gpu.uuid:
                cards[gpu.uuid.lower()] = card_of(node, gpu)
    return ClusterRecord(residencies, models, cards)


def card_of(node: Node, gpu: Gpu) -> Card:
    """Return a name for the GPU that is unique in the cluster."""
    return node.name, gpu.uuid or str(gpu.index)


def _residencies(pod: Pod, node: Node) -> Iterator[ProfiledStay]:
    since_s = timestamp_ns(pod.bound_at or pod.metadata.creation_timestamp) / 1e9
    until_s = _until_s(pod)
    unsure = pod.ended and until_s == math.inf
    pod_key = NOBODY_KNOWS if unsure else (pod.metadata.namespace, pod.metadata.name)
    request, placement = None, None
    try:
        request = registry.parse_pod(pod, SETTINGS)
        placement = registry.dialect(request.dialect).read(pod, request, node)
    except BadInputError:
        pass  # it may hold any GPU of the node
    if request is None or placement is None:
        if request is None or request.shape.gpu_requests:
            for gpu in node.gpus:
                yield ProfiledStay(NOBODY_KNOWS, card_of(node, gpu), since_s, until_s=until_s)
        return
    clues = ApplicationClues(
        request.shape.application,
        tuple(container.name for container in pod.spec.containers),
        request.workload,
        next((container.image for container in pod.spec.containers), ""),
    )
    cards = {gpu.index: gpu for gpu in node.gpus}
    for share in placement.shares:
        if share.gpu in cards:
            card = card_of(node, cards[share.gpu])
            yield ProfiledStay(pod_key, card, since_s, clues, request.shape.isolation, until_s)


def _until_s(pod: Pod) -> float:
    """Return the time at which the pod's last container ended, in seconds since 1970.

    Infinity if it is unknown, or the pod runs."""
    ends = [status.state.terminated for status in pod.status.container_statuses or ()]
    times = [end.finished_at for end in ends if end is not None and end.finished_at]
    return max(timestamp_ns(time) for time in times) / 1e9 if pod.ended and times else math.inf
