"""Kubernetes' own PodGroups: pods of those that the Job controller makes get their places together,
those of composite ones wait."""

from pathlib import Path

from binaries import CONTROL_PLANE, CONTROLLERS
from control_plane import ControlPlane
from controllers import controllers
from kube_api import Object, Objects
from pod_group_plane import GATES, pod_group_plane
from weft_process import ALONE, audited, bound, nodes, pod, weft

from fakes.drawn_groups import GROUPS

BATCH, TEAM, SIZE = "batch/v1", "team", 4
JOB_GATES = f"{GATES},WorkloadWithJob=true"
COMPOSITE, COMPOSITES = f"{GATES},CompositePodGroup=true", "scheduling.k8s.io/v1alpha3"
INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"


def gang_job(name: str) -> Object:
    """A Job of SIZE pods with a GPU each, that is a gang; its pods say nothing of a group."""
    limits = {"nvidia.com/gpu": "1"}
    pod = {
        "schedulerName": "weft",
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "none", "resources": {"limits": limits}}],
    }
    spec = {
        "completionMode": "Indexed",
        "completions": SIZE,
        "parallelism": SIZE,
        "scheduling": {"schedulingPolicy": {"gang": {"minCount": SIZE}}},
        "template": {"spec": pod},
    }
    return {"apiVersion": BATCH, "kind": "Job", "metadata": {"name": name}, "spec": spec}


def of_job(pods: Objects, name: str) -> Objects:
    return [one for one in pods if one["metadata"]["labels"].get("job-name") == name]


def has_places(plane: ControlPlane, job: str) -> None:
    """Wait until all pods of the Job are bound."""
    plane.api.wait_for(lambda pods: bound(of_job(pods, job)) == SIZE, "Pod", TEAM)


def told(plane: ControlPlane, job: str, status: str, text: str = "") -> Object:
    """Wait until the PodGroup of the Job says so of its pods; the condition."""

    def wanted(groups: Objects) -> Object | None:
        for group in groups:
            if group["metadata"]["ownerReferences"][0]["name"].startswith(job):
                for condition in group.get("status", {}).get("conditions", ()):
                    known = condition["type"], condition["status"]
                    if known == (INITIALLY_SCHEDULED, status) and text in condition["message"]:
                        return dict(condition)
        return None

    found = plane.api.wait_for(wanted, "PodGroup", TEAM, GROUPS)
    assert found is not None
    return found


def said_of(pod: Object) -> str:
    """Status of its condition PodScheduled."""
    conditions = pod["status"]["conditions"]
    return next(str(one["status"]) for one in conditions if one["type"] == "PodScheduled")


def test_jobs_that_are_gangs_run_as_one(tmp_path: Path) -> None:
    names = (*CONTROL_PLANE, CONTROLLERS)
    with pod_group_plane(tmp_path / "plane", names, gates=JOB_GATES) as plane:
        plane.create_namespace(TEAM)
        nodes(plane, 3)
        gates = f"--feature-gates={JOB_GATES}"
        runs = controllers(plane, plane.binaries[CONTROLLERS], ("job-controller",), gates)
        with runs, weft(plane, tmp_path, ALONE):
            plane.api.create(gang_job("first"), TEAM)
            has_places(plane, "first")
            assert {said_of(pod) for pod in of_job(plane.api.list("Pod", TEAM), "first")} == {
                "True"
            }
            assert told(plane, "first", "True")["reason"] == "Scheduled"

            plane.api.create(gang_job("second"), TEAM)
            short = "places for 4 pods together, and 2 have or would"
            assert told(plane, "second", "False", short)["reason"] == "Unschedulable"
            assert bound(of_job(plane.api.list("Pod", TEAM), "second")) == 0

            plane.api.delete("Job", "first", TEAM, BATCH)
            plane.api.delete_all("Pod", TEAM, labelSelector="job-name=first")
            has_places(plane, "second")
            told(plane, "second", "True")
            audited(plane, TEAM)


def part_of(name: str, parent: str) -> Object:
    """A PodGroup of two pods, and of this CompositePodGroup."""
    return {
        "apiVersion": GROUPS,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "parentCompositePodGroupName": parent,
            "workloadRef": {"workloadName": "all", "templateName": "part"},
        },
    }


def test_pods_of_a_composite_group_wait_and_its_group_says_why(tmp_path: Path) -> None:
    """Alone such a group would start; in it the other group's pods are missing."""
    plane_of = pod_group_plane(tmp_path / "plane", gates=COMPOSITE, versions=(GROUPS, COMPOSITES))
    with plane_of as plane:
        plane.create_namespace(TEAM)
        nodes(plane, 2)
        whole = {
            "apiVersion": COMPOSITES,
            "kind": "CompositePodGroup",
            "metadata": {"name": "all"},
            "spec": {
                "schedulingPolicy": {"gang": {"minGroupCount": 2}},
                "workloadRef": {"workloadName": "all", "templateName": "whole"},
            },
        }
        plane.api.create(whole, TEAM)
        plane.api.create(part_of("workers", "all"), TEAM)
        alone = part_of("alone", "all")
        del alone["spec"]["parentCompositePodGroupName"]
        plane.api.create(alone, TEAM)
        with weft(plane, tmp_path, ALONE):
            for of in ("workers", "alone"):
                for at in range(2):
                    one = pod(f"{of}-{at}", "weft", {"nvidia.com/gpu": 1})
                    one["spec"]["schedulingGroup"] = {"podGroupName": of}
                    plane.api.create(one, TEAM)
            plane.api.wait_for(lambda pods: bound(pods) == 2, "Pod", TEAM)
            why = "it is part of CompositePodGroup all, and Weft does not place several PodGroups"

            def says_why(groups: Objects) -> Objects:
                known = [c for one in groups for c in one.get("status", {}).get("conditions", ())]
                return [c for c in known if c["status"] == "False" and why in c["message"]]

            plane.api.wait_for(says_why, "PodGroup", TEAM, GROUPS)
            waits = {"workers-0", "workers-1"}

            def all_say_why(pods: Objects) -> bool:
                waiting = [one for one in pods if not one["spec"].get("nodeName")]
                assert {one["metadata"]["name"] for one in waiting} == waits
                return all(why in str(one["status"]) for one in waiting)

            plane.api.wait_for(all_say_why, "Pod", TEAM)
