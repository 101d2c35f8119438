"""Users of GPUs are told by name: processes in real containers, found by their cgroups as a real
kubelet and containerd make them, told on the agent's page, by events, and by `weft inspect`."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agent_process import Agent, agent
from control_plane import HOST
from exactness import record_of
from kube_api import Object
from played_gpus import PlayedGpus
from real_node import RealNode, has_begun
from weft_process import ALONE, weft

CONFIG = """apiVersion: weft.dev/v1
kind: WeftConfiguration
agent: {overShareSeconds: 0}
"""
_TELLS_S = 60.0


def asking(name: str, mib: int) -> Object:
    """A pod of two containers that share their node's GPUs."""
    limits = {"limits": {"weft.dev/gpu-memory": mib}}
    containers = [{"name": each, "resources": limits} for each in ("main", "beside")]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": "weft", "containers": containers},
    }


def used(process: Agent, pod: str, container: str, value: float) -> dict[str, str]:
    """The labels of what this container uses, as soon as it is so much."""
    deadline = time.monotonic() + _TELLS_S
    while True:
        for line, number in process.metrics().items():
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            whose = labels.get("pod"), labels.get("container")
            if line.startswith("DCGM_FI_DEV_FB_USED{") and (*whose, number) == (
                pod,
                container,
                value,
            ):
                return labels
        assert time.monotonic() < deadline, process.metrics()
        time.sleep(0.05)


def told(node: RealNode, *words: str | Path) -> Any:
    """The JSON that a command of weft prints, whatever its exit code."""
    kubeconfig = node.plane.kubeconfig_for("weft", "system:masters")
    command = [sys.executable, "-m", "weft.cli.main", *words, "--kubeconfig", kubeconfig]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def is_small(pid: int) -> None:
    """Every GPU node runs one: no more than 80 MB, and none of the scheduler's libraries."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert resident is not None
    assert int(resident[1]) <= 80 * 1024
    libraries = Path(f"/proc/{pid}/maps").read_text()
    assert not re.search("numpy|scipy|lightgbm", libraries)


def test_each_containers_use_is_told_by_its_name(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path
) -> None:
    config = tmp_path / "weft.yaml"
    config.write_text(CONFIG)
    with agent(node, gpus, "--config", config) as process, weft(node.plane, tmp_path, ALONE):
        node.create([asking("train", 2000)], namespace, bind=False)
        (pod,) = node.wait(lambda pods: pods and all(map(has_begun, pods)), namespace)
        ids, record = node.containers(pod), record_of(pod)
        (main,) = record.containers["main"].shares
        gpus.write(
            processes=[
                {"gpu": main.gpu, "cgroup": ids["main"], "memoryMiB": 4000},
                {"gpu": main.gpu, "cgroup": ids["beside"], "memoryMiB": 1500},
            ]
        )
        labels = used(process, "train", "main", 4000)
        assert (labels["namespace"], labels["UUID"]) == (namespace, main.uuid)
        assert labels["Hostname"] == node.name
        used(process, "train", "beside", 1500)
        node.api.wait_for(
            lambda events: any(e["reason"] == "GPUMemoryOverShare" for e in events),
            "Event",
            namespace,
            "events.k8s.io/v1",
            timeout_s=_TELLS_S,
        )
        page = f"http://{HOST}:{process.port}/metrics?node={{node}}"
        (seen,) = told(node, "inspect", "--metrics-from", page)["nodes"]
        gpu = seen["gpus"][main.gpu]
        (card,) = (card for card in record.cards if card.gpu == main.gpu)
        assert gpu["promised_mib"] == card.memory_mib
        assert [(p["name"], p["used_mib"]) for p in gpu["pods"]] == [("train", 5500)]
        assert gpu["used_mib"] == 5500
        findings = {one["check"]: one for one in told(node, "doctor", "--no-machine")}
        assert findings["container runtimes"]["text"] == "containerd 2.2 or newer on 1 nodes"
        assert findings["agents' offers"]["level"] == "good"
        assert findings["agents"]["text"] == f"no agent on {node.name}"  # it is no pod here
        is_small(process.pid)
    gpus.write()
