"""`weft adopt` on the real API server: what gpushare and Alnair gave is what it says; undone, a
namespace is as it was, and no pod was written."""

import json
import subprocess
import sys
from typing import Any

import pytest
from control_plane import ControlPlane
from kube_api import Object
from original_agents import (
    GPU_MEM,
    VGPU_MEMORY,
    AlnairDevicePlugin,
    GpushareDevicePlugin,
    kubectl_inspect,
)
from weft_process import pod

CARDS, GIB = 2, 16
UUIDS = [f"GPU-alnair-{index}" for index in range(CARDS)]
ALNAIR_NODE = {
    "ai.centaurus.io/physical-gpu-count": str(CARDS),
    "ai.centaurus.io/physical-gpu-uuids": ",".join(UUIDS),
    "ai.centaurus.io/vitual-gpu-count": str(GIB),
}


@pytest.fixture
def filled(control_plane: ControlPlane, namespace: str) -> str:
    """A node of gpushare's and one of Alnair's, with pods that their agents have started."""
    api = control_plane.api
    shares = {GPU_MEM: str(GIB * CARDS), "aliyun.com/gpu-count": str(CARDS)}
    control_plane.create_fake_node("gpushare", shares)
    chunks = {VGPU_MEMORY: str(GIB * CARDS), "alnair/vgpu-compute": "200"}
    control_plane.create_fake_node("alnair", chunks)
    api.patch("Node", "alnair", {"metadata": {"annotations": ALNAIR_NODE}})
    for number, (units, gpu) in enumerate([(4, 1), (9, 0), (6, 1)]):
        asks = pod(f"share-{number}", "default-scheduler", {GPU_MEM: units})
        (made,) = control_plane.create_pods(namespace, [asks])
        prefix = "ALIYUN_COM_GPU_MEM_"
        marks = {"IDX": gpu, "POD": units, "DEV": GIB, "ASSIGNED": "false", "ASSUME_TIME": number}
        api.bind(made, "gpushare", {f"{prefix}{key}": str(value) for key, value in marks.items()})
    plugin = GpushareDevicePlugin(api, namespace, "gpushare")
    for units in (4, 9, 6):
        plugin.allocate(units)
    alnair = AlnairDevicePlugin(api, namespace, "alnair", UUIDS, GIB)
    for number, units in enumerate((10, 8)):
        asks = pod(f"chunk-{number}", "alnair-cost-saving", {VGPU_MEMORY: units})
        (made,) = control_plane.create_pods(namespace, [asks])
        api.bind(made, "alnair", {"ai.centaurus.io/scheduler-timestamp": str(number)})
        alnair.allocate(units)
    return namespace


def adopt(plane: ControlPlane, *options: str) -> tuple[int, Any]:
    kubeconfig = str(plane.kubeconfig_for("weft", "system:masters"))
    command = [sys.executable, "-m", "weft.cli.main", "adopt", "--kubeconfig", kubeconfig]
    done = subprocess.run(
        [*command, "-o", "json", *options], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def unversioned(item: Object) -> Object:
    """Without its version: it counts writes."""
    meta = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    return {**item, "metadata": meta}


def test_adopted_opted_in_and_undone(control_plane: ControlPlane, filled: str) -> None:
    api = control_plane.api
    space, pods = api.get("Namespace", filled), api.list("Pod", filled)
    code, found = adopt(control_plane)
    assert (code, found["problems"]) == (0, [])
    assert {pod["state"] for pod in found["pods"]} == {"adopted"}
    used: dict[str, dict[int, int]] = {"gpushare": {}, "alnair": {}}
    for one in found["pods"]:
        for share in one["shares"]:
            of_node = used[one["node"]]
            of_node[share["gpu"]] = of_node.get(share["gpu"], 0) + share["memory_mib"]
    inspected = kubectl_inspect(api, filled, "gpushare")
    assert used["gpushare"] == {gpu: units * 1024 for gpu, units in inspected.items()}
    assert sorted(used["alnair"]) == [0, 1]
    assert found["namespaces"] == [filled]

    code, found = adopt(control_plane, "--yes")
    assert (code, [change["done"] for change in found["changes"]]) == (0, [True])
    labels = api.get("Namespace", filled)["metadata"]["labels"]
    assert labels["weft.dev/schedule"] == "enabled"
    assert list(api.get("ConfigMap", "weft-adoption", "kube-system")["data"]) == [filled]

    code, undone = adopt(control_plane, "--undo")
    assert (code, [change["done"] for change in undone]) == (0, [True])
    assert unversioned(api.get("Namespace", filled)) == unversioned(space)
    assert api.list("Pod", filled) == pods
    names = {one["metadata"]["name"] for one in api.list("ConfigMap", "kube-system")}
    assert "weft-adoption" not in names
