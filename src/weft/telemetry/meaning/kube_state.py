"""Rebuilds nodes and pods from the metrics of kube-state-metrics and DCGM's exporter.

The results are manifests like those of the API, for the dialects to read. kube-state-metrics writes
`_` for every character that is not a letter or digit, so only names given by the caller can be
restored. It exports labels and annotations only if configured to (`--metric-labels-allowlist`), and
nodeSelectors only with `--metric-opt-in-list`. Affinity is in no metric.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from weft.model import Gpu
from weft.model.annotations import INVENTORY
from weft.telemetry.meaning.metric_names import subject

NODE_ALLOCATABLE = "kube_node_status_allocatable"
NODE_LABELS = "kube_node_labels"
POD_CREATED = "kube_pod_created"
POD_SCHEDULED, POD_STARTED = "kube_pod_status_scheduled_time", "kube_pod_start_time"
POD_COMPLETED = "kube_pod_completion_time"
POD_INFO, POD_SCHEDULER = "kube_pod_info", "kube_pod_scheduler"
POD_LABELS, POD_ANNOTATIONS = "kube_pod_labels", "kube_pod_annotations"
NODE_TAINTS, POD_TOLERATIONS = "kube_node_spec_taint", "kube_pod_tolerations"
POD_SELECTORS = "kube_pod_nodeselectors"
_CONTAINER = {
    "kube_pod_container_resource_requests": ("containers", "requests"),
    "kube_pod_container_resource_limits": ("containers", "limits"),
    "kube_pod_init_container_resource_requests": ("initContainers", "requests"),
    "kube_pod_init_container_resource_limits": ("initContainers", "limits"),
}
NEEDED = (NODE_ALLOCATABLE, POD_CREATED, "kube_pod_container_resource_requests")
STATE_METRICS = (
    *NEEDED,
    NODE_LABELS,
    POD_SCHEDULED,
    POD_STARTED,
    POD_COMPLETED,
    POD_INFO,
    POD_SCHEDULER,
    POD_LABELS,
    POD_ANNOTATIONS,
    NODE_TAINTS,
    POD_TOLERATIONS,
    POD_SELECTORS,
    *list(_CONTAINER)[1:],
)
MEMORY_METRICS = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
_NATIVE = ("cpu", "memory", "ephemeral-storage", "pods")
_PASSING_TAINTS = "node.kubernetes.io/"
"""Prefix of taints for temporary states of a node: not ready, cordoned, short of memory."""


_SELECTOR = "nodeselector_"


class StateSeries(NamedTuple):
    """One series' labels, and its last value."""

    labels: Mapping[str, str]
    value: float


class PodSpan(NamedTuple):
    """Times of a pod in seconds since 1970 (None: not yet); `last_s` is when the pod was last
    seen."""

    created_s: float
    scheduled_s: float | None
    completed_s: float | None
    last_s: float


State = Mapping[str, Iterable[StateSeries]]


class Names:
    """Restores names from the form in which kube-state-metrics writes them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._plain = {written(name): name for name in names}

    def __getitem__(self, name: str) -> str:
        """Return the original of a name that kube-state-metrics wrote; the name itself if its
        original is not known."""
        return self._plain.get(name, name)

    def labels(self, series: StateSeries, prefix: str) -> dict[str, str]:
        """Return the labels or annotations in a series whose original names are known."""
        named = self.as_written(series, prefix)
        return {key: text for key, text in named.items() if written(key) in self._plain}

    def as_written(self, series: StateSeries, prefix: str) -> dict[str, str]:
        """Return all labels or annotations in a series; unknown names stay as kube-state-metrics
        writes them."""
        named = (pair for pair in series.labels.items() if pair[0].startswith(prefix))
        return {self[key.removeprefix(prefix)]: text for key, text in named}


def written(name: str) -> str:
    """Return a resource's or label's name as kube-state-metrics writes it."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def nodes_of(state: State, resources: Names, labels: Names) -> list[dict[str, Any]]:
    """Return node manifests; DCGM's GPUs become Weft's annotation of the node's inventory."""
    nodes: dict[str, dict[str, Any]] = {}
    for series in state.get(NODE_ALLOCATABLE, ()):
        node = series.labels.get("node", "")
        amounts = nodes.setdefault(node, {})
        amounts[resources[series.labels.get("resource", "")]] = _amount(series)
    shown = {sample.labels.get("node", ""): sample for sample in state.get(NODE_LABELS, ())}
    gpus, taints = _gpus(state), _taints(state)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return [
        {
            "metadata": {
                "name": name,
                "labels": labels.as_written(shown[name], "label_") if name in shown else {},
                "annotations": _inventory(gpus.get(name, {})),
            },
            "spec": {"taints": taints.get(name, [])},
            "status": {**ready, "allocatable": amounts, "capacity": amounts},
        }
        for name, amounts in sorted(nodes.items())
        if name
    ]


def _taints(state: State) -> dict[str, list[dict[str, str]]]:
    """Return taints by node. If no pod's tolerations are known, return none, as the taints would
    keep all pods off."""
    taints: dict[str, list[dict[str, str]]] = {}
    for series in state.get(NODE_TAINTS, ()) if any(state.get(POD_TOLERATIONS, ())) else ():
        said = {field: series.labels.get(field, "") for field in ("key", "value", "effect")}
        if not said["key"].startswith(_PASSING_TAINTS):
            taints.setdefault(series.labels.get("node", ""), []).append(said)
    return taints


