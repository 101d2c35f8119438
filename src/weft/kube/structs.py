"""Nodes and the other objects that Weft reads, decoded straight into structs.

Field names are Kubernetes' own, camelCase on the wire. What is not listed is skipped.
"""

from typing import Protocol

import msgspec

from weft.kube.pods import LabelSelector, NodeSelector, OwnedMeta, TimedCondition
from weft.model.manifest import (
    Api,
    ManifestResources,
    NodeManifest,
    NodeStatus,
    ObjectMeta,
    Quantities,
)


class KubeObject(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name, UID, version, labels and annotations."""
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
        """The last change of the Ready condition, RFC 3339; None if unknown."""
        ready = (c for c in self.status.conditions or () if c.type == "Ready")
        return next((condition.last_transition_time for condition in ready), None)


class ConfigMap(Api, frozen=True, gc=False):
    """A ConfigMap's text data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class LeaseSpec(Api, frozen=True, gc=False, omit_defaults=True):
    """spec of a Lease; an empty holder means that the Lease is free. Times are RFC 3339 with µs."""

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
    """spec.csi of a volume: which driver attaches it, by which handle."""

    driver: str = ""
    volume_handle: str = ""


class OldDisk(Api, frozen=True, gc=False):
    """A cloud disk in a volume's form from before CSI; one of these fields names the disk."""

    volume_id: str = msgspec.field(default="", name="volumeID")
    pd_name: str = ""
    disk_name: str = ""


class ClaimRef(Api, frozen=True, gc=False, omit_defaults=True):
    """spec.claimRef of a volume: its claim; without a UID, any claim of that name."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class VolumeSpec(Api, frozen=True, gc=False):
    """spec of a PersistentVolume."""

    capacity: Quantities | None = None
    access_modes: list[str] | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    claim_ref: ClaimRef | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiSource | None = None
    aws_elastic_block_store: OldDisk | None = None
    gce_persistent_disk: OldDisk | None = None
    azure_disk: OldDisk | None = None
    cinder: OldDisk | None = None


class PhaseStatus(Api, frozen=True, gc=False):
    """status of a volume or claim."""

    phase: str = ""


class PersistentVolume(Api, frozen=True, gc=False):
    """A volume; its node affinity restricts the nodes of the pods that use it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeSpec = VolumeSpec()
    status: PhaseStatus = PhaseStatus()


class ClaimSpec(Api, frozen=True, gc=False):
    """spec of a PersistentVolumeClaim; an empty volume name means that it is not bound."""

    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    selector: LabelSelector | None = None
    resources: ManifestResources = ManifestResources()
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaim(Api, frozen=True, gc=False):
    """A claim, bound to a volume or not."""

    metadata: OwnedMeta = OwnedMeta()
    spec: ClaimSpec = ClaimSpec()
    status: PhaseStatus = PhaseStatus()


class TopologySelectorRequirement(Api, frozen=True, gc=False):
    """A requirement that a node has the label `key` with one of these values."""

    key: str = ""
    values: list[str] | None = None


class TopologySelectorTerm(Api, frozen=True, gc=False):
    """A node must meet all of these requirements; an empty term selects no node."""

    match_label_expressions: list[TopologySelectorRequirement] | None = None


class KubeStorageClass(Api, frozen=True, gc=False):
    """storage.k8s.io/v1 StorageClass: how volumes of the class are made and bound."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologySelectorTerm] | None = None


class CsiDriverSpec(Api, frozen=True, gc=False):
    """spec of a CSIDriver: whether it reports how much storage is left."""

    storage_capacity: bool | None = None


class KubeCsiDriver(Api, frozen=True, gc=False):
    """storage.k8s.io/v1 CSIDriver."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CsiDriverSpec = CsiDriverSpec()


class CsiStorageCapacity(Api, frozen=True, gc=False):
    """storage.k8s.io/v1 CSIStorageCapacity: the space that is left for a storage class on some
    nodes."""

    metadata: ObjectMeta = ObjectMeta()
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class AttachmentSource(Api, frozen=True, gc=False):
    """The volume of a VolumeAttachment."""

    persistent_volume_name: str | None = None


class AttachmentSpec(Api, frozen=True, gc=False):
    """spec of a VolumeAttachment."""

    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class VolumeAttachment(Api, frozen=True, gc=False):
    """storage.k8s.io/v1 VolumeAttachment: a volume that is attached to a node, or is to be
    attached."""

    metadata: ObjectMeta = ObjectMeta()
    spec: AttachmentSpec = AttachmentSpec()


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
    """The count and last time of a repeated event."""

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
    """A Status: the API server's answer to a failed request, and to some successful ones."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ListMeta(Api, frozen=True, gc=False):
    """A list's version, and the token of its next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
