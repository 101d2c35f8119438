"""A share of a real GPU, from the pod's request to the program in its container.

Weft's scheduler binds, the kubelet and containerd start, the agent delivers, CUDA answers.
"""

import asyncio
import ctypes
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import images
import msgspec
import pytest
from agent_process import Agent, agent
from exactness import record_of
from kube_api import Object
from real_node import RealNode, has_begun
from weft_process import ALONE, weft

from weft.dialects.inventory import inventory
from weft.kube.structs import KubeNode
from weft.model import Gpu
from weft.node.agent.mps_daemon import MpsDaemon, options_here
from weft.node.devices.nvml_library import model_of

PROBE = Path(__file__).resolve().parent / "cuda_probe.py"
NO_DEVICE, OUT_OF_MEMORY = 100, 2
CONTEXT_MIB = 2_000
"""CUDA's own memory counts as the program's: its context, and under MPS the server's."""
USERS = {"root": 2, "one": 2, "two": 1}
_PATIENCE_S = 60.0
_POLL_S = 0.1
Found = TypeVar("Found")


class Smi(NamedTuple):
    """The GPU as nvidia-smi says it."""

    uuid: str
    model: str
    memory_mib: int


@pytest.fixture(scope="session")
def smi() -> Smi:
    """The first GPU, and whether there is one."""
    query = "uuid,name,memory.total,memory.reserved"
    told = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0"],
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    uuid, name, total, reserved = (word.strip() for word in told.strip().split(","))
    return Smi(uuid, model_of(name), round(float(total) - float(reserved)))


@pytest.fixture
def with_mps(tmp_path: Path) -> tuple[str | Path, ...]:
    """Options of an agent that runs MPS' daemon."""
    settings = tmp_path / "weft.yaml"
    settings.write_text("apiVersion: weft.dev/v1\nkind: WeftConfiguration\nagent: {mps: true}\n")
    return "--config", settings


@pytest.fixture
def weft_runs(node: RealNode, tmp_path: Path, with_mps: tuple[str | Path, ...]) -> Iterator[Agent]:
    """Agent and scheduler, as they run on any cluster."""
    with agent(node, None, *with_mps) as process, weft(node.plane, tmp_path, ALONE):
        yield process


def driver_folder() -> str:
    """Where the driver's library lies on this machine."""
    ctypes.CDLL("libcuda.so.1")
    (path,) = set(re.findall(r"\S*/libcuda\.so\S*", Path("/proc/self/maps").read_text()))
    return str(Path(path).parent)


