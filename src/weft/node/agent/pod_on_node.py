"""A pod as its node's agent reads it: its requests, and the runtime's ids of its containers."""

from collections.abc import Iterator

import msgspec

from weft.kube.codec import Resource
from weft.kube.pods import OwnedMeta
from weft.model.manifest import Api, PodManifest, PodStatus


class RunningContainer(Api, frozen=True, gc=False):
    """One entry of a list of container statuses; the id begins with the runtime's name."""

    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")


class RunningStatus(PodStatus, frozen=True, gc=False):
    """The pod's status, with its containers of all three kinds. The kubelet writes `start_time`
    once it has admitted the pod, and thus given it its devices."""

    start_time: str | None = None
    container_statuses: list[RunningContainer] | None = None
    init_container_statuses: list[RunningContainer] | None = None
    ephemeral_container_statuses: list[RunningContainer] | None = None


class PodOnNode(PodManifest, frozen=True, gc=False):
    """A pod on its node."""

    metadata: OwnedMeta = OwnedMeta()
    status: RunningStatus = RunningStatus()

    @property
    def bare(self) -> bool:
        """True if no controller would recreate the pod."""
        return not any(owner.controller for owner in self.metadata.owner_references or ())

    def containers_by_id(self) -> dict[str, str]:
        """Return the names of its containers by the runtime's ids."""
        return {
            container.container_id.partition("://")[2]: container.name
            for container in self._containers()
            if container.container_id
        }

    def _containers(self) -> Iterator[RunningContainer]:
        status = self.status
        yield from status.init_container_statuses or ()
        yield from status.container_statuses or ()
        yield from status.ephemeral_container_statuses or ()


PODS_ON_NODE = Resource("/api/v1", "pods", PodOnNode)
