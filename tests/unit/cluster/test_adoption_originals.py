"""Other schedulers and device plugins are found by names, by images, by what nodes advertise."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from live_world import node

from weft.cluster.adoption.originals import KubeWorkload, Original, originals_of, plugins_of
from weft.kube.structs import KubeNode

ROOT = Path(__file__).resolve().parents[3]


def workload(name: str, image: str = "", command: tuple[str, ...] = ()) -> KubeWorkload:
    container = {"name": "c", "image": image, **({"command": list(command)} if command else {})}
    template = {"spec": {"containers": [container]}}
    meta = {"name": name, "namespace": "kube-system"}
    spec = {"replicas": 1, "template": template}
    return msgspec.convert({"metadata": meta, "spec": spec}, KubeWorkload)


@pytest.mark.parametrize(
    ("name", "image", "known"),
    [
        ("gpushare-schd-extender", "", ("gpushare", "scheduler")),
        ("x", "registry.example/acs/k8s-gpushare-schd-extender:1.11", ("gpushare", "scheduler")),
        ("gpushare-device-plugin-ds", "", ("gpushare", "device plugin")),
        ("x", "registry.example/acs/k8s-gpushare-plugin:v2", ("gpushare", "device plugin")),
        ("x", "example/kube_scheduler_with_interference:1", ("coscheml", "scheduler")),
        ("elastic-gpu-scheduler", "", ("elastic", "scheduler")),
        ("elastic-gpu-agent", "", ("elastic", "device plugin")),
        ("alnair-device-plugin-daemonset", "", ("alnair", "device plugin")),
        ("x", "example/alnair-device-plugin:0.4.0", ("alnair", "device plugin")),
        ("genius-scheduler", "", ("genius", "scheduler")),
        ("hami-scheduler", "", ("hami", "scheduler")),
        ("hami-device-plugin", "projecthami/hami:v2", ("hami", "device plugin")),
        ("x", "example/nvidia/kai-scheduler/scheduler:v0.9", ("kai", "scheduler")),
        ("kai-operator", "example/kai-scheduler/operator:v0.17", ("kai", "scheduler")),
        ("kai-scheduler-default", "", ("kai", "scheduler")),
        ("binder", "example/kai-scheduler/kai-scheduler/binder:v0.17", ("kai", "scheduler")),
        ("admission", "example/kai-scheduler/kai-scheduler/admission:v0.17", None),
        ("pod-grouper", "example/kai-scheduler/kai-scheduler/podgrouper:v0.17", None),
        ("volcano-scheduler", "", ("volcano", "scheduler")),
        ("x", "example/volcano-vgpu-device-plugin:v1.11", ("volcano", "device plugin")),
        ("koord-scheduler", "", ("koordinator", "scheduler")),
        ("koordlet", "", ("koordinator", "device plugin")),
        ("nvidia-device-plugin-daemonset", "", ("nvidia", "device plugin")),
        ("web", "example/nginx:1", None),
    ],
)
def test_workloads_of_others(name: str, image: str, known: tuple[str, str] | None) -> None:
    found = originals_of([workload(name, image)], ())
    assert [(one.system, one.role) for one in found] == ([known] if known else [])


def test_an_operator_is_stopped_before_what_it_would_start_again() -> None:
    image = "example/kai-scheduler/{}:v0.17"
    parts = {"binder": "binder", "kai-scheduler-default": "scheduler", "kai-operator": "operator"}
    found = originals_of([workload(n, image.format(part)) for n, part in parts.items()], ())
    assert [one.name for one in found] == ["kai-operator", "binder", "kai-scheduler-default"]


def test_weft_under_an_originals_name_is_weft() -> None:
    command = ("weft", "scheduler", "--config=x")
    assert originals_of([workload("gpushare-schd-extender", "example/weft", command)], ()) == []
    documents: list[Any] = []
    for path in (
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "examples/originals").rglob("*.yaml"),
    ):
        if "chart" not in path.parts:
            documents += [each for each in yaml.safe_load_all(path.read_text()) if each]
    ours = [
        msgspec.convert(each, KubeWorkload)
        for each in documents
        if each.get("kind") in ("Deployment", "DaemonSet")  # Prometheus' files have none
    ]
    assert len(ours) > 2
    assert originals_of(ours, ours) == []


def test_a_daemon_set_is_told_from_a_deployment() -> None:
    found = originals_of([workload("elastic-gpu-scheduler")], [workload("elastic-gpu-agent")])
    assert found == [
        Original("elastic", "device plugin", "DaemonSet", "kube-system", "elastic-gpu-agent", 1),
        Original("elastic", "scheduler", "Deployment", "kube-system", "elastic-gpu-scheduler", 1),
    ]
    assert found[1].target == "deployment/elastic-gpu-scheduler"


@pytest.mark.parametrize(
    ("amounts", "own", "plugins"),
    [
        ({"nvidia.com/gpu": "2", "cpu": "8"}, "", {"nvidia"}),
        ({"nvidia.com/gpu": "20", "nvidia.com/gpumem": "9"}, "", {"nvidia"}),
        ({"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}, "", {"gpushare"}),
        ({"aliyun.com/gpu-mem": "30", "nvidia.com/gpu": "2"}, "", {"gpushare", "nvidia"}),
        ({"aliyun.com/gpu-mem": "30", "nvidia.com/gpu": "0"}, "", {"gpushare"}),
        (
            {"aliyun.com/gpu-mem": "30", "elasticgpu.io/gpu-core": "200"},
            "aliyun.com/gpu-mem",
            {"elastic"},
        ),
        ({"alnair/vgpu-memory": "x"}, "", set()),
    ],
)
def test_device_plugins_of_a_node(amounts: dict[str, str], own: str, plugins: set[str]) -> None:
    made = node()
    made["status"]["allocatable"] = amounts
    made["metadata"]["annotations"]["weft.dev/advertises"] = own
    assert plugins_of(msgspec.convert(made, KubeNode)).keys() == plugins
