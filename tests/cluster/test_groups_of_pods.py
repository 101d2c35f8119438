"""Groups of pods on the real API server: as many as a group needs are bound, or none."""

import time
from pathlib import Path

from control_plane import ControlPlane
from kube_api import Api, ApiError, Object, Objects
from weft_process import ALONE, audited, bound, nodes, sigkill, weft
from weft_process import pod as plain_pod

from weft.core.ledger import audit

GROUPS = "scheduling.x-k8s.io/v1alpha1"
LABEL = "scheduling.x-k8s.io/pod-group"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def serve_pod_groups(api: Api) -> None:
    """PodGroups of scheduler-plugins, as its CRD serves them, with nothing checked."""
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "podgroups.scheduling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"},
        },
        "spec": {
            "group": "scheduling.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": ANYTHING},
                }
            ],
        },
    }
    try:
        api.create(crd)
    except ApiError as error:
        if error.code != 409:
            raise
    deadline = time.monotonic() + 30
    while True:
        try:
            api.list("PodGroup", "default", GROUPS)
            return
        except (ApiError, LookupError):
            assert time.monotonic() < deadline, "the API server does not serve PodGroups"
            time.sleep(0.1)  # it answers 404 until it serves them; there is nothing to watch


def group(name: str, least: int) -> Object:
    spec = {"minMember": least}
    return {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def member(name: str, of: str) -> Object:
    return plain_pod(name, "weft", {"nvidia.com/gpu": 1}, labels={LABEL: of})


def of_group(pods: Objects, name: str) -> Objects:
    return [one for one in pods if (one["metadata"].get("labels") or {}).get(LABEL) == name]


def messages(pods: Objects) -> set[str]:
    """Why these wait, as their conditions say."""
    conditions = [c for one in pods for c in one["status"].get("conditions") or []]
    return {c.get("message", "") for c in conditions if c["type"] == "PodScheduled"}


def test_a_group_is_bound_as_one_or_waits_and_holds_nothing(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api = control_plane.api
    serve_pod_groups(api)
    nodes(control_plane, 4)
    api.create(group("train", 6), namespace)
    api.create(group("late", 3), namespace)

    def wait(wanted: object, name: str) -> Objects:
        found: Objects = api.wait_for(
            lambda pods: of_group(pods, name) if wanted(of_group(pods, name)) else [],  # type: ignore[operator]
            "Pod",
            namespace,
        )
        return found

    with weft(control_plane, tmp_path, ALONE) as process:
        control_plane.create_pods(namespace, [member(f"t{i}", "train") for i in range(5)])
        told = f"group {namespace}/train needs 6 pods, but has 5"
        found = wait(lambda pods: told in messages(pods), "train")
        assert bound(found) == 0
        control_plane.create_pods(namespace, [member("t5", "train")])
        wait(lambda pods: bound(pods) == 6, "train")

        control_plane.create_pods(namespace, [member(f"l{i}", "late") for i in range(3)])
        short = f"group {namespace}/late needs places for 3 pods together, and 2 have or would"
        found = wait(lambda pods: any(short in text for text in messages(pods)), "late")
        assert bound(found) == 0
        control_plane.create_pods(namespace, [plain_pod("alone", "weft", {"nvidia.com/gpu": 1})])
        api.wait_for(lambda pods: bound(pods) == 7, "Pod", namespace)
        sigkill(process)
    with weft(control_plane, tmp_path, ALONE):
        api.delete("Pod", "alone", namespace)
        api.delete("Pod", "t0", namespace)
        wait(lambda pods: bound(pods) == 3, "late")
        assert audit(audited(control_plane, namespace)) == []


def test_a_groups_status_is_written_until_another_one_writes_it(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api = control_plane.api
    serve_pod_groups(api)
    nodes(control_plane, 4)

    def shows(name: str, **status: object) -> None:
        def wanted(groups: Objects) -> Objects:
            named = [one for one in groups if one["metadata"]["name"] == name]
            return [one for one in named if status.items() <= one.get("status", {}).items()]

        api.wait_for(wanted, "PodGroup", namespace, GROUPS)

    def become(phase: str, *names: str) -> None:
        for name in names:
            api.patch("Pod", name, {"status": {"phase": phase}}, namespace, part="status")

    with weft(control_plane, tmp_path, ALONE):
        api.create(group("train", 2), namespace)
        control_plane.create_pods(namespace, [member("t0", "train")])
        shows("train", phase="Pending")
        control_plane.create_pods(namespace, [member("t1", "train")])
        shows("train", phase="Scheduling")
        become("Running", "t0", "t1")
        shows("train", phase="Running", running=2)

        theirs = {"status": {"phase": "Unknown"}}
        api.patch("PodGroup", "train", theirs, namespace, GROUPS, part="status")
        become("Succeeded", "t0", "t1")
        api.create(group("next", 1), namespace)
        control_plane.create_pods(namespace, [member("n0", "next")])
        become("Running", "n0")
        shows("next", phase="Running", running=1)
        shows("train", phase="Unknown", running=2)
