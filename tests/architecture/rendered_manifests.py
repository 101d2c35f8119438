"""Writes what is rendered below deploy/ and examples/originals/: the chart's schema and generated
files, and with helm the manifests. `make manifests` runs it; `test_rendered_manifests.py` holds
that all is current.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster")]

import helm  # noqa: E402

from weft import __version__  # noqa: E402
from weft.cluster.admission.protection import Writers, protection_policies  # noqa: E402
from weft.cluster.admission.scheduling import scheduling_policy  # noqa: E402
from weft.cluster.admission.webhook import webhook_configuration  # noqa: E402
from weft.cluster.config.bounds import FORMER_NAMES  # noqa: E402
from weft.cluster.config.form import DEFAULT_PROFILES, Configuration  # noqa: E402
from weft.cluster.extender import scheduler_config  # noqa: E402
from weft.core.policies.catalog import BUILT_IN  # noqa: E402
from weft.dialects.catalog import ALL  # noqa: E402
from weft.node.devices.fake import FakeFile  # noqa: E402

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
ORIGINALS = ROOT / "examples" / "originals"
IMAGE = "--set=image.repository=registry.example/weft-gpu"
GENERATED = "# Made by `make manifests`.\n"
PKI = PurePosixPath("/etc/kubernetes/weft-pki")


class _Blocks(yaml.SafeDumper):
    """YAML in which long texts are blocks, so that nothing in them is quoted or folded."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "'" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Blocks.add_representer(str, _text)


def _yaml(documents: list[dict[str, Any]]) -> str:
    return yaml.dump_all(documents, Dumper=_Blocks, sort_keys=False, width=1 << 20)


def _yaml_list(names: Iterable[str]) -> str:
    return "".join(f"- {name}\n" for name in sorted(names))


def chart_files() -> dict[Path, str]:
    """The chart's generated files; they need no helm."""
    writers = Writers(("SCHEDULER_USER",), ("AGENT_USER",), ("PLUGIN_USERS",))
    names = tuple(system.name for system in ALL if not system.asks_by_name)
    tls = scheduler_config.TlsFiles(PKI / "ca.crt", PKI / "client.crt", PKI / "client.key")
    url = "https://weft-extender.weft-system.svc:39999"
    wishes = scheduler_config.SchedulerConfigOptions(names, url, tls, profiles=False)
    files = CHART / "files"
    return {
        CHART / "values.schema.json": json.dumps(schema(), indent=1) + "\n",
        files / "admission-protect.yaml": GENERATED + _yaml(protection_policies(writers)),
        files / "admission-schedule.yaml": GENERATED + _yaml(scheduling_policy("SCHEDULER_NAME")),
        files / "rules.yaml": (DEPLOY / "monitoring" / "rules.yaml").read_text(),
        files / "dashboard.json": (DEPLOY / "monitoring" / "dashboard.json").read_text(),
        CHART / "Chart.yaml": _VERSIONS.sub(
            rf"\g<1>{__version__}", (CHART / "Chart.yaml").read_text()
        ),
        CHART / "README.md": chart_readme((CHART / "values.yaml").read_text()),
        files / "admission-webhook.yaml": GENERATED + _yaml([_webhook()]),
        files / "policies.yaml": GENERATED + _yaml_list(policy.name for policy in BUILT_IN),
        files / "profiles.yaml": GENERATED
        + _yaml_list(profile.scheduler_name for profile in DEFAULT_PROFILES),
        files / "kube-scheduler.yaml": GENERATED + _yaml([scheduler_config.configuration(wishes)]),
    }


_VERSIONS = re.compile(r"^((?:version|appVersion): ).*$", re.MULTILINE)
README = """\
# The chart

[Install with helm](../../docs/howto/install-with-helm.md) says how. Unknown values are refused.
`make manifests` writes this page of `values.yaml`.

| value | default | meaning |
|---|---|---|
"""
_PLACE = re.compile(r"\b((?:docs|examples)/[\w./-]+\w)(#[\w-]+)?")


