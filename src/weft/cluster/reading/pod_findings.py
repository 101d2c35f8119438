"""Findings of `weft status` and `weft doctor` about pods, from the API objects alone; a running
scheduler would report the same."""

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from weft.cluster.reading.finding import DoctorFinding, advice, good, some, wrong
from weft.cluster.reading.reading import ClusterReading, SystemNode
from weft.cluster.rights import HOW_TO_GET
from weft.cluster.state.bound_share import (
    BoundShare,
    Doubt,
    GuessedUse,
    held_by,
    with_record,
)
from weft.cluster.state.card_names import called_by
from weft.dialects.catalog import ALL
from weft.dialects.delivery import derived_record
from weft.dialects.dialect import DialectSettings
from weft.dialects.evidence import marked
from weft.dialects.kai import RESERVATIONS, is_reservation
from weft.dialects.registry import parse_pod
from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.pods import Pod
from weft.kube.services import everything
from weft.model import BadInputError, Node, ObjectMeta
from weft.model.annotations import AGENT, PLUGIN_GPUS, SCHEDULE, SCHEDULE_ENABLED
from weft.model.delivery import NO_DEVICES, VISIBLE
from weft.model.manifest import Api

_CHECK = "pods' GPUs"
_LOST = "GPULost"
_UNREAD = (
    "the GPUs of Koordinator's pods are unknown: no permission to list "
    "devices.scheduling.koordinator.sh"
)
_STARTS_S = 60
"""Seconds that a bound pod may take to pull images and mount volumes before it counts as stuck."""
_MENDS = {
    "UnitMismatch": "kubectl describe node {node}: its device plugin counts in another unit",
    "PlacementDoubted": "kubectl -n {namespace} get pod {name} -o yaml --show-managed-fields "
    "shows who edited it; create the pod again",
    "PlacementMoved": "nothing to do; or use an agent that follows Weft's assignment",
    _LOST: "weft inspect {node}; see that the GPU is back, or delete the pod",
    "DeliveryDoubted": "kubectl -n {namespace} delete pod {name}; weft admission keeps others from "
    "writing such annotations",
    "PluginGPUsDoubted": f"kubectl get node {{node}} -o yaml shows {PLUGIN_GPUS}; the agent's "
    "log there says what the kubelet reported",
    "PodUnreadable": "correct its labels and annotations: weft parse shows how they are read",
}
_HARMLESS = ("PlacementMoved", "UnitMismatch")
_CHOOSE = {name for system in ALL if system.served_by_itself for name in system.scheduler_names}
"""Names of other systems' schedulers that record which GPU a pod has."""


