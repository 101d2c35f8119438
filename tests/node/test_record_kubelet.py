"""Writes what `tests/unit/node/test_recorded_kubelet.py` replays; left out where nobody asks."""

import json
import os
from pathlib import Path

import pytest
import yaml
from kube_api import Object, Objects
from kubelet_recorder import SERIAL, KubeletRecorder
from real_node import RealNode, has_begun, state_of

FILE = os.environ.get("WEFT_RECORD_KUBELET", "")
GPUSHARE, MEMORY, COMPUTE = "aliyun.com/gpu-mem", "alnair/vgpu-memory", "alnair/vgpu-compute"
DEVICES = {
    name: [f"{gpu}-{n}" for gpu in range(4) for n in range(8)]
    for name in (GPUSHARE, MEMORY, COMPUTE)
}
ONE, TWO = f"{{limits: {{{GPUSHARE}: 1}}}}", f"{{limits: {{{GPUSHARE}: 2}}}}"
BOTH = f"{{limits: {{{MEMORY}: 2, {COMPUTE}: 1}}}}"
SEVERAL = f"""
containers:
- {{name: main, resources: {ONE}}}
- {{name: none}}
- {{name: beside, resources: {ONE}}}
initContainers:
- {{name: first, resources: {TWO}}}
- {{name: sidecar, restartPolicy: Always, resources: {ONE}}}
"""


def simple(resources: str) -> str:
    return f"containers: [{{name: main, resources: {resources}}}]"


def pods(prefix: str, *specs: str) -> Objects:
    return [
        {"metadata": {"name": f"{prefix}-{i}"}, "spec": yaml.safe_load(spec)}
        for i, spec in enumerate(specs)
    ]


def serials(node: RealNode, pod: Object) -> dict[str, list[str]]:
    """By which Allocate each container has what it has, as it finds inside itself."""
    spec, uid = pod["spec"], pod["metadata"]["uid"]
    found = {}
    for one in (*spec.get("initContainers", ()), *spec["containers"]):
        for serial in node.inside(pod, one["name"]).env_of(SERIAL).values():
            found[serial] = [uid, one["name"]]
    return found


def await_restarted(node: RealNode, namespace: str, name: str, container: str) -> None:
    """Wait until this container of the pod runs again."""
    node.wait(
        lambda now: any(
            status["restartCount"] and "running" in status["state"]
            for one in now
            if one["metadata"]["name"] == name
            for status in one["status"]["containerStatuses"]
            if status["name"] == container
        ),
        namespace,
    )


def write(node: RealNode, recorder: KubeletRecorder, made: Objects, holders: Object) -> None:
    told = {
        "kubelet": node.api.get("Node", node.name)["status"]["nodeInfo"]["kubeletVersion"],
        "pods": [bare(one) for one in made],
        "holders": holders,
        "calls": recorder.calls,
        **shortened(recorder.records),
    }
    lines = [f"{json.dumps(key)}: {rows(value)}" for key, value in told.items()]
    Path(FILE).write_text("{" + ",\n".join(lines) + "}\n")


@pytest.mark.skipif(not FILE, reason="WEFT_RECORD_KUBELET names no file to write")
def test_record(node: RealNode, namespace: str) -> None:
    recorder = KubeletRecorder(DEVICES, node.kubelet.pod_resources)
    made: dict[str, Object] = {}
    truth: dict[str, list[str]] = {}

    def begin(*wanted: Object) -> None:
        recorder.pods |= {(namespace, one["metadata"]["name"]) for one in wanted}
        names = {one["metadata"]["name"] for one in node.create([*wanted], namespace)}
        found = node.wait(
            lambda now: names <= {p["metadata"]["name"] for p in now if has_begun(p)}, namespace
        )
        for one in found:
            if one["metadata"]["name"] in names:
                assert one["status"]["phase"] == "Running", state_of(one)
                made[one["metadata"]["name"]] = one
                truth.update(serials(node, one))

    def restart(name: str, container: str) -> None:
        found = node.containers(made[name])[container]
        node.containerd.ctr("task", "kill", "--signal", "SIGKILL", found)
        await_restarted(node, namespace, name, container)

    with recorder.recording():
        node.api.wait_for(
            lambda nodes: all(nodes[0]["status"]["allocatable"].get(r) == "32" for r in DEVICES),
            "Node",
        )
        begin(*pods("a", *(simple(ONE) for _ in range(6)), SEVERAL, simple(BOTH), simple(TWO)))
        restart("a-1", "main")
        begin(*pods("b", SEVERAL, simple(BOTH), SEVERAL))
        for name in ("a-0", "a-6"):
            node.api.request("DELETE", f"{node.api.path('Pod', namespace)}/{name}")
        node.wait(lambda now: not {"a-0", "a-6"} & {p["metadata"]["name"] for p in now}, namespace)
        begin(*pods("c", simple(ONE), SEVERAL, simple(ONE)))
        lists = sum(call["call"] == "list" for call in recorder.calls)
        node.restart_kubelet()
        while sum(call["call"] == "list" for call in recorder.calls) < lists + len(DEVICES):
            assert node.kubelet.running
        begin(*pods("d", *(simple(ONE) for _ in range(3)), simple(BOTH)))
        restart("a-2", "main")
        restart("d-1", "main")
    write(node, recorder, [*made.values()], truth)


def shortened(records: list[Objects]) -> dict[str, object]:
    """Each record is the numbers of its entries, for most stand in many."""
    numbers: dict[str, int] = {}
    found = [[numbers.setdefault(json.dumps(e), len(numbers)) for e in one] for one in records]
    return {"records": found, "entries": [json.loads(text) for text in numbers]}


def rows(value: object) -> str:
    """A line for each element."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(one) for one in value) + "]"


def bare(pod: Object) -> Object:
    """The fields of a pod that count."""

    def containers(field: str) -> Objects:
        kept = ("name", "resources", "restartPolicy")
        found = pod["spec"].get(field, ())
        return [{key: one[key] for key in kept if one.get(key)} for one in found]

    meta = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    spec = {field: containers(field) for field in ("containers", "initContainers")}
    return {"metadata": meta, "spec": {**spec, "nodeName": pod["spec"]["nodeName"]}}
