"""`weft inspect`, `status` and `doctor` where claims hold GPUs."""

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


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """Node a with Weft's agent, node b of which only slices tell."""
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setenv("COLUMNS", "100")
        server.has_claims = True
        server.add("nodes", gpu_node("a"))
        bare = gpu_node("b")
        bare["metadata"].pop("annotations")
        server.add("nodes", bare)
        for name in ("a", "b"):
            devices = [device(f"gpu-{i}", f"GPU-{name}-{i}", 40_460, cores=100) for i in (0, 1)]
            server.add("resourceslices", slice_of(name, devices))
        yield server


def report(weft: Weft, *words: str) -> Any:
    said = weft(*words, "-o", "json")
    return json.loads(said.out)


def nodes_of(weft: Weft) -> dict[str, Json]:
    return {node["name"]: node for node in report(weft, "inspect")["nodes"]}


def told(weft: Weft, command: str = "status") -> list[str]:
    found = report(weft, command, *(["--no-machine"] if command == "doctor" else []))
    findings = found if isinstance(found, list) else found["findings"]
    return [one["text"] for one in findings if one["check"] == "ResourceClaims"]


def test_a_claim_is_on_its_gpu(weft: Weft, cluster: FakeApiServer) -> None:
    shared(cluster, "train", "a", 0, 10_000)
    cluster.add("resourceclaims", claim("x", result("gpu-0", "a", memory_mib=4_000), node="a"))
    cluster.add("resourceclaims", claim("y", result("gpu-1", "b"), node="b"))

    seen = nodes_of(weft)

    assert [gpu["promised_mib"] for gpu in seen["a"]["gpus"]] == [14_000, 0]
    assert [gpu["promised_mib"] for gpu in seen["b"]["gpus"]] == [0, 40_460]
    held = {pod["name"]: pod["by"] for pod in seen["a"]["gpus"][0]["pods"]}
    assert held == {"train": "record", "x": "claim"}
    (held_by,) = [p["placed_by_others"] for p in seen["a"]["gpus"][0]["pods"] if p["name"] == "x"]
    assert held_by["text"] == (
        "4,000 MiB held by ResourceClaim d/x, allocated by driver gpu.example.com"
    )
    (row,) = (line for line in weft("inspect", "--details").out.splitlines() if " x " in line)
    assert row.split()[-3:] == ["claim", "driver", "gpu.example.com"]
    assert told(weft) == ["2 are allocated, all on known devices"]


def test_a_node_of_which_only_slices_tell(weft: Weft, cluster: FakeApiServer) -> None:
    gpus = nodes_of(weft)["b"]["gpus"]
    assert [(gpu["uuid"], gpu["memory_mib"]) for gpu in gpus] == [
        ("GPU-b-0", 40_460),
        ("GPU-b-1", 40_460),
    ]


def test_a_pod_with_a_claim_for_its_extended_resource_is_no_riddle(
    weft: Weft, cluster: FakeApiServer
) -> None:
    body = pod("p", "a", {"nvidia.com/gpu": 1})
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    backed = {"resourceClaimName": "p-x", "requestMappings": [mapping]}
    body["status"]["extendedResourceClaimStatus"] = backed
    cluster.add("pods", body)
    assert nodes_of(weft)["a"]["unplaced"] == ["default/p"]

    made = claim("p-x", result("gpu-1", "a"), node="a")
    made["metadata"]["namespace"] = "default"
    cluster.add("resourceclaims", made)

    seen = nodes_of(weft)["a"]
    assert seen["unplaced"] == []
    assert seen["gpus"][1]["promised_mib"] == 40_460


def test_what_is_wrong_is_named(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.add("resourceclaims", claim("lost", result("gpu-7", "a"), node="a"))
    big = result("gpu-0", "a", memory_mib=50_000)
    user = {"resource": "pods", "name": "gone", "uid": "u"}
    cluster.add("resourceclaims", claim("big", big, node="a", reservedFor=[user]))
    mixed = slice_of("b", [device("gpu-0")], generation=2, count=2)
    cluster.update("resourceslices", mixed["metadata"]["name"], {"spec": mixed["spec"]}, "")

    for command in ("status", "doctor"):
        pool, big_one, lost, left = told(weft, command)
        assert pool.startswith("pool b of gpu.example.com has 1 of 2 slices of generation 2")
        assert big_one == "claim d/big: 50,000 MiB were consumed of 40,460 MiB"
        assert (
            "claim d/lost: device gpu.example.com/a/gpu-7 is in no complete ResourceSlice" in lost
        )
        assert "Weft reserves the most that the claim may hold" in lost
        assert left.startswith("d/big: still allocated for pods that are gone")
    assert "claim d/lost" in nodes_of(weft)["a"]["unplaced"]


def test_missing_rights_are_named(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.fault("status", method="GET", path="resourceclaims", code=403, times=1_000)

    (text,) = told(weft)

    assert text == "no permission to list resourceclaims: GPUs that claims hold are not shown"


def test_without_claims_nothing_is_said(weft: Weft, cluster: FakeApiServer) -> None:
    cluster.has_claims = False
    assert told(weft) == []
    assert set(nodes_of(weft)) == {"a"}