def chart_readme(values: str) -> str:
    """Every value with its default and the comment above it in values.yaml."""
    rows, known = [], schema()["properties"]
    said: list[str] = []
    path: list[tuple[int, str]] = []
    for line in values.splitlines():
        if key := re.match(r"( *)(\w+):", line):
            path = [*(one for one in path if one[0] < len(key[1])), (len(key[1]), key[2])]
            value, kind = yaml.safe_load(values), {"properties": known}
            for _, name in path:
                value, kind = value[name], kind.get("properties", {}).get(name, {})
            if kind and ("properties" not in kind or path[-1][1] in ("configuration", "profiles")):
                shown = json.dumps(value, ensure_ascii=False) if value not in ("", None) else ""
                shown = value if isinstance(value, str) else shown
                text = _PLACE.sub(r"[\1](../../\1\2)", " ".join(said))
                name = ".".join(one for _, one in path)
                rows.append(f"| `{name}` | {f'`{shown}`' if shown else ''} | {text} |\n")
        said = [*said, line.strip("# ")] if line.lstrip().startswith("#") else []
    return README + "".join(rows)


TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
ANYTHING: dict[str, Any] = {"type": "object"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def _webhook() -> dict[str, Any]:
    """With what the chart fills in."""
    made: dict[str, Any] = webhook_configuration("NAMESPACE", "weft-webhook", b"")
    made["webhooks"][0]["clientConfig"]["caBundle"] = "CA_BUNDLE"
    return made


def schema() -> dict[str, Any]:
    """The JSON schema of the chart's values: Weft's configuration as Weft itself reads it."""
    made = msgspec.json.schema(Configuration)
    played = msgspec.json.schema(FakeFile)
    definitions = _without_defaults(made["$defs"] | played["$defs"])
    whole = definitions["Configuration"]["properties"]
    for decided in ("apiVersion", "kind"):
        del whole[decided], definitions["FakeFile"]["properties"][decided]
    del definitions["FakeFile"]["required"]
    for then, today in FORMER_NAMES.items():  # still read
        whole[then] = {**whole[today], "deprecated": True}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_closed(
            image=_closed(
                repository=TEXT,
                tag=TEXT,
                pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
                pullSecrets={"type": "array", "items": TEXT},
            ),
            log=_closed(
                format={"enum": ["text", "json"]},
                level={"enum": ["debug", "info", "warning", "error"]},
            ),
            profiles=whole["profiles"],
            extraPolicies={"type": "array", "items": TEXT},
            configuration={"$ref": "#/$defs/Configuration"},
            **_processes(),
            admission=_closed(
                enabled=FLAG,
                schedule={"enum": ["auto", "always", "webhook", "never"]},
                schedulerName=TEXT,
                plugins={"type": "array", "items": TEXT},
            ),
            monitoring=_closed(
                enabled=FLAG,
                interval={"type": "string", "pattern": "^[1-9][0-9]*(ms|s|m|h)$"},
                labels=TEXTS,
                runbook={"type": "string", "minLength": 1},
                dashboard=FLAG,
                dashboardLabels=TEXTS,
            ),
            priorityClass=_closed(
                create=FLAG, value={"type": "integer", "minimum": 0, "maximum": 1_000_000_000}
            ),
            namespace=_closed(create=FLAG),
            **{"global": ANYTHING},  # helm's own
        ),
        "$defs": definitions,
    }


def _processes() -> dict[str, Any]:
    """Values of the processes that the chart runs."""
    some = {"type": "integer", "minimum": 1}
    objects = {"type": "array", "items": ANYTHING}
    port = {"type": "integer", "minimum": 1, "maximum": 65535}
    pods = {
        "podAnnotations": TEXTS,
        "extraEnv": objects,
        "nodeSelector": TEXTS,
        "tolerations": objects,
    }
    service = _closed(name=TEXT, port=port, targetPort=port, labels=TEXTS)
    service["properties"]["nodePort"] = {"type": "integer", "minimum": 0, "maximum": 65535}
    return {
        "scheduler": _closed(
            name=TEXT,
            podLabels=TEXTS,
            replicas=some,
            minAvailable={"type": "integer", "minimum": 0},
            resources=ANYTHING,
            **pods,
            extraVolumes=objects,
            extraVolumeMounts=objects,
        ),
        "extender": _closed(
            enabled=FLAG,
            certificates={"enum": ["secret", "generate", "none"]},
            secret=TEXT,
            service=service,
        ),
        "kubeScheduler": _closed(
            enabled=FLAG, image=TEXT, replicas=some, everyPod=FLAG, resources=ANYTHING, **pods
        ),
        "webhook": _closed(
            certificates={"enum": ["auto", "generate", "secret", "cert-manager"]},
            secret=TEXT,
            caBundle=TEXT,
            issuerRef=TEXTS,
            replicas=some,
            minAvailable={"type": "integer", "minimum": 0},
            resources=ANYTHING,
            **pods,
        ),
        "console": _closed(
            enabled=FLAG,
            audience=TEXT,
            service=_closed(port=port),
            resources=ANYTHING,
            **pods,
        ),
        "agent": _closed(
            enabled=FLAG,
            cleanup=FLAG,
            **pods,
            seLinuxOptions=TEXTS,
            runtimeClassName=TEXT,
            devicePlugins=FLAG,
            criSocket=TEXT,
            configureRuntime=FLAG,
            runtimeFolder=TEXT,
            mig=FLAG,
            playedGpus={"$ref": "#/$defs/FakeFile"},
            resources=ANYTHING,
        ),
    }


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _without_defaults(made: Any) -> Any:
    """Defaults would have to be kept equal to Weft's; the values leave them to Weft."""
    if isinstance(made, dict):
        dropped = ("default", "title", "description")
        kept = {
            k: v
            for k, v in made.items()
            if k not in dropped or (isinstance(v, dict) and k != "default")
        }
        return {key: _without_defaults(value) for key, value in kept.items()}
    return [_without_defaults(one) for one in made] if isinstance(made, list) else made


