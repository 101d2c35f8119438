"""`weft defrag plan` moves nobody whom others placed; `cluster stranded` counts what they hold."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from inspected_cluster import pod, served
from test_inspect import gpu_node, shared

from fakes.api_server import FakeApiServer
from fakes.claims import claim, device, result, slice_of

Json = dict[str, Any]
OWNED = [{"kind": "ReplicaSet", "name": "r", "controller": True}]
CARD_MIB, HALF_MIB = 40_460, 20_230
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """Nodes a and b of one card each; half of b's has a pod of Weft's that may be moved."""
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        server.has_claims = server.has_devices = True
        for name in ("a", "b"):
            one = gpu_node(name, 1)
            one["status"]["allocatable"] = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            server.add("nodes", one)
            devices = [device("gpu-0", f"GPU-{name}-0", CARD_MIB, cores=100)]
            server.add("resourceslices", slice_of(name, devices))
        shared(server, "ours", "b", 0, HALF_MIB)
        server.update("pods", "ours", {"metadata": {"ownerReferences": OWNED}})
        yield server


def kai(server: FakeApiServer, on: str) -> None:
    group = {"runai-gpu-group": f"g-{on}"}
    reserved = {"run.ai/reserve_for_gpu_index": f"GPU-{on}-0"}
    keeper = pod("keeper", on, {"nvidia.com/gpu": 1}, labels=group, annotations=reserved)
    keeper["metadata"] |= {"name": f"keeper-{on}", "namespace": "kai-resource-reservation"}
    keeper["metadata"]["ownerReferences"] = OWNED
    server.add("pods", keeper)
    asks = {"gpu-fraction": "0.5"}
    theirs(server, pod(f"theirs-{on}", on, {}, labels=group, annotations=asks), "kai-scheduler")


def volcano(server: FakeApiServer, on: str) -> None:
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": HALF_MIB}
    marks = {"volcano.sh/vgpu-ids-new": f"GPU-{on}-0,NVIDIA,{HALF_MIB},0:"}
    theirs(server, pod(f"theirs-{on}", on, limits, annotations=marks), "volcano")


def koordinator(server: FakeApiServer, on: str) -> None:
    gpu = {"type": "gpu", "minor": 3, "id": f"GPU-{on}-0", "health": True, "resources": {}}
    server.add("devices", {"metadata": {"name": on}, "spec": {"devices": [gpu]}})
    amounts = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    given = json.dumps({"gpu": [{"minor": 3, "resources": amounts}]})
    made = pod(f"theirs-{on}", on, {"koordinator.sh/gpu": 50}, annotations={ALLOCATED: given})
    theirs(server, made, "koord-scheduler")


def claimed(server: FakeApiServer, on: str) -> None:
    held = result("gpu-0", on, memory_mib=HALF_MIB, cores=0)
    server.add("resourceclaims", claim(f"theirs-{on}", held, node=on))


def theirs(server: FakeApiServer, made: Json, scheduler: str) -> None:
    """Adds the pod, which a controller would make anew."""
    made["metadata"]["ownerReferences"] = OWNED
    made["spec"]["schedulerName"] = scheduler
    server.add("pods", made)


SYSTEMS = pytest.mark.parametrize(
    ("place", "pods"), [(kai, 2), (volcano, 1), (koordinator, 1), (claimed, 0)]
)


def plan(weft: Weft) -> Json:
    said = weft("defrag", "plan", "--gpus", 1, "-o", "json")
    assert said.code == 0, said.err
    found: Json = json.loads(said.out)
    return found


@SYSTEMS
def test_only_wefts_own_pod_is_moved(
    weft: Weft, cluster: FakeApiServer, place: Any, pods: int
) -> None:
    place(cluster, "a")
    found = plan(weft)
    (move,) = found["plan"]["moves"]
    assert (move["from_node"], move["to_node"]) == ("b", "a")
    assert move["uid"] == cluster.get("pods", "ours")["metadata"]["uid"]
    assert found["stay"] == ({"not placed by Weft": pods} if pods else {})


@SYSTEMS
def test_where_only_others_are_nobody_is_moved(
    weft: Weft, cluster: FakeApiServer, place: Any, pods: int
) -> None:
    cluster.remove("pods", "ours")
    for name in ("a", "b"):
        place(cluster, name)
    found = plan(weft)
    assert found["plan"] is None
    assert found["searched_all"]
    assert found["stay"] == ({"not placed by Weft": 2 * pods} if pods else {})


@SYSTEMS
def test_what_others_hold_is_not_idle(
    weft: Weft, cluster: FakeApiServer, place: Any, pods: int
) -> None:
    assert idle(weft) == 1.5
    place(cluster, "a")
    assert idle(weft) == 1.0


def idle(weft: Weft) -> float:
    said = weft("cluster", "stranded", "-o", "json")
    (model,) = json.loads(said.out)["models"]
    assert model["usable"] <= model["idle"]
    found: float = model["idle"]
    return found
