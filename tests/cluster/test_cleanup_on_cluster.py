"""The Job after `helm uninstall`: what it does on the real API server, by its own rights."""

import asyncio
from pathlib import Path

import msgspec
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
from weft.node.agent.cleanup import Cleanup

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


def hooks() -> list[Object]:
    found = render(find_or_build(str), IMAGE)
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


async def cleaned(kubeconfig: Path) -> int:
    """As in its pod, where the namespace is the pod's."""
    endpoint = msgspec.structs.replace(load(paths=(kubeconfig,)), namespace=SYSTEM, inside=True)
    async with ApiClient(endpoint) as client:
        return await Cleanup(client).run()
