"""Agree: whatever was restarted, agent, scheduler and runtime name the same holders of shares.

Kubelet, containerd, agent and API server are killed or ended and started anew, and pods that
outlived it are deleted and replaced. What a node promised is read of the agent's page, what the
scheduler charges of the scheduler's, what lives of the runtime.
"""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from agent_process import ASKED, Agent, agent, metrics_of
from control_plane import HOST
from exactness import record_of
from kube_api import ApiError, Object, Objects
from long_form import few_or_many
from played_gpus import PlayedGpus
from real_node import RealNode, has_begun, state_of
from weft_process import ALONE, Weft, weft

from weft.node.agent.process_owner import owner_of

SEQUENCES = few_or_many(6, 200)
FIRST_SEED = 0
AGREE_S = 15.0
_RUN_S = 120.0
_POLL_S = 0.1
_MOST_PODS = 8
_RUNNING = "RUNNING"


class Asked(NamedTuple):
    """A request in some system's words: resources of one container, labels of its pod."""

    limits: dict[str, object]
    labels: Mapping[str, str] = MappingProxyType({})


DIALECTS = (
    Asked({"weft.dev/gpu-memory": 4000}),
    Asked({"weft.dev/gpu-memory": 16_384}),
    Asked({"aliyun.com/gpu-mem": 5}),
    Asked({"elasticgpu.io/gpu-core": 30, "elasticgpu.io/gpu-memory": 3000}),
    Asked({"alnair/vgpu-memory": 6, "alnair/vgpu-compute": 40}),
    Asked({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
    Asked({"nvidia.com/gpu": 1}),
    Asked({}, {"genius/gpu-number": "1", "genius/gpu-memory-each": "2000"}),
    Asked({}, {"GPU_MEM_REQ": "872"}),
)
"""In the words of every system; CoScheML's are gpushare's."""
# What started while no agent ran, on a runtime that waits for nobody, holds no share: it must go.
OWN = """\
apiVersion: weft.dev/v1
kind: WeftConfiguration
agent: {own: [nvidia.com/gpu], evictBarePods: true}
"""


def asking(name: str, limits: dict[str, object], labels: Mapping[str, str] | None = None) -> Object:
    """A pod with one container that asks for so much."""
    asked = {resource: str(amount) for resource, amount in limits.items()}
    containers = [{"name": "main", "resources": {"limits": asked}}]
    return {
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"schedulerName": "weft", "containers": containers},
    }


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_a_pod_that_outlived_the_runtime_gives_its_share_back(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path, how: signal.Signals
) -> None:
    """On every card, so that the successors must have the very same ones."""
    whole = {"weft.dev/gpu-memory": gpus.memory_mib}
    with agent(node, gpus) as process, weft(node.plane, tmp_path, ALONE):
        old = [asking(f"old-{index}", whole) for index in range(gpus.count)]
        node.create(old, namespace, bind=False)
        node.wait(lambda pods: all(map(has_begun, pods)), namespace)
        restart_containerd(node, process, how)
        for pod in old:
            delete(node, namespace, pod)
        new = [asking(f"new-{index}", whole) for index in range(gpus.count)]
        node.create(new, namespace, bind=False)
        names = {pod["metadata"]["name"] for pod in new}
        node.wait(
            lambda pods: names == {pod["metadata"]["name"] for pod in pods if has_begun(pod)},
            namespace,
        )
        assert process.metrics()["weft_agent_pods_with_share"] == gpus.count


def delete(node: RealNode, namespace: str, pod: Object, **options: int) -> None:
    """Ask that the pod ends, with its own grace period where `options` name no other."""
    path = f"{node.api.path('Pod', namespace)}/{pod['metadata']['name']}"
    try:
        node.api.request("DELETE", path, options)
    except ApiError as error:
        if error.code != 404:
            raise


def restart_containerd(node: RealNode, process: Agent, how: signal.Signals) -> None:
    """Restart it so; it is back then, and asks the agent about containers again."""
    before = process.metrics()["weft_agent_runtime_registrations_total"]
    if how == signal.SIGTERM:
        node.containerd.stop()
    else:
        node.containerd.kill()
    node.containerd.begin()
    process.wait_ready(lambda: process.metrics()["weft_agent_runtime_registrations_total"] > before)


# --- random sequences ----------------------------------------------------------------------------


class Accounts(NamedTuple):
    """Pods with a share as the API server shows them and the runtime runs them, by UID, and as the
    agent counts them; their shares as their records and the scheduler's account have them."""

    shown: frozenset[str]
    runtime: frozenset[str]
    agent: int
    shares: int
    scheduler: int

    @property
    def agree(self) -> bool:
        """True if all are the same."""
        same = self.shown == self.runtime and self.shares == self.scheduler
        return same and self.agent == len(self.shown)


class Sequences:
    """One node's story; each step is drawn. `happened` counts the steps."""

    def __init__(self, node: RealNode, agent_: Agent, scheduler: Weft, namespace: str) -> None:
        self.happened: Counter[str] = Counter()
        self.node, self.agent = node, agent_
        self.namespace, self._number = namespace, 0
        plane = node.plane
        port = scheduler.until(r"health, metrics and explain on \S+:(\d+)")[1]
        self._page = f"http://{HOST}:{port}/metrics"
        self.steps: dict[str, Callable[[random.Random], None]] = {
            "containerd killed": lambda draw: self._containerd(signal.SIGKILL),
            "containerd ended": lambda draw: self._containerd(signal.SIGTERM),
            "containerd configured anew": self._configure,
            "kubelet": lambda draw: node.restart_kubelet(),
            "agent killed": lambda draw: self._agent(signal.SIGKILL),
            "agent ended": lambda draw: self._agent(signal.SIGTERM),
            "API server killed": lambda draw: plane.restart_apiserver(gracefully=False),
            "API server ended": lambda draw: plane.restart_apiserver(),
            "deleted": self._delete,
            "deleted at once": lambda draw: self._delete(draw, gracePeriodSeconds=0),
            "created": self._create,
        }

    def tell(self, seed: int) -> None:
        """One sequence: some steps in a row, and whoever was deleted is replaced in the end."""
        draw = random.Random(seed)
        for name in draw.choices(list(self.steps), k=draw.randint(3, 6)):
            self.steps[name](draw)
            self.happened[name] += 1
        while len(self._pods()) < _MOST_PODS // 2:
            self._create(draw)

    def settle(self) -> float:
        """Wait until every pod runs and the accounts agree; how long that took after they ran."""
        self.node.wait(lambda pods: all(map(has_begun, pods)), self.namespace, _RUN_S)
        began_s = time.monotonic()
        while not (accounts := self.accounts()).agree:
            assert time.monotonic() < began_s + AGREE_S, f"{accounts}\n{self._states()}"
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def accounts(self) -> Accounts:
        """The holders now, as each says."""
        pods = self._pods()
        listed = self.node.containerd.ctr("tasks", "ls").splitlines()[1:]
        tasks = (line.split() for line in listed)
        owners = [owner_of(Path("/proc"), int(pid)) for _, pid, state in tasks if state == _RUNNING]
        charged = metrics_of(self._page)
        holdings = sum(v for k, v in charged.items() if k.startswith("weft_ledger_gpu_holdings{"))
        return Accounts(
            frozenset(pod["metadata"]["uid"] for pod in pods),
            frozenset(owner.pod_uid for owner in owners if owner is not None),
            int(self.agent.metrics()["weft_agent_pods_with_share"]),
            sum(len(record_of(pod).cards) for pod in pods),
            int(holdings),
        )

    def _configure(self, draw: random.Random) -> None:
        """As an upgrade does: what the runtime can do is another afterwards."""
        self.node.restart_containerd(validator=draw.random() < 0.5, cdi=draw.random() < 0.5)
        self.agent.wait_ready(self._agent_answers)

    def _containerd(self, how: signal.Signals) -> None:
        restart_containerd(self.node, self.agent, how)

    def _agent(self, how: signal.Signals) -> None:
        self.agent.end(how)
        self.agent.start()
        self.agent.wait_ready(self._agent_answers)

    def _agent_answers(self) -> bool:
        try:
            return self.agent.metrics()["weft_agent_runtime_connected"] == 1
        except OSError:
            return False

    def _create(self, draw: random.Random) -> None:
        if len(self._pods()) < _MOST_PODS:
            self._number += 1
            pod = asking(f"p-{self._number}", *draw.choice(DIALECTS))
            self.node.create([pod], self.namespace, bind=False)

    def _delete(self, draw: random.Random, **options: int) -> None:
        pods = self._pods()
        for pod in draw.sample(pods, min(len(pods), 2)):
            delete(self.node, self.namespace, pod, **options)

    def _pods(self) -> Objects:
        return self.node.api.list("Pod", self.namespace)

    def _states(self) -> str:
        return "\n".join(map(state_of, self._pods()))


@pytest.fixture
def sequences(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path
) -> Iterator[Sequences]:
    """The node with an agent and a scheduler, and no pods yet."""
    settings = tmp_path / "weft.yaml"
    settings.write_text(OWN)
    with (
        agent(node, gpus, "--config", settings) as process,
        weft(node.plane, tmp_path, ALONE) as scheduler,
    ):
        yield Sequences(node, process, scheduler, namespace)
    node.restart_containerd()


def test_the_accounts_agree_after_any_sequence(sequences: Sequences) -> None:
    worst_s = 0.0
    for seed in range(FIRST_SEED, FIRST_SEED + SEQUENCES):
        sequences.tell(seed)
        worst_s = max(worst_s, sequences.settle())
        sys.stderr.write(f"sequence {seed}: agreed\n")
    sys.stderr.write(f"accounts agreed after {worst_s:.1f} s at most: {sequences.happened}\n")
    if len(sequences.steps) < SEQUENCES:
        assert sequences.happened.keys() == sequences.steps.keys()


# --- who attracts pods ---------------------------------------------------------------------------


def test_a_node_whose_agent_does_not_come_back_attracts_nobody(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path
) -> None:
    """Pods that were bound before wait for it; whoever comes later than 15 s waits for a node."""
    limits: dict[str, object] = {"weft.dev/gpu-memory": 500}
    with agent(node, gpus) as process, weft(node.plane, tmp_path, ALONE):
        node.create([asking("before", limits)], namespace, bind=False)
        node.wait(lambda pods: all(map(has_begun, pods)), namespace)
        process.kill()
        killed_s = time.monotonic()
        said: Objects = []
        told = "no agent delivers shares on the node now, since"
        while not any(told in state_of(p) for p in said):
            assert time.monotonic() - killed_s < AGREE_S + 1  # the message's own way
            node.create([asking(f"p-{len(said)}", limits)], namespace, bind=False)
            time.sleep(_POLL_S)
            said = node.api.list("Pod", namespace)
        process.start()
        node.wait(lambda pods: all(map(has_begun, pods)), namespace)


def test_a_node_whose_runtime_lost_nri_attracts_nobody(
    node: RealNode, gpus: PlayedGpus, namespace: str, tmp_path: Path
) -> None:
    limits: dict[str, object] = {"weft.dev/gpu-memory": 500}
    with agent(node, gpus) as process, weft(node.plane, tmp_path, ALONE):
        node.create([asking("before", limits)], namespace, bind=False)
        node.wait(lambda pods: all(map(has_begun, pods)), namespace)
        node.restart_containerd(nri=False)
        try:
            node.api.wait_for(
                lambda leases: any(
                    one["metadata"]["name"] == f"weft-agent-{node.name}"
                    and not one["spec"].get("holderIdentity")
                    for one in leases
                ),
                "Lease",
                "default",
                "coordination.k8s.io/v1",
            )
            node.create([asking("after", limits)], namespace, bind=False)
            node.wait(lambda pods: any("no agent delivers" in state_of(p) for p in pods), namespace)
        finally:
            node.restart_containerd()
        process.until(f"(?s){ASKED}.*{ASKED}")
        node.wait(lambda pods: all(map(has_begun, pods)), namespace)
