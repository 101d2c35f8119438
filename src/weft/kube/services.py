"""Services and pods as HTTP endpoints: read on demand, never watched. An endpoint can be reached at
its own address from inside the cluster, and through the API server's proxy by users with the right
to `get services/proxy` or `pods/proxy`.
"""

from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote

import msgspec

from weft.kube.client import ApiClient
from weft.kube.codec import Resource, SkippedObjects
from weft.kube.pods import OwnedMeta
from weft.kube.structs import KubeObject
from weft.model import ObjectMeta
from weft.model.manifest import Api, Condition

PAGE = 500

T = TypeVar("T", bound=KubeObject)


class NamedPort(Api, frozen=True, gc=False):
    """One entry of a container's ports."""

    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"


class ServingContainer(Api, frozen=True, gc=False):
    """A container's image and ports."""

    image: str = ""
    ports: list[NamedPort] | None = None


class ServingSpec(Api, frozen=True, gc=False):
    """spec of a pod that serves HTTP."""

    node_name: str = ""
    containers: list[ServingContainer] | None = None


class ServingStatus(Api, frozen=True, gc=False):
    """status of a pod that serves HTTP."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[Condition] | None = None


class ServingPod(Api, frozen=True, gc=False):
    """A pod with the fields that are needed to send HTTP requests to it."""

    metadata: OwnedMeta = OwnedMeta()
    spec: ServingSpec = ServingSpec()
    status: ServingStatus = ServingStatus()

    @property
    def ready(self) -> bool:
        """True if the pod runs, has an address, is not being deleted, and is Ready."""
        said = {condition.type: condition.status for condition in self.status.conditions or ()}
        return (
            self.status.phase == "Running"
            and bool(self.status.pod_ip)
            and self.metadata.deletion_timestamp is None
            and said.get("Ready") == "True"
        )

    @property
    def of_daemon_set(self) -> bool:
        """True if a DaemonSet owns the pod."""
        owners = self.metadata.owner_references or ()
        return any(owner.controller and owner.kind == "DaemonSet" for owner in owners)

    def ports(self) -> Iterator[NamedPort]:
        """Yield the TCP ports that the pod's containers list."""
        for container in self.spec.containers or ():
            yield from (port for port in container.ports or () if port.protocol == "TCP")


SERVING_PODS = Resource("/api/v1", "pods", ServingPod)


async def everything(
    client: ApiClient,
    resource: Resource[T],
    namespace: str = "",
    selector: str = "",
    unreadable: list[ObjectMeta] | None = None,
) -> list[T]:
    """Return all objects of a namespace, or of all namespaces (""), page by page. Unreadable
    objects are left out; their metadata is added to `unreadable`."""
    skips, objects = SkippedObjects(), list[T]()
    query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
    while True:
        body = await client.call("GET", resource.of(namespace), query=query)
        page = resource.decode_page(body, skips)
        objects += page.items
        if unreadable is not None:
            unreadable += page.unreadable
        if not page.next:
            return objects
        query["continue"] = page.next


def proxy_path(kind: str, namespace: str, name: str, port: str, scheme: str = "http") -> str:
    """Return the URL path by which the API server's proxy reaches a Service or pod (`kind` is
    `services` or `pods`).

    `port` is a Service's port by name or number, a pod's by number.
    """
    target = quote(f"{scheme}:{name}:{port}", safe=":")
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/{kind}/{target}/proxy"
