"""Checks for pods that name GPUs in variables which come from a ConfigMap or a Secret (`envFrom`).

No admission policy sees these: the API server shows it a name. The kubelet looks the values up, and
where an agent delivers by name its own value stands; elsewhere the container sees what they say.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.errors import ApiError
from weft.kube.services import everything
from weft.model import ObjectMeta
from weft.model.manifest import Api
from weft.node.agent.container_grant import VISIBLE
from weft.node.doctor.cluster import some
from weft.node.doctor.finding import DoctorFinding, advice, good

_MOST_READ = 500


class SourceRef(Api, frozen=True, gc=False):
    """The name of a ConfigMap or Secret."""

    name: str = ""


class EnvSource(Api, frozen=True, gc=False):
    """One entry of a container's envFrom."""

    prefix: str = ""
    config_map_ref: SourceRef | None = None
    secret_ref: SourceRef | None = None


class EnvContainer(Api, frozen=True, gc=False):
    """A container, as far as its variables come from elsewhere."""

    env_from: list[EnvSource] | None = None


class EnvSpec(Api, frozen=True, gc=False):
    """spec of such a pod."""

    node_name: str = ""
    containers: list[EnvContainer] | None = None
    init_containers: list[EnvContainer] | None = None
    ephemeral_containers: list[EnvContainer] | None = None


class EnvPod(Api, frozen=True, gc=False):
    """A pod, as far as its containers' variables come from elsewhere."""

    metadata: ObjectMeta = ObjectMeta()
    spec: EnvSpec = EnvSpec()


class EnvKeys(Api, frozen=True):
    """A ConfigMap or Secret, as far as its keys go: values are not looked at."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, msgspec.Raw] | None = None


class EnvReference(NamedTuple):
    """A source of a pod's variables, and the key in it that would name its GPUs."""

    kind: Literal["configmaps", "secrets"]
    namespace: str
    name: str
    key: str


ENV_PODS = Resource("/api/v1", "pods", EnvPod)


async def variables_from_elsewhere(client: ApiClient, gpu_nodes: Iterable[str]) -> DoctorFinding:
    """No pod that is on a GPU node, or on none yet, is told so which GPUs it sees."""
    check, nodes = "envFrom", {*gpu_nodes, ""}
    pods = [pod for pod in await everything(client, ENV_PODS) if pod.spec.node_name in nodes]
    naming = [set(references(pod)) for pod in pods]
    wanted = sorted({reference for each in naming for reference in each})
    found, unread = set(), len(wanted[_MOST_READ:])
    for reference in wanted[:_MOST_READ]:
        try:
            if await _has(client, reference):
                found.add(reference)
        except ApiError as error:
            unread += error.code != 404
    those = [pod.metadata for pod, each in zip(pods, naming, strict=True) if each & found]
    names = [f"{meta.namespace}/{meta.name}" for meta in those]
    if names:
        return advice(
            check,
            f"{VISIBLE} comes from a ConfigMap or Secret in {some(names)}",
            f"remove {VISIBLE} there: the agent's own value stands where it delivers by name; on "
            "other nodes the container sees these GPUs",
        )
    if unread:
        text = f"{unread} ConfigMaps and Secrets of pods could not be read"
        return advice(check, text, "ask as somebody who may get them, or look there by hand")
    return good(check, f"no pod has {VISIBLE} from a ConfigMap or Secret")


def references(pod: EnvPod) -> Iterator[EnvReference]:
    """Everything that may bring the variable to a container of this pod."""
    spec, namespace = pod.spec, pod.metadata.namespace
    lists = (spec.containers, spec.init_containers, spec.ephemeral_containers)
    containers = (container for each in lists for container in each or ())
    for source in (source for container in containers for source in container.env_from or ()):
        if VISIBLE.startswith(source.prefix):
            key = VISIBLE.removeprefix(source.prefix)
            if source.config_map_ref is not None:
                yield EnvReference("configmaps", namespace, source.config_map_ref.name, key)
            if source.secret_ref is not None:
                yield EnvReference("secrets", namespace, source.secret_ref.name, key)


async def _has(client: ApiClient, reference: EnvReference) -> bool:
    resource = Resource("/api/v1", reference.kind, EnvKeys).of(reference.namespace)
    body = await client.call("GET", f"{resource}/{reference.name}")
    return reference.key in (msgspec.json.decode(body, type=EnvKeys).data or {})
