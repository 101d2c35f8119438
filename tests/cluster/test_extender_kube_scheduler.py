"""The real kube-scheduler with `weft extender config`: pods of the originals, as they are."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from control_plane import ControlPlane
from extender_host import Host
from kube_api import Object, Objects

from weft.core.ledger import Ledger
from weft.core.ledger.audit import audit
from weft.dialects.inventory import inventory
from weft.dialects.registry import read_placement
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode

CARD_MIB, CARDS = 16_384, 2
ELASTIC, GPUSHARE, ALNAIR = "elasticgpu.io/gpu-memory", "aliyun.com/gpu-mem", "alnair/vgpu-memory"
PRINT = "from weft.cli.extender import extender_app; extender_app()"


def has() -> dict[str, str]:
    """Resources as the device plugins of three systems report them for two cards of 16 GiB."""
    return {
        "elasticgpu.io/gpu-core": str(100 * CARDS),
        "elasticgpu.io/gpu-memory": str(CARD_MIB * CARDS),
        "aliyun.com/gpu-mem": str(16 * CARDS),
        "aliyun.com/gpu-count": str(CARDS),
        "alnair/vgpu-memory": str(16 * CARDS),
        "alnair/vgpu-compute": str(100 * CARDS),
    }


def alnair_marks(node: str) -> dict[str, str]:
    return {
        "ai.centaurus.io/physical-gpu-count": str(CARDS),
        "ai.centaurus.io/physical-gpu-uuids": ",".join(f"GPU-{node}-{n}" for n in range(CARDS)),
        "ai.centaurus.io/vitual-gpu-count": "16,16",
    }


def pod(name: str, limits: dict[str, int], scheduler: str = "default-scheduler") -> Object:
    asked = {resource: str(amount) for resource, amount in limits.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": asked}}
    return {
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "schedulerName": scheduler},
    }


def configured(url: str, dialects: str, *words: str) -> dict[str, Any]:
    """The output of `weft extender config`, as a user would pass it on."""
    printed = subprocess.run(
        [sys.executable, "-c", PRINT, "config", "--dialects", dialects, "--url", url, *words],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = yaml.safe_load(printed.stdout)
    return found


@pytest.fixture
def host(control_plane: ControlPlane, namespace: str) -> Iterator[Host]:
    for name in ("a", "b"):
        control_plane.create_fake_node(name, has(), annotations=alnair_marks(name))
    with Host(control_plane.kubeconfig) as running:
        yield running


def all_bound(count: int) -> Any:
    return lambda pods: len(pods) == count and all(p["spec"].get("nodeName") for p in pods) and pods


def rebuilt(control_plane: ControlPlane, host: Host, pods: Objects) -> Ledger:
    """A ledger from the API objects alone, as after a restart."""
    listed = control_plane.api.list("Node")
    nodes = {n["metadata"]["name"]: inventory(msgspec.convert(n, KubeNode))[0] for n in listed}
    ledger = Ledger(nodes.values())
    for one in pods:
        bound = msgspec.convert(one, Pod)
        where = read_placement(bound, nodes[bound.spec.node_name], host.settings)
        assert where is not None, one["metadata"]
        ledger.adopt(where)
    return ledger


def test_pods_of_three_systems_are_bound_with_their_own_marks(
    control_plane: ControlPlane, namespace: str, host: Host
) -> None:
    control_plane.start_scheduler(configured(host.url, "elastic,gpushare,alnair"))
    control_plane.create_pods(
        namespace,
        [
            pod("elastic", {ELASTIC: 256}),
            pod("gpushare", {GPUSHARE: 2}),
            pod("alnair", {ALNAIR: 4, "alnair/vgpu-compute": 20}, "alnair-cost-saving"),
        ],
    )
    pods = control_plane.api.wait_for(all_bound(3), "Pod", namespace, timeout_s=20)
    marks = {one["metadata"]["name"]: one["metadata"]["annotations"] for one in pods}
    assert marks["elastic"]["elasticgpu.io/assumed"] == "true"
    assert marks["elastic"]["elasticgpu.io/container-main"] in ("0", "1")
    assert marks["gpushare"]["ALIYUN_COM_GPU_MEM_IDX"] in ("0", "1")
    assert marks["gpushare"]["ALIYUN_COM_GPU_MEM_POD"] == "2"
    assert marks["gpushare"]["ALIYUN_COM_GPU_MEM_DEV"] == "16"
    assert marks["gpushare"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
    assert marks["gpushare"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"].isdigit()
    assert marks["alnair"]["ai.centaurus.io/scheduler-timestamp"].isdigit()
    assert audit(rebuilt(control_plane, host, pods)) == []


def test_what_does_not_fit_waits_with_wefts_reason(
    control_plane: ControlPlane, namespace: str, host: Host
) -> None:
    """Two nodes have 32 GiB each, kube-scheduler sees no more; no card has 20."""
    control_plane.start_scheduler(configured(host.url, "elastic"))
    control_plane.api.create(pod("big", {ELASTIC: 20_000}), namespace)

    def told(pods: Objects) -> Any:
        conditions = [c for p in pods for c in p.get("status", {}).get("conditions", [])]
        return next((c["message"] for c in conditions if "GPU" in c.get("message", "")), None)

    message = control_plane.api.wait_for(told, "Pod", namespace, timeout_s=20)
    assert "0/2 nodes are available" in message
    assert "no GPU is that large" in message


@pytest.mark.parametrize("dialects", ["weft,nvidia,hami,coscheml", "genius,kubeknots"])
def test_kube_scheduler_loads_every_configuration(
    control_plane: ControlPlane, namespace: str, host: Host, dialects: str
) -> None:
    control_plane.start_scheduler(configured(host.url, dialects))
