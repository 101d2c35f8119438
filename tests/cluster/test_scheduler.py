"""`weft scheduler` as users start it, on the real API server: alone, and behind kube-scheduler."""

import re
import signal
from pathlib import Path

from control_plane import ControlPlane
from kube_api import Objects
from weft_process import (
    CARD_MIB,
    CARDS,
    EXTENDER,
    all_bound,
    audited,
    extender_config,
    nodes,
    pod,
    weft,
)

SAMPLES: Objects = [
    pod("elastic", "weft", {"elasticgpu.io/gpu-memory": 3000, "elasticgpu.io/gpu-core": 20}),
    pod("gpushare", "weft", {"aliyun.com/gpu-mem": 4}),
    pod("alnair", "alnair-cost-saving", {"alnair/vgpu-memory": 4}),
    pod("whole", "weft", {"nvidia.com/gpu": 1}),
    pod(
        "genius",
        "genius-scheduler",
        {},
        labels={"genius/gpu-number": "1", "genius/gpu-memory-each": "1000"},
    ),
    pod("knots", "custom-scheduler", {}, labels={"GPU_MEM_REQ": "1000"}),
]
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
        assert re.fullmatch(
            r"[01]", found["gpushare"]["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"]
        )
        assert len(audited(control_plane, namespace).holdings) == len(SAMPLES)
        assert process.end(signal.SIGTERM) == 0


def test_a_pod_without_a_place_says_why_and_gets_it_when_room_comes(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nodes(control_plane, 1)
    limits: dict[str, object] = {"elasticgpu.io/gpu-memory": 10_000}
    waits = "0/1 GPU nodes: 1 × insufficient memory on any one GPU (largest free 6,384 MiB, asked"
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


def test_kube_scheduler_and_weft_alone_share_one_ledger(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Half the pods through the real kube-scheduler and the extender, half by schedulerName."""
    nodes(control_plane, 2)
    with weft(control_plane, tmp_path, *EXTENDER) as process:
        control_plane.start_scheduler(extender_config(process.url, "gpushare"))
        mixed = [
            pod(f"p-{i}", "weft" if i % 2 else "default-scheduler", {"aliyun.com/gpu-mem": 4})
            for i in range(16)
        ]
        control_plane.create_pods(namespace, mixed)
        control_plane.api.wait_for(all_bound(16), "Pod", namespace, timeout_s=40)
    ledger = audited(control_plane, namespace)
    assert sorted(ledger.table.memory_used) == [CARD_MIB] * (2 * CARDS)
