"""Reads facts of single objects: where a bound volume is, and which claims a pod mounts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.kube import pods as kube
from weft.kube.pods import Pod
from weft.kube.structs import PersistentVolume, PersistentVolumeClaim
from weft.model import Requirement, StorageRules, Term

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION = "failure-domain.beta.kubernetes.io/region"
_STABLE = {BETA_ZONE: ZONE, BETA_REGION: REGION}
_PLACES = (*_STABLE, *_STABLE.values())
_NOWHERE = Term(tuple(Requirement(label, "DoesNotExist") for label in _PLACES))

Rules = tuple[tuple[Term, ...], ...]


class PodVolumes(NamedTuple):
    """The demands of a pod's volumes. Of each of the `rules` one term must match the node;
    `storage` are the other demands. `claims` names the claims that wait for their first consumer,
    in their order."""

    rules: Rules = ()
    storage: StorageRules = StorageRules()
    claims: tuple[str, ...] = ()


class MountedClaim(NamedTuple):
    """A claim that a pod mounts; `is_own`: it was created for the pod (a generic ephemeral
    volume)."""

    claim: str
    is_own: bool

    def why_not(self, pod: Pod, claim: PersistentVolumeClaim) -> str:
        """Return why the pod cannot use the volume; "" if it can."""
        if claim.status.phase == "Lost":
            return f"has lost its volume {claim.spec.volume_name}"
        if claim.metadata.deletion_timestamp:
            return "is being deleted"
        if self.is_own and not any(
            owner.controller and owner.uid == pod.metadata.uid
            for owner in claim.metadata.owner_references or ()
        ):
            return "was not made for this pod, which has an ephemeral volume of that name"
        return ""


def mounted_claims(pod: Pod) -> list[MountedClaim]:
    """Return the PersistentVolumeClaims that the pod mounts, each once."""
    found: dict[str, MountedClaim] = {}
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
            found.setdefault(name, MountedClaim(name, is_own=False))
        elif volume.ephemeral is not None:
            name = f"{pod.metadata.name}-{volume.name}"
            found.setdefault(name, MountedClaim(name, is_own=True))
    return list(found.values())


def terms_of(selector: kube.NodeSelector) -> tuple[Term, ...]:
    """Return a node selector's terms."""
    return tuple(term_of(term) for term in selector.node_selector_terms)


def term_of(term: kube.NodeSelectorTerm) -> Term:
    """Return one term of a node selector."""
    return Term(requirements_of(term.match_expressions), requirements_of(term.match_fields))


def requirements_of(
    requirements: Sequence[kube.SelectorRequirement] | None,
) -> tuple[Requirement, ...]:
    """Return the requirements of a selector."""
    return tuple(Requirement(r.key, r.operator, tuple(r.values or ())) for r in requirements or ())


def labels_of(selector: kube.LabelSelector | None) -> tuple[Requirement, ...] | None:
    """Read a label selector as requirements; None if it selects nothing."""
    if selector is None:
        return None
    pairs = sorted((selector.match_labels or {}).items())
    listed = requirements_of(selector.match_expressions)
    return (*(Requirement(key, "In", (value,)) for key, value in pairs), *listed)


def zones(volume: PersistentVolume) -> Iterator[tuple[Term, ...]]:
    """Yield for each zone or region label of a volume the terms of which one must match the node,
    as in kube-scheduler's VolumeZone.

    A label may name several places with `__` between them; a label that names an empty place is
    ignored. A node without any such label belongs to a cluster without zones, and can use the
    volume.
    """
    for label, places in (volume.metadata.labels or {}).items():
        if label not in _PLACES:
            continue
        values = tuple(value.strip() for value in places.split("__"))
        if "" in values:
            continue
        terms = [_NOWHERE, Term((Requirement(label, "In", values),))]
        if label in _STABLE:
            absent = Requirement(label, "DoesNotExist")
            terms.append(Term((absent, Requirement(_STABLE[label], "In", values))))
        yield tuple(terms)
