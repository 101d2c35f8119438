"""Finds each pod's application in Prometheus' answers. Pure functions."""

from collections.abc import Iterable, Mapping

import msgspec

from weft.dialects.application import ApplicationClues
from weft.lab.profiling.solo_samples import Pod
from weft.telemetry.meaning.answers import QueryResult

ANNOTATION = "annotation_weft_dev_application"
QUESTIONS = (
    "kube_pod_annotations",
    "kube_pod_owner",
    "kube_replicaset_owner",
    "kube_pod_container_info",
)
"""kube-state-metrics' series about pods; the first one needs its --metric-annotations-allowlist."""

_labels = msgspec.json.Decoder(dict[str, str])


def clues_of(
    answers: Mapping[str, QueryResult], containers: Mapping[Pod, str]
) -> dict[Pod, ApplicationClues]:
    """Collect clues to each pod's application, from kube-state-metrics' series and the container
    names that exporters reported."""
    annotations: dict[Pod, str] = {}
    images: dict[Pod, str] = {}
    more = {pod: [name] for pod, name in containers.items()}
    for labels in _all(answers.get("kube_pod_annotations")):
        if labels.get(ANNOTATION):
            annotations[_pod(labels)] = labels[ANNOTATION]
    for labels in _all(answers.get("kube_pod_container_info")):
        images.setdefault(_pod(labels), labels.get("image", ""))
        more.setdefault(_pod(labels), []).append(_label(labels, "container"))
    owners = _owners(answers)
    return {
        pod: ApplicationClues(
            annotations.get(pod, ""),
            tuple(more.get(pod, ())),
            owners.get(pod, ""),
            images.get(pod, ""),
        )
        for pod in {*annotations, *images, *more, *owners}
    }


def _owners(answers: Mapping[str, QueryResult]) -> dict[Pod, str]:
    """Return each pod's owner as namespace/Kind/name; for a ReplicaSet its Deployment."""
    above = {
        (_label(labels, "namespace"), labels.get("replicaset", "")): labels
        for labels in _all(answers.get("kube_replicaset_owner"))
        if labels.get("owner_kind") == "Deployment"
    }
    owners = {}
    for labels in _all(answers.get("kube_pod_owner")):
        kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
        if not name or kind in {"", "<none>", "Node"}:
            continue
        namespace, _ = _pod(labels)
        deployment = above.get((namespace, name)) if kind == "ReplicaSet" else None
        if deployment is not None:
            kind, name = "Deployment", deployment["owner_name"]
        owners[_pod(labels)] = f"{namespace}/{kind}/{name}"
    return owners


def _all(result: QueryResult | None) -> Iterable[dict[str, str]]:
    return [_labels.decode(text) for text in result.labels] if result is not None else []


def _label(labels: Mapping[str, str], name: str) -> str:
    """Return a label of kube-state-metrics, which Prometheus renames to exported_… on a
    conflict."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _pod(labels: Mapping[str, str]) -> Pod:
    return _label(labels, "namespace"), _label(labels, "pod")
