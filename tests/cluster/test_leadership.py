"""Two processes and one lease on the real API server: takeover, and a leader that wakes late."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import Object, Objects
from service_stand_in import ServiceStandIn
from weft_process import (
    CARD_MIB,
    EXTENDER,
    Weft,
    all_bound,
    audited,
    bound,
    extender_config,
    nodes,
    pod,
)

STOPPING = Path(__file__).with_name("stopping_weft.py")
MEMORY = "elasticgpu.io/gpu-memory"
LEADS = r"leading, term (\d+)"
TAKEOVER_S = 40.0


class Replicas:
    """Processes as a Deployment would run them: each in a pod, of which only the object exists."""

    def __init__(self, plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
        self.plane, self.namespace = plane, namespace
        self.running: dict[str, Weft] = {}
        self.ports: dict[str, int] = {}
        self._folder = tmp_path

    def start(self, name: str, script: Path | None = None) -> Weft:
        """The process in its pod, when it knows all there is."""
        home = f"{self.namespace}-weft"
        own = pod(name, "nobody", {})
        self.plane.api.create(own, home)
        access = self.plane.kubeconfig_for("weft", "system:masters")
        process = Weft(access, self._folder / f"{name}.log", *EXTENDER)
        if script is not None:
            process.command[1:3] = [str(script)]  # python -m weft.cli.main
        named = [f"POD_NAME={name}", f"POD_NAMESPACE={home}"]
        process.command = ["/usr/bin/env", *named, *process.command]
        process.start()
        process.until(" ready: ")
        self.ports[name] = int(process.url.rpartition(":")[2])
        self.running[name] = process
        return process


@pytest.fixture
def replicas(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Replicas]:
    control_plane.create_namespace(f"{namespace}-weft")
    found = Replicas(control_plane, namespace, tmp_path)
    yield found
    for process in found.running.values():
        process.kill()


def elastic(name: str, mib: int) -> Object:
    return pod(name, "default-scheduler", {MEMORY: mib})


def bind(process: Weft, one: Object, node: str) -> tuple[int, str]:
    """Ask as kube-scheduler does: filter, then bind; HTTP status and Weft's error."""
    meta = one["metadata"]
    question = json.dumps({"Pod": one, "NodeNames": [node]}).encode()
    with urllib.request.urlopen(f"{process.url}/weft/filter", question, timeout=10) as answer:
        assert json.loads(answer.read())["NodeNames"] == [node]
    asked = {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node,
    }
    request = urllib.request.Request(f"{process.url}/weft/bind", json.dumps(asked).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())["Error"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["Error"]


def test_kube_scheduler_goes_on_through_a_takeover(
    control_plane: ControlPlane, namespace: str, replicas: Replicas
) -> None:
    nodes(control_plane, 3)
    first = replicas.start("a")
    first.until(LEADS)
    second = replicas.start("b")
    service = ServiceStandIn(control_plane.api, f"{namespace}-weft", replicas.ports)
    control_plane.start_scheduler(extender_config(service.url, "elastic"))
    pods = [elastic(f"p-{n:02d}", 1500) for n in range(60)]
    control_plane.create_pods(namespace, pods[:30])
    control_plane.api.wait_for(lambda found: bound(found) >= 5, "Pod", namespace, timeout_s=20)
    assert service.leader() == "a"
    first.end(signal.SIGKILL)
    control_plane.create_pods(namespace, pods[30:])
    control_plane.api.wait_for(all_bound(60), "Pod", namespace, timeout_s=TAKEOVER_S)
    assert service.leader() == "b"
    assert int(second.until(LEADS)[1]) == int(first.until(LEADS)[1]) + 1
    assert len(audited(control_plane, namespace).holdings) == 60
    service.close()


def test_a_leader_that_is_told_to_stop_hands_over_at_once(
    control_plane: ControlPlane, namespace: str, replicas: Replicas
) -> None:
    nodes(control_plane, 1)
    first = replicas.start("a")
    first.until(LEADS)
    second = replicas.start("b")
    began = time.monotonic()
    assert first.end(signal.SIGTERM) == 0
    second.until(LEADS)
    assert time.monotonic() - began < 6  # a dead leader would be waited for, 10 s
    control_plane.create_pods(namespace, [pod("p", "weft", {MEMORY: 100})])
    control_plane.api.wait_for(all_bound(1), "Pod", namespace, timeout_s=10)


def test_a_leader_stopped_between_check_and_send_overbooks_no_gpu(
    control_plane: ControlPlane, namespace: str, replicas: Replicas
) -> None:
    """The leader wakes when another leads and has filled the GPU: what slips through is evicted."""
    nodes(control_plane, 1)
    late = control_plane.api.create(elastic("late", CARD_MIB), namespace)
    first = replicas.start("a", STOPPING)
    first.until(LEADS)
    second = replicas.start("b")
    asking = ThreadPoolExecutor(1)
    asking.submit(bind, first, late, "node-0")  # as kube-scheduler would; it gives up, Weft wakes
    first.until("stopping itself before the send")
    second.until(LEADS, TAKEOVER_S)
    for name in ("x", "y"):
        one = control_plane.api.create(elastic(name, CARD_MIB), namespace)
        assert bind(second, one, "node-0") == (200, "")
    first.resume()

    def evicted(pods: Objects) -> list[str]:
        return [p["metadata"]["name"] for p in pods if p["metadata"].get("deletionTimestamp")]

    gone = control_plane.api.wait_for(evicted, "Pod", namespace, timeout_s=30)
    assert gone == ["late"]
    control_plane.api.delete("Pod", "late", namespace)  # as the kubelet does when it has ended
    assert len(audited(control_plane, namespace).holdings) == 2
    asking.shutdown()

    def told(events: Objects) -> bool:  # events are written when all else is
        about = [one["note"] for one in events if one["regarding"]["name"] == "late"]
        return any("was booked twice" in note for note in about)

    control_plane.api.wait_for(told, "Event", namespace, "events.k8s.io/v1")
