"""A pod's spec as `Constraints`: what Kubernetes itself says about where the pod may run.

What Weft does not honour yet is never passed over: it becomes the text of `unsupported`, and the
pod waits with that reason until someone changes it.
"""

from collections.abc import Sequence
from typing import Protocol

from weft.kube import pods as kube
from weft.kube.pods import Pod, ScheduledSpec
from weft.model import Constraints, HostPort, Preference, Requirement, Term, Toleration

WAY_OUT = "run this pod through kube-scheduler with Weft as its extender"


class Volumes(Protocol):
    """What the claims of a pod are bound to."""

    def terms_of(self, namespace: str, claim: str) -> tuple[Term, ...] | str | None:
        """The volume's node terms; None where it can be had anywhere; a text where it is not bound.
        """  # fmt: skip
        ...


def constraints_of(pod: Pod, volumes: Volumes) -> Constraints:
    """Everything that keeps the pod off nodes, or in `unsupported` why it cannot be said."""
    spec = pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = preferred = None
    if affinity is not None:
        required, preferred = affinity.required, affinity.preferred
    terms, waits_for = _volumes(pod, volumes)
    unsupported = [*_unsupported(spec), *waits_for]
    return Constraints(
        selector=tuple(sorted((spec.node_selector or {}).items())),
        affinity=None if required is None else terms_of(required),
        preferences=tuple(
            Preference(wish.weight, _term(wish.preference)) for wish in preferred or ()
        ),
        tolerations=tuple(
            Toleration(t.key, t.operator or "Equal", t.value, t.effect)
            for t in spec.tolerations or ()
        ),
        ports=ports_of(spec),
        volumes=terms,
        unsupported=f"{'; '.join(unsupported)}: {WAY_OUT}" if unsupported else "",
    )


def ports_of(spec: ScheduledSpec) -> tuple[HostPort, ...]:
    """The node's ports that the pod takes, of its containers and sidecars."""
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    return tuple(
        HostPort(port.host_port, port.protocol or "TCP", port.host_ip)
        for container in (*sidecars, *spec.containers)
        for port in container.ports or ()
        if port.host_port
    )


def terms_of(selector: kube.NodeSelector) -> tuple[Term, ...]:
    """A node selector's terms."""
    return tuple(_term(term) for term in selector.node_selector_terms)


def keeps_away(spec: ScheduledSpec) -> bool:
    """Whether the pod, once it runs, forbids others on its node by required anti-affinity."""
    anti = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    return anti is not None and bool(anti.required)


def _term(term: kube.NodeSelectorTerm) -> Term:
    return Term(_requirements(term.match_expressions), _requirements(term.match_fields))


def _requirements(told: Sequence[kube.Requirement] | None) -> tuple[Requirement, ...]:
    return tuple(Requirement(r.key, r.operator, tuple(r.values or ())) for r in told or ())


def _unsupported(spec: ScheduledSpec) -> list[str]:
    """What in the spec Weft alone cannot honour, in words."""
    found = []
    if spec.affinity is not None:
        for field, told in (
            ("podAffinity", spec.affinity.pod_affinity),
            ("podAntiAffinity", spec.affinity.pod_anti_affinity),
        ):
            if told is not None and told.required:
                found.append(f"spec.affinity.{field} is not honoured by Weft alone")
    hard = spec.topology_spread_constraints or ()
    if any(one.when_unsatisfiable != "ScheduleAnyway" for one in hard):
        found.append("spec.topologySpreadConstraints is not honoured by Weft alone")
    if spec.resource_claims:
        found.append("spec.resourceClaims is not honoured by Weft alone")
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        found.append("spec.schedulingGroup is not honoured by Weft alone")
    return found


def _volumes(pod: Pod, volumes: Volumes) -> tuple[tuple[tuple[Term, ...], ...], list[str]]:
    terms, waits_for = [], []
    for claim in claims_of(pod):
        found = volumes.terms_of(pod.metadata.namespace, claim)
        if isinstance(found, str):
            waits_for.append(found)
        elif found is not None:
            terms.append(found)
    return tuple(terms), waits_for


def claims_of(pod: Pod) -> list[str]:
    """Names of the PersistentVolumeClaims that the pod mounts, also those made for it."""
    found = []
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            found.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.append(f"{pod.metadata.name}-{volume.name}")
    return found
