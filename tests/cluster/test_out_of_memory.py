"""A pod runs out of GPU memory on a real API server: what it teaches outlives every process."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from api_proxy import ApiProxy
from control_plane import ControlPlane
from kube_api import ApiError, Object, Objects
from test_hollow_kubelet import hollow, in_phase, marks
from weft_process import ALONE, CARD_MIB, Weft, audited, nodes, pod, sigkill, starting, weft

SYSTEM, NAME = "kube-system", "weft-lessons"
ASKED, CHARGED = 4_000, 5_000
HASH = "6f9c5d7b4"
GREEDY = f"0:100, 1:{CARD_MIB + 1}"


def of_web(name: str, restart: str = "Never", **hollow_does: object) -> Object:
    """A pod as the ReplicaSet of the Deployment `web` makes it."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"web-{HASH}",
        "controller": True,
        "uid": "0c9b7a0e-0000-4000-8000-000000000000",
    }
    made = pod(
        name,
        "weft",
        {"elasticgpu.io/gpu-memory": ASKED},
        annotations=marks(hollow_does),
        ownerReferences=[owner],
        labels={"pod-template-hash": HASH},
    )
    made["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    made["spec"]["restartPolicy"] = restart
    return made


def no_lessons(plane: ControlPlane) -> None:
    """The ConfigMap as deploy/scheduler.yaml ships it."""
    with contextlib.suppress(ApiError):
        plane.api.delete("ConfigMap", NAME, SYSTEM)
    with contextlib.suppress(ApiError):
        plane.api.create({"kind": "Namespace", "metadata": {"name": SYSTEM}})
    plane.api.create({"kind": "ConfigMap", "metadata": {"name": NAME}}, SYSTEM)


def oom_record(namespace: str, times: int) -> Callable[[Objects], Object | None]:
    """Makes the question for the record of `web`, once it says so many times."""

    def said(maps: Objects) -> Object | None:
        data = next((m.get("data") or {} for m in maps if m["metadata"]["name"] == NAME), {})
        found: Object = json.loads(data.get(f"{namespace}.Deployment.web", "{}"))
        return found if found.get("times") == times else None

    return said


def charged(plane: ControlPlane, namespace: str, name: str) -> tuple[int, int]:
    """MiB and thousandths of a GPU that the ledger has for this pod, from the API alone."""
    uid = plane.api.get("Pod", name, namespace)["metadata"]["uid"]
    (share,) = audited(plane, namespace).holdings[uid].placement.shares
    return share.memory_mib, share.milli


def test_a_pod_out_of_memory_teaches_its_workload_once_for_all_processes(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The first process dies before it has written what it learnt, the second one lives on."""
    plane = control_plane
    nodes(plane, 2)
    no_lessons(plane)

    def runs(process: Weft, name: str, **how: object) -> tuple[int, int]:
        plane.api.create(of_web(name, **how), namespace)  # type: ignore[arg-type]
        plane.api.wait_for(in_phase("Running", name), "Pod", namespace, timeout_s=20)
        assert "Traceback" not in process.said
        return charged(plane, namespace, name)

    with hollow(plane), ApiProxy(plane) as proxy:
        held = proxy.hold("PATCH", f"configmaps/{NAME}", "before")
        first = starting(plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig)
        plane.api.create(of_web("first", memory_mib=GREEDY), namespace)
        held.wait()
        sigkill(first)
        held.drop()
        assert plane.api.get("ConfigMap", NAME, SYSTEM).get("data") is None
        with weft(plane, tmp_path, ALONE) as second:
            found = plane.api.wait_for(oom_record(namespace, 1), "ConfigMap", SYSTEM, timeout_s=20)
            assert (found["workload"], found["least_mib"]) == (f"{namespace}/Deployment/web", 5_000)
            assert runs(second, "again") == (CHARGED, 0)
        plane.api.delete("Pod", "first", namespace)  # nothing but the ConfigMap tells of it now
        with weft(plane, tmp_path, ALONE) as third:
            assert runs(third, "later") == (CHARGED, 0)
            plane.api.create(of_web("greedy", "OnFailure", memory_mib=GREEDY), namespace)
            found = plane.api.wait_for(oom_record(namespace, 2), "ConfigMap", SYSTEM, timeout_s=20)
            assert len(found["ends"]) == 2
            assert runs(third, "alone") == (CARD_MIB, 1_000)
