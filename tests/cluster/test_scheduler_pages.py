"""The scheduler's own pages, on a real control plane; `weft explain pod` through its proxy."""

import contextlib
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from api_proxy import ApiProxy
from control_plane import ControlPlane
from kube_api import ApiError, Objects
from weft_process import all_bound, nodes, pod, starting, weft

from fakes.addresses import own_address

PORT = 10_259
RBAC = "rbac.authorization.k8s.io/v1"
MANIFEST = Path(__file__).parents[2] / "deploy" / "scheduler.yaml"


def address() -> str:
    """One of this machine's that is not loopback: endpoints must not be."""
    return own_address() or pytest.skip("this machine has no address that a Service could lead to")


def own_pod(plane: ControlPlane, namespace: str, port: int) -> str:
    """The process' pod is only an object, but one with an address; its UID."""
    ip, meta = address(), {"name": "weft-scheduler", "namespace": namespace}
    ports = [{"name": "http", "containerPort": port}]
    spec = {
        "nodeName": "node-0",
        "containers": [{"name": "weft", "image": "none", "ports": ports}],
    }
    made = plane.api.create({"kind": "Pod", "metadata": meta, "spec": spec})
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
    plane.api.patch("Pod", "weft-scheduler", {"status": status}, namespace, part="status")
    return str(made["metadata"]["uid"])


def serve(plane: ControlPlane, namespace: str, port: int) -> None:
    """A Service that leads to the process, by endpoints of that pod: the API server leads nobody
    to an address that is no pod's of the namespace."""
    ip, meta = address(), {"name": "weft-scheduler", "namespace": namespace}
    uid = own_pod(plane, namespace, port)
    ports = [{"name": "http", "port": PORT, "protocol": "TCP"}]
    plane.api.create({"kind": "Service", "metadata": meta, "spec": {"ports": ports}})
    target = {"kind": "Pod", "uid": uid, **meta}
    there = [{"ip": ip, "nodeName": "node-0", "targetRef": target}]
    subset = {"addresses": there, "ports": [{"name": "http", "port": port}]}
    plane.api.create({"kind": "Endpoints", "metadata": meta, "subsets": [subset]})


def let_explain(plane: ControlPlane, namespace: str, user: str) -> Path:
    """The rights of the manifest, in this namespace, for this user; a kubeconfig as that user."""
    for item in yaml.safe_load_all(MANIFEST.read_text()):
        if item["metadata"]["name"] != "weft-explain":
            continue
        if item["kind"] == "ClusterRoleBinding":
            item["metadata"]["name"] += f"-{namespace}"
        for where in (item["metadata"], *item.get("subjects", ())):
            where["namespace"] = namespace
        version = item.get("apiVersion", "v1")
        path = plane.api.path(item["kind"], item["metadata"].get("namespace"), version)
        with contextlib.suppress(ApiError):  # the ClusterRole of an earlier test
            plane.api.request("POST", path, item)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "weft-explain"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    binding = {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {"name": user, "namespace": namespace},
        "roleRef": role,
        "subjects": [subject],
    }
    path = plane.api.path("RoleBinding", namespace, RBAC)
    plane.api.request("POST", path, binding)
    return plane.kubeconfig_for(user)