class Manifest(msgspec.Struct, frozen=True):
    """A file below deploy/: its first comment, the values it is rendered with, its templates (all
    where none is named) and its namespace."""

    head: str
    values: dict[str, Any]
    templates: tuple[str, ...] = ()
    namespace: str = "weft-system"


def _original(name: str, labels: dict[str, str], *, ports: dict[str, int]) -> dict[str, Any]:
    """Values with which Weft takes the place of an original's extender, under its names."""
    return {
        "scheduler": {"name": name, "podLabels": labels},
        "extender": {
            "enabled": True,
            "certificates": "none",
            "service": {"name": name, "labels": labels, **ports},
        },
        "agent": {"enabled": False},
        "admission": {"enabled": False},
    }


ELASTIC = "elastic-gpu-scheduler"
GPUSHARE = "gpushare-schd-extender"
OPEN = """\
# As the original's, it is plain HTTP: whoever reaches its port may bind pods of all namespaces.
# docs/howto/run-the-extender.md has certificates.
"""
_GPUSHARE_VALUES = _original(
    GPUSHARE,
    {"app": "gpushare", "component": GPUSHARE},
    ports={"port": 12345, "targetPort": 12345, "nodePort": 32766},
) | {"configuration": {"extender": {"originalPorts": True}}}
_DATA = [{"name": "data", "configMap": {"name": "coscheml-data", "optional": True}}]
_MOUNTS = [{"name": "data", "mountPath": "/data", "readOnly": True}]

