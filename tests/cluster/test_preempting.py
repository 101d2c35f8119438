"""Preemption on the real API server: the pod that costs least ends, and its place is kept."""

from collections.abc import Callable
from pathlib import Path

from control_plane import ControlPlane
from kube_api import Object, Objects
from weft_process import ALONE, CARDS, audited, bound, nodes, pod, sigkill, weft

from weft.core.ledger import audit

GPU = {"nvidia.com/gpu": 1}


def named(pods: Objects, name: str) -> Object:
    return next((one for one in pods if one["metadata"]["name"] == name), {})


def ending(pods: Objects) -> Objects:
    return [one for one in pods if one["metadata"].get("deletionTimestamp")]


def is_kept_for(name: str) -> Callable[[Objects], bool]:
    def kept(pods: Objects) -> bool:
        return named(pods, name).get("status", {}).get("nominatedNodeName") == "node-0"

    return kept


def waits(name: str) -> Callable[[Objects], bool]:
    def waiting(pods: Objects) -> bool:
        conditions = named(pods, name).get("status", {}).get("conditions") or []
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    return waiting


def test_a_pod_of_lower_priority_ends_and_its_place_is_kept_by_the_next_process_too(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api = control_plane.api
    nodes(control_plane, 1)
    urgent = f"urgent-{namespace}"
    klass = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    api.create({**klass, "metadata": {"name": urgent}, "value": 1_000})
    selector = {"selector": {"matchLabels": {"app": "guarded"}}, "maxUnavailable": 0}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": selector}
    api.create({**budget, "metadata": {"name": "guarded"}}, namespace)
    guarded = pod("guarded", "weft", GPU, labels={"app": "guarded"})
    others = [pod(f"other-{at}", "weft", GPU) for at in range(CARDS - 1)]
    high = pod("high", "weft", GPU)
    high["spec"]["priorityClassName"] = urgent

    with weft(control_plane, tmp_path, ALONE) as process:
        control_plane.create_pods(namespace, others)
        api.wait_for(lambda pods: bound(pods) == CARDS - 1, "Pod", namespace)
        control_plane.create_pods(namespace, [guarded])
        api.wait_for(lambda pods: bound(pods) == CARDS, "Pod", namespace)
        control_plane.create_pods(namespace, [high])
        api.wait_for(is_kept_for("high"), "Pod", namespace)
        victim = api.wait_for(ending, "Pod", namespace)[0]
        assert victim["metadata"]["name"].startswith("other-"), "no budget guards it"
        conditions = {c["type"]: c.get("reason") for c in victim["status"]["conditions"]}
        assert conditions["DisruptionTarget"] == "PreemptionByScheduler"
        sigkill(process)
    with weft(control_plane, tmp_path, ALONE):
        control_plane.create_pods(namespace, [pod("later", "weft", GPU)])
        api.wait_for(waits("later"), "Pod", namespace)
        api.delete("Pod", victim["metadata"]["name"], namespace)  # as its kubelet would
        pods = api.wait_for(lambda pods: pods if bound(pods) == CARDS else [], "Pod", namespace)
        assert named(pods, "high")["spec"]["nodeName"] == "node-0"
        assert not named(pods, "later")["spec"].get("nodeName")
        assert audit(audited(control_plane, namespace)) == []
