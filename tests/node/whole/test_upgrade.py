"""From the version before to this one and back, by helm, while 200 pods run, come and wait.

Most run on hollow nodes, a few in containers. What the version before is says `weft_image`.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from exactness import is_exact, record_of
from kube_api import ApiError, Object, Objects
from real_node import NAME, runnable
from test_hollow_kubelet import hollow
from weft_process import CARD_MIB, CARDS, GFD, GIB, audited, pod, resources
from whole_cluster import WholeCluster

from fakes.hollow_kubelet import HollowOptions
from weft.model.annotations import AGENT, DELIVERY, HOLLOW

NODES, PODS, REAL, WAITING = 30, 200, 6, 10
ASKS_MIB = 3_000
RESOURCE = "weft.dev/gpu-memory"
HOLLOW_LABEL = {HOLLOW: "true"}
STAYS = ("weft.dev/placement", DELIVERY)
PARTS = ("deployment/weft-scheduler", "daemonset/weft-agent")


@pytest.fixture
def hollow_nodes(cluster: WholeCluster) -> Iterator[None]:
    """Nodes that are only objects, each with two cards; somebody says that their pods run."""
    names = [f"hollow-{number}" for number in range(NODES)]
    has = {**resources(), RESOURCE: str(CARDS * CARD_MIB)}
    once_no_policy_forbids_it(cluster)
    for name in names:
        cluster.plane.create_fake_node(name, has, labels={**GFD, **HOLLOW_LABEL})
    with hollow(cluster.plane, HollowOptions(settings=GIB, heartbeat_s=5.0)):
        yield
    for name in names:
        cluster.api.delete("Node", name)


def once_no_policy_forbids_it(cluster: WholeCluster) -> None:
    """A policy is in force for a moment after its release was uninstalled."""
    status = {"capacity": {RESOURCE: "1"}}
    tried = {"kind": "Node", "metadata": {"name": "tried"}, "status": status}
    deadline = time.monotonic() + 30
    while True:
        try:
            cluster.api.request("POST", "/api/v1/nodes", tried, query={"dryRun": "All"})
            return
        except ApiError as error:
            if error.code != 403 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.fixture
def place(cluster: WholeCluster) -> Iterator[str]:
    cluster.plane.create_namespace("upgraded")
    yield "upgraded"
    cluster.shell("kubectl delete namespace upgraded --wait=false")
    for one in cluster.api.list("Pod", "upgraded"):
        if one["spec"].get("nodeName") != NAME:
            with contextlib.suppress(ApiError):  # it is gone already
                cluster.api.delete("Pod", one["metadata"]["name"], "upgraded")
    cluster.api.wait_for(lambda pods: not pods, "Pod", "upgraded", timeout_s=180)


def wanted(number: int) -> Object:
    """The pod of this number: the first are for the real node, the last fit nowhere."""
    waits = number >= PODS
    limits = {RESOURCE: 2 * CARD_MIB if waits else ASKS_MIB}
    made = pod(f"p{number}", "weft", limits)
    del made["spec"]["containers"][0]["image"]  # it is this node's
    made = runnable(made)
    where = {"kubernetes.io/hostname": NAME} if number < REAL else HOLLOW_LABEL
    made["spec"]["nodeSelector"] = where
    return made


def life(one: Object) -> Object:
    """The part of a running pod that may not change."""
    meta, status = one["metadata"], one["status"]
    (container,) = status["containerStatuses"]
    return {
        "uid": meta["uid"],
        "node": one["spec"]["nodeName"],
        "marks": {key: meta["annotations"].get(key) for key in STAYS},
        "container": container.get("containerID"),
        "restarts": container["restartCount"],
        "began": container["state"]["running"]["startedAt"],
        "ending": meta.get("deletionTimestamp"),
    }


def running(cluster: WholeCluster, place: str, count: int) -> dict[str, Object]:
    """The lives of so many pods as soon as they run, by name; those that fit nowhere wait."""

    def so(pods: Objects) -> Objects:
        found = [one for one in pods if one["status"].get("phase") == "Running"]
        return found if len(found) == count else []

    try:
        found = cluster.node.wait(so, place, timeout_s=180)
    except TimeoutError as error:
        error.add_note(cluster.pod_logs())  # before the release is removed
        raise
    lives = {one["metadata"]["name"]: one for one in found if one["status"]["phase"] == "Running"}
    return {name: life(one) for name, one in lives.items()}


def unchanged(before: dict[str, Object], after: dict[str, Object]) -> None:
    """Each pod that ran runs on, in the same container, with the same marks."""
    assert {name: after[name] for name in before} == before


def waiting(cluster: WholeCluster, place: str) -> int:
    """How many pods have no node."""
    return sum(not one["spec"].get("nodeName") for one in cluster.api.list("Pod", place))


def scheduled_once(cluster: WholeCluster, place: str) -> None:
    """Each pod was bound by one Binding: whoever binds says so in an event."""
    found = cluster.api.list("Event", place, "events.k8s.io/v1")
    said = [e["regarding"]["uid"] for e in found if e["reason"] == "Scheduled"]
    assert len(said) == len(set(said))


def values_of_both(cluster: WholeCluster, folder: Path) -> tuple[Path, Path]:
    """Values of this version, and of the one before."""
    here = {"scheduler": {"nodeSelector": {"kubernetes.io/hostname": NAME}}}
    this = cluster.values(folder, here)
    values = yaml.safe_load(this.read_text())
    del values["agent"]["playedGpus"]  # its image plays them
    del values["agent"]["criSocket"]  # it tried nothing
    before = folder / "before.yaml"
    before.write_text(yaml.safe_dump(values))
    return this, before


def all_ready(cluster: WholeCluster) -> None:
    for part in PARTS:
        cluster.shell(f"kubectl rollout status -n weft-system {part} --timeout=180s")


def is_previous(cluster: WholeCluster) -> None:
    """Both parts run the image of the version before."""
    for part in PARTS:
        shown = cluster.shell(f"kubectl get -n weft-system {part} -o yaml")
        assert "weft-gpu:previous" in shown


def test_to_this_version_and_back(
    cluster: WholeCluster, tmp_path: Path, hollow_nodes: None, place: str
) -> None:
    this, before = values_of_both(cluster, tmp_path)
    image = "--set image.repository=registry.example/weft-gpu"
    where = "--namespace weft-system"
    chart = cluster.previous / "deploy" / "chart"
    old = f"{chart} {where} {image} --set image.tag=previous --values {before}"

    def create(numbers: range) -> None:
        cluster.plane.create_pods(place, [wanted(number) for number in numbers])

    cluster.shell(f"helm install weft {old} --create-namespace")
    try:
        create(range(PODS, PODS + WAITING))
        create(range(100))
        first = running(cluster, place, 100)
        all_ready(cluster)
        with ThreadPoolExecutor(1) as beside:  # pods come while it is upgraded
            coming = beside.submit(create, range(100, 150))
            cluster.shell(f"helm upgrade weft deploy/chart {where} {image} --values {this}")
            coming.result()
        all_ready(cluster)
        second = running(cluster, place, 150)
        unchanged(first, second)
        with ThreadPoolExecutor(1) as beside:
            coming = beside.submit(create, range(150, PODS))
            cluster.shell(f"helm rollback weft 1 {where}")
            coming.result()
        all_ready(cluster)
        third = running(cluster, place, PODS)
        unchanged(second, third)
        is_previous(cluster)
        assert waiting(cluster, place) == WAITING
        assert len(audited(cluster.plane, place).holdings) == PODS
        scheduled_once(cluster, place)
        for one in cluster.api.list("Pod", place):
            if one["spec"].get("nodeName") == NAME:
                is_exact(cluster.node, cluster.gpus, one, record_of(one))
        sys.stderr.write(f"\n{PODS} pods through an upgrade and back, {WAITING} waiting\n")
    finally:
        cluster.shell(f"helm uninstall weft {where}")
        said = cluster.shell("weft agent --cleanup --all-nodes")  # the old chart has no Job for it
    assert said == "cleaned 1 node\n", "hollow nodes have no agent"
    assert AGENT not in cluster.api.get("Node", NAME)["metadata"]["annotations"]