MANIFESTS = {
    "deploy/scheduler.yaml": Manifest(
        """# Weft's scheduler: two replicas, one leads. Set the image, then
#   kubectl apply -f deploy/scheduler.yaml
# The nodes need Weft's agent (agent.yaml) or their systems' device plugins: Weft puts no pod where
# its GPU resource is not advertised (docs/howto/run-the-scheduler.md). kube-scheduler's extender is
# off: see the ConfigMap weft-config and extender.yaml.
# Its admission policies let nobody but Weft write which GPUs are whose, and keep each agent to its
# node. Where an original's device plugin writes its marks too, apply besides what
#   weft admission --only protect --plugin system:serviceaccount:NAMESPACE:NAME
# prints. Kubernetes from 1.30 on.
""",
        {"namespace": {"create": True}},
        ("namespace", "configuration", "scheduler", "admission"),
    ),
    "deploy/extender.yaml": Manifest(
        "# What kube-scheduler's extender needs, once it is switched on in scheduler.yaml.\n",
        {"extender": {"enabled": True}},
        ("extender",),
    ),
    "deploy/agent.yaml": Manifest(
        """# Weft's agent on each GPU node. After deploy/scheduler.yaml (its namespace and config
# are used), set the image, then
#   kubectl apply -f deploy/agent.yaml
# A node that is not known to have GPUs (see the affinity below) is labelled:
#   kubectl label node NODE weft.dev/gpus=true
# The nodes need NVIDIA's driver and containerd 2 with NRI (on by default), best 2.2 with its
# default validator: `kubectl -n weft-system exec POD -- weft doctor` says what is missing.
""",
        {},
        ("agent",),
    ),
    "deploy/console.yaml": Manifest(
        """# The console, for several viewers, who sign in. After deploy/scheduler.yaml (its
# namespace and config are used), set the image, then
#   kubectl apply -f deploy/console.yaml
""",
        {"console": {"enabled": True}},
        ("console",),
    ),
    "deploy/monitoring/service-monitors.yaml": Manifest(
        "# For the Prometheus operator (monitoring.coreos.com): what prometheus.yaml says.\n",
        {"monitoring": {"enabled": True}},
        ("monitoring",),
    ),
    "examples/originals/elastic-gpu-scheduler.yaml": Manifest(
        f"""# Weft in the place of Elastic GPU's scheduler, under its names. Set the image, then
#   kubectl apply -f examples/originals/elastic-gpu-scheduler.yaml
# kube-scheduler's configuration stays: http://CLUSTER-IP:39999/scheduler, where CLUSTER-IP is
#   kubectl get svc {ELASTIC} -n kube-system -o jsonpath='{{.spec.clusterIP}}'
{OPEN}""",
        _original(ELASTIC, {"app": ELASTIC}, ports={}),
        namespace="kube-system",
    ),
    "examples/originals/gpushare-schd-extender.yaml": Manifest(
        f"""# Weft in the place of gpushare's extender, under its names. Set the image, then
#   kubectl apply -f examples/originals/gpushare-schd-extender.yaml
# kube-scheduler's configuration stays: http://127.0.0.1:32766/gpushare-scheduler
{OPEN}""",
        _GPUSHARE_VALUES,
        namespace="kube-system",
    ),
    "examples/originals/coscheml/gpushare-schd-extender.yaml": Manifest(
        f"""# Weft in the place of Co-scheML's extender, under its names. Set the image, then
#   kubectl -n kube-system create configmap coscheml-data --from-file=interference.json
#   kubectl apply -f examples/originals/coscheml/gpushare-schd-extender.yaml
# kube-scheduler's configuration stays: http://127.0.0.1:32766/gpushare-scheduler
{OPEN}""",
        _GPUSHARE_VALUES
        | {
            "scheduler": {
                **_GPUSHARE_VALUES["scheduler"],
                "extraVolumes": _DATA,
                "extraVolumeMounts": _MOUNTS,
            }
        },
        namespace="kube-system",
    ),
    "examples/originals/genius/deploy.yaml": Manifest(
        """# Weft in the place of Genius' scheduler, under its name. Set the image, then
#   kubectl apply -f examples/originals/genius/deploy.yaml
# Where Prometheus has ObserverWard's or DCGM's metrics, write telemetry.url into weft-config.
""",
        {
            "scheduler": {
                "name": "genius-scheduler",
                "podLabels": {"component": "genius-scheduler"},
            },
            "profiles": [{"schedulerName": "genius-scheduler", "policies": [{"name": "genius"}]}],
            "agent": {"enabled": False},
            "admission": {"enabled": False},
        },
        namespace="kube-system",
    ),
}


def manifests(program: Path) -> Iterator[tuple[Path, str]]:
    """The manifests as helm renders them."""
    for name, manifest in MANIFESTS.items():
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
            values.write(_yaml([manifest.values]))
            values.flush()
            shown = [f"--show-only=templates/{template}.yaml" for template in manifest.templates]
            options = [IMAGE, f"--values={values.name}", f"--namespace={manifest.namespace}"]
            text = _readable(manifest.head, helm.text(program, *options, *shown))
        yield ROOT / name, text
        if name == "deploy/scheduler.yaml":
            values = yaml.safe_load((CHART / "values.yaml").read_text())
            yield from alnair(text, values["kubeScheduler"]["image"])


ALNAIR_CONFIG = "/etc/kubernetes/vGPUScheduler-config.yaml"
KUBECONFIG = "/etc/kubernetes/scheduler.conf"
KUBE_SCHEDULER = "system:kube-scheduler"
_ALNAIR = """\
# Weft in the place of Alnair's scheduler, on a cluster with one control plane machine:
#   kubectl apply -f examples/originals/alnair/extra-rbac-kube-scheduler.yaml
# and on that machine, once the image is set,
#   cp examples/originals/alnair/vGPUScheduler-config.yaml /etc/kubernetes/
#   cp examples/originals/alnair/kube-scheduler.yaml /etc/kubernetes/manifests/
"""
_ALNAIR_HEADS = {
    "kube-scheduler.yaml": """\
# The stock kube-scheduler as a static pod, and Weft beside it, which it asks. Where there are
# several such machines, install the chart with its extender instead.
""",
    "vGPUScheduler-config.yaml": "",
    "extra-rbac-kube-scheduler.yaml": """\
# What Weft needs beside kube-scheduler's own rights: it runs as the same user.
""",
}


