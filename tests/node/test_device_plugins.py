"""Without NRI: the kubelet hands out devices, and containers get what their records say."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from agent_process import Agent, agent
from exactness import is_exact, record_of
from kube_api import Object
from kubelet_recorder import KubeletRecorder
from original_manifests import ALNAIR, ELASTIC, GPUSHARE, pods_of
from played_gpus import PlayedGpus
from real_node import RealNode, has_begun
from resource_history import restart_kubelet
from weft_process import ALONE, EXTENDER, extender_config, weft

from weft.model.annotations import ADVERTISES, DELIVERY, INVENTORY, PLUGIN_GPUS
from weft.node.agent.node_pods import NodePod, PodOnNode
from weft.node.agent.reconciler import differences
from weft.node.device_plugin.kubelet_api import PodResourcesClient

TAKEN = "its device plugin is registered with the kubelet"
OTHERS = """
# ours: an init container whose devices go on to the next, a sidecar, and one without
apiVersion: v1
kind: Pod
metadata: {name: three}
spec:
  schedulerName: weft
  initContainers:
  - name: first
    resources: {limits: {weft.dev/gpu-memory: 2000}}
  - name: beside
    restartPolicy: Always
    resources: {limits: {weft.dev/gpu-memory: 500}}
  containers:
  - name: main
    resources: {limits: {weft.dev/gpu-memory: 2000, weft.dev/gpu-cores: 10}}
"""
EQUAL = """
apiVersion: v1
kind: Pod
metadata: {name: equal-%d}
spec:
  containers:
  - name: main
    resources: {limits: {aliyun.com/gpu-mem: 1}}
"""
MEMORY = "aliyun.com/gpu-mem"
# A kubelet that restarts looks for each device's pod among all devices that pods hold: with one a
# MiB that takes minutes, in 1.36.
IN_GIB = """
apiVersion: weft.dev/v1
kind: WeftConfiguration
agent: {dialects: [gpushare]}
"""


class PluginAgent(Agent):
    """An agent that delivers through the kubelet."""

    def __init__(self, node: RealNode, gpus: PlayedGpus, *options: str | Path) -> None:
        folders = ("--cdi-folder", node.containerd.cdi_folder)
        socket = ("--pod-resources", node.kubelet.pod_resources)
        super().__init__(node, gpus, "--device-plugins", *folders, *socket, *options)

    def begin(self) -> None:
        """Start it; the kubelet has taken its plugins, and the node's resources are there."""
        self.start()
        self.until(TAKEN)
        self.node.api.wait_for(
            lambda nodes: int(nodes[0]["status"]["allocatable"].get(MEMORY, "0")) > 0, "Node"
        )
        self.wait_offered()


@pytest.fixture
def few_gpus(node: RealNode, tmp_path: Path) -> PlayedGpus:
    """Six, for a kubelet takes no list of the MiB of eight from a device plugin."""
    return PlayedGpus(tmp_path, count=6)


@pytest.fixture(params=["cdi", "no-cdi"])
def without_nri(
    node: RealNode, few_gpus: PlayedGpus, request: pytest.FixtureRequest
) -> Iterator[PluginAgent]:
    """An agent on the node, whose container runtime has no NRI."""
    node.restart_containerd(nri=False)
    agent = PluginAgent(node, few_gpus, f"--{request.param}")
    try:
        agent.begin()
        yield agent
        agent.end(signal.SIGTERM)
    finally:
        agent.kill()
        node.restart_containerd()


@contextlib.contextmanager
def scheduling(node: RealNode, folder: Path) -> Iterator[None]:
    with weft(node.plane, folder, ALONE, *EXTENDER) as scheduler:
        node.plane.start_scheduler(extender_config(scheduler.url, "elastic,gpushare"))
        yield


def all_begun(names: set[str]):
    return lambda pods: names == {p["metadata"]["name"] for p in pods if has_begun(p)}


