"""KAI's pods as the API server shows them: those that share cards, and what reserves the cards."""

from typing import Any

import msgspec

from weft.kube.pods import Pod

Json = dict[str, Any]
LONG_AGO = "2020-01-01T00:00:00Z"


def meta(name: str, namespace: str, labels: Json, annotations: Json) -> Json:
    return {
        "name": name,
        "namespace": namespace,
        "uid": name,
        "creationTimestamp": LONG_AGO,
        "labels": labels,
        "annotations": annotations,
    }


def keeper(group: str, uuid: str, name: str = "", node: str = "n") -> Json:
    """A reservation pod; one that does not say its card yet where `uuid` is empty."""
    return {
        "metadata": meta(
            name or f"keeper-{group}",
            "kai-resource-reservation",
            {"runai-gpu-group": group} if group else {},
            {"run.ai/reserve_for_gpu_index": uuid} if uuid else {},
        ),
        "spec": {
            "nodeName": node,
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }


def sharing(name: str, *groups: str, node: str = "n", **asks: str) -> Json:
    """A pod that shares the cards of these groups, by `gpu_fraction` or `gpu_memory`."""
    annotations = {key.replace("_", "-"): text for key, text in asks.items()}
    labels = {"runai-gpu-group": groups[0]} if groups else {}
    if len(groups) > 1:
        labels = {f"runai-gpu-group/{group}": group for group in groups}
        annotations["gpu-fraction-num-devices"] = str(len(groups))
    return {
        "metadata": meta(name, "ml", labels, annotations),
        "spec": {
            "nodeName": node,
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "c"}],
        },
    }


def shown(raw: Json) -> Pod:
    return msgspec.convert(raw, Pod)
