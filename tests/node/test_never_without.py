"""Never without: whatever becomes of the agent, no container starts without its share.

Many containers are created while the agent is killed at each named point, stalled, stopped and
started anew, or replaced. Each one that ran, at any attempt, must have found its share in itself;
those that ran before must go on as if nothing were.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from agent_process import ASKED, Agent, agent
from crashing_agent import POINTS
from exactness import is_exact, record_of
from images import SEES_ALL_GPUS
from kube_api import Object, Objects
from long_form import few_or_many
from played_gpus import PlayedGpus
from processes import Server
from real_node import RealNode, has_begun
from weft_process import ALONE, weft

from weft.model.agent_offer import decode_offer
from weft.model.annotations import AGENT

CRASHING = Path(__file__).resolve().parent / "crashing_agent.py"
IN_A_POD = few_or_many(5, 10)
PODS_A_WAVE = few_or_many(1, 2)  # 75 and 300 containers in 15 waves
IN_EACH_CONTAINER = ("asked", "granted", "decided", "answered", "validating", "validated")
DROPPED = "closing plugin 60-weft"
_CRASHES_S = 60.0
_RUNS_S = 240.0


def pods(name: str, count: int, containers: int = IN_A_POD) -> Objects:
    """Pods of some containers with a share each."""
    limits = {"limits": {"weft.dev/gpu-memory": "100"}}
    each = [{"name": f"c-{index}", "resources": limits} for index in range(containers)]
    return [
        {
            "metadata": {"name": f"{name}-{index}"},
            "spec": {"schedulerName": "weft", "containers": each},
        }
        for index in range(count)
    ]


@pytest.fixture
def scheduler(node: RealNode, gpus: PlayedGpus, tmp_path: Path) -> Iterator[None]:
    """Weft places the pods; an agent has said before what the node has."""
    with agent(node, gpus):
        pass
    with weft(node.plane, tmp_path, ALONE):
        yield


class Scene:
    """Waves of pods, each created while something is done to the agent."""

    def __init__(self, node: RealNode, gpus: PlayedGpus, namespace: str) -> None:
        self.node, self.gpus, self.namespace = node, gpus, namespace
        self.created = 0

    def wave(self, name: str) -> None:
        """Create pods; nobody waits for them."""
        self.node.create(pods(name, PODS_A_WAVE), self.namespace, bind=False)
        self.created += PODS_A_WAVE

    def crash(self, point: str) -> bool:
        """The agent is killed at the point; whether it came there."""
        process = self._at(point, signal.SIGKILL)
        try:
            if point in IN_EACH_CONTAINER:
                process.begin()
            self.wave(f"killed-{point}")
            if not process.running:
                process.start()
            return process.wait_killed(_CRASHES_S)
        finally:
            process.kill()

    def stall(self, point: str) -> None:
        """The agent stops at the point for longer than the runtime waits, then goes on."""
        process = self._at(point, signal.SIGSTOP)
        log = self.node.containerd.log
        try:
            process.begin()
            before = len(log.read_text())
            self.wave(f"stalled-{point}")
            process.wait_ready(lambda: is_stopped(process.pid), _CRASHES_S)
            process.wait_ready(lambda: DROPPED in log.read_text()[before:], _CRASHES_S)
            process.resume()
            process.wait_ready(lambda: process.said.count(ASKED) == 2, _CRASHES_S)
        finally:
            process.kill()

    def upgrade(self) -> None:
        """Others take over: the first time after a gap, as a DaemonSet does it, then without."""
        first, second, third = (Agent(self.node, self.gpus) for _ in range(3))
        try:
            first.begin()
            self.wave("upgraded")
            assert first.end(signal.SIGTERM) == 0
            second.begin()
            self.wave("replaced")
            third.begin()
            assert second.end(signal.SIGTERM) == 0
            assert third.end(signal.SIGTERM) == 0
        finally:
            for one in (first, second, third):
                one.kill()

    def _at(self, point: str, number: signal.Signals) -> Agent:
        times = "4" if point in IN_EACH_CONTAINER else "1"
        return Agent(self.node, self.gpus, program=[CRASHING, point, times, number.name])


def is_stopped(pid: int) -> bool:
    """Tells whether a signal stopped the process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def containers(pod: Object) -> dict[str, tuple[str, int]]:
    """ID and restarts of each container."""
    statuses = pod["status"]["containerStatuses"]
    return {one["name"]: (one["containerID"], one["restartCount"]) for one in statuses}


