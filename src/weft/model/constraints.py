"""Constraints that keep a pod off a node besides room: taints, selectors, affinity, ports, volumes.

Words and meanings are Kubernetes' own (core/v1). Everything is hashable, because it is part of a
pod's shape.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from weft.model.number_text import whole_number

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class Taint(msgspec.Struct, frozen=True, gc=False):
    """spec.taints of a node."""

    key: str
    effect: str
    value: str = ""

    @property
    def hard(self) -> bool:
        """True if it keeps off pods that do not tolerate it."""
        return self.effect != "PreferNoSchedule"


CORDON = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
"""The taint that `kubectl cordon` amounts to."""


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """spec.tolerations of a pod; `effect` "" is any effect, `key` "" with Exists any taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """As Kubernetes' ToleratesTaint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and bool(self.key) and self.value == taint.value


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """One matchExpressions entry. An operator that is not Kubernetes' matches nothing."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As Kubernetes' node selector requirement; Gt and Lt compare whole numbers."""
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


class Term(msgspec.Struct, frozen=True, gc=False):
    """A nodeSelectorTerm: all of its requirements together; an empty term matches nothing.

    `fields` are matchFields, of which Kubernetes knows metadata.name.
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """True if a node of this name and these labels satisfies the term."""
        if not self.labels and not self.fields:
            return False
        own = {"metadata.name": name}
        return all(r.matches(labels) for r in self.labels) and all(
            r.matches(own) for r in self.fields
        )


class Preference(msgspec.Struct, frozen=True, gc=False):
    """A preferred node affinity term and its weight, 1 to 100."""

    weight: int
    term: Term


class HostPort(msgspec.Struct, frozen=True, gc=False):
    """A port of the node that a container wants; `ip` "" is all of the node's addresses."""

    port: int
    protocol: str = "TCP"
    ip: str = ""

    def conflicts(self, other: "HostPort") -> bool:
        """True if both cannot be had on one node."""
        if self.port != other.port or self.protocol != other.protocol:
            return False
        anywhere = ("", "0.0.0.0", "::")
        return self.ip in anywhere or other.ip in anywhere or self.ip == other.ip


def have_conflicts(wanted: Sequence[HostPort], used: Iterable[HostPort]) -> bool:
    """True if one of the wanted ports is taken by one of the used."""
    by_number: dict[tuple[int, str], list[HostPort]] = {}
    for want in wanted:
        by_number.setdefault((want.port, want.protocol), []).append(want)
    return any(
        want.conflicts(port)
        for port in used
        for want in by_number.get((port.port, port.protocol), ())
    )


class Constraints(msgspec.Struct, frozen=True, gc=False):
    """All of it for one pod.

    `selector` are nodeSelector's pairs. `affinity` are the required terms, of which one must
    match (None: no such rule; empty: nothing matches). `volumes` are the bound volumes' terms:
    for each volume one of its terms must match. `unsupported` says in words what Weft does not
    honour yet: such a pod stays pending with that reason. `judged_elsewhere`: whoever asks has
    looked at all of this already, and at other pods' anti-affinity; only `ports` count, as room.
    """

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] | None = None
    preferences: tuple[Preference, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    ports: tuple[HostPort, ...] = ()
    volumes: tuple[tuple[Term, ...], ...] = ()
    unsupported: str = ""
    judged_elsewhere: bool = False

    @property
    def rules(self) -> int:
        """Rules on nodes, tolerations and ports: a decision's work grows with them."""
        terms = [*(self.affinity or ()), *(wish.term for wish in self.preferences)]
        for either in self.volumes:
            terms += either
        asked = [rule for term in terms for rule in (*term.labels, *term.fields)]
        others = len(self.selector) + len(self.tolerations) + len(self.ports)
        return others + len(asked) + sum(len(rule.values) for rule in asked) // 10

    def accepts_labels(self, name: str, labels: Mapping[str, str]) -> bool:
        """nodeSelector and required node affinity."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        return self.affinity is None or any(term.matches(name, labels) for term in self.affinity)

    def accepts_volumes(self, name: str, labels: Mapping[str, str]) -> bool:
        """The node affinity of every bound volume."""
        return all(any(term.matches(name, labels) for term in terms) for terms in self.volumes)

    def untolerated(self, taints: tuple[Taint, ...]) -> Taint | None:
        """The first taint that keeps the pod off (NoSchedule or NoExecute); None for none."""
        for taint in taints:
            if taint.hard and not any(each.tolerates(taint) for each in self.tolerations):
                return taint
        return None

    def preference(self, name: str, labels: Mapping[str, str]) -> int:
        """Sum of the weights of preferred terms that match."""
        return sum(p.weight for p in self.preferences if p.term.matches(name, labels))

    def disliked(self, taints: tuple[Taint, ...]) -> int:
        """Number of PreferNoSchedule taints that the pod does not tolerate."""
        return sum(
            not taint.hard
            and not any(toleration.tolerates(taint) for toleration in self.tolerations)
            for taint in taints
        )


NO_CONSTRAINTS = Constraints()
