"""Selectors of labels, and what a pod demands of the pods around it: required affinity and
anti-affinity, topology spread.

Words and meanings are Kubernetes' own (core/v1). A *domain* is all nodes with one value of the
label `topology_key`; a node without that label is in none. Everything is hashable, because it is
part of a shape.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from weft.model.number_text import whole_number


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """One matchExpressions entry. An operator that is not Kubernetes' matches nothing."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if these labels meet the requirement, as in Kubernetes' node selectors; Gt
        and Lt compare integers."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return False

    def _compares(self, value: str | None) -> bool:
        try:
            left, right = whole_number(value or ""), whole_number(self.values[0])
        except (ValueError, IndexError):
            return False
        return left > right if self.operator == "Gt" else left < right

    def __str__(self) -> str:
        """Return the requirement as kubectl writes it: `app=web`, `tier in (a,b)`, `!app`."""
        listed = ",".join(self.values)
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={listed}"
            case "In" | "NotIn":
                return f"{self.key} {self.operator.lower()} ({listed})"
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
        return f"{self.key} {self.operator} {listed}"


class Term(msgspec.Struct, frozen=True, gc=False):
    """A nodeSelectorTerm: all of its requirements together; an empty term matches nothing.

    `fields` are matchFields, of which Kubernetes knows metadata.name.
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return True if a node of this name and these labels satisfies the term."""
        if not self.labels and not self.fields:
            return False
        own = {"metadata.name": name}
        return all(r.matches(labels) for r in self.labels) and all(
            r.matches(own) for r in self.fields
        )


class PodSelector(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Selector of the pods of these `namespaces` (None: of all) whose labels meet all requirements.

    `labels` None selects no pod and an empty tuple every pod, as a missing and an empty selector in
    Kubernetes.
    """

    namespaces: tuple[str, ...] | None
    labels: tuple[Requirement, ...] | None

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return True if a pod of this namespace with these labels is selected."""
        if self.labels is None:
            return False
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return all(requirement.matches(labels) for requirement in self.labels)

    def __str__(self) -> str:
        """Return the selector for messages: `pods with app=web in ml`."""
        if self.labels is None:
            return "no pods"
        what = ", ".join(map(str, self.labels))
        where = "all namespaces" if self.namespaces is None else " or ".join(self.namespaces)
        return f"pods {f'with {what} ' if what else ''}in {where}"


class PodTerm(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Pods that a pod must be near to, or far from: those in the node's domain of this topology
    key."""

    topology_key: str
    pods: PodSelector


def rules_in(asked: Sequence[PodSelector]) -> int:
    """Return how many rules these selectors count as; every ten listed values count as one more."""
    listed = [rule for pods in asked for rule in pods.labels or ()]
    return len(asked) + len(listed) + sum(len(rule.values) for rule in listed) // 10


class WeightedTerm(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Pods to be near to, with `weight` points for each of them; a negative weight keeps away from
    them."""

    weight: int
    term: PodTerm


class SpreadRule(msgspec.Struct, frozen=True, gc=False):
    """One entry of spec.topologySpreadConstraints.

    No domain may have more than `max_skew` more of these pods than the one with the fewest; with
    fewer than `min_domains` domains the fewest count as 0. Only nodes count that have all topology
    keys of the pod's rules, that its node affinity accepts (`honors_affinity`) and whose taints it
    tolerates (`honors_taints`). `counts_itself`: the pod is one of these pods.
    """

    topology_key: str
    max_skew: int
    pods: PodSelector
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False
    counts_itself: bool = False


class InterPodRules(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A pod's required rules about other pods.

    `affinity`: each term's domain must have a pod that all of these terms select; if they select
    the pod itself (`is_its_own`), it may be the first such pod. `anti_affinity`: no term's domain
    may have a pod that the term selects. `kept_off_by` are anti-affinity terms of pods with a node
    which select this pod: it may not be in the domains of those pods' nodes. Such terms come and go
    with their pods: the engine fills them in when it decides.
    """

    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadRule, ...] = ()
    is_its_own: bool = False
    kept_off_by: tuple[PodTerm, ...] = ()

    @property
    def rules(self) -> int:
        """Return the number of rules; a decision's work grows with them."""
        asked = [term.pods for term in (*self.affinity, *self.anti_affinity)]
        return rules_in([*asked, *(rule.pods for rule in self.spread)])


class PodMarks(msgspec.Struct, frozen=True, gc=False):
    """A pod with a node, as other pods' rules see it: its namespace and labels, its required
    `anti_affinity`, and its preferred affinity and anti-affinity (`draws`, unset for none). A
    `terminating` pod counts for affinity and not for spread; one that only has a place `kept` for
    it counts for all but affinity."""

    namespace: str
    labels: dict[str, str] = {}
    anti_affinity: tuple[PodTerm, ...] = ()
    terminating: bool = False
    draws: tuple[WeightedTerm, ...] | UnsetType = UNSET  # left out of a decisions file if unset
    kept: bool | UnsetType = UNSET