def program(
    name: str, limits: dict[str, int], *words: object, isolation: str = "", user: int = 0
) -> Object:
    """A pod that runs `cuda_probe.py` with this machine's Python and driver, as this user."""
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    folders = {str(PROBE.parent), driver_folder(), sys.base_prefix, "/usr", "/lib", "/lib64"}
    kept = sorted(f for f in folders if Path(f).exists() and not within(f, folders - {f}))
    volumes = [{"name": f"v{n}", "hostPath": {"path": path}} for n, path in enumerate(kept)]
    container = {
        "name": "main",
        "image": images.BUSYBOX,
        "command": [str(python), str(PROBE), *map(str, words)],
        "env": [{"name": "LD_LIBRARY_PATH", "value": driver_folder()}],
        "resources": {"limits": {key: str(value) for key, value in limits.items()}},
        "securityContext": {"runAsUser": user},
        "volumeMounts": [
            {"name": f"v{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(kept)
        ],
    }
    return {
        "metadata": {
            "name": name,
            "annotations": {"weft.dev/isolation": isolation} if isolation else {},
        },
        "spec": {
            "schedulerName": "weft",
            "hostNetwork": True,
            "restartPolicy": "Never",
            "volumes": volumes,
            "containers": [container],
        },
    }


def within(folder: str, others: set[str]) -> bool:
    """Tells whether one of the others holds this folder."""
    return any(Path(folder).is_relative_to(other) for other in others)


def started(node: RealNode, namespace: str, *pods: Object) -> dict[str, Object]:
    """The pods as Weft has bound them, all begun; by name."""
    node.create(pods, namespace, bind=False)
    found = node.wait(lambda now: len(now) >= len(pods) and all(map(has_begun, now)), namespace)
    return {pod["metadata"]["name"]: pod for pod in found}


def said(node: RealNode, pod: Object, count: int) -> list[dict[str, Any]]:
    """The first lines that its program says."""
    return until(
        lambda: [json.loads(line) for line in node.says(pod, "main").splitlines()],
        lambda lines: len(lines) >= count,
    )


def until(look: Callable[[], Found], right: Callable[[Found], object]) -> Found:
    """Look until that is right; what was found."""
    deadline, found = time.monotonic() + _PATIENCE_S, look()
    while not right(found) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        found = look()
    assert right(found), found
    return found


def used_mib(process: Agent, pod: str) -> float:
    """The memory that the agent says a pod's program uses; 0 while it says nothing of it."""
    found = [
        value
        for name, value in process.metrics().items()
        if name.startswith("DCGM_FI_DEV_FB_USED{") and f'pod="{pod}"' in name
    ]
    return sum(found)


def gpus_of(node: RealNode) -> list[Gpu]:
    """The GPUs that the node says it has."""
    raw = node.api.get("Node", node.name)
    return list(inventory(msgspec.convert(raw, KubeNode, strict=False))[0].gpus)


def test_the_node_says_what_nvidia_smi_says(node: RealNode, smi: Smi) -> None:
    with agent(node, None):
        found = gpus_of(node)[0]
    assert (found.uuid, found.model) == (smi.uuid, smi.model)
    assert abs(found.memory_mib - smi.memory_mib) <= 1


def test_pods_with_a_share_see_the_gpu_and_others_do_not(
    node: RealNode, smi: Smi, namespace: str, weft_runs: Agent
) -> None:
    share = {"weft.dev/gpu-memory": 4_000, "weft.dev/gpu-cores": 30}
    pods = started(
        node,
        namespace,
        program("one", share, "hold"),
        program("two", share, "hold"),
        program("none", {}, "hold"),
    )
    for name in ("one", "two"):
        (line,) = said(node, pods[name], 1)
        assert [gpu["uuid"] for gpu in line["gpus"]] == [smi.uuid]
        assert [card.memory_mib for card in record_of(pods[name]).cards] == [4_000]
    assert said(node, pods["none"], 1) == [{"error": NO_DEVICE}]
    assert weft_runs.metrics()["weft_agent_pods_with_share"] == 2


def test_memory_counts_for_the_pod_that_holds_it(
    node: RealNode, namespace: str, weft_runs: Agent
) -> None:
    """Two programs on one GPU, and the agent is killed meanwhile: they go on."""
    share = {"weft.dev/gpu-memory": 8_000}
    pods = started(
        node,
        namespace,
        program("small", share, "hold", 1_000),
        program("large", share, "hold", 4_000),
    )
    for name, held in (("small", 1_000), ("large", 4_000)):
        assert said(node, pods[name], 2)[1]["error"] == 0
        until(
            lambda name=name: used_mib(weft_runs, name),
            lambda used, held=held: held <= used <= held + CONTEXT_MIB,
        )
    weft_runs.end(signal.SIGKILL)
    with agent(node, None) as again:
        until(lambda: used_mib(again, "large"), lambda used: used >= 4_000)
        assert again.metrics()["weft_agent_pods_with_share"] == 2


def test_more_than_its_share_is_reported(node: RealNode, namespace: str, weft_runs: Agent) -> None:
    """Time slicing limits no memory: the agent says who exceeds its share, and by how much."""
    pods = started(
        node, namespace, program("greedy", {"weft.dev/gpu-memory": 1_000}, "hold", 6_000)
    )
    assert said(node, pods["greedy"], 2)[1]["error"] == 0

    def over() -> float:
        return sum(
            value
            for name, value in weft_runs.metrics().items()
            if name.startswith("weft_agent_over_share_mib{") and 'pod="greedy"' in name
        )

    until(over, lambda mib: 5_000 <= mib <= 5_000 + CONTEXT_MIB)


def test_mps_limits_memory_and_multiprocessors(
    node: RealNode, namespace: str, weft_runs: Agent
) -> None:
    """And a program without MPS on the same GPU sees all of it."""
    quarter = {"weft.dev/gpu-memory": 3_000, "weft.dev/gpu-cores": 25}
    memory = {"weft.dev/gpu-memory": 3_000}
    pods = started(
        node,
        namespace,
        program("quarter", quarter, "hold", 1_000, 4_000, isolation="mps"),
        program("memory", memory, "hold", 1_000, 4_000, isolation="mps"),
        program("sliced", memory, "hold", 1_000, isolation="time-slicing"),
    )
    seen = {name: said(node, pods[name], 3) for name in ("quarter", "memory")}
    sliced = said(node, pods["sliced"], 2)
    for name, lines in seen.items():
        assert [line["error"] for line in lines[1:]] == [0, OUT_OF_MEMORY], name
    whole = sliced[0]["gpus"][0]["sms"]
    assert seen["memory"][0]["gpus"][0]["sms"] == whole
    assert abs(seen["quarter"][0]["gpus"][0]["sms"] - whole / 4) <= 2


def test_pods_of_different_users_share_a_gpu_by_mps(
    node: RealNode, namespace: str, weft_runs: Agent
) -> None:
    """At once, each with its own limits: by default a server of MPS takes one user's programs."""
    memory = {"weft.dev/gpu-memory": 3_000}
    pods = started(
        node,
        namespace,
        program("root", memory, "hold", 1_000, 4_000, isolation="mps"),
        program("one", memory, "hold", 1_000, 4_000, isolation="mps", user=1_000),
        program("two", memory, "hold", 2_000, isolation="mps", user=2_000),
    )
    lines = {name: said(node, pods[name], 1 + count) for name, count in USERS.items()}
    errors = {name: [line["error"] for line in found[1:]] for name, found in lines.items()}
    assert errors == {"root": [0, OUT_OF_MEMORY], "one": [0, OUT_OF_MEMORY], "two": [0]}
    until(lambda: [used_mib(weft_runs, name) for name in USERS], lambda used: min(used) >= 1_000)


def test_mps_goes_on_without_the_agent(
    node: RealNode, namespace: str, tmp_path: Path, with_mps: tuple[str | Path, ...]
) -> None:
    """Its daemon outlives a killed agent; programs of before and after share the GPU by it."""
    limits = {"weft.dev/gpu-memory": 3_000}
    with weft(node.plane, tmp_path, ALONE):
        with agent(node, None, *with_mps) as first:
            pods = started(
                node, namespace, program("before", limits, "hold", 1_000, isolation="mps")
            )
            assert said(node, pods["before"], 2)[1]["error"] == 0
            first.end(signal.SIGKILL)
        with agent(node, None, *with_mps) as second:
            pods = started(
                node, namespace, program("after", limits, "hold", 1_000, 4_000, isolation="mps")
            )
            lines = said(node, pods["after"], 3)
            assert [line["error"] for line in lines[1:]] == [0, OUT_OF_MEMORY]
            until(
                lambda: (used_mib(second, "before"), used_mib(second, "after")),
                lambda used: min(used) >= 1_000,
            )
    phases = {
        pod["metadata"]["name"]: pod["status"]["phase"] for pod in node.api.list("Pod", namespace)
    }
    assert phases == {"before": "Running", "after": "Running"}


@pytest.fixture(scope="session", autouse=True)
def _no_daemon_is_left(node: RealNode) -> Iterator[None]:
    """The daemon outlives its agents, as it must; not the tests."""
    yield
    asyncio.run(MpsDaemon(options_here()).stop())
