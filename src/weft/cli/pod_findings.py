"""Findings of `weft status` and `weft doctor` about pods as the API shows them: the scheduler's own
words of them, without asking it."""

import datetime
from collections.abc import Collection, Mapping

from weft.cluster.state.bound_share import (
    BoundShare,
    Doubt,
    GuessedUse,
    held_by,
    with_record,
)
from weft.dialects.delivery import derived_record
from weft.dialects.dialect import DialectSettings
from weft.dialects.evidence import marked
from weft.dialects.inventory import InventoryFallback, inventory
from weft.dialects.registry import parse_pod
from weft.kube.pods import Pod
from weft.model import BadInputError, Node
from weft.model.annotations import AGENT, SCHEDULE, SCHEDULE_ENABLED
from weft.model.delivery import NO_DEVICES
from weft.node.agent.container_grant import VISIBLE
from weft.node.doctor.cluster import ClusterFacts, SystemNode
from weft.node.doctor.finding import DoctorFinding, advice, good, wrong

_CHECK = "pods' GPUs"
_LOST = "GPULost"
_STARTS_S = 60
"""So long a bound pod may only be starting: its images come, its volumes are mounted."""
_MENDS = {
    "UnitMismatch": "kubectl describe node {node}: its device plugin counts in another unit",
    "PlacementDoubted": "kubectl -n {namespace} get pod {name} -o yaml --show-managed-fields "
    "says who edited it; create the pod anew",
    "PlacementMoved": "nothing, or use an agent that takes Weft's choice",
    _LOST: "weft inspect {node}; see that the GPU is back, or delete the pod",
    "DeliveryDoubted": "kubectl -n {namespace} delete pod {name}; weft admission keeps others from "
    "writing such annotations",
    "PodUnreadable": "mend its labels and annotations: weft parse says how they are read",
}
_HARMLESS = ("PlacementMoved", "UnitMismatch")


def holders(
    facts: ClusterFacts,
    names: Collection[str],
    settings: DialectSettings,
    now: datetime.datetime,
    rules: Collection[InventoryFallback] = (),
) -> list[DoctorFinding]:
    """Lists what is wrong with bound pods' GPUs. `names` are Weft's schedulerNames."""
    shown = {node.metadata.name: node for node in facts.gpu_nodes}
    nodes = {name: inventory(node, rules=tuple(rules))[0] for name, node in shown.items()}
    found: dict[tuple[str, str], list[DoctorFinding]] = {}
    for pod in sorted(facts.pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        node = nodes.get(pod.spec.node_name)
        if node is not None and not pod.ended:
            share = _share(pod, node, settings, shown[node.name])
            for doubt in share.doubts:
                finding = _doubted(pod, doubt)
                found.setdefault((doubt.reason, finding.level), []).append(finding)
            if share.why and not _placed_by_other(pod, node, settings):
                hangs = _hangs(pod, shown[node.name], settings, now)
                finding = _unplaced(pod, names, hangs)
                found.setdefault((_scheduler(pod), finding.level), []).append(finding)
    return [_with_more(each) for each in found.values()] or [
        good(_CHECK, "each bound pod says which GPUs it has")
    ]


def _with_more(alike: list[DoctorFinding]) -> DoctorFinding:
    """The first of several pods' findings that are alike, and how many more there are."""
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
    """A bound pod of which nobody says which GPU it has."""
    meta, who = pod.metadata, _scheduler(pod)
    level = wrong if hangs else advice
    name = f"{meta.namespace}/{meta.name}"
    text = f"{name} is bound to {pod.spec.node_name}, and no annotation says which GPU it has"
    then = "its containers do not start" if hangs else "Weft reserves the most that it may hold"
    if who in names:
        by = f"it was bound past its scheduler {who}, as by spec.nodeName"
        mend = "remove spec.nodeName from its manifest, and create it anew"
        return level(_CHECK, f"{text}: {by}; {then}", mend)
    mend = "weft adopt says what each such pod is charged"
    if hangs:
        label = f"kubectl label namespace {meta.namespace} {SCHEDULE}={SCHEDULE_ENABLED}"
        mend = f"{label}, or write schedulerName: weft into its manifest; then create it anew"
    return level(_CHECK, f"{text}: it was bound by {who}, which chooses none; {then}", mend)


def _scheduler(pod: Pod) -> str:
    return pod.spec.scheduler_name or "default-scheduler"


def _hangs(pod: Pod, shown: SystemNode, settings: DialectSettings, now: datetime.datetime) -> bool:
    """True if the node's agent keeps it from starting: nobody else serves there what it asks."""
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
    """True if an original's agent or scheduler says which GPU it has."""
    if marked(pod):
        return False
    try:
        return derived_record(pod, node, settings) is not None
    except BadInputError:
        return False


def contradicting(facts: ClusterFacts, settings: DialectSettings) -> DoctorFinding:
    """Checks that pending pods can be read: others are never placed."""
    check = "pending pods"
    broken: dict[str, str] = {}
    for pod in facts.pods:
        if not pod.spec.node_name and not pod.ended:
            try:
                parse_pod(pod, settings)
            except BadInputError as error:
                broken[f"{pod.metadata.namespace}/{pod.metadata.name}"] = str(error)
    if broken:
        first = min(broken)
        more = f" (and {len(broken) - 1} more pods)" if len(broken) > 1 else ""
        mend = "mend its manifest: weft parse says how it is read"
        return advice(
            check, f"{first} cannot be read, and is never placed{more}: {broken[first]}", mend
        )
    return good(check, "each can be read")


def visible_devices(facts: ClusterFacts, exempt: Collection[str]) -> DoctorFinding:
    """No pod names its GPUs itself, past whoever gives them out."""
    check, nodes = "manifests' GPUs", {*(node.metadata.name for node in facts.gpu_nodes), ""}
    naming: Mapping[str, str] = {
        f"{pod.metadata.namespace}/{pod.metadata.name}": value
        for pod in facts.pods
        if pod.spec.node_name in nodes and not pod.ended and pod.metadata.namespace not in exempt
        if (value := _names_devices(pod))
    }
    if naming:
        first = min(naming)
        more = f" (and {len(naming) - 1} more pods)" if len(naming) > 1 else ""
        return advice(
            check,
            f"{first} sets {VISIBLE}={naming[first]} in its manifest{more}",
            f"remove {VISIBLE} there, and ask for a share: where Weft's agent delivers the "
            "container does not get these GPUs, elsewhere it sees them whoever has them",
        )
    return good(check, f"no manifest sets {VISIBLE}")


def _names_devices(pod: Pod) -> str:
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        for variable in container.env or ():
            if variable.name == VISIBLE and (variable.value or "") not in NO_DEVICES:
                return str(variable.value)
    return ""
