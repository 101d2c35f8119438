"""Prepared wrong situations: `weft explain pod` names the cause, and the smallest way on.

Each has a node of its own, which its pod selects; the answers are those of a scheduler that starts
on that state. Exit code 0: the question was answered.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import Weft

from weft.dialects.weft import inventory_text
from weft.model import Gpu
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT, INVENTORY, PLACEMENT, PLACEMENT_COPY

Json = dict[str, Any]
MIB = 16_000
MEMORY, CORES, COUNT = "weft.dev/gpu-memory", "weft.dev/gpu-cores", "weft.dev/gpu-count"


class Waiting(msgspec.Struct, frozen=True):
    """A pod and its node with who is there, and what must be said of the pod."""

    asks: Json
    cause: tuple[str, ...]
    remedy: str = ""
    there: tuple[Json, ...] = ()
    gpus: int = 1
    node: Json = {}
    spec: Json = {}
    marks: dict[str, str] = {}


def holds(gpu: int, mib: int, milli: int = 0) -> Json:
    """A pod that Weft bound to this GPU."""
    return {"gpu": gpu, "mib": mib, "milli": milli}


PENDING = {
    "memory": Waiting(
        {MEMORY: 8_000},
        ("insufficient memory on any one GPU", "largest free 6,000 MiB, asked 8,000"),
        "request at most 6,000 MiB",
        (holds(0, 10_000),),
    ),
    "cores": Waiting(
        {MEMORY: 1_000, CORES: 50},
        ("insufficient cores on any one GPU", "largest free 200 m, asked 500"),
        "end pod d/cores-0",
        (holds(0, 1_000, 800),),
    ),
    "memory and cores on different cards": Waiting(
        {MEMORY: 8_000, CORES: 50},
        ("memory and cores are not free on the same GPU",),
        "end pod d/",
        (holds(0, 10_000), holds(1, 1_000, 800)),
        gpus=2,
    ),
    "more than any card has": Waiting(
        {MEMORY: 99_999},
        ("no GPU is that large", "largest 16,000 MiB"),
        "request at most 16,000 MiB",
    ),
    "a model that does not exist": Waiting(
        {MEMORY: 1_000},
        ("wrong model",),
        "accept the GPU model T4",
        marks={"weft.dev/gpu-model": "H100"},
    ),
    "more cards than a node has": Waiting(
        {COUNT: 4}, ("fewer GPUs than asked for", "most 2", "asked 4"), "at most 2 GPUs", gpus=2
    ),
    "idle cards": Waiting(
        {COUNT: 2}, ("too few idle GPUs", "most 1"), "end pod d/idle", (holds(0, 1_000),), gpus=2
    ),
    "cards that are connected": Waiting(
        {COUNT: 2},
        ("the node's GPU topology, which the pod requires, is unknown",),
        "weft.dev/topology",
        gpus=2,
        marks={"weft.dev/topology": "required"},
    ),
    "cards that are broken": Waiting(
        {MEMORY: 1_000}, ("GPUs out of service",), node={"broken": True}
    ),
    "a cordoned node": Waiting(
        {MEMORY: 1_000},
        ("node is cordoned or not ready",),
        "kubectl uncordon a-cordoned-node",
        node={"spec": {"unschedulable": True}},
    ),
    "a node that is not ready": Waiting(
        {MEMORY: 1_000},
        ("node is cordoned or not ready", "stuck: d/a-node-that-is-not-ready-0"),
        "kubectl delete pod --force",
        (holds(0, 1_000),),
        node={"ready": "Unknown"},
    ),
    "a taint": Waiting(
        {MEMORY: 1_000},
        ("a taint that the pod does not tolerate",),
        "tolerate",
        node={"spec": {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}},
    ),
    "MPS whose daemon is missing": Waiting(
        {MEMORY: 1_000},
        ("isolation mps",),
        "isolation time-slicing",
        marks={"weft.dev/isolation": "mps"},
    ),
    "a dialect that the node does not speak": Waiting(
        {"aliyun.com/gpu-mem": 2},
        ("does not advertise", "aliyun.com/gpu-mem"),
        node={"agent": False},
    ),
    "CPU": Waiting({MEMORY: 1_000, "cpu": "90"}, ("insufficient cpu",), "cpu"),
    "a GPU that is promised twice": Waiting(
        {MEMORY: 1_000},
        ("a-gpu-that-is-promised-twice: GPU 0 holds 4,000 MiB more than it has",),
        "",
        (holds(0, 10_000), holds(0, 10_000)),
    ),
    "what Weft alone does not honour": Waiting(
        {MEMORY: 1_000},
        ("spec.resourceClaims (other)",),
        "kube-scheduler",
        spec={"resourceClaims": [{"name": "other"}]},
    ),
    "a label that spread needs": Waiting(
        {MEMORY: 1_000},
        ("node has no label zone, which the pod's topology spread needs",),
        "",
        spec={
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}
            ]
        },
    ),
    "a claim of dynamic resource allocation": Waiting(
        {"cpu": "1"}, ("resourceClaims",), "", spec={"resourceClaims": [{"name": "gpu"}]}
    ),
    "two systems' words": Waiting(
        {MEMORY: 1_000, "aliyun.com/gpu-mem": 2}, (MEMORY, "aliyun.com/gpu-mem"), ""
    ),
    "a scheduling gate": Waiting(
        {MEMORY: 1_000},
        ("gate", "kueue.x-k8s.io/admission"),
        "",
        spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
    ),
    "a schedulerName that is not Weft's": Waiting(
        {MEMORY: 1_000},
        ("not one of Weft's profiles", "wefft"),
        "weft",
        spec={"schedulerName": "wefft"},
    ),
}


def slug(situation: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in situation.lower())


def node_of(situation: str, wanted: Waiting) -> Json:
    how = wanted.node
    cards = [
        Gpu(i, MIB, "T4", f"GPU-{slug(situation)}-{i}", in_service=not how.get("broken"))
        for i in range(wanted.gpus)
    ]
    marks = {INVENTORY: inventory_text(cards)}
    if how.get("agent", True):
        marks[AGENT] = encode_offer(AgentOffer("0.1", "by-name", compares_records=True))
    name = slug(situation)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": name}, "annotations": marks},
        "spec": how.get("spec", {}),
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": how.get("ready", "True")}],
        },
    }


def pod_of(name: str, asks: Json, **spec: Any) -> Json:
    limits = {key: str(value) for key, value in asks.items()}
    containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}", "annotations": {}},
        "spec": {"schedulerName": "weft", "containers": containers, **spec},
        "status": {"phase": "Running" if "nodeName" in spec else "Pending"},
    }


def holder(name: str, on: str, held: Json) -> Json:
    asks = {MEMORY: held["mib"], **({CORES: held["milli"] // 10} if held["milli"] else {})}
    made = pod_of(name, asks, nodeName=on)
    uuid = f"GPU-{on}-{held['gpu']}"
    row = [0, held["gpu"], held["mib"], held["milli"], uuid]
    text = json.dumps({"pod": made["metadata"]["uid"], "node": on, "shares": [row]})
    made["metadata"]["annotations"] = {PLACEMENT: text, PLACEMENT_COPY: text}
    return made


# --- bound pods ----------------------------------------------------------------------------------

BOUND = {
    "without-marks": ("does not name its GPUs", "bound"),
    "on-a-lost-gpu": ("GPU 7", "no longer reports"),
    "unreadable": ("annotations cannot be read", "weft.dev/class"),
    "edited": ("differ from what Weft wrote", "1,000"),
}


def bound_pods() -> list[Json]:
    """A node with eight cards, and pods on it each of which something is to be said of."""
    wanted = Waiting({}, (), gpus=7)
    without = pod_of("without-marks", {MEMORY: 500}, nodeName="bound")
    lost = holder("on-a-lost-gpu", "bound", holds(7, 1_000))
    unreadable = holder("unreadable", "bound", holds(1, 1_000))
    unreadable["metadata"]["annotations"]["weft.dev/class"] = "x"
    edited = holder("edited", "bound", holds(2, 2_000))
    less = edited["metadata"]["annotations"][PLACEMENT].replace("2000", "1000")
    edited["metadata"]["annotations"][PLACEMENT] = less
    return [node_of("bound", wanted), without, lost, unreadable, edited]


@pytest.fixture(scope="module")
def objects() -> list[Json]:
    items = bound_pods()
    for situation, wanted in PENDING.items():
        name = slug(situation)
        items.append(node_of(situation, wanted))
        for number, held in enumerate(wanted.there):
            items.append(holder(f"{name}-{number}", name, held))
        pod = pod_of(name, wanted.asks, **{"nodeSelector": {"pool": name}, **wanted.spec})
        pod["metadata"]["annotations"] = dict(wanted.marks)
        items.append(pod)
    return items


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("truth")


@pytest.fixture
def snapshot(weft: Weft, folder: Path, objects: list[Json]) -> Path:
    """The state in a file, made once."""
    path = folder / "snapshot.json"
    if not path.exists():
        listed = folder / "objects.json"
        listed.write_text(json.dumps({"kind": "List", "items": objects}))
        assert weft("snapshot", path, "--from", listed).code == 0
    return path


@pytest.mark.parametrize("situation", PENDING)
def test_why_a_pod_waits_and_the_way_on(weft: Weft, snapshot: Path, situation: str) -> None:
    wanted = PENDING[situation]
    said = weft("explain", "pod", f"d/{slug(situation)}", "--snapshot", snapshot)
    assert (said.code, said.err) == (0, "")
    missing = [word for word in (*wanted.cause, wanted.remedy) if word not in said.out]
    assert not missing, said.out


@pytest.mark.parametrize("name", BOUND)
def test_what_is_wrong_with_a_pod_that_runs(weft: Weft, snapshot: Path, name: str) -> None:
    said = weft("explain", "pod", f"d/{name}", "--snapshot", snapshot)
    assert (said.code, said.err) == (0, "")
    missing = [word for word in BOUND[name] if word not in said.out]
    assert not missing, said.out


def test_a_pod_that_is_not_there(weft: Weft, snapshot: Path) -> None:
    said = weft("explain", "pod", "d/memori", "--snapshot", snapshot)
    assert (said.code, said.out) == (1, "")
    assert "has no pod d/memori; did you mean 'd/memory'?" in said.err
