"""An agent that is killed for good: no pod is bound to its node later than 15 s after, and whoever
waits is told. Scheduler, agents and API server are real; nodes and container runtimes are not."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control_plane import ControlPlane
from kube_api import Object, Objects
from test_deploy_agent import FAKE, runtime_at
from weft_process import ALONE, Weft, pod, sigkill, weft

FIRST, SECOND = "gone-a", "gone-b"
WITHIN_S = 15.0
_EVERY_S = 0.5
_LOOKED_AT_S = 20.0
TOLD = "no agent delivers shares on the node now, since "


@contextlib.contextmanager
def agent(plane: ControlPlane, folder: Path, node: str) -> Iterator[Weft]:
    """`weft agent` of this node, which has offered its GPUs when this returns."""
    plane.create_fake_node(node)
    folder = folder / node
    folder.mkdir()
    (folder / "gpus.yaml").write_text(FAKE)
    kubeconfig, socket = plane.kubeconfig_for("weft", "system:masters"), folder / "nri.sock"
    process = Weft(kubeconfig, folder / "agent.log")
    process.command = [sys.executable, "-m", "weft.cli.main", "agent", "--node-name", node]
    process.command += ["--kubeconfig", str(kubeconfig), "--devices", str(folder / "gpus.yaml")]
    process.command += ["--nri-socket", str(socket), "--listen", "127.0.0.1:0"]
    process.command += ["--cdi-folder", str(folder / "cdi")]
    process.name = "weft agent"

    def offers(nodes: Objects) -> bool:
        (found,) = (each for each in nodes if each["metadata"]["name"] == node)
        marks = found["metadata"].get("annotations", {})
        return "by-name" in marks.get("weft.dev/agent", "") and (
            "weft.dev/gpu-memory" in found["status"]["allocatable"]
        )

    def renewed(leases: Objects) -> bool:
        holders = {one["metadata"]["name"]: one["spec"].get("holderIdentity") for one in leases}
        return holders.get(f"weft-agent-{node}") == node

    with runtime_at(socket):
        process.start()
        try:
            plane.api.wait_for(offers, "Node", timeout_s=60)
            plane.api.wait_for(renewed, "Lease", "default", "coordination.k8s.io/v1", timeout_s=60)
            yield process
        finally:
            process.kill()
            plane.api.delete("Node", node)
            lease = f"weft-agent-{node}"
            plane.api.delete("Lease", lease, "default", "coordination.k8s.io/v1")


def asking(name: str) -> Object:
    """A pod that asks for so little that a hundred have room."""
    return pod(name, "weft", {"weft.dev/gpu-memory": 100})


def nodes_of(pods: Objects) -> dict[str, str]:
    return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in pods}


def told(one: Object) -> str:
    """Why the pod waits, as its condition says."""
    conditions: list[dict[str, Any]] = one["status"].get("conditions", [])
    texts = (each.get("message", "") for each in conditions if each["type"] == "PodScheduled")
    return next(texts, "")


def bound_in_time(plane: ControlPlane, namespace: str, name: str) -> None:
    plane.api.wait_for(lambda pods: bool(nodes_of(pods).get(name)), "Pod", namespace, timeout_s=30)


def test_no_pod_is_bound_to_its_node_after_15_s_and_those_that_wait_are_told(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    plane, place = control_plane, namespace
    with agent(plane, tmp_path, FIRST) as first, weft(plane, tmp_path, ALONE) as scheduler:
        plane.create_pods(place, [asking("before")])
        bound_in_time(plane, place, "before")
        first.kill()  # SIGKILL: it withdraws nothing
        killed = time.monotonic()
        last_bound_s = 0.0
        seen: set[str] = set()
        for number in range(int(_LOOKED_AT_S / _EVERY_S)):
            plane.create_pods(place, [asking(f"p{number}")])
            time.sleep(_EVERY_S)  # a pod's time to be bound
            for name, node in nodes_of(plane.api.list("Pod", place)).items():
                if node and name not in seen:
                    seen.add(name)
                    last_bound_s = time.monotonic() - killed
        assert last_bound_s <= WITHIN_S, f"a pod was bound {last_bound_s:.1f} s after"

        def all_told(pods: Objects) -> bool:
            waiting = [one for one in pods if not one["spec"].get("nodeName")]
            return bool(waiting) and all(TOLD in told(one) for one in waiting)

        plane.api.wait_for(all_told, "Pod", place, timeout_s=30)
        sigkill(scheduler)
        with weft(plane, tmp_path, ALONE):  # knows the Lease by nothing but its own time
            plane.create_pods(place, [asking("anew")])
            plane.api.wait_for(all_told, "Pod", place, timeout_s=30)
            assert nodes_of(plane.api.list("Pod", place))["anew"] == ""
            with agent(plane, tmp_path, SECOND):  # whoever waits goes elsewhere
                plane.api.wait_for(
                    lambda pods: all(nodes_of(pods).values()), "Pod", place, timeout_s=60
                )
                late = [name for name in nodes_of(plane.api.list("Pod", place)) if name not in seen]
                nodes = nodes_of(plane.api.list("Pod", place))
                assert {nodes[name] for name in late} == {SECOND}
