"""A whole cluster on which kube-scheduler allocates claims of a driver, and the kubelet prepares
them, beside Weft's scheduler and agent: what the two give away together is never too much, and
commands tell the same account."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import images
import pytest
from claim_driver import DRIVER, V1, ClaimDriver, claim
from kube_api import Object, Objects
from real_node import NAME, has_begun
from test_clean import SYSTEM, WHERE, all_ready, remove_pods
from weft_process import pod
from whole_cluster import WholeCluster, as_users_install

from weft.cli.snapshot_files import open_snapshot
from weft.model.annotations import INVENTORY, PLACEMENT

PLACE = "beside-claims"
PART_MIB, LARGE_MIB = 8_000, 12_000


@pytest.fixture
def driver(cluster: WholeCluster, tmp_path: Path) -> Iterator[ClaimDriver]:
    """Weft is installed, and the driver publishes the cards that its agent has found."""
    cluster.plane.create_namespace(PLACE)
    cluster.shell(f"{as_users_install()} --values {cluster.values(tmp_path)}")
    all_ready(cluster)
    cards = cluster.api.wait_for(lambda nodes: cards_of(nodes[0]), "Node")
    made = ClaimDriver(cluster.api, cluster.node.kubelet.root)
    try:
        with made.serving():
            made.publish(NAME, cards)
            yield made
            remove_pods(cluster, PLACE)
    finally:
        made.withdraw()
        cluster.shell(f"helm uninstall weft {WHERE}")
        cluster.api.wait_for(lambda pods: not pods, "Pod", SYSTEM, timeout_s=120)


def cards_of(node: Object) -> list[tuple[str, int]]:
    text = node["metadata"].get("annotations", {}).get(INVENTORY, '{"gpus": []}')
    return [(gpu["uuid"], gpu["memory_mib"]) for gpu in json.loads(text)["gpus"]]


def user_of(name: str) -> Object:
    """A pod for kube-scheduler that uses the claim of its name."""
    made = ours(name, {}, "default-scheduler")
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return made


def ours(name: str, limits: Object, scheduler: str = "weft") -> Object:
    made = pod(name, scheduler, limits)
    made["spec"]["containers"][0]["image"] = images.BUSYBOX
    return made


def share(name: str, memory_mib: int) -> Object:
    return ours(name, {"weft.dev/gpu-memory": memory_mib})


def begin(cluster: WholeCluster, *pods: Object) -> None:
    """Create them, and wait until they run."""
    names = {one["metadata"]["name"] for one in pods}
    cluster.node.create([*pods], PLACE, bind=False)

    def run(found: Objects) -> bool:
        return names <= {one["metadata"]["name"] for one in found if has_begun(one)}

    cluster.node.wait(run, PLACE)


def held(cluster: WholeCluster) -> Counter[int]:
    """MiB by card, of the API's objects alone."""
    by_card: Counter[int] = Counter()
    for one in cluster.api.list("ResourceClaim", PLACE, V1):
        allocation = one.get("status", {}).get("allocation") or {}
        for result in allocation.get("devices", {}).get("results", ()):
            memory = result["consumedCapacity"]["memory"]
            assert memory.endswith("Mi") or memory.endswith("Gi")
            mib = int(memory[:-2]) * (1024 if memory.endswith("Gi") else 1)
            by_card[int(result["device"].removeprefix("card-"))] += mib
    for one in cluster.api.list("Pod", PLACE):
        if text := one["metadata"].get("annotations", {}).get(PLACEMENT):
            for _, gpu, mib, *_ in json.loads(text)["shares"]:
                by_card[gpu] += mib
    return by_card


def said(cluster: WholeCluster, words: str) -> Any:
    return json.loads(cluster.shell(f"weft {words} -o json"))


def promised(cluster: WholeCluster) -> Counter[int]:
    (node,) = said(cluster, "inspect")["nodes"]
    return +Counter({gpu["index"]: gpu["promised_mib"] for gpu in node["gpus"]})


def test_claims_and_shares_on_one_node(
    cluster: WholeCluster, driver: ClaimDriver, tmp_path: Path
) -> None:
    api, card_mib = cluster.api, cluster.gpus.memory_mib
    wanted = {f"all-{i}": card_mib for i in range(cluster.gpus.count - 2)} | {"part": PART_MIB}
    for name, memory_mib in wanted.items():
        api.create(claim(name, memory_mib), PLACE)
    begin(cluster, *map(user_of, wanted))
    claims = {one["metadata"]["uid"] for one in api.list("ResourceClaim", PLACE, V1)}
    assert driver.prepared == claims

    begin(cluster, share("large", LARGE_MIB))
    begin(cluster, share("small", PART_MIB))  # fits beside `part` alone
    cluster.node.create([share("waits", LARGE_MIB)], PLACE, bind=False)
    cluster.node.wait(lambda pods: any(map(is_refused, pods)), PLACE)

    now = held(cluster)
    assert len(now) == cluster.gpus.count
    assert max(now.values()) <= card_mib
    assert promised(cluster) == now
    (node,) = said(cluster, "inspect")["nodes"]
    by_claim = [p for gpu in node["gpus"] for p in gpu["pods"] if p["by"] == "claim"]
    assert {one["uid"] for one in by_claim} == claims
    evidence = {one["placed_by_others"]["evidence"] for one in by_claim}
    assert evidence == {f"allocated by driver {DRIVER}"}
    status = said(cluster, "status")
    assert sum(group["promised_mib"] for group in status["nodes"]) == now.total()
    told = [one["text"] for one in status["findings"] if one["check"] == "ResourceClaims"]
    assert told == [f"{len(claims)} are allocated, all on known devices"]
    adopted = said(cluster, "adopt")
    assert {one["name"] for one in adopted["pods"]} == {"large", "small"}
    assert (adopted["overfull"], adopted["problems"]) == ([], [])
    file = tmp_path / "snapshot.json"
    said(cluster, f"snapshot {file}")
    table = open_snapshot(file).engine.ledger.table
    assert +Counter(dict(enumerate(map(int, table.memory_used)))) == now

    api.delete("Pod", "all-0", PLACE)  # kube-controller-manager frees its claim
    cluster.node.wait(lambda pods: "waits" in {name_of(p) for p in pods if has_begun(p)}, PLACE)
    after = held(cluster)
    assert max(after.values()) <= card_mib
    assert promised(cluster) == after
    assert len(driver.prepared) == len(claims) - 1


def name_of(one: Object) -> str:
    return str(one["metadata"]["name"])


def is_refused(one: Object) -> bool:
    conditions = one.get("status", {}).get("conditions", ())
    said = [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
    return name_of(one) == "waits" and bool(said)
