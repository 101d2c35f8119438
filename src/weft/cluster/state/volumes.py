"""Tracks claims and volumes: what a pod's PersistentVolumeClaims are or may be bound to, and which
pods use them.

    a claim                          what it means for a pod that mounts it
        bound                            rules: where its volume is
        waits for its first consumer     an `UnboundClaim`: the engine chooses, with the node
        anything else                    `waits_for`: another component has to act first

`take_event` reports free volumes, classes, capacities and attached volumes to the engine.
Everything follows from the API's objects alone.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from weft.cluster.state.storage_objects import (
    attached_as,
    bound_terms,
    capacity_of,
    class_of,
    disks_of,
    free_volume,
    inline_disks,
    is_bound,
    unbound_claim,
    waits_for_controller,
)
from weft.cluster.state.volume_rules import (
    MountedClaim,
    PodVolumes,
    mounted_claims,
    zones,
)
from weft.core.engine import VolumesChanged
from weft.kube.pods import Pod
from weft.kube.structs import (
    CsiNode,
    CsiStorageCapacity,
    KubeCsiDriver,
    KubeStorageClass,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from weft.kube.watch import Change, Deleted
from weft.model import Attached, MountedVolumes, NodeStorage, StorageRules, Term, UnboundClaim

Key = tuple[str, str]
_NOTHING = StorageRules()


class Moves:
    """Names of objects whose changes the engine does not know yet, and claims whose pods have to be
    read again."""

    def __init__(self) -> None:
        self.volumes: dict[str, None] = {}
        self.classes: dict[str, None] = {}
        self.capacities: dict[Key, None] = {}
        self.nodes: dict[str, None] = {}
        self.claims: dict[Key, None] = {}
        self.all_claims = False

    @property
    def tell(self) -> bool:
        """True if the engine does not know some change yet."""
        return bool(self.volumes or self.classes or self.capacities or self.nodes)


class _Found(NamedTuple):
    """The demands of a pod's volumes, while they are collected."""

    rules: list[tuple[Term, ...]]
    unbound: dict[str, UnboundClaim]
    attached: dict[Attached, None]
    lone: dict[str, None]
    waits: list[str]


