"""`weft scheduler` as users start it, on the real API server: alone, and behind kube-scheduler."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml
from control_plane import ControlPlane
from kube_api import Object, Objects

from weft.dialects.dialect import Settings
from weft.dialects.registry import read_placement
from weft.kube.inventory import inventory
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.ledger import Ledger, audit

CARD_MIB, CARDS = 16_384, 2
HAS = {
    "elasticgpu.io/gpu-core": str(100 * CARDS),
    "elasticgpu.io/gpu-memory": str(CARD_MIB * CARDS),
    "aliyun.com/gpu-mem": str(16 * CARDS),
    "aliyun.com/gpu-count": str(CARDS),
    "alnair/vgpu-memory": str(16 * CARDS),
    "nvidia.com/gpu": str(CARDS),
}
GFD = {"nvidia.com/gpu.count": str(CARDS), "nvidia.com/gpu.memory": str(CARD_MIB),
       "nvidia.com/gpu.product": "Tesla-T4"}  # fmt: skip


class Weft:
    """The process; `said` is what it logs."""

    def __init__(self, kubeconfig: Path, log: Path, *options: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "weft.cli.main", "scheduler", "--kubeconfig",
                   str(kubeconfig), *options]  # fmt: skip
        self._out = log.open("w")
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if " ready: " in line:
                return
        raise AssertionError(f"weft scheduler ended: {self.said}")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=20)
        if self.process.stderr is not None:
            self.said += self.process.stderr.read()
            self.process.stderr.close()
        self._out.close()
        return code


@contextlib.contextmanager
def weft(plane: ControlPlane, tmp_path: Path, *options: str) -> Iterator[Weft]:
    process = Weft(plane.kubeconfig_for("weft", "system:masters"), tmp_path / "log", *options)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


def pod(name: str, scheduler: str, limits: dict[str, object], **meta: object) -> Object:
    asked = {resource: str(amount) for resource, amount in limits.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": asked}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {"containers": [container], "schedulerName": scheduler},
    }


def all_bound(count: int):  # type: ignore[no-untyped-def]
    return lambda pods: len(pods) == count and all(p["spec"].get("nodeName") for p in pods)


def audited(plane: ControlPlane, namespace: str) -> Ledger:
    """The ledger as the API's objects alone say, whoever placed the pods."""
    nodes = [
        inventory(msgspec.convert(raw, KubeNode, strict=False))[0] for raw in plane.api.list("Node")
    ]
    ledger = Ledger(nodes)
    by_name = {node.name: node for node in nodes}
    for raw in plane.api.list("Pod", namespace):
        one = msgspec.convert(raw, Pod, strict=False)
        if one.spec.node_name:
            node = by_name[one.spec.node_name]
            placement = read_placement(one, node, Settings(gpushare_unit="GiB"))
            assert placement is not None, one.metadata.name
            ledger.adopt(placement)
    assert audit(ledger) == []
    return ledger


def nodes(plane: ControlPlane, count: int) -> None:
    for index in range(count):
        plane.create_fake_node(f"node-{index}", HAS, labels=GFD)


