"""Claims and volumes: what a pod's PersistentVolumeClaims are bound to, and who uses them.

A ReadWriteOncePod claim is for one pod: the one that is bound with it, or else the first of those
that wait. Volumes of a CSI driver that limits them on some node are left to kube-scheduler.
"""

from collections.abc import Iterator

from weft.cluster.state.pod_reader import claims_of, terms_of
from weft.kube.pods import Pod
from weft.kube.structs import CsiNode, PersistentVolume, PersistentVolumeClaim
from weft.kube.watch import Change, Deleted
from weft.model import Requirement, Term

_STABLE = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_PLACES = (*_STABLE, *_STABLE.values())
_NOWHERE = Term(tuple(Requirement(label, "DoesNotExist") for label in _PLACES))

Key = tuple[str, str]
Rules = tuple[tuple[Term, ...], ...]


class VolumeView:
    """The claims and volumes there are, and the pods that mount them."""

    def __init__(self) -> None:
        self._volumes: dict[str, PersistentVolume] = {}
        self._claims: dict[Key, PersistentVolumeClaim] = {}
        self._limits: dict[str, frozenset[str]] = {}
        self._limited: frozenset[str] = frozenset()
        self._users: dict[Key, dict[str, Pod]] = {}
        self.moved = False

    def take_volume(self, change: Change[PersistentVolume]) -> None:
        """A volume came, changed or went."""
        volume = change.object  # type: ignore[union-attr]
        self.moved = True
        if isinstance(change, Deleted):
            self._volumes.pop(volume.metadata.name, None)
        else:
            self._volumes[volume.metadata.name] = volume

    def take_claim(self, change: Change[PersistentVolumeClaim]) -> None:
        """A claim came, changed or went."""
        claim = change.object  # type: ignore[union-attr]
        key = (claim.metadata.namespace, claim.metadata.name)
        self.moved = True
        if isinstance(change, Deleted):
            self._claims.pop(key, None)
        else:
            self._claims[key] = claim

    def take_csi_node(self, change: Change[CsiNode]) -> None:
        """Take in a CSINode that came, changed or went."""
        csi_node = change.object  # type: ignore[union-attr]
        limits = frozenset(
            driver.name
            for driver in csi_node.spec.drivers or ()
            if driver.allocatable is not None and driver.allocatable.count is not None
        )
        if isinstance(change, Deleted):
            limits = frozenset()
        if limits == self._limits.get(csi_node.metadata.name, frozenset()):
            return
        self._limits[csi_node.metadata.name] = limits
        limited = frozenset().union(*self._limits.values())
        self.moved = self.moved or limited != self._limited
        self._limited = limited

    def use(self, pod: Pod, *, waits: bool) -> None:
        """The pod as it is now: it uses its claims where it `waits` for a node, or runs on one."""
        if not pod.spec.volumes:
            return
        if not waits and (pod.ended or not pod.spec.node_name):
            self.release(pod)
            return
        for key in _keys(pod):
            users = self._users.setdefault(key, {})
            known = users.get(pod.metadata.uid)
            users[pod.metadata.uid] = pod
            if known is None or known.spec.node_name != pod.spec.node_name:
                self.moved = self.moved or self._is_for_one(key)

    def release(self, pod: Pod) -> None:
        """The pod uses its claims no more."""
        for key in _keys(pod):
            users = self._users.get(key)
            if users is not None and users.pop(pod.metadata.uid, None) is not None:
                self.moved = self.moved or self._is_for_one(key)
                if not users:
                    del self._users[key]

    def take_moved(self) -> bool:
        """True if pods that wait may read otherwise than at the last call."""
        moved, self.moved = self.moved, False
        return moved

    def rules_of(self, namespace: str, claim: str) -> Rules | str:
        """Rules: of each, one term must match the node. A text if the claim cannot be honoured."""
        known = self._claims.get((namespace or "default", claim))
        if known is None:
            return f"there is no PersistentVolumeClaim {claim}"
        if not known.spec.volume_name:
            return f"PersistentVolumeClaim {claim} is not bound to a volume yet"
        volume = self._volumes.get(known.spec.volume_name)
        if volume is None:
            return f"PersistentVolumeClaim {claim} is bound to a volume that is not there"
        if volume.spec.csi is not None and volume.spec.csi.driver in self._limited:
            driver = f"{volume.spec.csi.driver} (PersistentVolumeClaim {claim})"
            return (
                f"nodes limit how many volumes of {driver} are attached, "
                "which Weft alone does not count"
            )
        affinity = volume.spec.node_affinity
        required = affinity.required if affinity is not None else None
        own = () if required is None else (terms_of(required),)
        return (*own, *_zones(volume))

    def held_by_other(self, pod: Pod, claim: str) -> str:
        """The reason why another pod bars this one from a ReadWriteOncePod claim, or ""."""
        key = (pod.metadata.namespace, claim)
        if not self._is_for_one(key):
            return ""
        users = list(self._users.get(key, {}).values())
        first = next((user for user in users if user.spec.node_name), users[0] if users else pod)
        if first.metadata.uid == pod.metadata.uid:
            return ""
        name = first.metadata.name
        return f"PersistentVolumeClaim {claim} is ReadWriteOncePod and pod {name} has it"

    def _is_for_one(self, key: Key) -> bool:
        claim = self._claims.get(key)
        return claim is not None and "ReadWriteOncePod" in (claim.spec.access_modes or ())


def _keys(pod: Pod) -> Iterator[Key]:
    return ((pod.metadata.namespace, claim) for claim in claims_of(pod))


def _zones(volume: PersistentVolume) -> Iterator[tuple[Term, ...]]:
    """A volume's zone and region labels, as kube-scheduler's VolumeZone reads them.

    A label may name several places with `__` between them; one that names an empty place says
    nothing. A node without any such label is of a cluster without zones and can have the volume.
    """
    for label, zones in (volume.metadata.labels or {}).items():
        if label not in _PLACES:
            continue
        values = tuple(value.strip() for value in zones.split("__"))
        if "" in values:
            continue
        terms = [_NOWHERE, Term((Requirement(label, "In", values),))]
        if label in _STABLE:
            absent = Requirement(label, "DoesNotExist")
            terms.append(Term((absent, Requirement(_STABLE[label], "In", values))))
        yield tuple(terms)