class VolumeView:
    """The existing claims, volumes and classes, and the pods that mount them. `moved` is True if
    pods may have to be read again, or the engine does not know some change yet."""

    def __init__(self) -> None:
        self.volumes: dict[str, PersistentVolume] = {}
        self.claims: dict[Key, PersistentVolumeClaim] = {}
        self._classes: dict[str, KubeStorageClass] = {}
        self._drivers: dict[str, bool] = {}
        self._capacities: dict[Key, CsiStorageCapacity] = {}
        self._limits: dict[str, dict[str, int]] = {}  # by node and driver
        self._limited: Counter[str] = Counter()  # drivers, with the number of nodes that limit them
        self._attachments: dict[str, VolumeAttachment] = {}
        self._on_node: dict[str, dict[str, None]] = {}  # names of attachments
        self._of_volume: dict[str, dict[str, None]] = {}  # names of attachments
        self._reserved: dict[Key, dict[str, None]] = {}  # volumes reserved for each claim
        self._bound_to: dict[str, dict[Key, None]] = {}  # claims of each volume
        self._users: dict[Key, dict[str, Pod]] = {}
        self._told: dict[str, None] = {}  # free volumes as the engine knows them
        self._moves = Moves()
        self.moved = False

    # --- changes ---

    def take_volume(self, change: Change[PersistentVolume]) -> None:
        """Take in a volume that was added, changed or deleted."""
        self.moved = True
        volume = change.object  # type: ignore[union-attr]
        name = volume.metadata.name
        before = self.volumes.pop(name, None)
        if before is not None and (ref := before.spec.claim_ref) is not None:
            _drop(self._reserved, (ref.namespace, ref.name), name)
            self._moves.claims[ref.namespace, ref.name] = None
        if not isinstance(change, Deleted):
            self.volumes[name] = volume
            if (ref := volume.spec.claim_ref) is not None:
                self._reserved.setdefault((ref.namespace, ref.name), {})[name] = None
                self._moves.claims[ref.namespace, ref.name] = None
        self._moves.volumes[name] = None
        self._moves.claims.update(self._bound_to.get(name, {}))
        for attachment in self._of_volume.get(name, ()):
            self._moves.nodes[self._attachments[attachment].spec.node_name] = None

    def take_claim(self, change: Change[PersistentVolumeClaim]) -> None:
        """Take in a claim that was added, changed or deleted."""
        self.moved = True
        claim = change.object  # type: ignore[union-attr]
        key = (claim.metadata.namespace, claim.metadata.name)
        before = self.claims.pop(key, None)
        if before is not None and before.spec.volume_name:
            _drop(self._bound_to, before.spec.volume_name, key)
        if not isinstance(change, Deleted):
            self.claims[key] = claim
            if claim.spec.volume_name:
                self._bound_to.setdefault(claim.spec.volume_name, {})[key] = None
        self._moves.claims[key] = None
        self._moves.volumes.update(self._reserved.get(key, {}))

    def take_class(self, change: Change[KubeStorageClass]) -> None:
        """Take in a StorageClass that was added, changed or deleted."""
        self.moved = True
        found = change.object  # type: ignore[union-attr]
        name = found.metadata.name
        self._moves.classes[name] = None
        # A class's mode does not change, but the class may be created after its claims.
        self._moves.all_claims |= (name in self._classes) == isinstance(change, Deleted)
        if isinstance(change, Deleted):
            self._classes.pop(name, None)
        else:
            self._classes[name] = found

    def take_driver(self, change: Change[KubeCsiDriver]) -> None:
        """Take in a CSIDriver that was added, changed or deleted."""
        self.moved = True
        driver = change.object  # type: ignore[union-attr]
        name, counts = driver.metadata.name, bool(driver.spec.storage_capacity)
        if isinstance(change, Deleted):
            counts = False
        if counts != self._drivers.get(name, False):
            self._drivers[name] = counts
            self._moves.classes.update(
                (each, None) for each, known in self._classes.items() if known.provisioner == name
            )

    def take_capacity(self, change: Change[CsiStorageCapacity]) -> None:
        """Take in a CSIStorageCapacity that was added, changed or deleted."""
        self.moved = True
        found = change.object  # type: ignore[union-attr]
        key = (found.metadata.namespace, found.metadata.name)
        before = self._capacities.pop(key, None)
        if not isinstance(change, Deleted):
            self._capacities[key] = found
        if before is None or isinstance(change, Deleted) or not _alike(before, found):
            self._moves.capacities[key] = None

    def take_csi_node(self, change: Change[CsiNode]) -> None:
        """Take in a CSINode that was added, changed or deleted."""
        self.moved = True
        csi_node = change.object  # type: ignore[union-attr]
        name = csi_node.metadata.name
        limits = {
            driver.name: driver.allocatable.count
            for driver in csi_node.spec.drivers or ()
            if driver.allocatable is not None and driver.allocatable.count is not None
        }
        if isinstance(change, Deleted):
            limits = {}
        before = self._limits.pop(name, {})
        if limits:
            self._limits[name] = limits
        if limits == before:
            return
        self._moves.nodes[name] = None
        drivers = len(self._limited)
        self._limited.update(limits.keys())
        # Pods' volumes are counted only for drivers that some node limits.
        self._moves.all_claims |= len(self._limited) != drivers
        for driver in before:
            self._limited[driver] -= 1
            if not self._limited[driver]:
                del self._limited[driver]
                self._moves.all_claims = True

    def take_attachment(self, change: Change[VolumeAttachment]) -> None:
        """Take in a VolumeAttachment that was added, changed or deleted."""
        self.moved = True
        found = change.object  # type: ignore[union-attr]
        name = found.metadata.name
        for known in (self._attachments.pop(name, None), found):
            if known is not None:
                self._moves.nodes[known.spec.node_name] = None
                of = known.spec.source.persistent_volume_name or ""
                _drop(self._on_node, known.spec.node_name, name)
                _drop(self._of_volume, of, name)
        if not isinstance(change, Deleted):
            self._attachments[name] = found
            of = found.spec.source.persistent_volume_name or ""
            self._on_node.setdefault(found.spec.node_name, {})[name] = None
            self._of_volume.setdefault(of, {})[name] = None

    # --- pods ---

    def use(self, pod: Pod, *, waits: bool) -> None:
        """Take in the pod as it is now: it uses its claims if it `waits` for a node, or runs on a
        node."""
        if not pod.spec.volumes:
            return
        if not waits and (pod.ended or not pod.spec.node_name):
            self.release(pod)
            return
        for mounted in mounted_claims(pod):
            key = (pod.metadata.namespace, mounted.claim)
            self._users.setdefault(key, {})[pod.metadata.uid] = pod

    def release(self, pod: Pod) -> None:
        """Note that the pod does not use its claims any more."""
        for mounted in mounted_claims(pod):
            _drop(self._users, (pod.metadata.namespace, mounted.claim), pod.metadata.uid)

    def take_moved(self) -> list[Pod]:
        """Return the pods whose claims changed since the last call."""
        moves = self._moves
        keys = self._users if moves.all_claims else moves.claims
        found = {uid: pod for key in keys for uid, pod in self._users.get(key, {}).items()}
        moves.claims, moves.all_claims = {}, False
        return list(found.values())

    def take_event(self) -> VolumesChanged | None:
        """Return the changes that the engine does not know yet; None if there are none."""
        self.moved = False
        if not self._moves.tell:
            return None
        moves, self._moves = self._moves, Moves()
        self._moves.claims, self._moves.all_claims = moves.claims, moves.all_claims
        free = {
            name: found
            for name in moves.volumes
            if (found := free_volume(self.volumes.get(name), self.claims)) is not None
        }
        gone = [name for name in moves.volumes if name not in free and name in self._told]
        self._told.update(dict.fromkeys(free))
        for name in gone:
            del self._told[name]
        classes = [self._classes[name] for name in moves.classes if name in self._classes]
        capacities = [self._capacities[key] for key in moves.capacities if key in self._capacities]
        event = VolumesChanged(
            tuple(free.values()),
            tuple(class_of(each, self._drivers) for each in classes),
            tuple(map(capacity_of, capacities)),
            tuple(map(self._node_storage, moves.nodes)),
            tuple(gone),
            tuple(name for name in moves.classes if name not in self._classes),
            tuple("/".join(key) for key in moves.capacities if key not in self._capacities),
        )
        return event if event != VolumesChanged() else None

    def _node_storage(self, node: str) -> NodeStorage:
        attached: dict[Attached, None] = {}
        for name in self._on_node.get(node, ()):
            spec = self._attachments[name].spec
            volume = self.volumes.get(spec.source.persistent_volume_name or "")
            csi = volume.spec.csi if volume is not None else None
            if csi is not None and spec.attacher:
                attached[spec.attacher, csi.volume_handle] = None
        return NodeStorage(node, self._limits.get(node, {}), tuple(attached))

    # --- a pod's demands ---

    def read(self, pod: Pod) -> PodVolumes:
        """Return what the pod's volumes demand: the terms that its node must match, and
        everything else."""
        if not pod.spec.volumes:
            return PodVolumes()
        found = _Found([], {}, dict.fromkeys(self._counted(inline_disks(pod))), {}, [])
        for mounted in mounted_claims(pod):
            why = self._read_claim(pod, mounted, found)
            if why:
                found.waits.append(f"PersistentVolumeClaim {mounted.claim} {why}")
        mounts = MountedVolumes(tuple(found.attached), disks_of(pod), tuple(found.lone))
        storage = StorageRules(tuple(found.unbound.values()), mounts, "; ".join(found.waits))
        return PodVolumes(tuple(found.rules), storage, tuple(found.unbound))

    def mounted(self, pod: Pod) -> MountedVolumes | UnsetType:
        """Return the storage that a pod on a node uses and other pods lack: attachments that a
        driver limits, disks, and claims that only one pod may use; unset for nothing."""
        attached = dict.fromkeys(self._counted(inline_disks(pod)))
        lone: dict[str, None] = {}
        for mounted in mounted_claims(pod):
            claim = self.claims.get((pod.metadata.namespace, mounted.claim))
            if claim is not None:
                volume = attached_as(claim, self.volumes, self._classes)
                attached.update(dict.fromkeys(self._counted([volume] if volume else [])))
                lone.update(dict.fromkeys(_lone(claim, mounted)))
        found = MountedVolumes(tuple(attached), disks_of(pod), tuple(lone))
        return found if found != MountedVolumes() else UNSET

    def _read_claim(self, pod: Pod, mounted: MountedClaim, found: _Found) -> str:
        """Add the claim's demands to `found`; return the reason why the pod has to wait instead, ""
        if it need not."""
        key = (pod.metadata.namespace, mounted.claim)
        claim = self.claims.get(key)
        if claim is None:
            return "has not been created for the pod yet" if mounted.is_own else "does not exist"
        if why := mounted.why_not(pod, claim):
            return why
        found.lone.update(dict.fromkeys(_lone(claim, mounted)))
        if is_bound(claim):
            return self._read_bound(claim, mounted, found)
        why = waits_for_controller(claim, self._classes)
        if not why:
            reserved = (self.volumes[name] for name in sorted(self._reserved.get(key, ())))
            found.unbound[mounted.claim] = unbound_claim(claim, self._classes, reserved)
        return why

    def _read_bound(
        self, claim: PersistentVolumeClaim, mounted: MountedClaim, found: _Found
    ) -> str:
        volume = self.volumes.get(claim.spec.volume_name)
        if volume is None:
            return f"is bound to volume {claim.spec.volume_name}, which does not exist"
        if (terms := bound_terms(volume)) is not None:
            found.rules.append(terms)
        if not mounted.is_own:
            found.rules.extend(zones(volume))
        counted = attached_as(claim, self.volumes, self._classes)
        found.attached.update(dict.fromkeys(self._counted([counted] if counted else [])))
        return ""

    def _counted(self, volumes: list[Attached]) -> list[Attached]:
        """Return the volumes whose driver limits, on some node, how many are attached."""
        return [volume for volume in volumes if volume[0] in self._limited]


def _lone(claim: PersistentVolumeClaim, mounted: MountedClaim) -> Iterator[str]:
    if not mounted.is_own and "ReadWriteOncePod" in (claim.spec.access_modes or ()):
        yield f"{claim.metadata.namespace}/{claim.metadata.name}"


def _alike(one: CsiStorageCapacity, other: CsiStorageCapacity) -> bool:
    return capacity_of(one) == capacity_of(other)


def _drop(known: dict, key: object, name: object) -> None:  # type: ignore[type-arg]
    here = known.get(key)
    if here is not None and name in here:
        del here[name]
        if not here:
            del known[key]
