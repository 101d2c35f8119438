"""Demands of a pod's volumes on its node, and the volumes that can serve them.

Words and meanings are Kubernetes' own (core/v1, storage.k8s.io/v1). A claim that *waits for its
first consumer* is bound once its pod has a node: to a free volume, or to a new one made for it.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from weft.model.selectors import Requirement, Term


class UnboundClaim(msgspec.Struct, frozen=True, gc=False):
    """A claim that waits for its first consumer, without its name, as equal claims are served
    alike.

    `reserved` is the volume that is set apart for it alone, `selected_node` the node on which its
    volume is being made (None: no node was chosen yet). `driver` makes such volumes, "" for none.
    """

    storage_class: str
    size_bytes: int
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    selector: tuple[Requirement, ...] = ()
    attributes_class: str = ""
    reserved: str = ""
    selected_node: str | None = None
    driver: str = ""


class FreeVolume(msgspec.Struct, frozen=True, gc=False):
    """A PersistentVolume that no claim is bound to. `terms` are its node affinity, of which one
    must match (None: any node). `reserved`: it is for the one claim that names it."""

    name: str
    storage_class: str
    size_bytes: int
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    labels: dict[str, str] = {}
    terms: tuple[Term, ...] | None = None
    reserved: bool = False

    def could_serve(self, claim: UnboundClaim) -> bool:
        """Return True if the volume suits the claim, wherever it is: as Kubernetes'
        FindMatchingVolume."""
        own = self.storage_class, self.volume_mode, self.attributes_class
        if own != (claim.storage_class, claim.volume_mode, claim.attributes_class):
            return False
        if self.size_bytes < claim.size_bytes:
            return False
        if claim.reserved == self.name:
            return True
        if self.reserved:
            return False
        if not set(claim.access_modes) <= set(self.access_modes):
            return False
        return all(requirement.matches(self.labels) for requirement in claim.selector)


class StorageClass(msgspec.Struct, frozen=True, gc=False):
    """The way volumes of a class are made. `provisioner` "": they are not made automatically.
    `topologies`: one must match the node, if there are any. `counts_capacity`: the driver reports
    how much storage is left."""

    name: str
    provisioner: str = ""
    topologies: tuple[Term, ...] = ()
    counts_capacity: bool = False


class StorageCapacity(msgspec.Struct, frozen=True, gc=False):
    """The size of the largest volume that can be made of a class on the nodes of this `topology`
    (all must match; None: on no node)."""

    name: str
    storage_class: str
    size_bytes: int
    topology: tuple[Requirement, ...] | None = None


Attached = tuple[str, str]
"""A volume as its CSI driver attaches it to a node: the driver, and the volume's handle."""


class NodeStorage(msgspec.Struct, frozen=True, gc=False):
    """How many volumes each driver can attach to a node, and what is attached, used or not."""

    node: str
    limits: dict[str, int] = {}
    attached: tuple[Attached, ...] = ()


class LoneDisk(msgspec.Struct, frozen=True, gc=False):
    """A disk that the pod's spec names directly, without a claim. A node takes one pod that uses
    it, or several that only read it. `monitors` name the cluster of an RBD image."""

    kind: str
    name: str
    monitors: tuple[str, ...] = ()
    read_only: bool = False

    def conflicts(self, other: "LoneDisk") -> bool:
        """Return True if one node cannot take pods with both."""
        if (self.kind, self.name) != (other.kind, other.name) or self.read_only & other.read_only:
            return False
        return self.kind != "rbd" or not set(self.monitors).isdisjoint(other.monitors)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class MountedVolumes(msgspec.Struct, frozen=True, gc=False):
    """Use by a pod's volumes that limits other pods: attachments that a driver limits, disks,
    and claims for one pod alone (ReadWriteOncePod). `lone_claims` (namespace/name) are for one
    pod alone (ReadWriteOncePod)."""

    attached: tuple[Attached, ...] = ()
    disks: tuple[LoneDisk, ...] = ()
    lone_claims: tuple[str, ...] = ()


class StorageRules(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One pod's volumes: its `claims` that wait for their first consumer, each once, and what it
    mounts. `waits_for` is a sentence about what must happen to its claims first."""

    claims: tuple[UnboundClaim, ...] = ()
    mounts: MountedVolumes = MountedVolumes()
    waits_for: str = ""

    @property
    def rules(self) -> int:
        """Return the number of rules; a decision's work grows with them."""
        mounts = self.mounts
        return len(self.claims) + len(mounts.attached) + len(mounts.disks) + len(mounts.lone_claims)


class ChosenVolume(msgspec.Struct, frozen=True, gc=False):
    """How a claim of a pod is served on its node: by this volume, or by one that is made there
    (`volume` "")."""

    claim: str
    storage_class: str
    volume: str = ""


def mounted_by(
    rules: StorageRules | UnsetType, namespace: str, names: Sequence[str] | UnsetType
) -> MountedVolumes | UnsetType:
    """Return the volumes that a pod with these rules and these claims (`names`) uses once it has
    a node; unset for a pod without such rules."""
    if not rules:
        return UNSET
    unbound = zip(rules.claims, names or (), strict=True)
    made = tuple((claim.driver, f"{namespace}/{name}") for claim, name in unbound if claim.driver)
    mounts = rules.mounts
    return msgspec.structs.replace(mounts, attached=(*mounts.attached, *made)) if made else mounts
