"""Claims and volumes: what a pod's PersistentVolumeClaims are bound to."""

from weft.kube.changes import Change, Deleted
from weft.kube.structs import PersistentVolume, PersistentVolumeClaim
from weft.live.constraints import terms_of
from weft.model import Term


class VolumeView:
    """The claims and volumes there are."""

    def __init__(self) -> None:
        self._volumes: dict[str, PersistentVolume] = {}
        self._claims: dict[tuple[str, str], PersistentVolumeClaim] = {}

    def take_volume(self, change: Change[PersistentVolume]) -> None:
        """A volume came, changed or went."""
        volume = change.object  # type: ignore[union-attr]
        if isinstance(change, Deleted):
            self._volumes.pop(volume.metadata.name, None)
        else:
            self._volumes[volume.metadata.name] = volume

    def take_claim(self, change: Change[PersistentVolumeClaim]) -> None:
        """A claim came, changed or went."""
        claim = change.object  # type: ignore[union-attr]
        key = (claim.metadata.namespace, claim.metadata.name)
        if isinstance(change, Deleted):
            self._claims.pop(key, None)
        else:
            self._claims[key] = claim

    def terms_of(self, namespace: str, claim: str) -> tuple[Term, ...] | str | None:
        """The volume's node terms; None where it can be had anywhere; a text where not bound."""
        found = self._claims.get((namespace or "default", claim))
        if found is None:
            return f"there is no PersistentVolumeClaim {claim}"
        if not found.spec.volume_name:
            return f"PersistentVolumeClaim {claim} is not bound to a volume yet"
        volume = self._volumes.get(found.spec.volume_name)
        if volume is None:
            return f"PersistentVolumeClaim {claim} is bound to a volume that is not there"
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return None
        return terms_of(affinity.required)
