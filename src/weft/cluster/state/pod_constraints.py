"""A pod's spec as `Constraints`: what Kubernetes itself says about where the pod may run.

What Weft does not honour yet is never passed over: it becomes the text of `unsupported`, and the
pod waits with that reason until someone changes it.
"""

from collections.abc import Sequence
from typing import Protocol

from weft.dialects.foreign import ForeignRequest
from weft.kube import pods as kube
from weft.kube.pods import Pod, ScheduledSpec
from weft.model import Constraints, HostPort, Preference, Requirement, Term, Toleration
from weft.model.ceilings import MOST_RULES

WAY_OUT = "run this pod through kube-scheduler with Weft as its extender"


class Volumes(Protocol):
    """Knows what the claims of a pod are bound to."""

    def rules_of(self, namespace: str, claim: str) -> tuple[tuple[Term, ...], ...] | str:
        """Rules: of each, one term must match the node. A text if the claim cannot be honoured."""
        ...

    def held_by_other(self, pod: Pod, claim: str) -> str:
        """The reason why another pod keeps this one from the claim; "" where none does."""
        ...


class UnknownVolumes:
    """Stands for a manifest alone: nobody knows what its claims are bound to."""

    def rules_of(self, namespace: str, claim: str) -> tuple[tuple[Term, ...], ...] | str:
        """No rule."""
        return ()

    def held_by_other(self, pod: Pod, claim: str) -> str:
        """Nobody."""
        return ""


def constraints_of(pod: Pod, volumes: Volumes) -> Constraints:
    """Everything that keeps the pod off nodes, or in `unsupported` why it cannot be said."""
    spec = pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = preferred = None
    if affinity is not None:
        required, preferred = affinity.required, affinity.preferred
    rules, waits_for = _volumes(pod, volumes)
    unsupported = [*_unsupported(spec), *waits_for]
    # kube-scheduler would wait for the other pod as well: that is no way out.
    held = [why for claim in claims_of(pod) if (why := volumes.held_by_other(pod, claim))]
    way_out = f": {WAY_OUT}" if unsupported else ""
    constraints = Constraints(
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
        volumes=rules,
        unsupported="; ".join([*held, *unsupported]) + way_out,
    )
    if constraints.rules > MOST_RULES:
        stated = f"{constraints.rules} rules on nodes, tolerations and host ports"
        return Constraints(unsupported=f"the pod has {stated}; Weft reads {MOST_RULES} at most")
    return constraints


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


def keeps_away(spec: ScheduledSpec) -> frozenset[str]:
    """The topologyKeys of the pod's required anti-affinity: where it forbids others, once bound."""
    anti = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    required = anti.required if anti is not None else None
    return frozenset(term.topology_key for term in required or ())


def _term(term: kube.NodeSelectorTerm) -> Term:
    return Term(_requirements(term.match_expressions), _requirements(term.match_fields))


def _requirements(
    requirements: Sequence[kube.SelectorRequirement] | None,
) -> tuple[Requirement, ...]:
    return tuple(Requirement(r.key, r.operator, tuple(r.values or ())) for r in requirements or ())


def _unsupported(spec: ScheduledSpec) -> list[str]:
    """List in words what in the spec Weft alone cannot honour."""
    unsupported = []
    if spec.affinity is not None:
        for field, terms in (
            ("podAffinity", spec.affinity.pod_affinity),
            ("podAntiAffinity", spec.affinity.pod_anti_affinity),
        ):
            if terms is not None and terms.required:
                unsupported.append(f"spec.affinity.{field} is not honoured by Weft alone")
    hard = spec.topology_spread_constraints or ()
    if any(spread.when_unsatisfiable != "ScheduleAnyway" for spread in hard):
        unsupported.append("spec.topologySpreadConstraints is not honoured by Weft alone")
    if (claims := claims_request(spec)) is not None:
        unsupported.append(claims.text)
    for volume in spec.volumes or ():
        if field := volume.lone_disk:
            unsupported.append(f"spec.volumes[{volume.name}].{field} is not honoured by Weft alone")
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        unsupported.append("spec.schedulingGroup is not honoured by Weft alone")
    return unsupported


def claims_request(spec: ScheduledSpec) -> ForeignRequest | None:
    """The note on the pod's ResourceClaims, of whatever devices; None where it has none."""
    if not spec.resource_claims:
        return None
    names = ", ".join(claim.name for claim in spec.resource_claims)
    text = (
        f"spec.resourceClaims ({names}) is Kubernetes' dynamic resource allocation: "
        "Weft alone does not place it"
    )
    return ForeignRequest("spec.resourceClaims", text, waits=True)


def _volumes(pod: Pod, volumes: Volumes) -> tuple[tuple[tuple[Term, ...], ...], list[str]]:
    rules: list[tuple[Term, ...]] = []
    waits_for = []
    for claim in claims_of(pod):
        rules_of_claim = volumes.rules_of(pod.metadata.namespace, claim)
        if isinstance(rules_of_claim, str):
            waits_for.append(rules_of_claim)
        else:
            rules.extend(rules_of_claim)
    return tuple(rules), waits_for


def claims_of(pod: Pod) -> list[str]:
    """Names of the PersistentVolumeClaims that the pod mounts, also those made for it."""
    claims = []
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            claims.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            claims.append(f"{pod.metadata.name}-{volume.name}")
    return claims