def _gpus(state: State) -> dict[str, dict[int, Gpu]]:
    """Return GPUs by node and index; the memory of a card is the sum of used, free and reserved
    memory."""
    nodes: dict[str, dict[int, Gpu]] = {}
    for metric in MEMORY_METRICS:
        counted = set()
        for series in state.get(metric, ()):
            about = subject(series.labels)
            if not about.node or about.gpu < 0 or about.mig or (about.node, about.gpu) in counted:
                continue  # a GPU that several pods share is repeated for each pod
            counted.add((about.node, about.gpu))
            cards = nodes.setdefault(about.node, {})
            before = cards.get(about.gpu)
            memory = round(series.value) + (before.memory_mib if before else 0)
            model = series.labels.get("modelName", before.model if before else "")
            cards[about.gpu] = Gpu(about.gpu, memory, model, about.uuid)
    return nodes


def _inventory(gpus: Mapping[int, Gpu]) -> dict[str, str]:
    if not gpus:
        return {}
    listed = {"gpus": [gpu for _, gpu in sorted(gpus.items())]}
    return {INVENTORY: msgspec.json.encode(listed).decode()}


def pods_of(
    state: State, last_seen: Iterable[StateSeries], resources: Names, labels: Names
) -> list[tuple[dict[str, Any], PodSpan]]:
    """Return pod manifests, and the times of each pod."""
    made = {_who(sample): sample.value for sample in state.get(POD_CREATED, ())}
    seen = {_who(sample): sample.value for sample in last_seen}
    started = {_who(sample): sample.value for sample in state.get(POD_STARTED, ())}
    scheduled = started | {_who(sample): sample.value for sample in state.get(POD_SCHEDULED, ())}
    completed = {_who(sample): sample.value for sample in state.get(POD_COMPLETED, ())}
    manifests = {who: _manifest(who) for who in made}
    for metric, (part, kind) in _CONTAINER.items():
        for series in state.get(metric, ()):
            if (pod := manifests.get(_who(series))) is not None:
                amounts = _container(pod, part, series.labels.get("container", ""))["resources"]
                name = resources[series.labels.get("resource", "")]
                amounts.setdefault(kind, {})[name] = _amount(series)
    for metric, place, prefix in (
        (POD_LABELS, "labels", "label_"),
        (POD_ANNOTATIONS, "annotations", "annotation_"),
    ):
        for series in state.get(metric, ()):
            if (pod := manifests.get(_who(series))) is not None:
                pod["metadata"][place] = labels.labels(series, prefix)
    _say_who_decides(state, manifests)
    _say_where_they_may_go(state, manifests, labels)
    return [
        (
            manifests[who],
            PodSpan(at, scheduled.get(who), completed.get(who), seen.get(who, at)),
        )
        for who, at in sorted(made.items(), key=lambda item: (item[1], item[0]))
    ]


def _say_who_decides(state: State, manifests: Mapping[tuple[str, ...], dict[str, Any]]) -> None:
    """Set the pods' schedulerName, and bind the pods of a DaemonSet to their nodes by affinity."""
    for series in state.get(POD_SCHEDULER, ()):
        if (pod := manifests.get(_who(series))) is not None:
            pod["spec"]["schedulerName"] = series.labels.get("name", "")
    for series in state.get(POD_INFO, ()):
        pod, node = manifests.get(_who(series)), series.labels.get("node", "")
        if pod is not None and node and series.labels.get("created_by_kind") == "DaemonSet":
            field = {"key": "metadata.name", "operator": "In", "values": [node]}
            terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
            required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            pod["spec"]["affinity"] = {"nodeAffinity": required}


def _say_where_they_may_go(
    state: State, manifests: Mapping[tuple[str, ...], dict[str, Any]], labels: Names
) -> None:
    """Set the pods' tolerations, and their nodeSelectors as far as some node has the label."""
    for series in state.get(POD_TOLERATIONS, ()):
        if (pod := manifests.get(_who(series))) is not None:
            fields = ("key", "operator", "value", "effect")
            said = {field: series.labels.get(field, "") for field in fields}
            pod["spec"].setdefault("tolerations", []).append(said)
    unseen = unseen_selectors(state, labels)
    for series in state.get(POD_SELECTORS, ()):
        if (pod := manifests.get(_who(series))) is not None:
            said = labels.as_written(series, _SELECTOR)
            pod["spec"]["nodeSelector"] = {k: v for k, v in said.items() if k not in unseen}


def unseen_selectors(state: State, labels: Names) -> set[str]:
    """Return the labels in pods' nodeSelectors that no node has."""
    shown = {
        key for sample in state.get(NODE_LABELS, ()) for key in labels.as_written(sample, "label_")
    }
    asked = {
        key
        for sample in state.get(POD_SELECTORS, ())
        for key in labels.as_written(sample, _SELECTOR)
    }
    return asked - shown


def _who(series: StateSeries) -> tuple[str, ...]:
    labels = series.labels
    return labels.get("namespace", ""), labels.get("pod", ""), labels.get("uid", "")


def _manifest(who: tuple[str, ...]) -> dict[str, Any]:
    namespace, name, uid = who
    meta: dict[str, Any] = {"namespace": namespace, "name": name, "uid": uid}
    return {"metadata": meta, "spec": {"containers": []}}


def _container(pod: dict[str, Any], part: str, name: str) -> dict[str, Any]:
    containers = pod["spec"].setdefault(part, [])
    for container in containers:
        if container["name"] == name:
            return container  # type: ignore[no-any-return]
    containers.append({"name": name, "resources": {}})
    return containers[-1]  # type: ignore[no-any-return]


def _amount(series: StateSeries) -> int | str:
    """Return the amount as a Kubernetes quantity: CPU in thousandths of a core, all other resources
    in whole units."""
    if series.labels.get("resource") == "cpu":
        return f"{round(series.value * 1000)}m"
    return round(series.value)