def test_every_manifest_with_devices(
    node: RealNode,
    few_gpus: PlayedGpus,
    without_nri: PluginAgent,
    namespace: str,
    tmp_path: Path,
) -> None:
    text = "\n---\n".join((ELASTIC, GPUSHARE, ALNAIR, OTHERS, *(EQUAL % i for i in range(6))))
    with scheduling(node, tmp_path):
        names = {p["metadata"]["name"] for p in node.create(pods_of(text), namespace, bind=False)}
        pods = node.wait(all_begun(names), namespace)
    assert all(DELIVERY in pod["metadata"]["annotations"] for pod in pods)
    assert {pod["status"]["phase"] for pod in pods} <= {"Running", "Succeeded"}
    for pod in pods:
        is_exact(node, few_gpus, pod, record_of(pod))
    counts = without_nri.metrics()
    assert counts['weft_agent_container_starts_total{outcome="wrong"}'] == 0
    advertised = node.api.get("Node", node.name)["metadata"]["annotations"][ADVERTISES]
    own = frozenset(advertised.split(",")) - {"aliyun.com/gpu-count"}
    asyncio.run(is_reconciled(node, pods, own))


async def is_reconciled(node: RealNode, pods: list[Object], own: frozenset[str]) -> None:
    """The kubelet's account of devices equals the records; a difference would be seen."""
    client = PodResourcesClient(node.kubelet.pod_resources)
    listed = await client.containers()
    await client.close()
    known = [
        NodePod(
            one["metadata"]["uid"],
            msgspec.convert(one, PodOnNode, strict=False),
            "share",
            record_of(one),
        )
        for one in pods
    ]
    assert differences(listed, known, own, ()) == []
    without = [msgspec.structs.replace(pod, record=None) for pod in known]
    found = differences(listed, without, own, ())
    assert {each.kind for each in found} == {"no-record"}
    assert {each.pod.name for each in found} >= {"equal-0", "equal-5"}


@pytest.fixture
def in_gib(node: RealNode, few_gpus: PlayedGpus, tmp_path: Path) -> Iterator[PluginAgent]:
    """An agent that serves gpushare's resources alone, on the node without NRI."""
    config = tmp_path / "agent.yaml"
    config.write_text(IN_GIB)
    node.restart_containerd(nri=False)
    agent = PluginAgent(node, few_gpus, "--config", config)
    try:
        agent.begin()
        yield agent
    finally:
        agent.kill()
        node.restart_containerd()


def test_a_kubelet_that_restarts_has_the_resources_again_within_ten_seconds(
    node: RealNode, in_gib: PluginAgent, namespace: str, tmp_path: Path
) -> None:
    with scheduling(node, tmp_path):
        node.create(pods_of(EQUAL % 1), namespace, bind=False)
        node.wait(all_begun({"equal-1"}), namespace)
        assert restart_kubelet(node, MEMORY).back_s <= 10
        node.create(pods_of(EQUAL % 2), namespace, bind=False)
        pods = node.wait(all_begun({"equal-1", "equal-2"}), namespace)
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert not any(status["restartCount"] for pod in pods for status in statuses(pod))


def kept_back(pods: list[Object]) -> bool:
    return any("waiting" in status["state"] for status in statuses(pods[0]))


def statuses(pod: Object) -> list[Object]:
    found: list[Object] = pod["status"].get("containerStatuses", [])
    return found


def test_no_container_starts_while_the_agent_is_away(
    node: RealNode, few_gpus: PlayedGpus, in_gib: PluginAgent, namespace: str, tmp_path: Path
) -> None:
    """And an agent that comes back gives it what its pod's record says."""
    with scheduling(node, tmp_path):
        node.create(pods_of(EQUAL % 1), namespace, bind=False)
        (pod,) = node.wait(all_begun({"equal-1"}), namespace)
        in_gib.end(signal.SIGKILL)
        container = node.containers(pod)["main"]
        node.containerd.ctr("task", "kill", "--signal", "SIGKILL", container)
        node.wait(kept_back, namespace)
        in_gib.begin()
        (pod,) = node.wait(again, namespace, 90)
    is_exact(node, few_gpus, pod, record_of(pod))


