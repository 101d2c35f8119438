"""Tracks volumes that are free or can be provisioned to serve pods' claims, and volumes attached to
nodes.

This state is changed by reports about volumes, classes, capacities and nodes (`take`), by pods on
nodes that mount volumes (`put`, `remove`), and by decisions that choose a free volume, or a node to
provision one, for a claim (`assume`). A chosen volume is reserved until its pod is gone or loses
its place; another pod with the same claim gets the same volume. Nothing here knows an API.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from msgspec import UnsetType
from msgspec.structs import replace

from weft.core.constraints.counts import CountByNode
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import (
    Attached,
    ChosenVolume,
    FreeVolume,
    LoneDisk,
    MountedVolumes,
    Node,
    NodeStorage,
    StorageCapacity,
    StorageClass,
    StorageRules,
    Term,
    UnboundClaim,
)

# --- attached volumes -----------------------------------------------------------------------------


_NO_LIMIT = 1 << 60


class AttachedVolumes:
    """Counts, for each node and driver, the volumes that pods use and other attached volumes; a
    volume of several pods counts once. A volume that a pod uses counts whether or not it is
    attached yet."""

    def __init__(self) -> None:
        self._storage: dict[str, NodeStorage] = {}
        self._limited: dict[str, CountByNode] = {}  # by driver: each node's limit minus `_NO_LIMIT`
        self._used: dict[str, dict[Attached, int]] = {}  # by node, with the number of pods
        self._where: dict[Attached, dict[str, None]] = {}
        self._counts: dict[str, CountByNode] = {}  # by driver

    def take(self, storage: NodeStorage) -> set[str]:
        """Set the node's attached volumes and limits; return the drivers of which more volumes can
        be attached to the node than before."""
        name, before = storage.node, self._storage.get(storage.node, NodeStorage(storage.node))
        used = self._used.get(name, {})
        for volume in set(before.attached) - set(storage.attached):
            if volume not in used:
                self._count(volume[0], name, -1)
        for volume in set(storage.attached) - set(before.attached):
            if volume not in used:
                self._count(volume[0], name, 1)
        for driver, limit in before.limits.items():
            self._limited[driver].add(name, _NO_LIMIT - limit)
        for driver, limit in storage.limits.items():
            self._limited.setdefault(driver, CountByNode()).add(name, limit - _NO_LIMIT)
        self._storage[name] = storage
        if not storage.limits and not storage.attached:
            del self._storage[name]
        gone = {driver for driver, _ in set(before.attached) - set(storage.attached)}
        return gone | {
            driver
            for driver, limit in before.limits.items()
            if storage.limits.get(driver, _NO_LIMIT) > limit
        }

    def told(self) -> tuple[NodeStorage, ...]:
        """Return the attached volumes and limits of all nodes."""
        return tuple(self._storage.values())

    def put(self, node: str, volumes: Sequence[Attached]) -> None:
        """Count one more pod on the node that uses these volumes."""
        here = self._used.setdefault(node, {}) if volumes else {}
        for volume in volumes:
            here[volume] = here.get(volume, 0) + 1
            if here[volume] == 1:
                self._where.setdefault(volume, {})[node] = None
                if not self._is_seen(node, volume):
                    self._count(volume[0], node, 1)

    def remove(self, node: str, volumes: Sequence[Attached]) -> set[str]:
        """Count one pod fewer that uses these volumes on the node; return the drivers of those
        volumes that no pod on the node uses any more."""
        here = self._used.get(node, {})
        fell = set()
        for volume in volumes:
            here[volume] -= 1
            if not here[volume]:
                del here[volume]
                where = self._where[volume]
                del where[node]
                if not where:
                    del self._where[volume]
                fell.add(volume[0])
                if not self._is_seen(node, volume):
                    self._count(volume[0], node, -1)
        if not here:
            self._used.pop(node, None)
        return fell

    def limits(self, table: LedgerTable, driver: str) -> Ints | None:
        """Return the most of this driver's volumes that each node can have, [N]; None if no node
        states a limit."""
        limited = self._limited.get(driver)
        if limited is None or not limited.by_node:
            return None
        return limited.on(table) + _NO_LIMIT

    def used(self, table: LedgerTable, driver: str) -> Ints:
        """Return how many volumes of this driver each node has, [N]."""
        count = self._counts.get(driver)
        if count is None:
            return np.zeros(table.count, dtype=np.int64)
        return count.on(table)

    def with_volume(self, volume: Attached) -> Sequence[str]:
        """Return the nodes on which a pod uses this volume."""
        return list(self._where.get(volume, ()))

    def _is_seen(self, node: str, volume: Attached) -> bool:
        storage = self._storage.get(node)
        return storage is not None and volume in storage.attached

    def _count(self, driver: str, node: str, by: int) -> None:
        self._counts.setdefault(driver, CountByNode()).add(node, by)


Moved = tuple[str, str]
"""A change that pods wait for: a kind ("class", "driver", "disk" or "claim") and a name."""
Picks = tuple[str, str, tuple[ChosenVolume, ...]]
"""The namespace and node of a placed pod, and how its claims are served."""


class ServingVolumes:
    """The volumes, classes and capacities that can serve claims. `moved` collects what became
    available since the last `take_moved`; `mounts` is what pods mount and on which node, `picks`
    what decisions chose, by the pod's UID."""

    def __init__(self) -> None:
        self.free: dict[str, FreeVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.capacities: dict[str, StorageCapacity] = {}
        self.attached = AttachedVolumes()
        self.moved: set[Moved] = set()
        self._of_class: dict[str, dict[str, FreeVolume]] = {}
        self._capacities_of: dict[str, dict[str, StorageCapacity]] = {}
        self.mounts: dict[str, tuple[str, MountedVolumes]] = {}
        self._disks: dict[tuple[str, str], dict[str, tuple[str, LoneDisk]]] = {}
        self._lone: dict[str, dict[str, None]] = {}
        self.picks: dict[str, Picks] = {}
        self._taken: dict[str, str] = {}  # claims by the volume given to them
        self._served: dict[str, list[tuple[str, str]]] = {}  # volume and node by claim and pod

    # --- objects of the API ---

    def take(
        self,
        volumes: Iterable[FreeVolume] = (),
        classes: Iterable[StorageClass] = (),
        capacities: Iterable[StorageCapacity] = (),
        nodes: Iterable[NodeStorage] = (),
    ) -> None:
        """Take in these new or changed objects."""
        for volume in volumes:
            self._forget_volume(volume.name)
            self.free[volume.name] = volume
            self._of_class.setdefault(volume.storage_class, {})[volume.name] = volume
            self.moved.add(("class", volume.storage_class))
        for each in classes:
            self.classes[each.name] = each
            self.moved.add(("class", each.name))
        for capacity in capacities:
            self._forget_capacity(capacity.name)
            self.capacities[capacity.name] = capacity
            self._capacities_of.setdefault(capacity.storage_class, {})[capacity.name] = capacity
            self.moved.add(("class", capacity.storage_class))
        for node in nodes:
            self.moved.update(("driver", driver) for driver in self.attached.take(node))

    def forget(
        self, volumes: Iterable[str], classes: Iterable[str], capacities: Iterable[str]
    ) -> None:
        """Drop objects of these names: they are no longer free, or no longer exist."""
        for name in volumes:
            self._forget_volume(name)
        for name in classes:
            self.classes.pop(name, None)
        for name in capacities:
            self._forget_capacity(name)

    def _forget_volume(self, name: str) -> None:
        if (known := self.free.pop(name, None)) is not None:
            _drop(self._of_class, known.storage_class, name)

    def _forget_capacity(self, name: str) -> None:
        if (known := self.capacities.pop(name, None)) is not None:
            _drop(self._capacities_of, known.storage_class, name)

    def candidates(self, claim: UnboundClaim) -> list[FreeVolume]:
        """Return the free volumes that could serve the claim on some node, the smallest first."""
        reserved = self.free.get(claim.reserved)
        if reserved is not None and reserved.could_serve(claim):
            return [reserved]
        found = [
            volume
            for name, volume in self._of_class.get(claim.storage_class, {}).items()
            if name not in self._taken and volume.could_serve(claim)
        ]
        found.sort(key=lambda volume: (volume.size_bytes, volume.name))
        return found

    def of_class(self, name: str) -> list[FreeVolume]:
        """Return the free volumes of a class, except those given to claims."""
        known = self._of_class.get(name, {}).values()
        return [each for each in known if not each.reserved and each.name not in self._taken]

    def capacities_of(self, name: str) -> list[StorageCapacity]:
        """Return the reported capacities of a class."""
        return list(self._capacities_of.get(name, {}).values())

    def sizes_below(self, claim: UnboundClaim) -> list[int]:
        """Return the smaller sizes, in ascending order, at which another volume of the claim's
        class would fit, or one could be provisioned on more nodes."""
        of_class = claim.storage_class
        sizes = {each.size_bytes for each in self.of_class(of_class)}
        sizes.update(each.size_bytes for each in self.capacities_of(of_class))
        return sorted(size for size in sizes if 0 < size < claim.size_bytes)

    def other_classes(self, claim: UnboundClaim) -> list[UnboundClaim]:
        """Return a copy of the claim for each other storage class; classes of in-tree plugins,
        whose driver is unknown here, are left out."""
        return [
            replace(claim, storage_class=name, driver=how.provisioner)
            for name, how in sorted(self.classes.items())
            if name != claim.storage_class and not how.provisioner.startswith("kubernetes.io/")
        ]

    # --- pods that have a node ---

    def put(self, uid: str, node: str, mounted: MountedVolumes) -> None:
        """Record that a pod on this node mounts these volumes; the pod must not be recorded yet."""
        self.mounts[uid] = node, mounted
        self.attached.put(node, mounted.attached)
        for disk in mounted.disks:
            self._disks.setdefault((disk.kind, disk.name), {})[uid] = node, disk
        for claim in mounted.lone_claims:
            self._lone.setdefault(claim, {})[uid] = None

    def remove(self, uid: str) -> None:
        """Record that the pod does not mount anything any more."""
        known = self.mounts.pop(uid, None)
        if known is None:
            return
        node, mounted = known
        self.moved.update(
            ("driver", driver) for driver in self.attached.remove(node, mounted.attached)
        )
        for disk in mounted.disks:
            _drop(self._disks, (disk.kind, disk.name), uid)
            self.moved.add(("disk", str(disk)))
        for claim in mounted.lone_claims:
            _drop(self._lone, claim, uid)
            self.moved.add(("claim", claim))

    def in_use(self, claim: str) -> bool:
        """Return True if a pod that has a node mounts this ReadWriteOncePod claim."""
        return claim in self._lone

    def conflicts(self, disk: LoneDisk) -> Iterator[tuple[str, LoneDisk]]:
        """Yield each node with a pod whose use of the disk conflicts with this use, and that pod's
        disk."""
        for node, other in self._disks.get((disk.kind, disk.name), {}).values():
            if disk.conflicts(other):
                yield node, other

    # --- what decisions chose ---

    def as_assumed(
        self, rules: StorageRules, namespace: str, names: Sequence[str] | UnsetType
    ) -> StorageRules:
        """Return the rules with the volumes already chosen for shared claims."""
        if not self._served or not rules.claims:
            return rules
        claims = [
            self._as_served(claim, f"{namespace}/{name}")
            for claim, name in zip(rules.claims, names or (), strict=True)
        ]
        return replace(rules, claims=tuple(claims))

    def _as_served(self, claim: UnboundClaim, key: str) -> UnboundClaim:
        if not (served := self._served.get(key)):
            return claim
        volume, node = served[0]
        return replace(claim, reserved=volume) if volume else replace(claim, selected_node=node)

    def choose(
        self, rules: StorageRules, names: Sequence[str] | UnsetType, node: Node
    ) -> tuple[ChosenVolume, ...]:
        """Choose how the claims are served on a node that can serve them all: the smaller claim
        first, each by the smallest free volume, else by provisioning."""
        chosen: dict[str, None] = {}
        found: dict[str, ChosenVolume] = {}
        for index in by_size(rules.claims):
            claim, name = rules.claims[index], (names or ())[index]
            volume = ""
            if claim.selected_node is None:
                volume = next(
                    (
                        each.name
                        for each in self.candidates(claim)
                        if each.name not in chosen and reaches(each.terms, node.name, node.labels)
                    ),
                    "",
                )
            if volume:
                chosen[volume] = None
            found[name] = ChosenVolume(name, claim.storage_class, volume)
        return tuple(found[name] for name in names or ())

    def assume(self, uid: str, namespace: str, node: str, chosen: tuple[ChosenVolume, ...]) -> None:
        """Reserve these volumes, which a decision chose for the pod."""
        self.release(uid)
        if not chosen:
            return
        self.picks[uid] = namespace, node, chosen
        for each in chosen:
            key = f"{namespace}/{each.claim}"
            self._served.setdefault(key, []).append((each.volume, node))
            if each.volume:
                self._taken[each.volume] = key

    def release(self, uid: str) -> None:
        """Free what was chosen for a pod that is gone or lost its place, unless another pod has the
        same claim."""
        known = self.picks.pop(uid, None)
        if known is None:
            return
        namespace, node, chosen = known
        for each in chosen:
            key = f"{namespace}/{each.claim}"
            served = self._served[key]
            served.remove((each.volume, node))
            self.moved.add(("class", each.storage_class))
            if not served:
                del self._served[key]
                self._taken.pop(each.volume, None)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo, at the end of the context, all choices made meanwhile. Mounts are not undone
        here."""
        kept = dict(self.picks), dict(self._taken), {k: list(v) for k, v in self._served.items()}
        moved = set(self.moved)
        try:
            yield
        finally:
            self.picks, self._taken, self._served = kept
            self.moved = moved

    def take_moved(self) -> frozenset[Moved]:
        """Return the kinds and names of everything that became available since the last call."""
        moved = frozenset(self.moved)
        self.moved.clear()
        return moved


def wanted_by(rules: StorageRules) -> frozenset[Moved]:
    """Return the changes of which one must happen before a pod with these rules may fit."""
    mounts = rules.mounts
    asked: set[Moved] = {("class", claim.storage_class) for claim in rules.claims}
    asked.update(("driver", claim.driver) for claim in rules.claims)
    asked.update(("driver", driver) for driver, _ in mounts.attached)
    asked.update(("disk", str(disk)) for disk in mounts.disks)
    asked.update(("claim", claim) for claim in mounts.lone_claims)
    return frozenset(asked)


def by_size(claims: Sequence[UnboundClaim]) -> list[int]:
    """Return the claims' indexes in the order in which claims are served: the smallest first."""
    return sorted(range(len(claims)), key=lambda index: claims[index].size_bytes)


def reaches(terms: tuple[Term, ...] | None, name: str, labels: Mapping[str, str]) -> bool:
    """Return True if a node with this name and these labels can reach a volume with this node
    affinity."""
    return terms is None or any(term.matches(name, labels) for term in terms)


def _drop(known: dict, key: object, name: str) -> None:  # type: ignore[type-arg]
    here = known[key]
    del here[name]
    if not here:
        del known[key]
