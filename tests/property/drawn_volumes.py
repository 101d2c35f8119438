"""Claims that pods of the engine's random worlds have, and which volume serves which: so that none
serves two, and none is chosen where it cannot be had."""

from random import Random

from drawn_rules import ZONE, ZONES
from msgspec import UNSET, UnsetType

from weft.core.engine import VolumesChanged
from weft.model import (
    ChosenVolume,
    FreeVolume,
    MountedVolumes,
    Node,
    Requirement,
    StorageClass,
    StorageRules,
    Term,
    UnboundClaim,
)

LONE = "default/lone"
RULES = (
    StorageRules((UnboundClaim("fast", 1),)),
    StorageRules((UnboundClaim("fast", 2),)),
    StorageRules((UnboundClaim("made", 1, driver="csi"),)),
    StorageRules(mounts=MountedVolumes(lone_claims=(LONE,))),
)
"""A volume that is there, a larger one, one that is made, and a claim for one pod alone."""


def in_zone(zone: str) -> tuple[Term, ...]:
    """Nodes of this zone."""
    return (Term((Requirement(ZONE, "In", (zone,)),)),)


VOLUMES = {
    f"v{number}": FreeVolume(f"v{number}", "fast", 1 + number // 2, terms=in_zone(zone))
    for number, zone in enumerate((*ZONES, "a"))
}
CLASSES = (StorageClass("fast"), StorageClass("made", "csi", in_zone("a")))


class VolumeBook:
    """The claims of pods, and what was chosen for those that have a node, or are to have one."""

    def __init__(self) -> None:
        self.of_pod: dict[str, StorageRules] = {}
        self.chosen: dict[str, tuple[ChosenVolume, ...]] = {}

    def drawn(self, uid: str, random: Random) -> StorageRules:
        """The pod has a claim from now on."""
        self.of_pod[uid] = random.choice(RULES)
        return self.of_pod[uid]

    def claims(self, uid: str) -> tuple[str, ...] | UnsetType:
        """Names of its claims that wait."""
        rules = self.of_pod.get(uid)
        return (f"claim-{uid}",) if rules is not None and rules.claims else UNSET

    def free(self) -> list[FreeVolume]:
        """The volumes that serve nobody."""
        used = {each.volume for given in self.chosen.values() for each in given}
        return [volume for name, volume in VOLUMES.items() if name not in used]

    def all(self) -> VolumesChanged:
        """The volumes that a scheduler is told of when it begins."""
        return VolumesChanged(tuple(self.free()), CLASSES)

    def wrong(self, uid: str, node: Node, chosen: tuple[ChosenVolume, ...]) -> str:
        """The fault in the pod's place and these volumes; "" for nothing."""
        rules = self.of_pod.get(uid, StorageRules())
        if len(chosen) != len(rules.claims):
            return f"{chosen} serve {rules.claims}"
        if rules.mounts.lone_claims and any(
            self.of_pod[other].mounts.lone_claims for other in self.chosen if other in self.of_pod
        ):
            return "two pods with a claim for one"
        free = {volume.name: volume for volume in self.free()}
        for each, claim in zip(chosen, rules.claims, strict=True):
            where = CLASSES[1].topologies
            if each.volume:
                if each.volume not in free or not free[each.volume].could_serve(claim):
                    return f"{each.volume} serves another, or is not right"
                where = free[each.volume].terms or ()
            elif claim.storage_class != "made":
                return f"nobody makes a volume for {claim}"
            if not any(term.matches(node.name, node.labels) for term in where):
                return f"{each} cannot be had on {node.name}"
        return ""

    def bound(self, uid: str) -> VolumesChanged:
        """The pod's volumes are bound, once its binding is written."""
        return VolumesChanged(volumes_gone=self._names(uid))

    def gone(self, uid: str) -> VolumesChanged:
        """The pod is there no more, or has no place any more: who comes next may have them."""
        names = self._names(uid)
        self.chosen.pop(uid, None)
        return VolumesChanged(tuple(VOLUMES[name] for name in names))

    def _names(self, uid: str) -> tuple[str, ...]:
        return tuple(each.volume for each in self.chosen.get(uid, ()) if each.volume)
