"""The parts of a Kubernetes Pod and Node that dialects read, decoded straight into structs.

Field names are Kubernetes' own (camelCase on the wire). Fields that are not listed here are
dropped: with ten thousand complete pods in memory every garbage collection would be a noticeable
pause.
"""

from collections.abc import Sequence

import msgspec


class Api(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base: snake_case here, camelCase in JSON and YAML; unknown fields are skipped."""


class ObjectMeta(Api, frozen=True, gc=False):
    """Metadata of an API object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


Quantities = dict[str, str | int | float]
"""Amounts by resource name, as written in the manifest."""


class ManifestResources(Api, frozen=True, gc=False):
    """resources of a container, or of the whole pod."""

    limits: Quantities | None = None
    requests: Quantities | None = None


class EnvVar(Api, frozen=True, gc=False):
    """One environment variable; `value` is None if the value comes from elsewhere (valueFrom)."""

    name: str
    value: str | None = None


class ManifestContainer(Api, frozen=True, gc=False):
    """A container or init container; `restart_policy: Always` makes the latter a sidecar."""

    name: str = ""
    image: str = ""
    resources: ManifestResources = ManifestResources()
    env: list[EnvVar] | None = None
    restart_policy: str | None = None


class SchedulingGroup(Api, frozen=True, gc=False):
    """spec.schedulingGroup: the PodGroup this pod is scheduled with."""

    pod_group_name: str | None = None


class PodSpec(Api, frozen=True, gc=False):
    """spec of a Pod, as far as dialects read it."""

    containers: list[ManifestContainer] = []
    init_containers: list[ManifestContainer] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    overhead: Quantities | None = None
    resources: ManifestResources | None = None
    scheduling_group: SchedulingGroup | None = None
    active_deadline_seconds: int | None = None


class PodStatus(Api, frozen=True, gc=False):
    """status of a Pod, as far as dialects read it."""

    phase: str = ""


class PodManifest(Api, frozen=True, gc=False):
    """The parts of a Pod that Weft reads."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Condition(Api, frozen=True, gc=False):
    """A condition of a pod or node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class NodeTaint(Api, frozen=True, gc=False):
    """One entry of spec.taints."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Api, frozen=True, gc=False):
    """spec of a node."""

    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class NodeImage(Api, frozen=True, gc=False):
    """A container image that a node has, under each of its names."""

    names: list[str] | None = None
    size_bytes: int = 0


class NodeStatus(Api, frozen=True, gc=False):
    """status of a node."""

    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    conditions: Sequence[Condition] | None = None
    declared_features: list[str] | None = None
    images: list[NodeImage] | None = None


class NodeManifest(Api, frozen=True, gc=False):
    """The parts of a Node that dialects read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """True if the kubelet says it can take pods."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())
