"""An experiment's Jobs on the real kubelet and containerd, and what they say of their queries."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from binaries import CONTROLLERS
from control_plane import HOST
from controllers import job_controllers
from images import BUSYBOX
from real_node import RealNode

from weft.lab.experiment.run.store import JOBS, RESULT, read_rows
from weft.lab.workloads.queries import last_line

GPU = "nvidia.com/gpu"
QUERIES = 16
TOLD_S = [0.001 * n for n in range(1, 101)]
ANSWER = ("answer", "perceptron-infer", "--device", "cpu", "--queries", str(QUERIES))
EXPERIMENT = {"labelSelector": "weft.dev/experiment=queries"}


@pytest.fixture
def stock_cluster(node: RealNode, tools: dict[str, Path]) -> Iterator[RealNode]:
    """The node with two GPUs, kube-scheduler and the controllers of Jobs and namespaces."""
    node.advertise({GPU: "2"})
    # A kubelet at a loopback address reports none, and without one nobody gets containers' logs.
    address = {"type": "InternalIP", "address": HOST}
    node.api.patch("Node", node.name, {"status": {"addresses": [address]}}, part="status")
    scheduler = node.plane.start_scheduler()
    with job_controllers(node.plane, tools[CONTROLLERS]):
        yield node
    scheduler.kill()
    node.plane.schedulers.remove(scheduler)
    node.api.patch("Node", node.name, {"status": {"addresses": None}}, part="status")


def written(folder: Path, node: RealNode, image: str) -> Path:
    """Three Jobs of Weft's own inference loop, and one that prints a known line."""
    scheduler = {"name": "stock", "request": {"resource": GPU}}
    spec = {
        "apiVersion": "weft.dev/v1",
        "kind": "Experiment",
        "name": "queries",
        "workload": {
            "kind": "cluster-jobs",
            "delaySeconds": [0, 0.2],
            "jobs": [
                {
                    "name": "perceptron",
                    "image": image,
                    "command": ["python3.11", "-m", "weft.lab.workloads", *ANSWER],
                    "count": 3,
                },
                {
                    "name": "known",
                    "image": BUSYBOX,
                    "command": ["printf", r"%s\n", "begins", last_line(TOLD_S, 5.0), "ends"],
                },
            ],
        },
        "cluster": {
            "kubeconfig": str(node.plane.kubeconfig),
            "probeImage": BUSYBOX,
            "turnSeconds": 180,
            "schedulers": [scheduler],
        },
        "schedulers": ["stock"],
        "seeds": {"count": 1},
    }
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def test_four_jobs_run_in_containerd_and_their_queries_are_in_the_cells_rows(
    stock_cluster: RealNode, debian_image: str, tmp_path: Path
) -> None:
    node, out = stock_cluster, tmp_path / "out"
    command = [sys.executable, "-m", "weft.cli.main", "experiment", "run"]
    command += [str(written(tmp_path, node, debian_image)), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    cell = out / "cells" / "percent=0" / "stock" / "seed=0"
    result = json.loads((cell / RESULT).read_text())
    assert not result.get("marks"), result["marks"]
    assert result["measures"]["unfinished"] == result["measures"]["restarts"] == 0

    rows = read_rows(cell / JOBS)
    assert sorted(rows["uid"]) == ["known", "perceptron-0", "perceptron-1", "perceptron-2"]
    assert set(rows["node"]) == {node.name}
    for at, name in enumerate(rows["uid"]):
        p90_s, p99_s = rows["p90_s"][at], rows["p99_s"][at]
        if name == "known":
            assert (p90_s, p99_s) == (0.0901, 0.0990)
        else:
            ran_s = rows["container_finished_s"][at] - rows["container_started_s"][at]
            assert 0 < p90_s <= p99_s <= ran_s + 1  # the API's times are of whole seconds
    mean_s = sum(rows["p99_s"]) / 4
    assert result["measures"]["query_p99_s"] == pytest.approx(mean_s, abs=1e-6)
    assert node.api.list("Namespace", **EXPERIMENT) == []
