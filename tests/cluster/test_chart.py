"""The Helm chart on the real API server: rendered, taken strictly, installed, upgraded, removed; a
second kube-scheduler as the chart configures it asks a Weft as the chart configures that one."""

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ControlPlane
from helm import CHART, HelmError, find_or_build, helm_at, lint, render
from kube_api import Api, ApiError, Object, Objects
from weft_process import ALONE, Weft, all_bound, audited, bound, nodes, pod, weft

from weft.cluster.config.form import Configuration
from weft.cluster.config.read import decode
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT

IMAGE = "--set=image.repository=registry.example/weft-gpu"
WEBHOOK = ("--set=admission.schedule=webhook", "--set=webhook.certificates=generate")
NAMESPACE = "weft-system"
ORIGINALS = CHART.parents[1] / "examples" / "originals"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
VIA: dict[str, Any] = {
    "profiles": [
        {"schedulerName": "weft", "policies": [{"name": "fgd"}]},
        {"schedulerName": "packed", "policies": [{"name": "best-fit"}], "via": "extender"},
    ],
    "extender": {"enabled": True, "certificates": "generate"},
    "kubeScheduler": {"enabled": True},
}
GIVEN: dict[str, Any] = {
    "podAnnotations": {"example.com/scrape": "no"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "nodeSelector": {"example.com/pool": "a"},
    "tolerations": [{"key": "example.com/own", "operator": "Exists"}],
}
PROFILE: dict[str, Any] = {"schedulerName": "weft", "policies": [{"name": "fgd"}]}
SETS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "scheduler alone": {"agent": {"enabled": False}, "admission": {"enabled": False}},
    "extender, own certificates": {"extender": {"enabled": True}},
    "second kube-scheduler": VIA,
    "every pod": {**VIA, "kubeScheduler": {"enabled": True, "everyPod": True, "replicas": 1}},
    "nodes without NRI": {
        "agent": {"devicePlugins": True, "runtimeClassName": "nvidia", "mig": True}
    },
    "agents that configure the runtime": {
        "agent": {"configureRuntime": True, "runtimeFolder": "/etc/containerd-gpu"}
    },
    "played GPUs": yaml.safe_load((CHART.parents[1] / "examples" / "played-gpus.yaml").read_text()),
    "own class, own registry": {
        "priorityClass": {"create": True},
        "image": {"tag": "1", "pullSecrets": ["registry"]},
        "scheduler": {"replicas": 3, "minAvailable": 2, "nodeSelector": {"a": "b"}},
        "admission": {"plugins": ["system:serviceaccount:kube-system:gpushare-device-plugin"]},
    },
    "before Kubernetes 1.36": {
        "admission": {"schedule": "webhook"},
        "webhook": {"certificates": "generate"},
    },
    "dashboard": {"monitoring": {"dashboard": True}},
    "everything that pods may be given": {
        **VIA,
        "admission": {"schedule": "webhook"},
        "webhook": {"certificates": "secret", "caBundle": "Y2E=", **GIVEN, "replicas": 1},
        "scheduler": GIVEN,
        "kubeScheduler": {"enabled": True, **GIVEN},
        "agent": {**GIVEN, "seLinuxOptions": {"type": "spc_t"}},
        "console": {**GIVEN, "enabled": True, "audience": "https://example.com"},
    },
    "settings": {
        "configuration": {
            "telemetry": {"discover": "exporters", "namespaces": ["monitoring"]},
            "lease": {"name": "other"},
            "lessons": {"name": ""},
            "http": {"port": 10300},
            "agent": {"port": 9401, "mps": True},
            "seed": 5_000_000_000,
        }
    },
}

TOLD = {"kind": "Node", "metadata": {"name": "probe", "annotations": {"weft.dev/inventory": "{}"}}}
RICH = {
    "kind": "Node",
    "metadata": {"name": "probe"},
    "status": {"capacity": {"aliyun.com/gpu-mem": "1"}},
}


@pytest.fixture(scope="session")
def helm() -> Path:
    return find_or_build(str)


