"""Finds the kind of node of which one more, empty node would take pods that wait for a GPU.

Nodes are of one kind if their GPUs, CPU, memory, pool labels, taints and agents' offers are equal.
An autoscaler that counts resources by node does not see that a pod waits for memory on one GPU;
these findings help an administrator who chooses the size of a node pool."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from weft.cluster.control.event_reporter import UNSCHEDULABLE
from weft.cluster.reading.finding import DoctorFinding, advice
from weft.cluster.reading.reading import ClusterReading
from weft.cluster.state.pod_reader import UnknownVolumes, read
from weft.core.engine import Engine
from weft.core.framework import Profile
from weft.core.policies.packing import FirstFit
from weft.kube.pods import Pod
from weft.model import BadInputError, Gpu, Node, PodRequest

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
MOST_KINDS = 200
"""Maximum number of kinds of node considered; a cluster has a few."""
MOST_SHAPES = 200
"""Maximum number of different requests considered, those of the oldest pods."""
_OF_ONE_NODE = ("kubernetes.io/hostname", "metadata.name")
_NOT_FOR_LONG = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of taints that nodes have while they start, are cordoned or have problems."""


class MoreNodes(NamedTuple):
    """Names of waiting pods, each of which fits an empty node like `like`; `like` is None if they
    fit no kind of node in the cluster."""

    like: Node | None
    pods: tuple[str, ...]


def room_findings(cluster: ClusterReading, names: Collection[str]) -> list[DoctorFinding]:
    """Return advice for pods with a schedulerName in `names` that wait for a GPU."""
    nodes = [cluster.inventory(node) for node in cluster.gpu_nodes]
    findings = []
    for found in more_nodes(nodes, _waiting(cluster, names)):
        first, count = found.pods[0], len(found.pods)
        who = f"{count} pods that wait, {first} among them," if count > 1 else f"{first}"
        if found.like is None:
            verb = "fit" if count > 1 else "fits"
            text = f"{who} {verb} no node of the cluster, not even an empty one"
            findings.append(advice("room", text, f"weft explain pod {first}"))
            continue
        text = f"{who} would have room on one more node like {in_words(found.like)}"
        if count > 1:
            text += ", or on several such nodes"
        findings.append(advice("room", text, "add such a node, or weft explain pod " + first))
    return findings


def in_words(node: Node) -> str:
    """Return the node's name with its GPUs and instance type."""
    cards = [gpu for gpu in node.gpus if gpu.parent is None]
    kinds = dict.fromkeys((gpu.model, gpu.memory_mib) for gpu in cards)
    parts = []
    for model, mib in kinds:
        count = sum((gpu.model, gpu.memory_mib) == (model, mib) for gpu in cards)
        parts.append(f"{count} × {model or 'GPU'} of {mib:,} MiB")
    if kind := node.labels.get(INSTANCE_TYPE):
        parts.append(kind)
    return f"{node.name} ({', '.join(parts)})"


def more_nodes(nodes: Sequence[Node], waiting: Sequence[PodRequest]) -> list[MoreNodes]:
    """Return the waiting pods by the smallest kind of node of which an empty node has room for the
    pod; the kind with the most pods comes first."""
    kinds = sorted(_kinds(nodes), key=_size)[:MOST_KINDS]
    engine = Engine([Profile("weft", [FirstFit()])], kinds)
    row_of = engine.ledger.table.row_of
    by_shape: dict[object, str] = {}
    found: dict[str, list[str]] = {}
    for pod in waiting:
        if pod.shape not in by_shape:
            if len(by_shape) >= MOST_SHAPES:
                continue
            codes = engine.assess(engine.profile_of(pod), pod).codes
            fits = (kind.name for kind in kinds if codes[row_of[kind.name]] == 0)
            by_shape[pod.shape] = next(fits, "")
        found.setdefault(by_shape[pod.shape], []).append(f"{pod.namespace}/{pod.name}")
    by_name = {kind.name: kind for kind in kinds}
    groups = [MoreNodes(by_name.get(name), tuple(pods)) for name, pods in found.items()]
    return sorted(groups, key=lambda group: -len(group.pods))


def _waiting(cluster: ClusterReading, names: Collection[str]) -> list[PodRequest]:
    """Return the GPU pods for which a scheduler found no room, the oldest first; without pods that
    only their queue's limit holds back."""
    requests = []
    for pod in sorted(cluster.pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
        if pod.spec.node_name or pod.ended or pod.spec.scheduler_name not in names:
            continue
        if not _is_unschedulable(pod):
            continue
        try:
            request = read(pod, cluster.how.settings, UnknownVolumes())
        except BadInputError:
            continue
        if request.shape.gpu_requests:
            shape = request.shape  # an empty node has room for one more pod, whatever it says
            extended = tuple(amount for amount in shape.extended if amount[0] != "pods")
            requests.append(replace(request, shape=replace(shape, extended=extended)))
    return requests


def _is_unschedulable(pod: Pod) -> bool:
    """Return True if the pod has the condition by which autoscalers recognise pods that wait for
    room."""
    said = (c for c in pod.status.conditions or () if c.type == "PodScheduled")
    return any(c.status == "False" and c.reason == UNSCHEDULABLE for c in said)


def _kinds(nodes: Sequence[Node]) -> list[Node]:
    """Return one node of each kind, in the state of a node that has just joined."""
    kinds: dict[Node | tuple[object, ...], Node] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        fresh = replace(
            node,
            gpus=tuple(replace(gpu, in_service=True) for gpu in node.gpus),
            schedulable=True,
            taints=tuple(t for t in node.taints if not t.key.startswith(_NOT_FOR_LONG)),
        )
        labels = {key: text for key, text in fresh.labels.items() if key not in _OF_ONE_NODE}
        key = (
            tuple(_without_name(gpu) for gpu in fresh.gpus),
            (fresh.cpu_milli, fresh.memory_mib, fresh.unit_mib),
            tuple(sorted(labels.items())),
            fresh.taints,
            (fresh.delivers, fresh.isolation, fresh.declared_features),
        )
        kinds.setdefault(key, fresh)
    return list(kinds.values())


def _without_name(gpu: Gpu) -> Gpu:
    return replace(gpu, uuid="")


def _size(node: Node) -> tuple[object, ...]:
    memory_mib = sum(gpu.memory_mib for gpu in node.gpus)
    return len(node.gpus), memory_mib, node.cpu_milli, node.memory_mib, node.name
