"""deploy/scheduler.yaml on the real API server: it is taken as it is, and its rights suffice."""

import re
import signal
import time
from pathlib import Path

import pytest
import yaml
from control_plane import ControlPlane
from kube_api import Api, ApiError, Object
from weft_process import EXTENDER, Weft, all_bound, audited, bound, nodes, pod

from weft.cluster.config.form import Configuration
from weft.cluster.config.read import decode
from weft.cluster.extender.setup import listening_of
from weft.cluster.http.access import AccessRule

DEPLOY = Path(__file__).parents[2] / "deploy"
USER = "system:serviceaccount:weft-system:weft-scheduler"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:weft-system", "system:authenticated")


def objects(*files: str) -> list[Object]:
    texts = [(DEPLOY / f"{file}.yaml").read_text() for file in files or ("scheduler",)]
    return [item for text in texts for item in yaml.safe_load_all(text)]


@pytest.fixture
def installed(control_plane: ControlPlane) -> None:
    install(control_plane, "scheduler")


def install(control_plane: ControlPlane, *files: str) -> None:
    """Everything but the policies, which would hold for all tests after this one
    (test_least_rights.py has them)."""
    for item in objects(*files):
        if "AdmissionPolicy" in item["kind"]:
            continue
        version = item.get("apiVersion", "v1")
        meta = item["metadata"]
        path = control_plane.api.path(item["kind"], meta.get("namespace"), version)
        try:
            control_plane.api.request("POST", path, item, query={"fieldValidation": "Strict"})
        except ApiError as error:
            if error.code != 409:
                raise


def once_allowed(api: Api, path: str, timeout_s: float = 60.0) -> Object:
    """The answer to GET: the API server learns of a new role a moment after it is written."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return api.request("GET", path)
        except ApiError as error:
            if error.code != 403 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def ran_out(plane: ControlPlane, namespace: str, name: str) -> None:
    """The pod's container has run out of GPU memory, and runs again."""
    ended = {"exitCode": 1, "reason": "Error", "message": "CUDA out of memory"}
    one = {"name": "main", "image": "none", "imageID": "", "ready": True, "restartCount": 1}
    one |= {"state": {"running": {}}, "lastState": {"terminated": ended}}
    status = {"phase": "Running", "containerStatuses": [one]}
    plane.api.patch("Pod", name, {"status": status}, namespace, part="status")


def leading(plane: ControlPlane, log: Path) -> Weft:
    """A scheduler with the manifests' rights in the pod weft-0, once it leads."""
    plane.api.create(pod("weft-0", "nobody", {}), "weft-system")
    config = yaml.safe_load(plane.kubeconfig_for(USER, *GROUPS).read_text())
    config["contexts"][0]["context"]["namespace"] = "weft-system"  # in a pod it is the pod's
    kubeconfig = log.with_name("kubeconfig")
    kubeconfig.write_text(yaml.safe_dump(config))
    process = Weft(kubeconfig, log, *EXTENDER)
    named = ["POD_NAME=weft-0", "POD_NAMESPACE=weft-system"]
    process.command = ["/usr/bin/env", *named, *process.command]
    process.start()
    process.until(r"leading, term \d+")
    return process


def names_of_placed(plane: ControlPlane, namespace: str) -> list[str]:
    pods = plane.api.list("Pod", namespace)
    return [one["metadata"]["name"] for one in pods if one["spec"].get("nodeName")]


def test_its_rights_suffice_to_lead_to_bind_and_to_tell(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, installed: None
) -> None:
    nodes(control_plane, 1)
    process = leading(control_plane, tmp_path / "log")
    limits = {"elasticgpu.io/gpu-memory": 10_000}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True, "uid": "u"}
    pods = [pod(f"p{n}", "weft", limits, ownerReferences=[job]) for n in range(3)]
    control_plane.create_pods(namespace, pods)

    def told(pods: list[Object]) -> bool:
        conditions = [c for p in pods for c in p.get("status", {}).get("conditions", [])]
        refused = any("GPU nodes: " in c.get("message", "") for c in conditions)
        return refused and bound(pods) == 2  # bindings may still be on their way

    control_plane.api.wait_for(told, "Pod", namespace, timeout_s=10)
    assert len(audited(control_plane, namespace).holdings) == 2
    mark = {"weft.dev/role": "leader"}
    control_plane.api.wait_for(
        lambda own: any(p["metadata"].get("labels") == mark for p in own),
        "Pod",
        "weft-system",
        timeout_s=10,
    )
    # They are created all at once: any of the three may be the one that is refused.
    placed = names_of_placed(control_plane, namespace)
    ran_out(control_plane, namespace, placed[0])
    control_plane.api.wait_for(
        lambda maps: any(f"{namespace}.Job.train" in (m.get("data") or {}) for m in maps),
        "ConfigMap",
        "kube-system",
        timeout_s=10,
    )
    for name in placed:
        control_plane.api.delete("Pod", name, namespace)
    control_plane.api.wait_for(all_bound(1), "Pod", namespace, timeout_s=10)
    control_plane.api.wait_for(
        lambda events: {"Scheduled", "FailedScheduling"} <= {event["reason"] for event in events},
        "Event",
        namespace,
        "events.k8s.io/v1",
        timeout_s=10,
    )
    assert process.end(signal.SIGTERM) == 0
    assert not re.search("forbidden|Traceback", process.said), process.said