def test_no_container_starts_without_its_share(
    node: RealNode, gpus: PlayedGpus, namespace: str, scheduler: None
) -> None:
    with agent(node, gpus):
        node.create(pods("before", 1), namespace, bind=False)
        (before,) = node.wait(lambda now: now and all(map(has_begun, now)), namespace)
    scene = Scene(node, gpus, namespace)
    assert {point: scene.crash(point) for point in POINTS} == dict.fromkeys(POINTS, True)
    for point in ("asked", "decided", "validating"):
        scene.stall(point)
    scene.upgrade()
    with agent(node, gpus):
        found = node.wait(lambda now: all(map(has_begun, now)), namespace, _RUNS_S)
    assert len(found) == scene.created + 1
    for one in found:
        is_exact(node, gpus, one, record_of(one))
        assert {restarts for _, restarts in containers(one).values()} == {0}
    after = next(one for one in found if one["metadata"]["uid"] == before["metadata"]["uid"])
    assert containers(after) == containers(before)
    events = {event["reason"] for event in node.api.list("Event", namespace)}
    assert not any("vict" in reason for reason in events), events
    assert "Failed" in events, "no container was ever kept from starting: nothing was tried"


EVICTS = """\
apiVersion: weft.dev/v1
kind: WeftConfiguration
agent: {strangers: evict, evictBarePods: true}
"""
RETURN_S = 5.0
_FIRST = -19  # the lowest niceness of a session
RESTART_S, RESTARTS = 1.0, 5
PODS_WITHOUT = few_or_many(4, 50)  # of one container each: as many again are strangers


def says_it_is_closed(node: RealNode, closed: bool) -> None:
    """Wait until the node says whether its runtime waits for the agent."""

    def says(nodes: Objects) -> bool:
        annotations = [one["metadata"].get("annotations", {}) for one in nodes]
        told = [decode_offer(each[AGENT]).fail_closed for each in annotations if AGENT in each]
        return told == [closed]

    node.api.wait_for(says, "Node")


def test_whether_the_runtime_waits_is_tried_after_each_of_its_restarts(
    node: RealNode, gpus: PlayedGpus
) -> None:
    with agent(node, gpus) as process:
        says_it_is_closed(node, True)
        for validator in (False, True):
            node.restart_containerd(validator=validator)
            says_it_is_closed(node, validator)
            assert process.metrics()["weft_agent_fail_closed"] == validator
        assert "weft-trial" not in node.containerd.ctr("containers", "ls")


def test_nobody_runs_without_its_share_long_after_the_agents_return(
    node: RealNode, gpus: PlayedGpus, namespace: str, scheduler: None, tmp_path: Path
) -> None:
    """Pods with shares, and strangers whose images name all GPUs, on a runtime that waits for
    nobody: they started while no agent was there, and each is told of.

    A hundred in all, in the long form.
    """
    settings = tmp_path / "weft.yaml"
    settings.write_text(EVICTS)
    node.restart_containerd(validator=False)
    try:
        with node.without_kubelet(), agent(node, gpus):
            says_it_is_closed(node, False)
            bind_without_starting(node, pods("without", PODS_WITHOUT, containers=1), namespace)
        strangers: Objects = [
            {
                "metadata": {"name": f"stranger-{index}"},
                "spec": {"containers": [{"name": "main", "image": SEES_ALL_GPUS}]},
            }
            for index in range(PODS_WITHOUT)
        ]
        node.create(strangers, namespace)
        found = node.wait(
            lambda now: len(now) == 2 * PODS_WITHOUT and all(map(has_begun, now)),
            namespace,
            _RUNS_S,
        )
        for one in found:  # what a container does first, to say what it sees, is over
            (container,) = one["spec"]["containers"]
            assert node.inside(one, container["name"]).gpus() == {}
        process = Agent(node, gpus, "--config", settings)
        try:
            with elsewhere(node.plane.etcd, node.plane.api_server):
                process.begin()
                node.api.wait_for(
                    lambda now: all(p["metadata"].get("deletionTimestamp") for p in now),
                    "Pod",
                    namespace,
                    timeout_s=RETURN_S,
                )
            names = {one["metadata"]["name"] for one in found}
            node.api.wait_for(lambda events: evicted(events) == names, "Event", namespace)
        finally:
            process.kill()
    finally:
        node.restart_containerd()


@contextlib.contextmanager
def elsewhere(*servers: Server) -> Iterator[None]:
    """Give these the processors before all others, as if they had a machine of their own: what ends
    a hundred containers would take two cores from the API server, which a cluster has elsewhere."""
    prefer(servers, _FIRST)
    try:
        yield
    finally:
        prefer(servers, 0)


def prefer(servers: Sequence[Server], nice: int) -> None:
    """Set the niceness of each server's session, where the kernel shares out by sessions, and of
    its threads."""
    for server in servers:
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/{server.pid}/autogroup").write_text(str(nice))
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def bind_without_starting(node: RealNode, wanted: Objects, namespace: str) -> None:
    """They are bound while an agent is there (later the node would get none of them) and the
    kubelet is not: they start when it is back, and the agent is gone by then."""
    node.create(wanted, namespace, bind=False)
    node.wait(lambda now: all(one["spec"].get("nodeName") for one in now), namespace)


def evicted(events: Objects) -> set[str]:
    """The pods that are said to be evicted."""
    return {e["involvedObject"]["name"] for e in events if e["reason"] == "GPUShareEvicted"}


