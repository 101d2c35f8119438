"""The parts of a Kubernetes Pod that Weft reads, decoded straight into structs.

Field names are Kubernetes' own (camelCase on the wire). What is not listed is not kept: ten
thousand pods kept whole would make every garbage collection a pause.
"""

import msgspec


class Api(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base: snake_case here, camelCase in JSON and YAML; unknown fields are skipped."""


class ObjectMeta(Api, frozen=True, gc=False):
    """metadata."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ManifestResources(Api, frozen=True, gc=False):
    """resources: quantities by resource name, as written (string or number)."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class EnvVar(Api, frozen=True, gc=False):
    """One environment variable; `value` is None where it comes from elsewhere."""

    name: str
    value: str | None = None


class ManifestContainer(Api, frozen=True, gc=False):
    """A container or init container; `restart_policy: Always` makes the latter a sidecar."""

    name: str = ""
    image: str = ""
    resources: ManifestResources = ManifestResources()
    env: list[EnvVar] | None = None
    restart_policy: str | None = None


class PodSpec(Api, frozen=True, gc=False):
    """spec."""

    containers: list[ManifestContainer] = []
    init_containers: list[ManifestContainer] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    overhead: dict[str, str | int | float] | None = None


class PodStatus(Api, frozen=True, gc=False):
    """status."""

    phase: str = ""


class PodManifest(Api, frozen=True, gc=False):
    """A Pod, as far as Weft reads it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
