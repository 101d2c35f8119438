"""Nodes and the other objects that Weft reads, decoded straight into structs.

Field names are Kubernetes' own, camelCase on the wire. What is not listed is skipped.
"""

from typing import Protocol

import msgspec

from weft.kube.pods import NodeSelector, TimedCondition
from weft.model.manifest import Api, NodeManifest, NodeStatus, ObjectMeta


class KubeObject(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name, version and what hangs on them."""
        ...


class NodeAddress(Api, frozen=True, gc=False):
    """One of a node's addresses: InternalIP, Hostname, …"""

    type: str = ""
    address: str = ""


class KubeNodeStatus(NodeStatus, frozen=True, gc=False):
    """status of a node, with its addresses."""

    conditions: list[TimedCondition] | None = None
    addresses: list[NodeAddress] | None = None


class KubeNode(NodeManifest, frozen=True, gc=False):
    """A node as the API shows it; `dialects.inventory` makes a `weft.model.Node` of it."""

    status: KubeNodeStatus = KubeNodeStatus()

    @property
    def ready_changed_at(self) -> str | None:
        """The last change of the Ready condition, RFC 3339; None where nobody says."""
        ready = (c for c in self.status.conditions or () if c.type == "Ready")
        return next((condition.last_transition_time for condition in ready), None)


class ConfigMap(Api, frozen=True, gc=False):
    """A ConfigMap's text data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class LeaseSpec(Api, frozen=True, gc=False, omit_defaults=True):
    """spec of a Lease; an empty holder means that it is free. Times are RFC 3339 with µs."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Api, frozen=True, gc=False):
    """coordination.k8s.io/v1 Lease."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class VolumeNodeAffinity(Api, frozen=True, gc=False):
    """The nodes that can reach a volume."""

    required: NodeSelector | None = None


class CsiSource(Api, frozen=True, gc=False):
    """spec.csi of a volume: which driver attaches it."""

    driver: str = ""


class VolumeSpec(Api, frozen=True, gc=False):
    """spec of a PersistentVolume."""

    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiSource | None = None


class PersistentVolume(Api, frozen=True, gc=False):
    """A volume; its node affinity binds the pods that use it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeSpec = VolumeSpec()


class ClaimSpec(Api, frozen=True, gc=False):
    """spec of a PersistentVolumeClaim; an empty volume name means that it is not bound."""

    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: list[str] | None = None


class PersistentVolumeClaim(Api, frozen=True, gc=False):
    """A claim, bound to a volume or not."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()


class CsiAllocatable(Api, frozen=True, gc=False):
    """The number of a driver's volumes that a node can attach; None for no limit."""

    count: int | None = None


class CsiDriver(Api, frozen=True, gc=False):
    """One entry of a CSINode's spec.drivers."""

    name: str = ""
    allocatable: CsiAllocatable | None = None


class CsiNodeSpec(Api, frozen=True, gc=False):
    """spec of a CSINode."""

    drivers: list[CsiDriver] | None = None


class CsiNode(Api, frozen=True, gc=False):
    """storage.k8s.io/v1 CSINode, named as its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CsiNodeSpec = CsiNodeSpec()


class ObjectReference(Api, frozen=True, gc=False, omit_defaults=True):
    """The object that an event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""


class EventSeries(Api, frozen=True, gc=False):
    """The count and last time of an event that happened again."""

    count: int = 0
    last_observed_time: str = ""


class Event(Api, frozen=True, gc=False):
    """events.k8s.io/v1 Event."""

    metadata: ObjectMeta = ObjectMeta()
    reason: str = ""
    note: str = ""
    type: str = ""
    regarding: ObjectReference = ObjectReference()
    series: EventSeries | None = None


class StatusCause(Api, frozen=True, gc=False):
    """One cause of a refusal."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Api, frozen=True, gc=False):
    """The object and causes of a refusal."""

    name: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] | None = None
    retry_after_seconds: int = 0


class ApiStatus(Api, frozen=True, gc=False):
    """The API server's answer where it is no object."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ListMeta(Api, frozen=True, gc=False):
    """A list's version, and the token of its next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