SAMPLES: Objects = [
    pod("elastic", "weft", {"elasticgpu.io/gpu-memory": 3000, "elasticgpu.io/gpu-core": 20}),
    pod("gpushare", "weft", {"aliyun.com/gpu-mem": 4}),
    pod("alnair", "alnair-cost-saving", {"alnair/vgpu-memory": 4}),
    pod("whole", "weft", {"nvidia.com/gpu": 1}),
    pod("genius", "genius-scheduler", {},
        labels={"genius/gpu-number": "1", "genius/gpu-memory-each": "1000"}),
    pod("knots", "custom-scheduler", {}, labels={"GPU_MEM_REQ": "1000"}),
]  # fmt: skip
MARKS = {
    "elastic": {"elasticgpu.io/assumed": "true"},
    "gpushare": {"ALIYUN_COM_GPU_MEM_POD": "4", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"},
}


def test_pods_of_all_systems_are_bound_with_their_marks(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nodes(control_plane, 3)
    with weft(control_plane, tmp_path) as process:
        control_plane.create_pods(namespace, SAMPLES)
        control_plane.api.wait_for(all_bound(len(SAMPLES)), "Pod", namespace, timeout_s=15)
        found = {p["metadata"]["name"]: p for p in control_plane.api.list("Pod", namespace)}
        for name, marks in MARKS.items():
            assert marks.items() <= found[name]["metadata"]["annotations"].items()
        assert re.fullmatch(r"[01]", found["gpushare"]["metadata"]["annotations"][
            "ALIYUN_COM_GPU_MEM_IDX"])  # fmt: skip
        assert len(audited(control_plane, namespace).holdings) == len(SAMPLES)
        assert process.end(signal.SIGTERM) == 0


def test_a_pod_without_a_place_says_why_and_gets_it_when_room_comes(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nodes(control_plane, 1)
    limits: dict[str, object] = {"elasticgpu.io/gpu-memory": 10_000}
    waits = "0/1 nodes fit: 1 × insufficient memory on any one GPU (most free 6,384 MiB, asked"
    with weft(control_plane, tmp_path):
        control_plane.create_pods(namespace, [pod(f"p-{i}", "weft", limits) for i in range(2)])
        control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=10)
        control_plane.create_pods(namespace, [pod("late", "weft", limits)])

        def says_why(pods: Objects) -> bool:
            late = next(p for p in pods if p["metadata"]["name"] == "late")
            told = late["status"].get("conditions") or []
            return any(waits in one.get("message", "") for one in told)

        control_plane.api.wait_for(says_why, "Pod", namespace, timeout_s=10)
        control_plane.api.delete("Pod", "p-0", namespace)
        control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=20)
        told = {("late", "FailedScheduling"), ("late", "Scheduled"), ("p-1", "Scheduled")}
        control_plane.api.wait_for(
            lambda events: told <= {(e["involvedObject"]["name"], e["reason"]) for e in events},
            "Event",
            namespace,
            timeout_s=10,
        )
    audited(control_plane, namespace)


def test_kill_9_in_a_burst_loses_and_doubles_nothing(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """120 pods of 1 GiB for 128 GiB of cards: almost every one must fit, and none twice."""
    nodes(control_plane, 4)
    burst = [pod(f"p-{i}", "weft", {"aliyun.com/gpu-mem": 1}) for i in range(120)]
    with weft(control_plane, tmp_path) as first:
        control_plane.create_pods(namespace, burst[:60])
        control_plane.api.wait_for(
            lambda pods: sum(bool(p["spec"].get("nodeName")) for p in pods) >= 10,
            "Pod", namespace, timeout_s=15,
        )  # fmt: skip
        first.end(signal.SIGKILL)
    with weft(control_plane, tmp_path):
        control_plane.create_pods(namespace, burst[60:])
        control_plane.api.wait_for(all_bound(120), "Pod", namespace, timeout_s=20)
    ledger = audited(control_plane, namespace)
    assert sum(ledger.table.memory_used) == 120 * 1024


def test_kube_scheduler_and_weft_alone_share_one_ledger(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Half the pods through the real kube-scheduler and the extender, half by schedulerName."""
    nodes(control_plane, 2)
    with weft(
        control_plane, tmp_path, "--extender-port", "0", "--extender-address", "127.0.0.1"
    ) as process:
        port = re.search(r"extender on (\d+)", process.said)
        assert port is not None, process.said
        printed = subprocess.run(
            [sys.executable, "-m", "weft.cli.main", "extender", "config", "--dialects", "gpushare",
             "--url", f"http://127.0.0.1:{port[1]}"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        configuration = yaml.safe_load(printed)
        control_plane.start_scheduler(
            {key: configuration[key] for key in ("extenders", "profiles") if key in configuration}
        )
        mixed = [
            pod(f"p-{i}", "weft" if i % 2 else "default-scheduler", {"aliyun.com/gpu-mem": 4})
            for i in range(16)
        ]
        control_plane.create_pods(namespace, mixed)
        control_plane.api.wait_for(all_bound(16), "Pod", namespace, timeout_s=40)
    ledger = audited(control_plane, namespace)
    assert sorted(ledger.table.memory_used) == [CARD_MIB] * (2 * CARDS)


def test_what_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "weft.cli.main", "scheduler", "--kubeconfig",
         str(tmp_path / "none")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
