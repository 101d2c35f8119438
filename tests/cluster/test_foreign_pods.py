"""Pods that others bound onto Weft's GPUs, and pods that Weft bound twice over, on the real API."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import ApiError, Object, Objects
from weft_process import ALONE, CARD_MIB, all_bound, audited, nodes, pod, weft

HALF: dict[str, object] = {"elasticgpu.io/gpu-memory": CARD_MIB // 2}
MOST: dict[str, object] = {"elasticgpu.io/gpu-memory": 10_000}
OTHER = "someone-else"


def mark(made: Object, gpu: int, memory_mib: int, node: str = "node-0") -> dict[str, str]:
    """Annotations of a Binding of this pod by Weft, as far as its own accounts need them."""
    value = {"pod": made["metadata"]["uid"], "node": node, "shares": [[0, gpu, memory_mib, 0, ""]]}
    return dict.fromkeys(("weft.dev/placement", "weft.dev/placement-copy"), json.dumps(value))


def said(about: str, reason: str) -> Callable[[Objects], str]:
    """Makes the question for the message of an event about this object; "" while there is none."""

    def find(events: Objects) -> str:
        for one in events:
            if (one["involvedObject"]["name"], one["reason"]) == (about, reason):
                return str(one["message"])
        return ""

    return find


def deleting(plane: ControlPlane, namespace: str, name: str) -> bool:
    return "deletionTimestamp" in plane.api.get("Pod", name, namespace)["metadata"]


def test_a_pod_bound_by_hand_is_reported_and_its_share_is_given_to_nobody(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api = control_plane.api
    nodes(control_plane, 1)
    with weft(control_plane, tmp_path, ALONE):
        ours = [pod(f"ours-{i}", "weft", HALF) for i in range(4)]
        control_plane.create_pods(namespace, ours)
        api.wait_for(all_bound(4), "Pod", namespace, timeout_s=15)
        (foreign,) = control_plane.create_pods(namespace, [pod("foreign", OTHER, HALF)])
        api.bind(
            foreign,
            "node-0",
            {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-main": "0"},
        )
        on_pod = api.wait_for(said("foreign", "Overbooked"), "Event", namespace, timeout_s=15)
        assert (
            "bound to node-0 by another scheduler than Weft: GPU 0 there may be overbooked"
            in on_pod
        )
        on_node = api.wait_for(said("node-0", "Overbooked"), "Event", "default", timeout_s=15)
        assert f"GPU 0 holds {CARD_MIB // 2:,} MiB more than it has" in on_node
        assert f"{namespace}/foreign" in on_node

        # Room for one on card 0 comes and goes to nobody: the foreign pod is there.
        on_card = [
            one["metadata"]["name"]
            for one in api.list("Pod", namespace)
            if one["metadata"]["annotations"]["elasticgpu.io/container-main"] == "0"
            and one["metadata"]["name"] != "foreign"
        ]
        assert len(on_card) == 2
        api.delete("Pod", on_card[0], namespace)
        control_plane.create_pods(namespace, [pod("next", "weft", HALF)])
        api.wait_for(said("next", "FailedScheduling"), "Event", namespace, timeout_s=15)
        assert "nodeName" not in api.get("Pod", "next", namespace)["spec"]
        audited(control_plane, namespace)  # and nothing is over any more

        api.delete("Pod", "foreign", namespace)
        api.wait_for(all_bound(4), "Pod", namespace, timeout_s=15)
        audited(control_plane, namespace)
        assert not any("deletionTimestamp" in p["metadata"] for p in api.list("Pod", namespace))


def double_book(plane: ControlPlane, namespace: str) -> None:
    """Bind two pods to one card as Weft would, named so that only the time tells them apart."""
    later, first = plane.create_pods(
        namespace, [pod("a-later", OTHER, MOST), pod("z-first", OTHER, MOST)]
    )
    plane.api.bind(first, "node-0", mark(first, 0, 10_000))
    second = bound_at(plane, namespace, "z-first")
    await_other_second(plane, namespace, second)
    plane.api.bind(later, "node-0", mark(later, 0, 10_000))
    assert bound_at(plane, namespace, "a-later") > second


def bound_at(plane: ControlPlane, namespace: str, name: str) -> str:
    status = plane.api.get("Pod", name, namespace)["status"]
    times = {one["type"]: one["lastTransitionTime"] for one in status["conditions"]}
    return str(times["PodScheduled"])


def await_other_second(plane: ControlPlane, namespace: str, second: str) -> None:
    """Return when the API server writes another second than this: it writes no smaller ones."""
    while True:
        (probe,) = plane.create_pods(namespace, [pod("probe", OTHER, {})])
        created = probe["metadata"]["creationTimestamp"]
        plane.api.delete("Pod", "probe", namespace)
        if created > second:
            return


@pytest.mark.parametrize("running", [True, False], ids=["seen on the watch", "found at the start"])
def test_of_two_pods_that_weft_placed_on_one_card_the_later_bound_is_evicted(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, running: bool
) -> None:
    api = control_plane.api
    nodes(control_plane, 1)

    def double_booked(events: Objects) -> str:
        return said("a-later", "DoubleBooked")(events)

    if not running:
        double_book(control_plane, namespace)
    with weft(control_plane, tmp_path, ALONE) as process:
        if running:
            double_book(control_plane, namespace)
        text = api.wait_for(double_booked, "Event", namespace, timeout_s=15)
        assert text == (
            f"evicted: GPU 0 of node node-0 was booked twice; with {namespace}/z-first, "
            f"bound before, {20_000 - CARD_MIB:,} of its {CARD_MIB:,} MiB are missing"
        )
        assert deleting(control_plane, namespace, "a-later")
        # What it holds stays held until it is gone, and nobody else is touched meanwhile.
        control_plane.create_pods(namespace, [pod("next", "weft", {"nvidia.com/gpu": 1})])
        api.wait_for(
            lambda pods: any(
                p["metadata"]["name"] == "next" and p["spec"].get("nodeName") for p in pods
            ),
            "Pod",
            namespace,
            timeout_s=15,
        )
        marks = api.get("Pod", "next", namespace)["metadata"]["annotations"]
        assert json.loads(marks["weft.dev/placement"])["shares"][0][1] == 1
        assert not deleting(control_plane, namespace, "z-first")
        assert process.said.count("evicted ") == 1
        api.delete("Pod", "a-later", namespace)
        audited(control_plane, namespace)


def test_a_disruption_budget_holds_until_it_is_gone(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """No controller runs here that would count the budget: so it never allows anything."""
    api = control_plane.api
    nodes(control_plane, 1)
    made = control_plane.create_pods(
        namespace, [pod(f"p-{i}", OTHER, MOST, labels={"app": "x"}) for i in range(2)]
    )
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "x"}}},
    }
    api.create(budget, namespace)
    for one in made:
        name = one["metadata"]["name"]
        ready = {"type": "Ready", "status": "True"}
        api.bind(one, "node-0", mark(one, 0, 10_000))
        running = {"status": {"phase": "Running", "conditions": [ready]}}
        scheduled = api.get("Pod", name, namespace)["status"]["conditions"]
        running["status"]["conditions"] = [ready, *scheduled]
        api.patch("Pod", name, running, namespace, part="status")
    with weft(control_plane, tmp_path, ALONE) as process:
        process.until("GPU 0 holds")

        def blocked(events: Objects) -> str:
            return said("p-0", "EvictionBlocked")(events) or said("p-1", "EvictionBlocked")(events)

        text = api.wait_for(blocked, "Event", namespace, timeout_s=15)
        assert "disruption budget" in text
        assert not any("deletionTimestamp" in p["metadata"] for p in api.list("Pod", namespace))
        api.delete("PodDisruptionBudget", "keep", namespace, "policy/v1")
        api.wait_for(
            lambda pods: sum("deletionTimestamp" in p["metadata"] for p in pods) == 1,
            "Pod",
            namespace,
            timeout_s=30,
        )


def test_what_a_runtime_class_asks_is_in_the_pod_itself(
    control_plane: ControlPlane, namespace: str
) -> None:
    """So Weft need not read RuntimeClasses: the API server writes all of it into the spec."""
    api = control_plane.api
    made = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": namespace},
        "handler": "runc",
        "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
        "scheduling": {"nodeSelector": {"runtime": "x"}, "tolerations": [{"key": "sandbox"}]},
    }
    api.create(made)
    one = pod("a", OTHER, {})
    one["spec"]["runtimeClassName"] = namespace
    one["spec"]["overhead"] = {"cpu": "1"}
    try:
        with pytest.raises(ApiError):  # nobody says another overhead than the class
            api.create(one, namespace)
        del one["spec"]["overhead"]
        spec = api.create(one, namespace)["spec"]
    finally:
        api.delete("RuntimeClass", namespace, version="node.k8s.io/v1")
    assert spec["overhead"] == {"cpu": "250m", "memory": "120Mi"}
    assert spec["nodeSelector"] == {"runtime": "x"}
    assert "sandbox" in {one.get("key") for one in spec["tolerations"]}
