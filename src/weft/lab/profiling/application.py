"""Reads from Prometheus' answers which application each pod runs. Pure."""

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
"""Series of kube-state-metrics about pods; the first needs its --metric-annotations-allowlist."""

_labels = msgspec.json.Decoder(dict[str, str])


def clues_of(
    answers: Mapping[str, QueryResult], containers: Mapping[Pod, str]
) -> dict[Pod, ApplicationClues]:
    """From kube-state-metrics' series, and the container names that exporters told."""
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
    """namespace/Kind/name of who makes each pod; for a ReplicaSet its Deployment."""
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
    """A label of kube-state-metrics', called exported_… where Prometheus keeps its own."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _pod(labels: Mapping[str, str]) -> Pod:
    return _label(labels, "namespace"), _label(labels, "pod")