def test_its_rights_suffice_to_find_exporters_and_no_service(
    control_plane: ControlPlane, installed: None
) -> None:
    api = control_plane.api_for(USER, *GROUPS)
    try:
        assert once_allowed(api, "/api/v1/pods")["kind"].endswith("List")
        with pytest.raises(ApiError, match="forbidden"):
            api.request("GET", "/api/v1/services")
        with pytest.raises(ApiError, match="forbidden"):  # asked directly: no need for the proxy
            api.request("GET", "/api/v1/namespaces/default/services/http:p:9090/proxy/")
    finally:
        api.close()


def test_its_rights_suffice_to_keep_what_was_observed_and_nothing_else(
    control_plane: ControlPlane, installed: None
) -> None:
    api = control_plane.api_for(USER, *GROUPS)
    try:
        change = {"data": {"observed.v1.json": "{}"}}
        found = api.patch("ConfigMap", "weft-observed", change, "kube-system")
        assert found["data"] == change["data"]
        with pytest.raises(ApiError, match="forbidden"):
            api.patch("ConfigMap", "kube-root-ca.crt", change, "kube-system")
    finally:
        api.close()


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        ("GET", "/api/v1/nodes/node-0"),
        ("PATCH", "/api/v1/nodes/node-0"),
        ("DELETE", "/api/v1/nodes/node-0"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("POST", "/api/v1/namespaces/weft-system/serviceaccounts/weft-explain/token"),
        ("GET", "/api/v1/namespaces/default/configmaps"),
        ("GET", "/explain/pods/d/p"),
        ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/weft"),
    ],
)
def test_it_may_not_do_what_it_does_not_do(
    control_plane: ControlPlane, installed: None, verb: str, path: str
) -> None:
    api = control_plane.api_for(USER, *GROUPS)
    try:
        with pytest.raises(ApiError, match="forbidden"):
            api.request(verb, path, {} if verb in ("POST", "PATCH") else None)
    finally:
        api.close()


def test_only_the_port_of_health_and_metrics_is_reached_and_nothing_else_is_served() -> None:
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects()}
    shipped = found["ConfigMap", "weft-config"]["data"]["weft.yaml"]
    config = decode(shipped.encode(), "weft-config")
    assert config == Configuration()
    assert not config.extender.enabled
    assert not config.http.anyone_may_explain
    pod = found["Deployment", "weft-scheduler"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["weft", "scheduler", "--config=/etc/weft/config/weft.yaml"]
    policy = found["NetworkPolicy", "weft-scheduler"]["spec"]
    own = {"app.kubernetes.io/name": "weft-scheduler"}
    assert policy["podSelector"]["matchLabels"] == own
    assert own.items() <= pod["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": config.http.port}]}]


def test_with_its_comments_taken_away_the_extender_answers_certificates_alone() -> None:
    found = {
        (item["kind"], item["metadata"]["name"]): item for item in objects("scheduler", "extender")
    }
    shipped = found["ConfigMap", "weft-config"]["data"]["weft.yaml"]
    settings = decode(shipped.replace("#", "").encode(), "weft-config").extender
    assert settings.enabled
    assert listening_of(settings).door == AccessRule(certificate=True)
    pod = found["Deployment", "weft-scheduler"]["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    for file in (settings.certificate_file, settings.key_file, settings.client_authority_file):
        assert Path(file).parent == Path(mounts["extender-tls"])
    ports = found["NetworkPolicy", "weft-extender"]["spec"]["ingress"][0]["ports"]
    service = found["Service", "weft-extender"]["spec"]["ports"]
    assert [port["port"] for port in ports] == [settings.port]
    assert [port["targetPort"] for port in service] == [settings.port]


def test_its_services_select_its_pods_and_the_leader_alone_binds() -> None:
    found = {
        (item["kind"], item["metadata"]["name"]): item for item in objects("scheduler", "extender")
    }
    template = found["Deployment", "weft-scheduler"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    named = {port["name"] for port in template["spec"]["containers"][0]["ports"]} | {39_999}
    for name, extra in (("weft-scheduler", {}), ("weft-extender", {"weft.dev/role": "leader"})):
        service = found["Service", name]["spec"]
        own = {"app.kubernetes.io/name": "weft-scheduler"}
        assert service["selector"] == {**own, **extra}
        assert own.items() <= labels.items()
        assert {port["targetPort"] for port in service["ports"]} <= named
