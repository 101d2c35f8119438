"""The resources that the agent writes into its node's status, as a real kubelet counts them."""

import subprocess

from agent_process import Agent, agent
from kube_api import Objects
from played_gpus import PlayedGpus
from real_node import RealNode
from resource_history import restart_kubelet
from test_real_node import pod

from weft.model.annotations import ADVERTISES, AGENT, INVENTORY

RESOURCE = "weft.dev/gpu-memory"


def advertised(node: RealNode) -> str | None:
    """How much of the resource the node has."""
    status = node.api.get("Node", node.name)["status"]
    assert status["capacity"].get(RESOURCE) == status["allocatable"].get(RESOURCE)
    found: str | None = status["allocatable"].get(RESOURCE)
    return found


def wait_advertised(node: RealNode, amount: str) -> None:
    """Until the node has so much of it."""

    def so(nodes: Objects) -> bool:
        return any(n["status"]["allocatable"].get(RESOURCE) == amount for n in nodes)

    node.api.wait_for(so, "Node")


def test_they_survive_a_restart_of_the_kubelet(node: RealNode, gpus: PlayedGpus) -> None:
    total = str(gpus.count * gpus.memory_mib)
    first = Agent(node, gpus)
    try:
        first.begin()
        wait_advertised(node, total)
        assert restart_kubelet(node, RESOURCE).back_s <= 10
        assert advertised(node) == total
    finally:
        first.kill()
    node.restart_kubelet()
    assert advertised(node) == total, "no agent runs, and pods are counted all the same"


def test_a_cleanup_takes_all_that_the_agent_wrote_off_the_node(
    node: RealNode, gpus: PlayedGpus
) -> None:
    before = node.api.get("Node", node.name)
    with agent(node, gpus) as process:
        wait_advertised(node, str(gpus.count * gpus.memory_mib))
        command = process.command
    between = node.api.get("Node", node.name)
    assert {AGENT, INVENTORY, ADVERTISES} <= between["metadata"]["annotations"].keys()
    subprocess.run([*command, "--cleanup"], check=True, timeout=100)
    after = node.api.get("Node", node.name)
    for part in ("annotations", "labels"):
        assert after["metadata"][part] == before["metadata"][part]
    for part in ("capacity", "allocatable"):
        assert after["status"][part].keys() == before["status"][part].keys()


def test_the_kubelet_refuses_a_pod_beyond_them(
    node: RealNode, gpus: PlayedGpus, namespace: str
) -> None:
    """A resource that its copy of the node lacks it ignores: it may get to know of it a little
    later than we do."""

    def answered(pods: Objects) -> bool:
        last = max(pods, key=lambda each: str(each["metadata"]["name"]))["status"]
        return last["phase"] == "Failed" or "containerStatuses" in last

    with agent(node, gpus):
        wait_advertised(node, str(gpus.count * gpus.memory_mib))
        main = {"name": "main", "resources": {"limits": {RESOURCE: "131073"}}}
        for number in range(5):
            node.create([pod(f"too-much-{number}", containers=[main])], namespace)
            found = node.wait(answered, namespace)
            refused = [each for each in found if each["status"]["phase"] == "Failed"]
            if refused:
                break
    assert [each["status"]["reason"] for each in refused] == [f"OutOf{RESOURCE}"]
