"""Turns storage objects of the API into the engine's values: volumes, claims, classes, disks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from weft.cluster.state.volume_rules import (
    BETA_REGION,
    BETA_ZONE,
    REGION,
    ZONE,
    labels_of,
    terms_of,
)
from weft.kube.pods import MountedDisk, Pod, Volume
from weft.kube.structs import (
    CsiStorageCapacity,
    KubeStorageClass,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeSpec,
)
from weft.model import (
    Attached,
    BadInputError,
    FreeVolume,
    LoneDisk,
    Requirement,
    StorageCapacity,
    StorageClass,
    Term,
    UnboundClaim,
    parse_quantity,
)

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
_FILESYSTEM = "Filesystem"
CSI_NAMES = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
"""The CSI drivers that replaced in-tree plugins, by plugin: nodes report volume limits by
driver."""

_CSI_ZONES = {
    "ebs.csi.aws.com": "topology.ebs.csi.aws.com/zone",
    "pd.csi.storage.gke.io": "topology.gke.io/zone",
    "disk.csi.azure.com": "topology.disk.csi.azure.com/zone",
    "cinder.csi.openstack.org": "topology.cinder.csi.openstack.org/zone",
}
CSI_ZONES = tuple(_CSI_ZONES.values())
"""The labels by which CSI drivers of cloud disks state a node's zone."""

Key = tuple[str, str]


def class_name(thing: PersistentVolume | PersistentVolumeClaim) -> str:
    """Return the storage class; the old annotation takes precedence over the field."""
    noted = (thing.metadata.annotations or {}).get(_BETA_CLASS)
    return noted if noted is not None else thing.spec.storage_class_name or ""


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Return True if the controller has bound the claim and its volume to each other. Claims in
    files may lack the phase that the API's claims have."""
    done = BIND_COMPLETED in (claim.metadata.annotations or {})
    return bool(claim.spec.volume_name) and (done or claim.status.phase in ("Bound", ""))


