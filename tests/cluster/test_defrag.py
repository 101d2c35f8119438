"""`weft defrag apply` on the real API server, beside the scheduler that places what comes anew."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_proxy import ApiProxy
from control_plane import ControlPlane
from kube_api import ApiError, Object, Objects
from weft_process import ALONE, CARD_MIB, GFD, all_bound, audited, bound, pod, resources, weft

FILLER_MIB, SMALL_MIB, WANTED_MIB = 9_000, 5_000, 12_000
ONE_CARD = {**GFD, "nvidia.com/gpu.count": "1"}
assert FILLER_MIB + SMALL_MIB < CARD_MIB < FILLER_MIB + 2 * SMALL_MIB


def asks(name: str, mib: int, owner: str = "") -> Object:
    """A pod of the scheduler `weft`; of a controller that makes it anew, if it has one."""
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "controller": True}]
    owners[0]["uid"] = "0c9b7a0e-0000-4000-8000-000000000000"
    made = pod(
        name,
        "weft",
        {"elasticgpu.io/gpu-memory": mib},
        ownerReferences=owners if owner else [],
    )
    made["spec"]["terminationGracePeriodSeconds"] = 0
    return made


class Cluster:
    """Nodes a and b of one card, on each a small pod; `wanted` waits, as both cards are begun."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.api, self.namespace = plane, plane.api, namespace
        for name in ("a", "b"):
            plane.create_fake_node(name, resources(1), labels=ONE_CARD)

    def fill(self) -> None:
        """With a scheduler running."""
        fillers = [asks(f"filler-{n}", FILLER_MIB) for n in range(2)]
        self.plane.create_pods(self.namespace, fillers)
        self.api.wait_for(all_bound(2), "Pod", self.namespace, timeout_s=30)
        smalls = [asks(f"{name}-0", SMALL_MIB, name) for name in ("x", "y")]
        self.plane.create_pods(self.namespace, smalls)
        self.api.wait_for(all_bound(4), "Pod", self.namespace, timeout_s=30)
        for filler in fillers:
            self.api.delete("Pod", filler["metadata"]["name"], self.namespace)
        self.plane.create_pods(self.namespace, [asks("wanted", WANTED_MIB)])

        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        for small in smalls:  # budgets don't count for pods that don't run
            name = small["metadata"]["name"]
            self.api.patch("Pod", name, {"status": ready}, self.namespace, part="status")

        def said(pods: Objects) -> bool:
            (one,) = [one for one in pods if one["metadata"]["name"] == "wanted"]
            return bool(one["status"].get("conditions"))

        self.api.wait_for(said, "Pod", self.namespace, timeout_s=30)

    def nodes_of(self) -> dict[str, str]:
        """Where each pod is, by name."""
        pods = self.api.list("Pod", self.namespace)
        return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in pods}

    @contextlib.contextmanager
    def controllers(self, on: str = "") -> Iterator[None]:
        """As ReplicaSets: of x and y there is always one, bound to the node `on` if it is given."""
        ended = threading.Event()

        def whole(pods: Objects) -> bool:
            names = {one["metadata"]["name"].partition("-")[0] for one in pods}
            for missing in {"x", "y"} - names:
                made = asks(f"{missing}-1", SMALL_MIB, missing)
                if on:
                    made["spec"]["nodeName"] = on
                with contextlib.suppress(ApiError):  # it is there, and not in this list yet
                    self.api.create(made, self.namespace)
            return ended.is_set()

        def run() -> None:
            self.api.wait_for(whole, "Pod", self.namespace, timeout_s=120)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            self.api.create(pod("bell", "nobody", {}), self.namespace)  # so that it looks
            thread.join(30)

    def apply(self, *options: str, kubeconfig: Path | None = None) -> subprocess.Popen[str]:
        """The command, started."""
        access = kubeconfig or self.plane.kubeconfig_for("weft", "system:masters")
        wanted = ["--pod", f"{self.namespace}/wanted", "-o", "json", *options]
        command = [sys.executable, "-m", "weft.cli.main", "defrag", "apply"]
        return subprocess.Popen(
            [*command, "--kubeconfig", str(access), *wanted],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def applied(self, *options: str) -> tuple[int, Any]:
        """Its exit code, and what it printed."""
        process = self.apply(*options)
        out, err = process.communicate(timeout=90)
        assert out, err
        return process.returncode, json.loads(out)


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(control_plane, namespace)
    with weft(control_plane, tmp_path, ALONE):
        made.fill()
        yield made


def test_a_plan_is_shown_refused_by_a_budget_and_then_carried_out(cluster: Cluster) -> None:
    api, before = cluster.api, cluster.nodes_of()
    code, found = cluster.applied()
    (move,) = found["plan"]["moves"]
    assert (code, found["done"], cluster.nodes_of()) == (0, False, before)

    api.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guard"},
            "spec": {"maxUnavailable": 1, "selector": {}},
        },
        cluster.namespace,
    )  # nobody has counted its pods yet: the API server lets none go, whatever its status says
    counted = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1}
    status = {"status": counted | {"expectedPods": 2, "observedGeneration": 0}}
    api.patch("PodDisruptionBudget", "guard", status, cluster.namespace, "policy/v1", "status")
    code, found = cluster.applied("--yes")
    assert (code, found["moved"], cluster.nodes_of()) == (1, [], before)
    assert "a PodDisruptionBudget does not allow its eviction now" in found["stopped"]
    api.delete("PodDisruptionBudget", "guard", cluster.namespace, "policy/v1")

    with cluster.controllers():
        code, found = cluster.applied("--yes", "--wait-s", "60")
    assert (code, found["done"], found["stopped"]) == (0, True, "")
    now = cluster.nodes_of()
    (moved,) = found["moved"]
    assert now["wanted"] == move["from_node"] == moved["from_node"]
    assert now[moved["successor"].partition("/")[2]] == move["to_node"] == moved["to_node"]
    audited(cluster.plane, cluster.namespace)


def test_it_stops_where_the_pod_that_comes_anew_is_put_elsewhere(cluster: Cluster) -> None:
    cluster.plane.create_fake_node("elsewhere", {})
    with cluster.controllers(on="elsewhere"):
        code, found = cluster.applied("--yes", "--wait-s", "60")
    assert code == 1
    assert "went to elsewhere, and not to " in found["stopped"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_ended_at_an_eviction_it_leaves_nothing_that_is_not_made_anew(
    cluster: Cluster, when: Any
) -> None:
    """Killed before the API server has its eviction, and after. Until then a second one waits not,
    and moves nothing."""
    before = cluster.nodes_of()
    with cluster.controllers(), ApiProxy(cluster.plane) as proxy:
        held = proxy.hold("POST", "/eviction", when)
        process = cluster.apply("--yes", kubeconfig=proxy.kubeconfig)
        held.wait(60)
        if when == "before":
            code, found = cluster.applied("--yes")
            assert (code, found["moved"]) == (1, [])
            assert "moves pods now (lease kube-system/weft-defrag)" in found["stopped"]
        process.kill()
        process.communicate(timeout=30)
        held.drop()
        if when == "before":
            assert cluster.nodes_of() == before
            return
        cluster.api.wait_for(
            lambda pods: len(pods) == 3 == bound(pods), "Pod", cluster.namespace, timeout_s=60
        )
    audited(cluster.plane, cluster.namespace)