def explain(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "weft.cli.main",
            "explain",
            "pod",
            *arguments,
            "--kubeconfig",
            str(kubeconfig),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def says_why(pods: Objects) -> bool:
    late = next(p for p in pods if p["metadata"]["name"] == "late")
    return bool(late["status"].get("conditions"))


def shows_metrics(port: int) -> None:
    """The pages of a scheduler that has placed two pods and leads."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'scheduler_schedule_attempts_total{profile="weft",result="scheduled"} 2.0' in text
    assert 'weft_ledger_gpu_memory_used_mib{node="node-0"} 20000.0' in text
    assert 'leader_election_master_status{name="weft"} 1.0' in text
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
        assert answer.read() == b"ok"


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_lives_and_says_why_it_waits_while_the_api_server_is_away(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with ApiProxy(control_plane) as proxy:
        held = proxy.hold("GET", "/version", "before", count=100)
        process = starting(control_plane, tmp_path, kubeconfig=proxy.kubeconfig)
        try:
            port = int(process.until(r"health, metrics and explain on \S+:(\d+)")[1])
            held.wait()
            assert page(port, "/livez") == (200, "ok")
            process.until(r"the API server http://\S+ does not answer: GET /version: TimeoutError")
            assert page(port, "/livez") == (200, "ok")
            status, text = page(port, "/readyz")
            assert status == 503
            assert "[-]api-server failed: GET /version: TimeoutError" in text
            assert "ready:" not in process.said
            held.release()
            process.until(r"the API server answers, after \d+ s")
            process.until(r"\bready: \d+ nodes")
        finally:
            process.kill()


def test_explain_and_metrics_of_a_running_scheduler(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nodes(control_plane, 1)
    limits: dict[str, object] = {"elasticgpu.io/gpu-memory": 10_000}
    kubeconfig = let_explain(control_plane, namespace, "reader")
    service = f"{namespace}/weft-scheduler:{PORT}"
    with weft(control_plane, tmp_path) as process:
        port = int(process.until(r"health, metrics and explain on \S+:(\d+)")[1])
        serve(control_plane, namespace, port)
        control_plane.create_pods(namespace, [pod(f"p-{i}", "weft", limits) for i in range(2)])
        control_plane.api.wait_for(all_bound(3), "Pod", namespace, timeout_s=15)
        control_plane.create_pods(namespace, [pod("late", "weft", limits)])
        control_plane.api.wait_for(says_why, "Pod", namespace, timeout_s=10)
        said = explain(kubeconfig, f"{namespace}/late", "--service", service)
        assert said.returncode == 0, said.stderr
        why = "0/1 GPU nodes: 1 × insufficient memory on any one GPU (largest free 6,384 MiB"
        assert why in said.stdout
        assert re.search(rf"- free node-0 GPU \d: end pod {namespace}/p-\d", said.stdout)
        late = control_plane.api.get("Pod", "late", namespace)
        (condition,) = late["status"]["conditions"]
        assert condition["message"] in said.stdout, "the condition has the same words"
        found = json.loads(
            explain(kubeconfig, f"{namespace}/p-0", "--service", service, "--output", "json").stdout
        )
        assert (found["state"], found["node"], found["leader"]) == ("bound", "node-0", True)
        said = explain(kubeconfig, f"{namespace}/late", "--service", f"{namespace}/other:1")
        assert said.returncode == 1
        assert "name the scheduler's Service with --service" in said.stderr
        at = f"http://{address()}:{port}"
        for url in (f"{at}/explain/pods/{namespace}/late", f"{at}/explain/pods/{namespace}/none"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url, timeout=10)
        proxy = {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]}
        control_plane.api.patch("Role", "weft-explain", {"rules": [proxy]}, namespace, RBAC)
        said = explain(kubeconfig, f"{namespace}/late", "--service", service)
        assert said.returncode == 1, "who reaches the proxy is not yet somebody who may know"
        assert f"no token of the service account {namespace}/weft-explain was made" in said.stderr
        assert "late" not in said.stdout
        shows_metrics(port)


def test_explain_needs_nobody_who_keeps_endpoints(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """There is a Service, as in Weft's manifests, but it leads nowhere: its leader is found by its
    label. Before it has one, what is said names the Service and the label."""
    nodes(control_plane, 1)
    kubeconfig = let_explain(control_plane, namespace, "reader")
    service = ("--service", f"{namespace}/weft-scheduler:{PORT}")
    meta = {"name": "weft-scheduler", "namespace": namespace}
    ports = [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}]
    control_plane.api.create({"kind": "Service", "metadata": meta, "spec": {"ports": ports}})
    with weft(control_plane, tmp_path) as process:
        port = int(process.until(r"health, metrics and explain on \S+:(\d+)")[1])
        own_pod(control_plane, namespace, port)
        control_plane.create_pods(namespace, [pod("p", "weft", {"elasticgpu.io/gpu-memory": 9})])
        control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=30)
        said = explain(kubeconfig, f"{namespace}/p", *service)
        assert said.returncode == 1
        assert "there is no such Service, or it has no endpoints" in said.stderr
        assert f"no pod of {namespace} is labelled weft.dev/role=leader" in said.stderr
        leads = {"metadata": {"labels": {"weft.dev/role": "leader"}}}
        control_plane.api.patch("Pod", "weft-scheduler", leads, namespace)
        said = explain(kubeconfig, f"{namespace}/p", *service, "--output", "json")
        assert said.returncode == 0, said.stderr
        found = json.loads(said.stdout)
        assert (found["state"], found["node"], found["leader"]) == ("bound", "node-0", True)
