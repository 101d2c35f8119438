"""Rules about other pods, read off the pods and nodes one by one: the slow, obvious reference.

Written from Kubernetes' documentation and from what kube-scheduler's PodTopologySpread and
InterPodAffinity filters do, with no counts and no arrays.
"""

from collections.abc import Mapping
from typing import NamedTuple

from weft.model import Constraints, InterPodRules, Node, PodMarks, PodSelector, PodTerm, SpreadRule


class There(NamedTuple):
    """A pod and the name of its node."""

    node: str
    marks: PodMarks


def selects(selector: PodSelector, marks: PodMarks) -> bool:
    if selector.labels is None:
        return False
    if selector.namespaces is not None and marks.namespace not in selector.namespaces:
        return False
    return all(
        holds(rule.key, rule.operator, rule.values, marks.labels) for rule in selector.labels
    )


def holds(key: str, operator: str, values: tuple[str, ...], labels: Mapping[str, str]) -> bool:
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator == "In":
        return key in labels and labels[key] in values
    return key not in labels or labels[key] not in values


def allowed(
    nodes: list[Node], there: list[There], own: PodMarks, constraints: Constraints
) -> set[str]:
    """Names of the nodes that rules about other pods leave, theirs about this one among them."""
    by_name = {node.name: node for node in nodes}
    rules = constraints.pods or InterPodRules()
    return {
        node.name
        for node in nodes
        if _near(node, by_name, there, own, rules.affinity)
        and not any(_has(node, by_name, there, term) for term in rules.anti_affinity)
        and not _kept_off(node, by_name, there, own)
        and all(_even(node, nodes, there, rule, constraints) for rule in rules.spread)
    }


def _same_domain(node: Node, other: Node | None, key: str) -> bool:
    return (
        other is not None and key in node.labels and node.labels[key] == other.labels.get(key, None)
    )


def _has(node: Node, by_name: dict[str, Node], there: list[There], term: PodTerm) -> bool:
    return any(
        selects(term.pods, pod.marks)
        and _same_domain(node, by_name.get(pod.node), term.topology_key)
        for pod in there
    )


def _kept_off(node: Node, by_name: dict[str, Node], there: list[There], own: PodMarks) -> bool:
    return any(
        selects(term.pods, own) and _same_domain(node, by_name.get(pod.node), term.topology_key)
        for pod in there
        for term in pod.marks.anti_affinity
    )


def _near(
    node: Node,
    by_name: dict[str, Node],
    there: list[There],
    own: PodMarks,
    terms: tuple[PodTerm, ...],
) -> bool:
    if any(term.topology_key not in node.labels for term in terms):
        return False
    good = [pod for pod in there if all(selects(term.pods, pod.marks) for term in terms)]
    if all(
        any(_same_domain(node, by_name.get(pod.node), term.topology_key) for pod in good)
        for term in terms
    ):
        return True
    somewhere = any(
        pod.node in by_name and term.topology_key in by_name[pod.node].labels
        for pod in good
        for term in terms
    )
    return not somewhere and all(selects(term.pods, own) for term in terms)


def _even(
    node: Node, nodes: list[Node], there: list[There], rule: SpreadRule, constraints: Constraints
) -> bool:
    if rule.topology_key not in node.labels:
        return False
    keys = {each.topology_key for each in (constraints.pods or InterPodRules()).spread}
    sums: dict[str, int] = {}
    for other in nodes:
        if not keys <= other.labels.keys():
            continue
        if rule.honors_affinity and not constraints.accepts_labels(other.name, other.labels):
            continue
        if rule.honors_taints and constraints.untolerated(other.taints) is not None:
            continue
        matching = [
            pod
            for pod in there
            if pod.node == other.name
            and not pod.marks.terminating
            and rule.pods.labels
            and selects(rule.pods, pod.marks)
        ]
        value = other.labels[rule.topology_key]
        sums[value] = sums.get(value, 0) + len(matching)
    least = min(sums.values(), default=0) if len(sums) >= rule.min_domains else 0
    mine = sums.get(node.labels[rule.topology_key], 0)
    return mine + int(rule.counts_itself) - least <= rule.max_skew
