"""Installed, upgraded, rolled back and uninstalled, three times: nodes, the folder for CDI, the
firewall and the addresses are as before the first."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import images
import pytest
from kube_api import Object, Objects
from real_node import NAME, has_begun
from weft_process import pod
from whole_cluster import WholeCluster, as_users_install

TURNS = 3
SYSTEM = "weft-system"
WHERE = f"--namespace {SYSTEM}"
PARTS = ("deployment/weft-scheduler", "daemonset/weft-agent")
CDI = Path("/run/cdi")
_SETTLES_S = 120.0
_HELM_S = 180


@pytest.fixture
def place(cluster: WholeCluster) -> Iterator[str]:
    """A namespace that did not opt in; its pods are gone afterwards."""
    cluster.plane.create_namespace("clean")
    yield "clean"
    remove_pods(cluster, "clean")


def test_nothing_is_left_behind(cluster: WholeCluster, tmp_path: Path, place: str) -> None:
    node = cluster.node
    plain = pod("plain", "default-scheduler", {})
    plain["spec"]["containers"][0]["image"] = images.BUSYBOX
    node.create([plain], place)  # the network's own traces
    node.wait(lambda pods: all(map(has_begun, pods)), place)
    remove_pods(cluster, place)
    before = state_of(cluster)
    values = cluster.values(tmp_path)
    for turn in range(TURNS):
        cluster.shell(f"{as_users_install()} --values {values}")
        all_ready(cluster)
        share_runs(cluster, place, f"first-{turn}")
        assert differences(before, state_of(cluster)).keys() >= {"nodes", "CDI folder"}
        more = "--reset-then-reuse-values --set scheduler.replicas=1 --set log.level=debug"
        cluster.shell(f"helm upgrade weft deploy/chart {WHERE} {more}")
        all_ready(cluster)
        share_runs(cluster, place, f"second-{turn}")
        cluster.shell(f"helm rollback weft 1 {WHERE}")
        all_ready(cluster)
        share_runs(cluster, place, f"third-{turn}")
        remove_pods(cluster, place)
        began = time.monotonic()
        cluster.shell(f"helm uninstall weft {WHERE} --timeout {_HELM_S}s")
        took_s = time.monotonic() - began
        cluster.api.wait_for(lambda pods: not pods, "Pod", SYSTEM, timeout_s=120)
        as_before(cluster, before)
        assert left_of_release(cluster) == []
        sys.stderr.write(f"\nturn {turn + 1}: uninstalled in {took_s:.1f} s, nothing is left\n")


def all_ready(cluster: WholeCluster) -> None:
    for part in PARTS:
        cluster.shell(f"kubectl rollout status -n {SYSTEM} {part} --timeout=180s")


def share_runs(cluster: WholeCluster, place: str, name: str) -> None:
    """A pod with a share runs, whose image's variable stands against the agent's: the agent writes
    a CDI file for it."""
    made = pod(name, "weft", {"weft.dev/gpu-memory": 1000})
    (container,) = made["spec"]["containers"]
    container["image"] = images.SEES_ALL_GPUS
    container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    cluster.node.create([made], place, bind=False)

    def runs(pods: Objects) -> bool:
        return any(one["metadata"]["name"] == name and has_begun(one) for one in pods)

    cluster.node.wait(runs, place, timeout_s=120)


def remove_pods(cluster: WholeCluster, place: str) -> None:
    for one in cluster.api.list("Pod", place):
        cluster.api.delete("Pod", one["metadata"]["name"], place)
    cluster.api.wait_for(lambda pods: not pods, "Pod", place, timeout_s=120)


def state_of(cluster: WholeCluster) -> dict[str, Any]:
    """Everything that installing could leave, on the cluster's nodes and on this machine."""
    nodes = {one["metadata"]["name"]: of_node(one) for one in cluster.api.list("Node")}
    assert NAME in nodes
    return {
        "nodes": nodes,
        "CDI folder": sorted(path.name for path in CDI.iterdir()) if CDI.exists() else [],
        "firewall, IPv4": rules("iptables-save"),
        "firewall, IPv6": rules("ip6tables-save"),
        "addresses": addresses(),
    }


def of_node(node: Object) -> dict[str, Any]:
    """All of a node that an agent may write."""
    meta, status = node["metadata"], node["status"]
    marks = {field: meta.get(field) or {} for field in ("annotations", "labels")}
    return {**marks, **{field: status[field] for field in ("capacity", "allocatable")}}


def rules(program: str) -> list[str]:
    """The rules without counters and comments, in any order: kube-proxy writes them again and
    again."""
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    lines = [line.partition(" [")[0] for line in said.splitlines() if line[:1] in ":-"]
    return sorted(lines)


def addresses() -> list[str]:
    """Each link's addresses, but for those of pods."""
    done = subprocess.run(["ip", "-json", "address"], capture_output=True, text=True, check=True)
    return sorted(
        f"{link['ifname']} {one['local']}/{one['prefixlen']}"
        for link in json.loads(done.stdout)
        if not link["ifname"].startswith("veth")
        for one in link["addr_info"]
    )


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {what: (before[what], after[what]) for what in before if before[what] != after[what]}


def as_before(cluster: WholeCluster, before: dict[str, Any]) -> None:
    """kube-proxy takes a Service's rules away a while after the Service is gone."""
    deadline = time.monotonic() + _SETTLES_S
    while other := differences(before, state_of(cluster)):
        assert time.monotonic() < deadline, other
        time.sleep(0.5)


def left_of_release(cluster: WholeCluster) -> list[str]:
    """Objects of the release that are still there, but for what it keeps on purpose."""
    kinds = "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,jobs,leases"
    more = "services,deployments,daemonsets,networkpolicies,poddisruptionbudgets,configmaps,secrets"
    chosen = "-A -l app.kubernetes.io/part-of=weft -o name"
    found = cluster.shell(f"kubectl get {kinds},{more} {chosen}").split()
    found += cluster.shell(f"kubectl -n {SYSTEM} get leases -o name").split()
    return [name for name in found if not name.endswith(("weft-lessons", "weft-observed"))]
