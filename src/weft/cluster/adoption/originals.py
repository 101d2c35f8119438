"""Finds other GPU schedulers and device plugins: those of the dialects' systems, and NVIDIA's."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from weft.cluster.config.old_schedulers import import_configuration
from weft.dialects.catalog import ALL, is_gpu_resource
from weft.kube.codec import Resource
from weft.kube.structs import ConfigMap, KubeNode
from weft.model import BadInputError, ObjectMeta, parse_quantity
from weft.model.annotations import ADVERTISES
from weft.model.manifest import Api

Role = Literal["scheduler", "device plugin"]


class WorkloadContainer(Api, frozen=True, gc=False):
    """A container of a Deployment or DaemonSet, with the fields that identify its program."""

    image: str = ""
    command: list[str] | None = None


class WorkloadTemplateSpec(Api, frozen=True, gc=False):
    """Fields of spec.template.spec that Weft reads."""

    containers: list[WorkloadContainer] | None = None
    service_account_name: str = ""


class WorkloadTemplate(Api, frozen=True, gc=False):
    """Fields of spec.template that Weft reads."""

    spec: WorkloadTemplateSpec = WorkloadTemplateSpec()


class WorkloadSpec(Api, frozen=True, gc=False):
    """The spec of a Deployment or DaemonSet; a DaemonSet has no `replicas`."""

    replicas: int | None = None
    template: WorkloadTemplate = WorkloadTemplate()


class KubeWorkload(Api, frozen=True, gc=False):
    """A Deployment or DaemonSet, with the fields that identify its system."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()


DEPLOYMENTS = Resource("/apis/apps/v1", "deployments", KubeWorkload)
DAEMON_SETS = Resource("/apis/apps/v1", "daemonsets", KubeWorkload)