def test_a_pod_beyond_what_is_advertised_is_refused(
    node: RealNode, in_gib: PluginAgent, namespace: str
) -> None:
    (pod,) = pods_of((EQUAL % 1).replace("gpu-mem: 1", "gpu-mem: 200"))
    (pod,) = node.run([pod], namespace)
    assert pod["status"]["phase"] == "Failed"
    assert MEMORY in pod["status"]["message"]


def again(pods: list[Object]) -> bool:
    return all(s["restartCount"] and "running" in s["state"] for s in statuses(pods[0]))


SHARED, REPLICAS = "nvidia.com/gpu.shared", 4
OF_REPLICAS = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  containers:
  - name: main
    resources: {limits: {nvidia.com/gpu.shared: %d}}
  - name: second
    resources: {limits: {nvidia.com/gpu.shared: 1}}
"""


def test_the_agent_tells_of_which_cards_the_replicas_of_nvidias_plugin_are(
    node: RealNode, few_gpus: PlayedGpus, namespace: str
) -> None:
    """Ids as NVIDIA's plugin makes them with time slicing; the kubelet chooses among them."""
    with agent(node, few_gpus, "--pod-resources", node.kubelet.pod_resources):
        shown = node.api.get("Node", node.name)["metadata"]["annotations"][INVENTORY]
        uuids = [gpu["uuid"] for gpu in json.loads(shown)["gpus"]][:3]
        ids = [f"{uuid}::{number}" for uuid in uuids for number in range(REPLICAS)]
        plugin = KubeletRecorder({SHARED: ids}, node.kubelet.pod_resources)
        with plugin.recording():
            node.api.wait_for(
                lambda n: n[0]["status"]["allocatable"].get(SHARED) == str(len(ids)), "Node"
            )
            given: dict[str, Counter[str]] = {}
            for name, devices in (("one", 1), ("three", 3), ("four", 4)):
                before = len(allocated(plugin))
                (pod,) = pods_of(OF_REPLICAS % (name, devices))
                found = node.run([pod], namespace)
                uid = next(p["metadata"]["uid"] for p in found if p["metadata"]["name"] == name)
                given[uid] = Counter(one.partition("::")[0] for one in allocated(plugin)[before:])
                assert given[uid].total() == devices + 1
            node.api.wait_for(lambda nodes: told_by(nodes[0]) == given, "Node")

            gone = next(iter(given))
            node.api.request("DELETE", f"{node.api.path('Pod', namespace)}/one")
            del given[gone]
            node.api.wait_for(lambda nodes: told_by(nodes[0]) == given, "Node")
            assert promised_by(node) == {
                uuid: few_gpus.memory_mib * sum(g[uuid] for g in given.values()) // REPLICAS
                for uuid in set().union(*given.values())
            }


def allocated(plugin: KubeletRecorder) -> list[str]:
    """The ids that the kubelet has given to containers so far, in that order."""
    return [one for call in plugin.calls if call["call"] == "allocate" for one in call["ids"]]


def told_by(node: Object) -> dict[str, Counter[str]]:
    """How many devices of each card each pod has, as the agent tells; every card has as many
    replicas as it is offered as."""
    told = json.loads(node["metadata"]["annotations"].get(PLUGIN_GPUS, '{"cards": [], "pods": {}}'))
    assert all(of == REPLICAS for gpus in told["pods"].values() for _, _, of in gpus)
    return {
        uid: Counter({told["cards"][card]: devices for card, devices, _ in gpus})
        for uid, gpus in told["pods"].items()
    }


def promised_by(node: RealNode) -> dict[str, int]:
    """MiB of each card that is held, as `weft inspect` shows it."""
    kubeconfig = str(node.plane.kubeconfig_for("weft", "system:masters"))
    command = [sys.executable, "-m", "weft.cli.main", "inspect", "--kubeconfig", kubeconfig]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=True)
    (shown,) = json.loads(done.stdout)["nodes"]
    return {gpu["uuid"]: gpu["promised_mib"] for gpu in shown["gpus"] if gpu["pods"]}