def is_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return True if the volume is reserved for this claim, or bound to it."""
    ref, meta = volume.spec.claim_ref, claim.metadata
    if ref is None or (ref.namespace, ref.name) != (meta.namespace, meta.name):
        return False
    return not ref.uid or ref.uid == meta.uid


def size_bytes(amount: str | int | float | None) -> int:
    """Return a size in bytes; 0 for one that is missing or unreadable."""
    try:
        return parse_quantity(amount) if amount is not None else 0
    except BadInputError:
        return 0


def node_terms(volume: PersistentVolume) -> tuple[Term, ...] | None:
    """Return the volume's node affinity, of which one term must match; None for any node.

    Only labels are compared: kube-scheduler and the kubelet evaluate these terms without the node's
    name, and matchFields then always match.
    """
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return _of_labels(terms_of(affinity.required))


def _of_labels(terms: tuple[Term, ...]) -> tuple[Term, ...] | None:
    if any(term.fields and not term.labels for term in terms):
        return None
    return tuple(replace(term, fields=()) for term in terms)


def bound_terms(volume: PersistentVolume) -> tuple[Term, ...] | None:
    """Return the node affinity of a volume that is bound to a claim; None for any node.

    For a volume of an in-tree plugin, nodes are compared by the zone labels of the CSI driver that
    replaced the plugin, as kube-scheduler does on nodes whose CSINode names the plugin as migrated,
    which all supported kubelets do.
    """
    key = next((_CSI_ZONES[driver] for driver, _ in _cloud_disks(volume.spec)), "")
    if not key:
        return node_terms(volume)
    affinity, labels = volume.spec.node_affinity, volume.metadata.labels or {}
    required = affinity.required if affinity is not None else None
    terms = terms_of(required) if required is not None else ()
    used = {each.key for term in terms for each in term.labels}
    known = [zone for names in (used, labels) for zone in (ZONE, BETA_ZONE) if zone in names]
    zone = known[0] if known else ZONE
    if _has_values(terms, zone):
        terms = tuple(_renamed(term, zone, key) for term in terms)
    elif places := sorted({place.strip() for place in labels.get(zone, "").split("__")} - {""}):
        there = Requirement(key, "In", tuple(places))
        terms = tuple(replace(term, labels=(*term.labels, there)) for term in terms or (Term(),))
    if zone == BETA_ZONE and _has_values(terms, BETA_REGION):
        terms = tuple(_renamed(term, BETA_REGION, REGION) for term in terms)
    return _of_labels(terms) if terms or required is not None else None


def _has_values(terms: tuple[Term, ...], key: str) -> bool:
    return any(each.values for term in terms for each in term.labels if each.key == key)


def _renamed(term: Term, key: str, to: str) -> Term:
    labels = tuple(replace(r, key=to) if r.key == key else r for r in term.labels)
    return replace(term, labels=labels)


def free_volume(
    volume: PersistentVolume | None, claims: Mapping[Key, PersistentVolumeClaim]
) -> FreeVolume | None:
    """Return the volume if a claim may get it; None if it is not available, or belongs to another
    claim."""
    if volume is None or volume.metadata.deletion_timestamp:
        return None
    spec, ref = volume.spec, volume.spec.claim_ref
    if ref is None and volume.status.phase != "Available":
        return None
    if ref is not None:
        claim = claims.get((ref.namespace, ref.name))
        if claim is None or is_bound(claim) or not is_for(volume, claim):
            return None
    return FreeVolume(
        volume.metadata.name,
        class_name(volume),
        size_bytes((spec.capacity or {}).get("storage")),
        tuple(spec.access_modes or ()),
        spec.volume_mode or _FILESYSTEM,
        spec.volume_attributes_class_name or "",
        volume.metadata.labels or {},
        node_terms(volume),
        reserved=ref is not None,
    )


def waits_for_controller(
    claim: PersistentVolumeClaim, classes: Mapping[str, KubeStorageClass]
) -> str:
    """Return the reason why an unbound claim must be bound before any pod can use it; "" if it is
    bound together with its first pod."""
    name, volume = class_name(claim), claim.spec.volume_name
    if volume:
        return f"is not bound to volume {volume} yet"
    if not name:
        return "is not bound to a volume yet, and has no StorageClass"
    if (found := classes.get(name)) is None:
        return f"is not bound to a volume yet, and its StorageClass {name} does not exist"
    if found.volume_binding_mode != "WaitForFirstConsumer":
        return "is not bound to a volume yet"
    return ""


def unbound_claim(
    claim: PersistentVolumeClaim,
    classes: Mapping[str, KubeStorageClass],
    reserved: Iterable[PersistentVolume],
) -> UnboundClaim:
    """Return the engine's form of a claim that waits for its first consumer; `reserved` are volumes
    that may be reserved for it."""
    spec, name = claim.spec, class_name(claim)
    own = UnboundClaim(
        name,
        size_bytes((spec.resources.requests or {}).get("storage")),
        tuple(sorted(spec.access_modes or ())),
        spec.volume_mode or _FILESYSTEM,
        labels_of(spec.selector) or (),
        spec.volume_attributes_class_name or "",
        "",
        (claim.metadata.annotations or {}).get(SELECTED_NODE),
        _driver(classes.get(name)),
    )
    for volume in reserved:
        if is_for(volume, claim):
            from_it = free_volume(volume, {(claim.metadata.namespace, claim.metadata.name): claim})
            with_it = replace(own, reserved=volume.metadata.name)
            if from_it is not None and from_it.could_serve(with_it):
                return with_it
    return own


def _driver(found: KubeStorageClass | None) -> str:
    """Return the CSI driver that attaches volumes of the class; "" if there is none."""
    if found is None or found.provisioner in ("", NO_PROVISIONER):
        return ""
    return CSI_NAMES.get(found.provisioner, found.provisioner)


def class_of(found: KubeStorageClass, counting: Mapping[str, bool]) -> StorageClass:
    """Return how volumes of the class are provisioned; `counting` says of each driver whether it
    reports the remaining capacity."""
    makes = found.provisioner not in ("", NO_PROVISIONER)
    topologies = [
        Term(
            tuple(
                Requirement(each.key, "In", tuple(each.values or ()))
                for each in term.match_label_expressions or ()
            )
        )
        for term in found.allowed_topologies or ()
    ]
    return StorageClass(
        found.metadata.name,
        found.provisioner if makes else "",
        tuple(topologies),
        makes and counting.get(found.provisioner, False),
    )


def capacity_of(found: CsiStorageCapacity) -> StorageCapacity:
    """Return the remaining storage of a class on some nodes, in bytes: the largest possible single
    volume, else the whole capacity; −1 if neither is reported."""
    largest = found.maximum_volume_size
    amount = largest if largest is not None else found.capacity
    return StorageCapacity(
        f"{found.metadata.namespace}/{found.metadata.name}",
        found.storage_class_name,
        -1 if amount is None else size_bytes(amount),
        labels_of(found.node_topology),
    )


# --- what is attached to nodes ---


def attached_as(
    claim: PersistentVolumeClaim,
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, KubeStorageClass],
) -> Attached | None:
    """Return the volume that a driver attaches for the claim: the bound one, or the one that will
    be provisioned; None if no driver does."""
    volume = volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is None:
        driver = _driver(classes.get(class_name(claim)))
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        return (driver, key) if driver else None
    spec = volume.spec
    if spec.csi is not None:
        found = spec.csi.driver, spec.csi.volume_handle
        return found if all(found) else None
    return next(_cloud_disks(spec), None)


def inline_disks(pod: Pod) -> list[Attached]:
    """Return cloud disks that the pod itself names, as their CSI drivers attach them."""
    return [disk for volume in pod.spec.volumes or () for disk in _cloud_disks(volume)]


def _cloud_disks(where: VolumeSpec | Volume) -> Iterator[Attached]:
    for disk, plugin in (
        (where.aws_elastic_block_store, "kubernetes.io/aws-ebs"),
        (where.gce_persistent_disk, "kubernetes.io/gce-pd"),
        (where.azure_disk, "kubernetes.io/azure-disk"),
        (where.cinder, "kubernetes.io/cinder"),
    ):
        if disk is not None:
            yield CSI_NAMES[plugin], disk.volume_id or disk.pd_name or disk.disk_name


def disks_of(pod: Pod) -> tuple[LoneDisk, ...]:
    """Return disks that the pod itself names and that only one pod of a node can use."""
    found: list[LoneDisk] = []
    for volume in pod.spec.volumes or ():
        if (disk := volume.gce_persistent_disk) is not None:
            found.append(LoneDisk("gcePersistentDisk", disk.pd_name, (), disk.read_only))
        if (disk := volume.aws_elastic_block_store) is not None:
            found.append(LoneDisk("awsElasticBlockStore", disk.volume_id))
        if (disk := volume.iscsi) is not None:
            found.append(LoneDisk("iscsi", disk.iqn, (), disk.read_only))
        if (disk := volume.rbd) is not None:
            found.append(_rbd(disk))
    return tuple(dict.fromkeys(disk for disk in found if disk.name.strip("/")))  # files may lack it


def _rbd(disk: MountedDisk) -> LoneDisk:
    monitors: Sequence[str] = disk.monitors or ()
    return LoneDisk("rbd", f"{disk.pool}/{disk.image}", tuple(monitors), disk.read_only)