class Original(NamedTuple):
    """A workload of another system that schedules or allocates GPUs.

    `replicas` are a Deployment's, 0 for a DaemonSet; `account` is the service account of its
    pods."""

    system: str
    role: Role
    kind: str
    namespace: str
    name: str
    replicas: int = 0
    account: str = "default"

    @property
    def user(self) -> str:
        """User name of the workload's pods at the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    @property
    def target(self) -> str:
        """KIND/NAME, as kubectl takes it."""
        return f"{self.kind.lower()}/{self.name}"


_KNOWN: tuple[tuple[re.Pattern[str], str, Role], ...] = tuple(
    (re.compile(pattern), system, role)  # type: ignore[misc]
    for pattern, system, role in (
        (r"gpushare-sch|gpushare-scheduler-extender", "gpushare", "scheduler"),
        (r"gpushare-(?:device-)?plugin", "gpushare", "device plugin"),
        (r"kube_scheduler_with_interference|coscheml", "coscheml", "scheduler"),
        (r"elastic-gpu-scheduler|nano-gpu-scheduler", "elastic", "scheduler"),
        (r"elastic-gpu-agent|nano-gpu-agent", "elastic", "device plugin"),
        (r"alnair.*(?:scheduler|vgpu-?sched)|vgpuscheduler", "alnair", "scheduler"),
        (r"alnair.*device-plugin", "alnair", "device plugin"),
        (r"genius-scheduler|genius[^/]*:", "genius", "scheduler"),
        (r"hami.*device-plugin", "hami", "device plugin"),
        (r"hami-scheduler|(?:^|/)hami:", "hami", "scheduler"),
        (r"^kai-(?:operator|scheduler)|kai-scheduler[:@]", "kai", "scheduler"),
        (r"/kai-scheduler/(?:operator|scheduler|binder)(?:[:@]|$)", "kai", "scheduler"),
        (r"volcano-(?:vgpu-)?device-plugin", "volcano", "device plugin"),
        (r"volcano-scheduler|vc-scheduler", "volcano", "scheduler"),
        (r"koord-scheduler", "koordinator", "scheduler"),
        (r"koordlet", "koordinator", "device plugin"),
        (r"nvidia.*device-plugin|(?:^|/)k8s-device-plugin", "nvidia", "device plugin"),
    )
)
"""Patterns for a workload's name or its containers' images, each with the workload's system and
role; the first match counts."""


def originals_of(
    deployments: Iterable[KubeWorkload], daemon_sets: Iterable[KubeWorkload]
) -> list[Original]:
    """Return the workloads of known systems, sorted by system, role, kind, namespace and name. An
    operator comes before the workloads that it would start again."""
    originals = []
    kinds = ("Deployment", deployments), ("DaemonSet", daemon_sets)
    for kind, workloads in kinds:
        for workload in workloads:
            known = _known(workload)
            if known is not None:
                meta = workload.metadata
                account = workload.spec.template.spec.service_account_name or "default"
                replicas = workload.spec.replicas or 0
                found = Original(*known, kind, meta.namespace, meta.name, replicas, account)
                originals.append(found)
    return sorted(originals, key=lambda o: (*o[:4], not o.name.endswith("operator"), o))


class HelmRelease(NamedTuple):
    """The helm release that installed Weft."""

    namespace: str
    name: str


def release_of(deployments: Iterable[KubeWorkload]) -> HelmRelease | None:
    """Return the helm release whose Deployment runs Weft; None if there is none or helm did not
    install it."""
    for workload in deployments:
        marks = workload.metadata.annotations or {}
        if _is_weft(workload) and (name := marks.get("meta.helm.sh/release-name")):
            space = marks.get("meta.helm.sh/release-namespace", workload.metadata.namespace)
            return HelmRelease(space, name)
    return None


def _is_weft(workload: KubeWorkload) -> bool:
    containers = workload.spec.template.spec.containers or ()
    return any((c.command or ["?"])[0] == "weft" for c in containers)


def _known(workload: KubeWorkload) -> tuple[str, Role] | None:
    containers = workload.spec.template.spec.containers or ()
    if _is_weft(workload):
        return None  # Weft may be installed under an original's name
    names = [workload.metadata.name, *(c.image for c in containers)]
    for pattern, system, role in _KNOWN:
        if any(pattern.search(name.lower()) for name in names):
            return system, role
    return None


def scheduler_configurations(config_maps: Iterable[ConfigMap]) -> list[str]:
    """Return ConfigMaps ("namespace/name") with a scheduler configuration that Weft can import."""
    configurations = []
    for config_map in config_maps:
        if any("kind" in text and "cheduler" in text for text in (config_map.data or {}).values()):
            meta = config_map.metadata
            whole = {"apiVersion": "v1", "kind": "ConfigMap", "data": config_map.data}
            try:
                import_configuration(msgspec.json.encode(whole), meta.name)
            except BadInputError:
                continue
            configurations.append(f"{meta.namespace}/{meta.name}")
    return configurations


def plugins_of(node: KubeNode) -> Mapping[str, tuple[str, ...]]:
    """Return the GPU resources in a node's allocatable, by the device plugin that advertises them.

    HAMi's and Genius' pods use NVIDIA's resource; resources of Weft's agent are left out."""
    marks = node.metadata.annotations or {}
    own = set(filter(None, marks.get(ADVERTISES, "").split(",")))
    plugins: dict[str, list[str]] = {}
    for name, amount in (node.status.allocatable or {}).items():
        if name not in own and is_gpu_resource(name) and _some(amount):
            plugins.setdefault(_advertiser(name), []).append(name)
    return {system: tuple(sorted(names)) for system, names in sorted(plugins.items())}


def _advertiser(resource: str) -> str:
    if resource.startswith("nvidia.com/"):
        return "nvidia"
    # In reverse, as gpushare and Co-scheML share a resource, which counts as gpushare's.
    systems = (s for s in reversed(ALL) if s.resource_pattern)
    return next(s.name for s in systems if re.match(s.resource_pattern, resource))


def _some(amount: str | int | float) -> bool:
    try:
        return parse_quantity(amount, "allocatable") > 0
    except BadInputError:
        return False