def holders(
    cluster: ClusterReading, names: Collection[str], now: datetime.datetime
) -> list[DoctorFinding]:
    """Report bound pods whose GPUs are unknown or in doubt; `names` are Weft's schedulerNames."""
    settings = cluster.how.settings
    shown = {node.metadata.name: node for node in cluster.gpu_nodes}
    nodes = _named(cluster)
    found: dict[tuple[str, str], list[DoctorFinding]] = {}
    for pod in sorted(cluster.pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        node = nodes.get(pod.spec.node_name)
        if node is not None and not pod.ended and not cluster.claims.view.covered(pod):
            share = _share(pod, node, settings, shown[node.name])
            for doubt in share.doubts:
                finding = _doubted(pod, doubt)
                found.setdefault((doubt.reason, finding.level), []).append(finding)
            if share.why and not _placed_by_other(pod, node, settings):
                hangs = _hangs(pod, shown[node.name], settings, now)
                finding = _unplaced(pod, names, hangs)
                found.setdefault((_scheduler(pod), finding.level), []).append(finding)
    unread = [advice(_CHECK, _UNREAD, HOW_TO_GET)] if cluster.devices_unread else []
    unread += _reservations_on_dead_nodes(cluster)
    return [*unread, *(_with_more(each) for each in found.values())] or [
        good(_CHECK, "each bound pod says which GPUs it has")
    ]


def _reservations_on_dead_nodes(cluster: ClusterReading) -> list[DoctorFinding]:
    """Report KAI's reservation pods whose node is gone or not ready."""
    alive = {node.metadata.name for node in cluster.nodes if node.ready}
    names = [
        f"{pod.metadata.name} on {pod.spec.node_name}"
        for pod in cluster.pods
        if is_reservation(pod) and pod.spec.node_name not in {*alive, ""} and not pod.ended
    ]
    if not names:
        return []
    text = f"KAI's reservation pods on nodes that are gone or not ready: {some(names)}"
    mend = f"see the node; if it is certainly dead: kubectl -n {RESERVATIONS} delete pod NAME"
    return [advice(_CHECK, text, mend)]


def _named(cluster: ClusterReading) -> dict[str, Node]:
    """Return the nodes with GPUs, with the names that other systems give to their GPUs."""
    shown = {node.metadata.name: node for node in cluster.gpu_nodes}
    nodes = {name: cluster.inventory(node) for name, node in shown.items()}
    there: dict[str, list[Pod]] = {}
    for pod in cluster.pods:
        if not pod.ended:
            there.setdefault(pod.spec.node_name, []).append(pod)
    return {
        name: called_by(node, there.get(name, ()), cluster.how.devices.get(name), shown[name])
        for name, node in nodes.items()
    }


def _with_more(alike: list[DoctorFinding]) -> DoctorFinding:
    """Return the first of several similar findings, with the number of further pods."""
    first, more = alike[0], len(alike) - 1
    said = f" (and {more} more pod{'s' * (more > 1)} likewise)" if more else ""
    return first._replace(text=first.text + said)


def _share(pod: Pod, node: Node, settings: DialectSettings, shown: SystemNode) -> BoundShare:
    share = held_by(pod, node, settings, GuessedUse(node).how_full)
    return with_record(share, pod, node, settings, shown)


def _doubted(pod: Pod, doubt: Doubt) -> DoctorFinding:
    meta = pod.metadata
    level = advice if doubt.reason in _HARMLESS else wrong
    mend = _MENDS[doubt.reason].format(
        namespace=meta.namespace, name=meta.name, node=pod.spec.node_name
    )
    text = f"{meta.namespace}/{meta.name} on {pod.spec.node_name}: {doubt.text}"
    return level(_CHECK, text, mend)


def _unplaced(pod: Pod, names: Collection[str], hangs: bool) -> DoctorFinding:
    """Return a finding about a bound pod that has no record of its GPUs."""
    meta, who = pod.metadata, _scheduler(pod)
    level = wrong if hangs else advice
    name = f"{meta.namespace}/{meta.name}"
    text = f"{name} is bound to {pod.spec.node_name}, and no annotation says which GPU it has"
    then = (
        "its containers do not start" if hangs else "Weft reserves the most that the pod may hold"
    )
    if who in names:
        by = f"it was not bound by its scheduler {who}, but for example by spec.nodeName"
        mend = "remove spec.nodeName from its manifest, and create it again"
        return level(_CHECK, f"{text}: {by}; {then}", mend)
    mend = "weft adopt shows what each such pod is charged"
    if hangs:
        label = f"kubectl label namespace {meta.namespace} {SCHEDULE}={SCHEDULE_ENABLED}"
        mend = f"{label}, or write schedulerName: weft into its manifest; then create it again"
    why = (
        ("and has no annotation that names a GPU of its node")
        if who in _CHOOSE
        else "which chooses no GPU"
    )
    return level(_CHECK, f"{text}: it was bound by {who}, {why}; {then}", mend)


def _scheduler(pod: Pod) -> str:
    return pod.spec.scheduler_name or "default-scheduler"


def _hangs(pod: Pod, shown: SystemNode, settings: DialectSettings, now: datetime.datetime) -> bool:
    """Return True if the node's agent keeps a pod from starting, because no other plugin there
    serves its resources."""
    if AGENT not in (shown.metadata.annotations or {}) or pod.status.phase == "Running":
        return False
    try:
        bound = datetime.datetime.fromisoformat(pod.bound_at)
        asks = parse_pod(pod, settings).shape.resources
    except (ValueError, BadInputError):
        return False
    others = set(shown.status.allocatable or {}) - shown.advertised
    return (now - bound).total_seconds() > _STARTS_S and others.isdisjoint(asks)


def _placed_by_other(pod: Pod, node: Node, settings: DialectSettings) -> bool:
    """Return True if another system's agent or scheduler recorded which GPU the pod has."""
    if marked(pod):
        return False
    try:
        return derived_record(pod, node, settings) is not None
    except BadInputError:
        return False


def contradicting(cluster: ClusterReading) -> DoctorFinding:
    """Check that pending pods can be read: unreadable pods are never placed."""
    check = "pending pods"
    broken: dict[str, str] = {}
    for pod in cluster.pods:
        if not pod.spec.node_name and not pod.ended:
            try:
                parse_pod(pod, cluster.how.settings)
            except BadInputError as error:
                broken[f"{pod.metadata.namespace}/{pod.metadata.name}"] = str(error)
    if broken:
        first = min(broken)
        more = f" (and {len(broken) - 1} more pods)" if len(broken) > 1 else ""
        mend = "correct its manifest: weft parse shows how it is read"
        return advice(
            check, f"{first} cannot be read, and is never placed{more}: {broken[first]}", mend
        )
    return good(check, "each can be read")


def visible_devices(cluster: ClusterReading, exempt: Collection[str]) -> DoctorFinding:
    """Check that no manifest sets NVIDIA_VISIBLE_DEVICES, which bypasses the scheduler."""
    check, nodes = "manifests' GPUs", {*(node.metadata.name for node in cluster.gpu_nodes), ""}
    naming: Mapping[str, str] = {
        f"{pod.metadata.namespace}/{pod.metadata.name}": value
        for pod in cluster.pods
        if pod.spec.node_name in nodes and not pod.ended and pod.metadata.namespace not in exempt
        if (value := _names_devices(pod))
    }
    if naming:
        first = min(naming)
        more = f" (and {len(naming) - 1} more pods)" if len(naming) > 1 else ""
        return advice(
            check,
            f"{first} sets {VISIBLE}={naming[first]} in its manifest{more}",
            f"remove {VISIBLE} there, and request a share: on nodes with Weft's agent the "
            "variable has no effect; on other nodes the container sees these GPUs even if other "
            "pods use them",
        )
    return good(check, f"no manifest sets {VISIBLE}")


def _names_devices(pod: Pod) -> str:
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        for variable in container.env or ():
            if variable.name == VISIBLE and (variable.value or "") not in NO_DEVICES:
                return str(variable.value)
    return ""


# --- variables from elsewhere ---------------------------------------------------------------------
#
# No admission policy sees the variables of `envFrom`: the API server shows only the source's name,
# and the kubelet resolves the values. On nodes where an agent delivers, the agent's own value wins;
# elsewhere the container gets the values of the source.

_MOST_READ = 500


class SourceRef(Api, frozen=True, gc=False):
    """Reference to a ConfigMap or Secret by name."""

    name: str = ""


class EnvSource(Api, frozen=True, gc=False):
    """One entry of a container's envFrom."""

    prefix: str = ""
    config_map_ref: SourceRef | None = None
    secret_ref: SourceRef | None = None


class EnvContainer(Api, frozen=True, gc=False):
    """A container, of which only its envFrom is read."""

    env_from: list[EnvSource] | None = None


class EnvSpec(Api, frozen=True, gc=False):
    """A pod's spec, of which only the node and the containers are read."""

    node_name: str = ""
    containers: list[EnvContainer] | None = None
    init_containers: list[EnvContainer] | None = None
    ephemeral_containers: list[EnvContainer] | None = None


class EnvPod(Api, frozen=True, gc=False):
    """A pod, of which only the envFrom of its containers is read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: EnvSpec = EnvSpec()


class EnvKeys(Api, frozen=True):
    """A ConfigMap or Secret, of which only the keys are read; values are not decoded."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, msgspec.Raw] | None = None


class EnvReference(NamedTuple):
    """A source of a pod's environment variables, and the key in it that would set the pod's
    GPUs."""

    kind: Literal["configmaps", "secrets"]
    namespace: str
    name: str
    key: str


ENV_PODS = Resource("/api/v1", "pods", EnvPod)


async def variables_from_elsewhere(client: ApiClient, gpu_nodes: Iterable[str]) -> DoctorFinding:
    """Check that no pod on a GPU node, or pending, gets NVIDIA_VISIBLE_DEVICES through envFrom."""
    check, nodes = "envFrom", {*gpu_nodes, ""}
    pods = [pod for pod in await everything(client, ENV_PODS) if pod.spec.node_name in nodes]
    naming = [set(references(pod)) for pod in pods]
    wanted = sorted({reference for each in naming for reference in each})
    found, unread = set(), len(wanted[_MOST_READ:])
    for reference in wanted[:_MOST_READ]:
        try:
            if await _has(client, reference):
                found.add(reference)
        except ApiError as error:
            unread += error.code != 404
    those = [pod.metadata for pod, each in zip(pods, naming, strict=True) if each & found]
    names = [f"{meta.namespace}/{meta.name}" for meta in those]
    if names:
        return advice(
            check,
            f"{VISIBLE} comes from a ConfigMap or Secret in {some(names)}",
            f"remove {VISIBLE} there: on nodes with Weft's agent, the agent's value applies; on "
            "other nodes the container sees these GPUs",
        )
    if unread:
        text = f"{unread} ConfigMaps and Secrets of pods could not be read"
        return advice(check, text, "run this as a user who may get them, or check them by hand")
    return good(check, f"no pod has {VISIBLE} from a ConfigMap or Secret")


def references(pod: EnvPod) -> Iterator[EnvReference]:
    """Yield each source that may set NVIDIA_VISIBLE_DEVICES in a container of this pod."""
    spec, namespace = pod.spec, pod.metadata.namespace
    lists = (spec.containers, spec.init_containers, spec.ephemeral_containers)
    containers = (container for each in lists for container in each or ())
    for source in (source for container in containers for source in container.env_from or ()):
        if VISIBLE.startswith(source.prefix):
            key = VISIBLE.removeprefix(source.prefix)
            if source.config_map_ref is not None:
                yield EnvReference("configmaps", namespace, source.config_map_ref.name, key)
            if source.secret_ref is not None:
                yield EnvReference("secrets", namespace, source.secret_ref.name, key)


async def _has(client: ApiClient, reference: EnvReference) -> bool:
    resource = Resource("/api/v1", reference.kind, EnvKeys).of(reference.namespace)
    body = await client.call("GET", f"{resource}/{reference.name}")
    return reference.key in (msgspec.json.decode(body, type=EnvKeys).data or {})
