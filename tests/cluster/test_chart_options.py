"""The dashboard for Grafana and the pod of `helm test`, as the chart has them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helm import CHART, find_or_build, render

IMAGE = "--set=image.repository=registry.example/weft-gpu"


@pytest.fixture(scope="module")
def helm() -> Path:
    """helm, which `make helm` has built."""
    return find_or_build(lambda _: None, build=False)


def test_the_dashboard_is_a_configmap_that_grafanas_sidecar_finds(helm: Path) -> None:
    assert not [o for o in render(helm, IMAGE) if o["metadata"]["name"] == "weft-dashboard"]
    objects = render(helm, IMAGE, "--set=monitoring.dashboard=true")
    (found,) = (o for o in objects if o["metadata"]["name"] == "weft-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = (CHART.parent / "monitoring" / "dashboard.json").read_text()
    assert json.loads(found["data"]["weft.json"]) == json.loads(shipped)


@pytest.mark.parametrize("agent", [True, False])
def test_helm_test_runs_a_pod_with_a_share_where_agents_run(helm: Path, agent: bool) -> None:
    found = [
        item
        for item in render(helm, IMAGE, f"--set=agent.enabled={str(agent).lower()}")
        if item["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"
    ]
    assert len(found) == agent
    for item in found:
        (container,) = item["spec"]["containers"]
        assert item["spec"]["schedulerName"] == "weft"
        assert "weft.dev/gpu-memory" in container["resources"]["limits"]
        for gpus, fails in {"GPU-1": 0, "": 1, "void": 1, "GPU-1,GPU-2": 1}.items():
            known = {"NVIDIA_VISIBLE_DEVICES": gpus}
            ran = subprocess.run(
                [sys.executable, *container["command"][1:]], env=known, check=False
            )
            assert ran.returncode == fails, gpus