def alnair(scheduler: str, kube_scheduler_image: str) -> Iterator[tuple[Path, str]]:
    """Alnair's static pod, its configuration and rights, of the rendered scheduler.yaml."""
    items = {(i["kind"], i["metadata"]["name"]): i for i in yaml.safe_load_all(scheduler)}
    deployed = items["Deployment", "weft-scheduler"]["spec"]["template"]["spec"]["containers"][0]
    wishes = scheduler_config.SchedulerConfigOptions(("alnair",), "http://127.0.0.1:39999")
    config = scheduler_config.configuration(wishes)
    config["clientConnection"] = {"kubeconfig": KUBECONFIG}
    made = {
        "kube-scheduler.yaml": [_static_pod(deployed, kube_scheduler_image)],
        "vGPUScheduler-config.yaml": [config],
        "extra-rbac-kube-scheduler.yaml": list(_rights_of_a_user(items)),
    }
    for name, documents in made.items():
        head = _ALNAIR + _ALNAIR_HEADS[name]
        yield ORIGINALS / "alnair" / name, f"{head}{GENERATED}\n{_yaml(documents)}"


_TWO_MINUTES = {"periodSeconds": 2, "failureThreshold": 60}


def _static_pod(deployed: dict[str, Any], image: str) -> dict[str, Any]:
    """kube-scheduler and Weft on the host's network: they meet on loopback."""
    root = {"runAsUser": 0, "runAsNonRoot": False}  # scheduler.conf is root's
    files = {"kubeconfig": KUBECONFIG, "scheduler-config": ALNAIR_CONFIG}
    mounts = [{"name": n, "mountPath": path, "readOnly": True} for n, path in files.items()]
    probe = {"host": "127.0.0.1", "path": "/livez", "port": 10259, "scheme": "HTTPS"}
    own = {"host": "127.0.0.1", "path": "/livez", "port": 10260}
    security = deployed["securityContext"] | root
    theirs = {
        "name": "kube-scheduler",
        "image": image,
        "command": ["kube-scheduler", f"--config={ALNAIR_CONFIG}", "--bind-address=127.0.0.1"],
        "startupProbe": {"httpGet": probe, **_TWO_MINUTES},
        "livenessProbe": {"httpGet": probe, "timeoutSeconds": 15},
        "resources": {"requests": {"cpu": "100m"}},
        "securityContext": security,
        "volumeMounts": mounts,
    }
    ours = {
        "name": "weft",
        "image": deployed["image"],
        "imagePullPolicy": deployed["imagePullPolicy"],
        "command": [
            *("weft", "extender", "serve", f"--kubeconfig={KUBECONFIG}", "--http-port=10260"),
        ],
        "startupProbe": {"httpGet": own, **_TWO_MINUTES},
        "livenessProbe": {"httpGet": own, "timeoutSeconds": 5},
        "resources": deployed["resources"],
        "securityContext": security,
        "volumeMounts": mounts[:1],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "kube-scheduler",
            "namespace": "kube-system",
            "labels": {"component": "kube-scheduler", "tier": "control-plane"},
        },
        "spec": {
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "containers": [theirs, ours],
            "volumes": [
                {"name": name, "hostPath": {"path": path, "type": "File"}}
                for name, path in files.items()
            ],
        },
    }


def _rights_of_a_user(items: dict[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The scheduler's rights, and the objects that it keeps, for the user system:kube-scheduler."""
    user = {"kind": "User", "name": KUBE_SCHEDULER, "apiGroup": "rbac.authorization.k8s.io"}
    for kind in ("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"):
        item = items[kind, "weft-scheduler"]
        meta = item["metadata"] | {"name": "weft-in-kube-scheduler"}
        changed = {"metadata": meta}
        if kind.endswith("Binding"):
            reference = item["roleRef"] | {"name": "weft-in-kube-scheduler"}
            changed |= {"roleRef": reference, "subjects": [user]}
        yield item | changed
    for kept in (("Lease", "weft"), ("ConfigMap", "weft-lessons"), ("ConfigMap", "weft-observed")):
        yield items[kept]


_HELMS = (
    "# Source: ",
    "helm.sh/chart: ",
    "app.kubernetes.io/managed-by: ",
    "app.kubernetes.io/instance: ",
    "app.kubernetes.io/version: ",
)


def _readable(head: str, text: str) -> str:
    """One file, without helm's own comments and labels, and empty lines."""
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.lstrip().startswith(_HELMS)]
    body = "\n".join(kept).removeprefix("---\n")
    return f"{head.strip()}\n{GENERATED}\n{body}\n"


def main() -> int:
    """Write them all."""

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    for path, text in chart_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path, text in manifests(helm.find_or_build(say)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        say(str(path.relative_to(ROOT)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