def test_without_a_validator_what_started_without_its_share_is_evicted(
    node: RealNode, gpus: PlayedGpus, namespace: str, scheduler: None, tmp_path: Path
) -> None:
    """An older runtime, or one that is configured so, waits for nobody."""
    settings = tmp_path / "weft.yaml"
    settings.write_text(EVICTS)
    node.restart_containerd(validator=False)
    try:
        with agent(node, gpus):
            node.create(pods("with", 1), namespace, bind=False)
            node.wait(lambda now: now and all(map(has_begun, now)), namespace)
        with node.without_kubelet(), agent(node, gpus):
            bind_without_starting(node, pods("without", 1), namespace)
        found = node.wait(lambda now: len(now) == 2 and all(map(has_begun, now)), namespace)
        (alone,) = (one for one in found if one["metadata"]["name"] == "without-0")
        assert node.inside(alone, "c-0").gpus() == {}
        with agent(node, gpus, "--config", settings):
            left = node.wait(lambda now: len(now) == 1, namespace)
        assert left[0]["metadata"]["name"] == "with-0"
        events = node.api.list("Event", namespace)
        told = [e["message"] for e in events if e["involvedObject"]["name"] == "without-0"]
        assert any("without its share" in message for message in told), told
    finally:
        node.restart_containerd()


def test_without_a_validator_the_guard_has_containers_wait_for_a_killed_agent(
    node: RealNode, gpus: PlayedGpus, namespace: str, scheduler: None, tmp_path: Path
) -> None:
    """One that is killed whenever it is asked; then one that is not."""
    node.restart_containerd(validator=False)
    supervised = ("--supervised", "--lock", tmp_path / "agent.lock")
    dying = Agent(node, gpus, *supervised, program=[CRASHING, "asked", "1", "SIGKILL"])
    successor = Agent(node, gpus, *supervised)
    try:
        dying.start()
        dying.wait_ready(lambda: dying.said.count(ASKED) >= 2, _CRASHES_S)  # the guard's, too
        node.create(pods("waits", 1), namespace, bind=False)
        dying.until(f"container c-{IN_A_POD - 1} is refused", _RUNS_S)
        asks_nothing: Object = {
            "metadata": {"name": "alone"},
            "spec": {"containers": [{"name": "c"}]},
        }
        node.create([asks_nothing], namespace)
        now = node.wait(lambda now: any(map(has_begun, now)), namespace)
        assert [pod["metadata"]["name"] for pod in now if has_begun(pod)] == ["alone"]
        dying.until("(?s)(killed by SIGKILL.*){3}", _RUNS_S)
        successor.start()
        successor.until("standing by")
        assert successor.said.count(ASKED) == 1  # its guard's
        dying.end()
        found = node.wait(lambda now: all(map(has_begun, now)), namespace, _RUNS_S)
        (shared,) = (pod for pod in found if pod["metadata"]["name"] == "waits-0")
        is_exact(node, gpus, shared, record_of(shared))
        told = [event["message"] for event in node.api.list("Event", namespace)]
        assert any("the agent on this node is not running" in message for message in told), told
        assert successor.end() == 0
    finally:
        dying.kill()
        successor.kill()
        node.restart_containerd()


def test_a_killed_agent_adjusts_containers_again_within_a_second(
    node: RealNode, gpus: PlayedGpus, namespace: str, scheduler: None, tmp_path: Path
) -> None:
    """From the signal to the runtime's next word to it; the best of some, for others are busy here.

    Not one after the other: who is killed soon after a start waits longer for the next one.
    """
    took = []
    for attempt in range(RESTARTS):
        lock = tmp_path / f"{attempt}.lock"
        process = Agent(node, gpus, "--supervised", "--lock", lock)
        try:
            process.start()
            process.until(f"(?s){ASKED}.*{ASKED}")  # the guard's, too
            killed, before_s = kill_agent_of(process), time.monotonic()
            while process.said.count(ASKED) < 3:
                time.sleep(0.005)
            took.append(time.monotonic() - before_s)
            node.create(pods(f"p-{attempt}", 1), namespace, bind=False)
            found = node.wait(lambda now: all(map(has_begun, now)), namespace)
            for one in found:
                is_exact(node, gpus, one, record_of(one))
            assert agent_of(process) not in (0, killed)
        finally:
            process.end()
    sys.stderr.write(f"asked again {', '.join(f'{one:.2f}' for one in took)} s after its kill\n")
    assert min(took) <= RESTART_S


def agent_of(supervisor: Agent) -> int:
    """The process that delivers: forked by a child of the supervisor."""
    pid = supervisor.pid
    for _ in range(2):
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(words[0]) if words else 0
    return pid


def kill_agent_of(supervisor: Agent) -> int:
    """Kill it as the memory killer does; its process id."""
    pid = agent_of(supervisor)
    os.kill(pid, signal.SIGKILL)
    return pid
