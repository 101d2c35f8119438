"""PodGroups that Kubernetes' own Job controller makes: Weft gives their pods places together."""

from pathlib import Path

from binaries import CONTROL_PLANE, CONTROLLERS
from control_plane import ControlPlane
from controllers import controllers
from kube_api import Object, Objects
from pod_group_plane import GATES, pod_group_plane
from weft_process import ALONE, audited, bound, nodes, weft

from fakes.drawn_groups import GROUPS

BATCH, TEAM, SIZE = "batch/v1", "team", 4
JOB_GATES = f"{GATES},WorkloadWithJob=true"
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
