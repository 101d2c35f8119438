"""Series of kube-state-metrics and DCGM's exporter on API objects, after their documentation.

A second opinion on how names and units are written, for `weft trace from-prometheus`.
"""

from collections.abc import Iterator
from typing import Any

from weft.model import parse_cpu_milli, parse_quantity

Object = dict[str, Any]
Line = tuple[str, dict[str, str], float]


def written(name: str) -> str:
    """Its `SanitizeLabelName`."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


def _amounts(amounts: Object) -> Iterator[tuple[dict[str, str], float]]:
    for name, text in amounts.items():
        if name == "cpu":
            yield {"resource": "cpu", "unit": "core"}, parse_cpu_milli(text, name) / 1000
        else:
            unit = "byte" if name == "memory" else "integer"
            yield {"resource": written(name), "unit": unit}, float(parse_quantity(text, name))


def of_node(node: Object) -> Iterator[Line]:
    name = {"node": node["metadata"]["name"]}
    for labels, value in _amounts(node["status"]["allocatable"]):
        yield "kube_node_status_allocatable", name | labels, value
    shown = {f"label_{written(k)}": v for k, v in node["metadata"]["labels"].items()}
    yield "kube_node_labels", name | shown, 1
    for taint in node.get("spec", {}).get("taints", []):
        yield "kube_node_spec_taint", name | {"value": ""} | taint, 1


def of_pod(pod: Object, created_s: float, **times: float) -> Iterator[Line]:
    """`times` are start_time, completion_time and status_scheduled_time."""
    meta = pod["metadata"]
    who = {"namespace": meta["namespace"], "pod": meta["name"], "uid": meta["uid"]}
    yield "kube_pod_created", who, created_s
    for name, at in times.items():
        yield f"kube_pod_{name}", who, at
    for container in pod["spec"]["containers"]:
        for kind in ("requests", "limits"):
            for labels, value in _amounts(container["resources"].get(kind, {})):
                own = who | {"container": container["name"], "node": ""} | labels
                yield f"kube_pod_container_resource_{kind}", own, value
    shown = {f"label_{written(k)}": v for k, v in meta.get("labels", {}).items()}
    yield "kube_pod_labels", who | shown, 1
    said = {f"annotation_{written(k)}": v for k, v in meta.get("annotations", {}).items()}
    yield "kube_pod_annotations", who | said, 1
    for toleration in pod["spec"].get("tolerations", []):
        blank = {"key": "", "operator": "", "value": "", "effect": "", "toleration_seconds": ""}
        yield "kube_pod_tolerations", who | blank | toleration, 1
    if selector := pod["spec"].get("nodeSelector"):
        asked = {f"nodeselector_{written(k)}": v for k, v in selector.items()}
        yield "kube_pod_nodeselectors", who | asked, 1


def of_gpu(node: str, index: int, used: float, free: float, model: str) -> Iterator[Line]:
    about = {"Hostname": node, "gpu": str(index), "UUID": f"GPU-{node}-{index}", "modelName": model}
    yield "DCGM_FI_DEV_FB_USED", about, used
    yield "DCGM_FI_DEV_FB_FREE", about, free


def line(one: Line, at_s: float | None = None) -> str:
    """In the text form of an exporter; with a time as OpenMetrics has it."""
    name, labels, value = one
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value!r}" + (f" {at_s:.3f}" if at_s is not None else "")
