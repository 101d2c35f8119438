"""deploy/agent.yaml on the real API server: it is taken as it is, its rights suffice, no more."""

import asyncio
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from control_plane import OUR_ACCOUNTS, ControlPlane
from kube_api import Api, ApiError, Object
from test_deploy import install, objects
from weft_process import Weft

from fakes.nri_runtime import FakeRuntime
from weft.cluster.config.form import Configuration
from weft.cluster.reading.reading import AGENTS
from weft.cluster.rights import AGENT, DOCTOR
from weft.kube.access import ResourceRight, may_i
from weft.kube.client import ApiClient
from weft.kube.config import load

USER = "system:serviceaccount:weft-system:weft-agent"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:weft-system", "system:authenticated")
FAKE = """apiVersion: weft.dev/v1
kind: FakeDevices
gpus: [{model: NVIDIA-A100-SXM4-40GB, memoryMiB: 40960, reservedMiB: 500, count: 2}]
"""
NOT_ITS = (
    ResourceRight("create", "pods/binding"),
    ResourceRight("patch", "pods"),
    ResourceRight("delete", "pods"),
    ResourceRight("create", "pods"),
    ResourceRight("get", "pods/proxy"),
    ResourceRight("create", "pods/exec"),
    ResourceRight("update", "nodes"),
    ResourceRight("patch", "nodes"),
    ResourceRight("delete", "nodes"),
    ResourceRight("get", "nodes/proxy"),
    ResourceRight("list", "secrets"),
    ResourceRight("list", "configmaps"),
    ResourceRight("patch", "leases", "coordination.k8s.io"),
)


@pytest.fixture
def installed(control_plane: ControlPlane) -> None:
    install(control_plane, "scheduler", "agent")


@contextmanager
def runtime_at(socket: Path) -> Iterator[None]:
    """A container runtime that speaks NRI; a fake, in a thread of its own."""
    loop, runtime = asyncio.new_event_loop(), FakeRuntime(socket)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(runtime.start(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(runtime.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def agent_on(node: str, kubeconfig: Path, folder: Path, *more: str) -> Weft:
    """`weft agent` of this node with played GPUs, not started yet."""
    played = folder / "fake.yaml"
    played.write_text(FAKE)
    agent = Weft(kubeconfig, folder / "agent.log")
    options = ["--node-name", node, "--devices", played, "--listen", "127.0.0.1:0", *more]
    agent.command = [sys.executable, "-m", "weft.cli.main", "agent", "--kubeconfig", kubeconfig]
    agent.command += [*options, "--nri-socket", folder / "nri.sock"]
    agent.name = "weft agent"
    return agent


def allowed(kubeconfig: Path, rights: tuple[ResourceRight, ...]) -> list[str]:
    """Those of the rights that whoever the kubeconfig names has."""

    async def ask() -> list[str]:
        async with ApiClient(load(paths=(kubeconfig,))) as client:
            return [str(right) for right in rights if await may_i(client, right)]

    return asyncio.run(ask())


def once_all(kubeconfig: Path, rights: tuple[ResourceRight, ...]) -> None:
    """The API server learns of a new role a moment after it is written."""
    for _ in range(200):
        if len(allowed(kubeconfig, rights)) == len(rights):
            return
    assert allowed(kubeconfig, rights) == [str(right) for right in rights]


def test_the_agent_has_the_rights_that_it_needs_and_no_other(
    control_plane: ControlPlane, installed: None
) -> None:
    kubeconfig = control_plane.kubeconfig_for(USER, *GROUPS)
    once_all(kubeconfig, AGENT)
    assert allowed(kubeconfig, NOT_ITS) == []


def test_people_may_inspect_with_the_role_for_it(
    control_plane: ControlPlane, installed: None
) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "weft-inspect-test"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "weft-inspect",
        },
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    control_plane.api.request("POST", path, binding)
    kubeconfig = control_plane.kubeconfig_for("ann", "system:authenticated")
    once_all(kubeconfig, DOCTOR)
    assert allowed(kubeconfig, AGENT[-6:]) == []


def test_as_it_is_deployed_it_tells_of_its_node(
    control_plane: ControlPlane, tmp_path: Path, installed: None
) -> None:
    kubeconfig = control_plane.kubeconfig_for(USER, *GROUPS)
    once_all(kubeconfig, AGENT)
    control_plane.api.create({"kind": "Node", "metadata": {"name": "gpu-deployed"}})
    here = tmp_path / "kubeconfig"  # in a pod the namespace is the pod's
    config = yaml.safe_load(kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "weft-system"
    here.write_text(yaml.safe_dump(config))
    agent = agent_on("gpu-deployed", here, tmp_path)

    def told(nodes: list[Object]) -> bool:
        (node,) = (node for node in nodes if node["metadata"]["name"] == "gpu-deployed")
        marks = node["metadata"].get("annotations", {})
        return (
            "NVIDIA-A100" in marks.get("weft.dev/inventory", "")
            and "by-name" in marks.get("weft.dev/agent", "")
            and "aliyun.com/gpu-mem" in node.get("status", {}).get("allocatable", {})
        )

    with runtime_at(tmp_path / "nri.sock"):
        agent.start()
        control_plane.api.wait_for(told, "Node", timeout_s=60)
        assert agent.end(signal.SIGTERM) == 0
    control_plane.api.delete("Node", "gpu-deployed")
    assert not re.search("forbidden|Traceback", agent.said), agent.said
    requests = control_plane.audited(OUR_ACCOUNTS)
    asked = [one for one in requests if one["user"]["username"] == USER]
    many = [one for one in asked if one["verb"] in ("list", "watch")]
    selected = {
        what: {unquote(one["requestURI"]) for one in many if one["objectRef"]["resource"] == what}
        for what in ("pods", "nodes")
    }
    assert all("fieldSelector=spec.nodeName=gpu-deployed" in uri for uri in selected["pods"])
    assert all("fieldSelector=metadata.name=gpu-deployed" in uri for uri in selected["nodes"])
    assert all(selected.values())


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("DELETE", "/api/v1/nodes/gpu-deployed"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("GET", "/api/v1/namespaces/default/configmaps"),
    ],
)
def test_it_may_not_do_what_it_does_not_do(
    control_plane: ControlPlane, installed: None, verb: str, path: str
) -> None:
    api: Api = control_plane.api_for(USER, *GROUPS)
    try:
        with pytest.raises(ApiError, match="forbidden"):
            api.request(verb, path, {} if verb == "POST" else None)
    finally:
        api.close()


def test_its_pod_is_found_reached_and_no_more_privileged_than_it_says() -> None:
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects("agent")}
    spec = found["DaemonSet", "weft-agent"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    selector = spec["selector"]["matchLabels"]
    assert selector.items() <= labels.items()
    assert ",".join(f"{key}={value}" for key, value in selector.items()) == AGENTS
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    settings = Configuration().agent
    assert (port["name"], port["containerPort"]) == ("metrics", settings.port)
    policy = found["NetworkPolicy", "weft-agent"]["spec"]
    assert policy["ingress"] == [{"ports": [{"port": settings.port}]}]
    security = container["securityContext"]
    assert not security["privileged"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
    assert pod["hostPID"]
    assert not pod.get("hostNetwork")
    mounted = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == mounted
    paths = {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert paths == {
        "/run/containerd",
        "/run/weft",
        "/var/run/nri",
        "/var/run/cdi",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
    }
    scheduler = {(item["kind"], item["metadata"]["name"]) for item in objects("scheduler")}
    names = [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v]
    assert {("ConfigMap", name) for name in names} <= scheduler
