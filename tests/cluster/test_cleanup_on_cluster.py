"""The Job after `helm uninstall`: what it does on the real API server, by its own rights."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import yaml
from control_plane import ControlPlane
from helm import find_or_build, render
from kube_api import Object
from test_chart import IMAGE, is_there, of_kind
from test_deploy_agent import allowed, once_all

from weft.cluster.rights import CLEANUP
from weft.dialects import alnair
from weft.kube.access import ResourceRight
from weft.kube.client import ApiClient
from weft.kube.config import load
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT
from weft.node.agent.cleanup import Cleanup
from weft.node.containerd.putting_back import RuntimeThere

SYSTEM = "weft-system"
USER = f"system:serviceaccount:{SYSTEM}:weft-cleanup"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}", "system:authenticated")
RIGHTS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
NOT_ITS = (
    ResourceRight("patch", "nodes"),
    ResourceRight("delete", "nodes"),
    ResourceRight("list", "secrets"),
    ResourceRight("list", "pods"),
    ResourceRight("delete", "pods"),
    ResourceRight("delete", "leases", "coordination.k8s.io"),
)
"""Cluster-wide; in Weft's namespace it may list pods and delete Leases."""
RESOURCES = {"weft.dev/gpu-memory": "81920", "aliyun.com/gpu-mem": "80"}


def hooks(*options: str) -> list[Object]:
    found = render(find_or_build(str), IMAGE, *options)
    return [item for kind in RIGHTS for item in of_kind(found, kind) if _is_hook(item)]


def _is_hook(item: Object) -> bool:
    return "helm.sh/hook" in item["metadata"].get("annotations", {})


def written_node(plane: ControlPlane, name: str) -> None:
    """A node as its agent leaves it, beside what is the kubelet's and its administrator's."""
    marks = {
        "weft.dev/agent": "{}",
        "weft.dev/inventory": "{}",
        "weft.dev/advertises": ",".join(RESOURCES),
        alnair.NODE_COUNT: "2",
        "example.com/own": "1",
    }
    labels = {"weft.dev/gpu-model.NVIDIA-A100": "2", "zone": "z"}
    plane.create_fake_node(name, RESOURCES, labels=labels, annotations=marks)
    labelled = {"app.kubernetes.io/name": "weft-agent"}
    meta = {"name": f"weft-agent-{name}", "labels": labelled}
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    plane.api.create({**kind, "metadata": meta, "spec": {}}, SYSTEM)


def test_its_account_takes_everything_off_and_may_do_nothing_else(
    control_plane: ControlPlane,
) -> None:
    plane = control_plane
    if not is_there(plane.api, "Namespace", SYSTEM):
        plane.create_namespace(SYSTEM)
    made = hooks()
    assert len(made) == len(RIGHTS)
    for item in made:
        plane.api.create(item, item["metadata"].get("namespace"))
    kubeconfig = plane.kubeconfig_for(USER, *GROUPS)
    try:
        once_all(kubeconfig, CLEANUP)
        assert allowed(kubeconfig, NOT_ITS) == []
        written_node(plane, "cleaned-a")
        plane.create_fake_node("cleaned-b")
        assert asyncio.run(cleaned(kubeconfig)) == 1
        found = plane.api.get("Node", "cleaned-a")
        for field in ("capacity", "allocatable"):
            assert not RESOURCES.keys() & found["status"][field].keys()
            assert "memory" in found["status"][field]
        assert found["metadata"]["annotations"] == {"example.com/own": "1"}
        assert found["metadata"]["labels"] == {
            "kubernetes.io/hostname": "cleaned-a",
            "zone": "z",
        }
        lease = ("Lease", "weft-agent-cleaned-a", SYSTEM, "coordination.k8s.io/v1")
        assert not is_there(plane.api, *lease)
        assert asyncio.run(cleaned(kubeconfig)) == 0
    finally:
        for item in made:
            meta, version = item["metadata"], item["apiVersion"]
            plane.api.delete(item["kind"], meta["name"], meta.get("namespace"), version=version)
        for name in ("cleaned-a", "cleaned-b"):
            plane.api.delete("Node", name)


async def cleaned(kubeconfig: Path, node_pod: Object | None = None) -> int:
    """As in its pod, where the namespace is the pod's."""
    endpoint = msgspec.structs.replace(load(paths=(kubeconfig,)), namespace=SYSTEM, inside=True)
    async with ApiClient(endpoint) as client:
        runtimes = RuntimeThere(client, node_pod) if node_pod is not None else None
        return await Cleanup(client, runtimes=runtimes).run()


def test_with_agents_that_configure_containerd_it_makes_a_pod_on_each_such_node(
    control_plane: ControlPlane,
) -> None:
    """By the rights and the pod that the chart renders; no kubelet is there to run it."""
    plane = control_plane
    if not is_there(plane.api, "Namespace", SYSTEM):
        plane.create_namespace(SYSTEM)
    option = ("--set", "agent.configureRuntime=true")
    made = hooks(*option)
    for item in made:
        plane.api.create(item, item["metadata"].get("namespace"))
    (config,) = (
        item
        for item in of_kind(render(find_or_build(str), IMAGE, *option), "ConfigMap")
        if item["metadata"]["name"] == "weft-cleanup"
    )
    node_pod = yaml.safe_load(config["data"]["node-pod.yaml"])
    node_pod["spec"].pop("serviceAccountName")  # no controller makes accounts' tokens here
    offer = AgentOffer("1", "by-name", fail_closed=True, drop_in="/etc/containerd/conf.d/x.toml")
    plane.create_fake_node("configured", annotations={AGENT: encode_offer(offer)})
    kubeconfig = plane.kubeconfig_for(USER, *GROUPS)
    try:
        once_all(kubeconfig, CLEANUP)
        with ThreadPoolExecutor() as pool:
            cleaning = pool.submit(asyncio.run, cleaned(kubeconfig, node_pod))
            (one,) = plane.api.wait_for(lambda pods: pods, "Pod", SYSTEM)
            assert one["spec"]["nodeName"] == "configured"
            assert one["spec"]["hostPID"] is True
            done = {"status": {"phase": "Succeeded"}}
            plane.api.patch("Pod", one["metadata"]["name"], done, SYSTEM, part="status")
            assert cleaning.result(timeout=60) == 1
        marks = plane.api.get("Node", "configured")["metadata"].get("annotations", {})
        assert AGENT not in marks
    finally:
        for item in made:
            meta, version = item["metadata"], item["apiVersion"]
            plane.api.delete(item["kind"], meta["name"], meta.get("namespace"), version=version)
        plane.api.delete("Node", "configured")