def written(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return f"--values={path}"


def pods_of(objects: list[Object]) -> dict[str, Object]:
    """The pods' templates by the name of what makes them."""
    made = [item for item in objects if "template" in item.get("spec", {})]
    return {item["metadata"]["name"]: item["spec"]["template"] for item in made}


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


def configuration_of(objects: list[Object]) -> Configuration:
    (text,) = (o["data"]["weft.yaml"] for o in objects if o["metadata"]["name"] == "weft-config")
    return decode(text.encode(), "weft-config")


def is_there(api: Api, kind: str, name: str, namespace: str = "", version: str = "v1") -> bool:
    try:
        api.get(kind, name, namespace or None, version)
    except ApiError as error:
        if error.code == 404:
            return False
        raise
    return True


def apply(plane: ControlPlane, item: Object) -> None:
    """Applies it strictly, server-side and dry: nothing is written."""
    meta = item["metadata"]
    path = plane.api.path(item["kind"], meta.get("namespace"), item["apiVersion"])
    query = {"dryRun": "All", "fieldManager": "test", "force": "true", "fieldValidation": "Strict"}
    kind = "application/apply-patch+yaml"
    plane.api.request("PATCH", f"{path}/{meta['name']}", item, content=kind, query=query)


@pytest.fixture
def weft_system(control_plane: ControlPlane) -> None:
    if not is_there(control_plane.api, "Namespace", NAMESPACE):
        control_plane.create_namespace(NAMESPACE)


@pytest.mark.parametrize("name", SETS)
def test_what_it_renders_is_taken_strictly_and_weft_reads_its_configuration(
    control_plane: ControlPlane, helm: Path, tmp_path: Path, weft_system: None, name: str
) -> None:
    options = written(tmp_path, SETS[name])
    lint(helm, IMAGE, options)
    objects = render(helm, IMAGE, options)
    for item in objects:
        apply(control_plane, item)
    config, said = configuration_of(objects), SETS[name].get("configuration", {})
    assert config.seed == said.get("seed", 0)
    assert config.http.port == said.get("http", {}).get("port", 10259)
    assert config.extender.enabled == SETS[name].get("extender", {}).get("enabled", False)
    kinds = {item["kind"] for item in objects}
    assert ("DaemonSet" in kinds) == SETS[name].get("agent", {}).get("enabled", True)
    assert ("ValidatingAdmissionPolicy" in kinds) == (name != "scheduler alone")


def test_alnairs_static_pod_and_rights_are_taken_strictly(control_plane: ControlPlane) -> None:
    for name in ("kube-scheduler", "extra-rbac-kube-scheduler"):
        for item in yaml.safe_load_all((ORIGINALS / "alnair" / f"{name}.yaml").read_text()):
            apply(control_plane, item)


def test_a_kube_scheduler_with_alnairs_configuration_asks_weft(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    text = (ORIGINALS / "alnair" / "vGPUScheduler-config.yaml").read_text()
    theirs = yaml.safe_load(text)
    nodes(control_plane, 1)
    with serving(control_plane, tmp_path) as process:
        (extender,) = theirs["extenders"]
        extender["urlPrefix"] = f"{process.url}/weft"
        control_plane.start_scheduler({key: theirs[key] for key in ("profiles", "extenders")})
        limits = {"alnair/vgpu-memory": 2}
        control_plane.create_pods(namespace, [pod("a", "alnair-cost-saving", limits)])
        control_plane.api.wait_for(all_bound(1), "Pod", namespace, timeout_s=60)
    assert len(audited(control_plane, namespace).holdings) == 1


@contextlib.contextmanager
def serving(plane: ControlPlane, folder: Path) -> Iterator[Weft]:
    """`weft extender serve`, which takes no pods itself."""
    process = Weft(
        plane.kubeconfig_for("weft", "system:masters"), folder / "serve.log", "--port", "0", ALONE
    )
    process.command[3:4] = ["extender", "serve"]
    process.start()
    try:
        process.until(" ready: ")
        yield process
    finally:
        process.kill()


def test_nothing_in_it_names_a_place_that_is_not_replaced(helm: Path) -> None:
    for item in render(helm, IMAGE, "--set=admission.schedule=always"):
        text = yaml.safe_dump(item)
        for place in ("SCHEDULER_USER", "AGENT_USER", "PLUGIN_USERS", "SCHEDULER_NAME"):
            assert place not in text, item["metadata"]["name"]


def test_the_policies_know_the_service_accounts_of_the_release(helm: Path) -> None:
    objects = render(helm, IMAGE, "--namespace=gpus", "--set=admission.plugins={plugin}")
    accounts = {
        f"system:serviceaccount:gpus:{item['metadata']['name']}"
        for item in objects
        if item["kind"] == "ServiceAccount"
    }
    text = yaml.safe_dump([o for o in objects if o["kind"] == "ValidatingAdmissionPolicy"])
    for user in ("weft-scheduler", "weft-agent"):
        assert f"system:serviceaccount:gpus:{user}" in accounts
        assert f"system:serviceaccount:gpus:{user}" in text
    assert "'plugin'" in text.replace("''", "'")


def test_the_rules_are_those_of_deploy_monitoring_with_your_runbook(helm: Path) -> None:
    assert not [o for o in render(helm, IMAGE) if "monitoring" in o["apiVersion"]]
    mine = "--set=monitoring.enabled=true,monitoring.runbook=https://x/r,monitoring.labels.a=b"
    objects = [o for o in render(helm, IMAGE, mine) if "monitoring" in o["apiVersion"]]
    assert {o["kind"] for o in objects} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert all(o["metadata"]["labels"]["a"] == "b" for o in objects)
    shipped = (CHART.parent / "monitoring" / "rules.yaml").read_text()
    (rules,) = (o["spec"] for o in objects if o["kind"] == "PrometheusRule")
    assert rules == yaml.safe_load(shipped.replace("docs/howto/runbook.md", "https://x/r"))


@pytest.mark.parametrize("sets", ["", "log.format=json,log.level=debug"])
def test_scheduler_agent_and_webhook_log_as_the_values_say(helm: Path, sets: str) -> None:
    wanted = ["--log=debug", "--log-format=json"] if sets else []
    pods = pods_of(render(helm, IMAGE, f"--set={sets}", *WEBHOOK))
    commands = [pod["spec"]["containers"][0]["command"] for pod in pods.values()]
    assert len(commands) == 4  # and the clean-up's
    for words in commands:
        assert [word for word in words if word.startswith("--log")] == wanted


def with_policy(name: str) -> dict[str, Any]:
    return {"schedulerName": "weft", "policies": [{"name": name}]}


def by_route(name: str) -> dict[str, Any]:
    return {"configuration": {"extender": {"routes": {"/gpus": name}}}}


BY_WEBHOOK: dict[str, Any] = {"admission": {"schedule": "webhook"}}
GENERATE = {"certificates": "generate"}


def test_every_object_has_the_recommended_labels(helm: Path) -> None:
    monitored = "--set=monitoring.enabled=true", "--set=priorityClass.create=true"
    monitored += ("--set=console.enabled=true",)
    for item in render(helm, IMAGE, *WEBHOOK, *monitored, "--set=namespace.create=true"):
        labels = item["metadata"]["labels"]
        assert labels["helm.sh/chart"] == f"weft-{VERSION}", item["metadata"]["name"]
        wanted = {
            "instance": "weft",
            "version": VERSION,
            "managed-by": "Helm",
            "part-of": "weft",
        }
        found = {key: labels.get(f"app.kubernetes.io/{key}") for key in wanted}
        assert found == wanted, item["metadata"]["name"]
        assert {"app.kubernetes.io/name", "app.kubernetes.io/component"} <= labels.keys()


@pytest.mark.parametrize(
    ("repository", "tag", "image"),
    [
        ("r:5000/weft", "", f"r:5000/weft:{VERSION}"),
        ("r/weft", "2", "r/weft:2"),
        ("r/weft:3", "", "r/weft:3"),
        ("r/weft@sha256:ab", "", "r/weft@sha256:ab"),
    ],
)
def test_an_image_without_a_tag_is_of_the_charts_version(
    helm: Path, repository: str, tag: str, image: str
) -> None:
    options = f"--set=image.repository={repository}", f"--set-string=image.tag={tag}"
    pods = pods_of(render(helm, *options, *WEBHOOK))
    assert {pod["spec"]["containers"][0]["image"] for pod in pods.values()} == {image}


def test_every_long_lived_pod_has_three_probes_and_a_limit_and_what_the_values_give(
    helm: Path, tmp_path: Path
) -> None:
    values = SETS["everything that pods may be given"]
    pods = pods_of(render(helm, IMAGE, written(tmp_path, values)))
    del pods["weft-cleanup"]
    assert len(pods) == 5
    for name, template in pods.items():
        spec = template["spec"]
        (container,) = spec["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["path"], (name, probe)
        assert container["resources"]["limits"]["memory"], name
        assert template["metadata"]["annotations"].items() >= GIVEN["podAnnotations"].items()
        assert GIVEN["extraEnv"][0] in container["env"], name
        assert spec["nodeSelector"] == GIVEN["nodeSelector"], name
        assert spec["tolerations"] == GIVEN["tolerations"], name


def test_policies_of_plugins_are_named_apart(helm: Path, tmp_path: Path) -> None:
    values = {"profiles": [with_policy("mine")], "extraPolicies": ["mine"]}
    assert configuration_of(render(helm, IMAGE, written(tmp_path, values))).profiles


@pytest.mark.parametrize(
    ("name", "profiles"),
    [("best-fit", []), ("genius-scheduler", []), ("schedulerName", []), ("auto", []), ("p", ["p"])],
)
def test_a_route_of_the_extender_names_a_policy_or_a_profile(
    helm: Path, tmp_path: Path, name: str, profiles: list[str]
) -> None:
    mine = [{**PROFILE, "schedulerName": each} for each in profiles]
    values = {**by_route(name), "profiles": mine, "admission": {"schedule": "never"}}
    config = configuration_of(render(helm, IMAGE, written(tmp_path, values)))
    assert config.extender.routes == {"/gpus": name}


def test_the_webhooks_certificate_is_the_same_in_every_rendering(helm: Path) -> None:
    """But for `generate`, which is refused unless it is asked for."""
    where = IMAGE, "--kube-version=1.34.0"
    yours = "--set=webhook.certificates=secret,webhook.caBundle=Y2E=,webhook.secret=mine"
    for options in (yours, "--set=webhook.certificates=cert-manager"):
        first, second = (render(helm, *where, options) for _ in range(2))
        assert first == second
        assert "Secret" not in {item["kind"] for item in first}
    (hook,) = of_kind(render(helm, *where, yours), "MutatingWebhookConfiguration")
    assert hook["webhooks"][0]["clientConfig"]["caBundle"] == "Y2E="
    volumes = pods_of(render(helm, *where, yours))["weft-webhook"]["spec"]["volumes"]
    assert volumes == [{"name": "tls", "secret": {"secretName": "mine"}}]
    managed = render(helm, *where, "--set=webhook.certificates=cert-manager")
    (hook,), (made,) = (of_kind(managed, k) for k in (hook["kind"], "Certificate"))
    assert "caBundle" not in hook["webhooks"][0]["clientConfig"]
    injected = hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"{NAMESPACE}/{made['metadata']['name']}"
    assert made["spec"]["dnsNames"] == [f"weft-webhook.{NAMESPACE}.svc"]
    (issuer,) = of_kind(managed, "Issuer")
    assert made["spec"]["issuerRef"] == {"kind": "Issuer", "name": issuer["metadata"]["name"]}
    own = "--set=webhook.certificates=cert-manager,webhook.issuerRef.name=ours"
    assert not of_kind(render(helm, *where, own), "Issuer")


def test_nodes_are_cleaned_after_it_is_removed_by_rights_that_go_with_the_job(
    helm: Path,
) -> None:
    marks = [(i, i["metadata"].get("annotations", {})) for i in render(helm, IMAGE)]
    hooks = [i for i, said in marks if said.get("helm.sh/hook", "test") != "test"]
    assert sorted(i["kind"] for i in hooks) == [
        "ClusterRole",
        "ClusterRoleBinding",
        "Job",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ]
    for item in hooks:
        notes = item["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "post-delete"
        assert "hook-succeeded" in notes["helm.sh/hook-delete-policy"]
        weight = int(notes["helm.sh/hook-weight"])
        assert (weight == 0) == (item["kind"] == "Job"), "rights come first"
    assert not of_kind(render(helm, IMAGE, "--set=agent.cleanup=false"), "Job")
    assert not of_kind(render(helm, IMAGE, "--set=agent.enabled=false"), "Job")


LEVELS = {"weft-agent": ("privileged",)}
"""The levels of Pod Security at which a pod may run; those not named here keep to `restricted`."""


def test_pods_keep_to_the_pod_security_levels_of_the_page(
    control_plane: ControlPlane, helm: Path, tmp_path: Path
) -> None:
    """Judged by the API server's own admission, in a namespace of each level."""
    api = control_plane.api
    pods = pods_of(
        render(helm, IMAGE, written(tmp_path, SETS["everything that pods may be given"]))
    )
    assert len(pods) == 6
    for level in ("restricted", "baseline", "privileged"):
        place = f"level-{level}"
        control_plane.create_namespace(place)
        labels = {"pod-security.kubernetes.io/enforce": level}
        api.patch("Namespace", place, {"metadata": {"labels": labels}})
        for name, template in pods.items():
            spec = {k: v for k, v in template["spec"].items() if k != "priorityClassName"}
            spec["serviceAccountName"] = "default"
            item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            may = level in LEVELS.get(name, ("restricted", "baseline", "privileged"))
            assert taken(api, place, item) == may, (name, level)


def taken(api: Api, place: str, item: Object) -> bool:
    """Tells whether Pod Security lets it in; nothing is written."""
    try:
        api.request("POST", f"/api/v1/namespaces/{place}/pods", item, query={"dryRun": "All"})
    except ApiError as error:
        if "violates PodSecurity" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 3}, "replicas"),
        ({"scheduler": {"replica": 3}}, "replica"),
        ({"log": {"format": "xml"}}, "log/format"),
        ({"monitoring": {"interval": "often"}}, "monitoring/interval"),
        ({"configuration": {"lease": {"nam": "x"}}}, "nam"),
        ({"configuration": {"seed": "a"}}, "seed"),
        ({"extender": {"certificates": "some"}}, "certificates"),
        ({"image": {"repository": ""}}, "image.repository is empty: write"),
        ({"profiles": VIA["profiles"]}, "packed is via extender, and extender.enabled is false"),
        ({"kubeScheduler": {"enabled": True}}, "kubeScheduler.enabled needs extender.enabled"),
        ({**VIA, "profiles": []}, "no profile is via extender"),
        ({**VIA, "extender": {"enabled": True}}, "extender.certificates generate"),
        ({"configuration": {"lease": {"namespace": "x"}}}, "lease.namespace is not kube-system"),
        ({"scheduler": {"minAvailable": 2}}, "no node could be drained"),
        ({"profiles": [{**PROFILE, "schedulerName": "a"}]}, "weft is no profile"),
        ({"agent": {"configureRuntime": True, "criSocket": ""}}, "or give the socket"),
        ({"profiles": [PROFILE, PROFILE]}, "schedulerName weft is listed twice"),
        ({"profiles": [with_policy("best-fitt")]}, "best-fitt, which Weft does not have: write "),
        ({"configuration": {"profiles": [with_policy("x")]}}, "binpack, coscheml, dot-product"),
        (by_route("best-fitt"), "configuration.extender.routes./gpus: best-fitt is no policy"),
        ({"image": {"repository": "a:1", "tag": "2"}}, "has a tag, and image.tag is 2: keep one"),
        ({**BY_WEBHOOK, "webhook": {"certificates": "secret"}}, "webhook.caBundle is empty"),
        ({**BY_WEBHOOK, "webhook": {"certificates": "self"}}, "webhook/certificates"),
        (BY_WEBHOOK, "each rendering would make another certificate; write cert-manager"),
        ({**BY_WEBHOOK, "webhook": {"minAvailable": 2, **GENERATE}}, "no node could be drained"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_mean_nothing_or_contradict_are_refused(
    helm: Path, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(HelmError) as refused:
        render(helm, *([] if "image" in values else [IMAGE]), written(tmp_path, values))
    assert words in str(refused.value)


def test_an_api_server_older_than_1_30_is_refused_and_older_than_1_36_gets_a_webhook(
    helm: Path,
) -> None:
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.30"):
        render(helm, IMAGE, "--kube-version=1.29.3")
    with_it = {item["kind"] for item in render(helm, IMAGE, "--set=admission.schedule=always")}
    without = {item["kind"] for item in render(helm, IMAGE, "--set=admission.schedule=never")}
    assert with_it - without == {
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    }
    older = "--kube-version=1.34.0", "--set=webhook.certificates=generate"
    before = {item["kind"] for item in render(helm, IMAGE, *older)}
    assert before - without == {"MutatingWebhookConfiguration", "Secret"}


@pytest.fixture
def released(control_plane: ControlPlane, helm: Path) -> Iterator[list[str]]:
    """The options that lead helm to the control plane; what is installed is removed afterwards,
    without hooks: no controller is there that would run the Job."""
    kubeconfig = control_plane.kubeconfig_for("installer", "system:masters")
    where = ["--kubeconfig", str(kubeconfig), "--namespace", "weft-chart"]
    yield where
    helm_at(helm, "uninstall", "weft", "--no-hooks", "--ignore-not-found", *where)
    for kind in ("lessons", "observed"):
        control_plane.api.delete("ConfigMap", f"weft-{kind}", "kube-system")


def test_it_is_installed_upgraded_and_removed(
    control_plane: ControlPlane, helm: Path, tmp_path: Path, released: list[str]
) -> None:
    """Admission stays out of it: its policies would be in the way of the tests beside this one."""
    api = control_plane.api
    for name in ("weft-lessons", "weft-observed"):  # another test's, which no release owns
        if is_there(api, "ConfigMap", name, "kube-system"):
            api.delete("ConfigMap", name, "kube-system")
    options = [IMAGE, written(tmp_path, VIA), "--set=admission.enabled=false", *released]
    taken = ["--create-namespace", "--take-ownership"]
    helm_at(helm, "install", "weft", str(CHART), *options, *taken)
    for kind, name, version in (
        ("Deployment", "weft-scheduler", "apps/v1"),
        ("Deployment", "weft-kube-scheduler", "apps/v1"),
        ("DaemonSet", "weft-agent", "apps/v1"),
        ("PodDisruptionBudget", "weft-scheduler", "policy/v1"),
    ):
        assert is_there(api, kind, name, "weft-chart", version), name
    before = api.get("Secret", "weft-extender-tls", "weft-chart")["data"]
    assert sorted(before) == ["ca.crt", "client.crt", "client.key", "tls.crt", "tls.key"]
    api.patch("ConfigMap", "weft-lessons", {"data": {"team.Job.train": "{}"}}, "kube-system")
    helm_at(helm, "upgrade", "weft", str(CHART), *options, "--set=scheduler.replicas=3")
    assert api.get("Secret", "weft-extender-tls", "weft-chart")["data"] == before
    deployed = api.get("Deployment", "weft-scheduler", "weft-chart", "apps/v1")
    assert deployed["spec"]["replicas"] == 3
    helm_at(helm, "uninstall", "weft", "--no-hooks", *released)
    assert not is_there(api, "Deployment", "weft-scheduler", "weft-chart", "apps/v1")
    kept = api.get("ConfigMap", "weft-lessons", "kube-system")
    assert kept["data"] == {"team.Job.train": "{}"}


def test_its_notes_name_nodes_whose_runtime_does_not_wait_for_the_agent(
    control_plane: ControlPlane, helm: Path, released: list[str]
) -> None:
    api, off = control_plane.api, "--set=admission.enabled=false"
    offers = {
        "notes-open": encode_offer(AgentOffer("0.1", "by-name", ("none",))),
        "notes-closed": encode_offer(AgentOffer("0.1", "by-name", ("none",), fail_closed=True)),
        "notes-damaged": "{",
    }
    for name, offer in offers.items():
        meta = {"name": name, "annotations": {AGENT: offer}}
        api.create({"kind": "Node", "metadata": meta})
    try:
        more = ["--create-namespace", "--take-ownership"]
        said = helm_at(helm, "install", "weft", str(CHART), IMAGE, off, *more, *released)
        (line,) = (line for line in said.splitlines() if line.startswith("It does not on "))
        assert "notes-open" in line
        assert "notes-closed" not in line
        assert "default_validator" in said
        lines = "--set=agent.configureRuntime=true"
        said = helm_at(helm, "upgrade", "weft", str(CHART), IMAGE, off, lines, *released)
        assert "default_validator" not in said
        assert "`helm uninstall` puts that back" in said
    finally:
        for name in offers:
            api.delete("Node", name)


def test_what_others_left_is_in_nobodys_way(
    control_plane: ControlPlane, helm: Path, released: list[str]
) -> None:
    """A Lease that a scheduler made, and what an installation elsewhere has learnt and kept."""
    api = control_plane.api
    lease = ("Lease", "weft", "kube-system", "coordination.k8s.io/v1")
    found = is_there(api, *lease)
    if not found:
        meta = {"name": "weft", "namespace": "kube-system"}
        api.create({"apiVersion": lease[3], "kind": "Lease", "metadata": meta}, "kube-system")
    off = "--set=admission.enabled=false"
    options = [str(CHART), "--create-namespace", IMAGE, off]
    helm_at(helm, "install", "weft", *options, *released)
    helm_at(helm, "upgrade", "weft", *options, *released)
    helm_at(helm, "uninstall", "weft", "--no-hooks", *released)
    assert is_there(api, *lease)
    assert is_there(api, "ConfigMap", "weft-lessons", "kube-system")
    elsewhere = [*released[:2], "--namespace", "weft-moved"]
    helm_at(helm, "install", "weft", *options, *elsewhere)
    helm_at(helm, "uninstall", "weft", "--no-hooks", *elsewhere)
    if not found:
        api.delete("Lease", "weft", "kube-system", version=lease[3])


def test_who_may_not_write_all_of_it_is_told_what_and_leaves_nothing(
    control_plane: ControlPlane, helm: Path, released: list[str]
) -> None:
    """helm itself asks for no rights before it begins: it takes back what it has written."""
    api, group = control_plane.api, "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "weft-poor"}
    user = {"apiGroup": group, "kind": "User", "name": "poor"}
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["", "apps", "networking.k8s.io"], "resources": ["*"], "verbs": ["*"]},
    ]
    made: list[Object] = [
        {"kind": "ClusterRole", "rules": rules},
        {"kind": "ClusterRoleBinding", "roleRef": role, "subjects": [user]},
    ]
    for item in made:
        item |= {"apiVersion": f"{group}/v1", "metadata": {"name": "weft-poor"}}
        api.create(item)
    where = ["--kubeconfig", str(control_plane.kubeconfig_for("poor")), *released[2:]]
    try:
        options = ["--create-namespace", "--take-ownership", "--rollback-on-failure", IMAGE]
        with pytest.raises(HelmError) as failed:
            helm_at(helm, "install", "weft", str(CHART), *options, *where)
        assert 'User "poor" cannot' in str(failed.value)
        for kind in ("ServiceAccount", "ConfigMap", "Secret", "Service"):
            assert api.list(kind, "weft-chart") == [], kind
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            assert not is_there(api, kind, "weft-scheduler", version=f"{group}/v1")
    finally:
        for item in made:
            api.delete(item["kind"], "weft-poor", version=item["apiVersion"])


def test_a_second_one_on_the_cluster_is_refused_before_anything_is_written(
    control_plane: ControlPlane, helm: Path, released: list[str]
) -> None:
    """Two would schedule the same pods: both are of the same names, in whatever namespaces."""
    off = "--set=admission.enabled=false"
    options = ["--create-namespace", IMAGE, off]
    helm_at(helm, "install", "weft", str(CHART), *options, *released, "--take-ownership")
    other = [*released[:2], "--namespace", "weft-other"]
    with pytest.raises(HelmError, match=r"release-namespace.*weft-other.*weft-chart"):
        helm_at(helm, "install", "weft", str(CHART), *options, *other)
    assert control_plane.api.list("ServiceAccount", "weft-other") == []
    assert is_there(control_plane.api, "Deployment", "weft-scheduler", "weft-chart", "apps/v1")


def test_its_policies_are_in_force_for_the_users_of_the_release(
    control_plane: ControlPlane, namespace: str, helm: Path, released: list[str]
) -> None:
    """Installed as it is: the server's version decides whether pods get a schedulerName."""
    own = "system:serviceaccount:weft-chart"
    plugins = f"--set=admission.plugins={{{own}:plugin}}"
    taken = ["--create-namespace", "--take-ownership", plugins]
    path = f"/api/v1/namespaces/{namespace}/pods"
    marked = pod("p", "weft", {}, annotations={"weft.dev/placement": "{}"})
    users = [control_plane.api_for(u, "system:masters") for u in ("alice", f"{own}:weft-scheduler")]
    alice, scheduler = users
    users.append(control_plane.api_for(f"{own}:plugin", "system:masters"))
    try:
        helm_at(helm, "install", "weft", str(CHART), IMAGE, *released, *taken)
        for where, item in ((path, marked), ("/api/v1/nodes", TOLD), ("/api/v1/nodes", RICH)):
            once(lambda where=where, item=item: refused(alice, where, item))
        assert not refused(scheduler, path, marked)
        assert not refused(users[2], path, marked)
        counted = [
            line
            for line in alice.request("GET", "/metrics").splitlines()
            if line.startswith("apiserver_validating_admission_policy_check_total{")
            and 'policy="weft-' in line
        ]
        denied = [line for line in counted if 'enforcement_action="deny"' in line]
        assert denied, "the alert WeftForgedShare goes by it"
        assert all('error_type="invalid_error"' in line for line in denied), denied[:3]
        version = "admissionregistration.k8s.io/v1"
        assert is_there(alice, "MutatingAdmissionPolicy", "weft-schedule", version=version)
    finally:
        helm_at(helm, "uninstall", "weft", "--no-hooks", "--ignore-not-found", *released)
        for where, item in ((path, marked), ("/api/v1/nodes", TOLD), ("/api/v1/nodes", RICH)):
            once(lambda where=where, item=item: not refused(alice, where, item))
        for api in users:
            api.close()


def refused(api: Api, path: str, item: Object) -> bool:
    """Tells whether a policy keeps this user from writing it; nothing is written."""
    try:
        api.request("POST", path, item, query={"dryRun": "All"})
    except ApiError as error:
        return "ValidatingAdmissionPolicy 'weft-" in str(error)
    return False


def once(so: Callable[[], bool]) -> None:
    """A policy is in force, or no more, a moment after it was written."""
    deadline = time.monotonic() + 30
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_its_second_kube_scheduler_asks_its_weft_for_the_profiles_via_extender(
    control_plane: ControlPlane, namespace: str, helm: Path, tmp_path: Path
) -> None:
    """The real kube-scheduler and a real Weft with the chart's own configurations and certificates:
    only addresses and folders are this machine's."""
    objects = render(helm, IMAGE, written(tmp_path, VIA))
    named = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    files = tmp_path / "pki"
    files.mkdir()
    for name, data in named["Secret", "weft-extender-tls"]["data"].items():
        (files / name).write_bytes(base64.b64decode(data))
    config = named["ConfigMap", "weft-config"]["data"]["weft.yaml"]
    config = config.replace("/etc/weft/extender-tls", str(files)).replace("0.0.0.0", "127.0.0.1")
    config = config.replace("extender:\n", "extender:\n  port: 0\n")
    (tmp_path / "weft.yaml").write_text(config)
    theirs = yaml.safe_load(named["ConfigMap", "weft-kube-scheduler"]["data"]["config.yaml"])
    assert [profile["schedulerName"] for profile in theirs["profiles"]] == ["packed"]
    nodes(control_plane, 1)
    with weft(control_plane, tmp_path, ALONE, "--config", str(tmp_path / "weft.yaml")) as process:
        (extender,) = theirs["extenders"]
        service = extender["urlPrefix"].removeprefix("https://").partition(":")[0]
        extender["urlPrefix"] = process.url.replace("http:", "https:") + "/weft"
        extender["tlsConfig"] = {
            **{key: str(files / Path(path).name) for key, path in extender["tlsConfig"].items()},
            "serverName": service,
        }
        mine = {key: theirs[key] for key in ("profiles", "extenders")}
        limits = {"elasticgpu.io/gpu-memory": 1_000}
        control_plane.create_pods(namespace, [pod("p", "packed", limits)])
        control_plane.create_pods(namespace, [pod("w", "weft", limits)])

        def only_w(pods: Objects) -> bool:
            return bound([p for p in pods if p["metadata"]["name"] == "w"]) == bound(pods) == 1

        control_plane.api.wait_for(only_w, "Pod", namespace, timeout_s=60)
        control_plane.start_scheduler(mine)
        control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=60)
    assert len(audited(control_plane, namespace).holdings) == 2
