"""Pods' preferences in points, read off nodes and pods one by one: the slow, obvious reference.

Written from what kube-scheduler's TaintToleration, NodeAffinity, PodTopologySpread,
InterPodAffinity and ImageLocality plugins do to score nodes, with no counts and no arrays.
"""

import math
from collections.abc import Callable, Mapping

from pods_slowly import There, selects

from weft.model import Constraints, Node, PodMarks, Preferences, SpreadRule

MIB = 1024 * 1024
HOSTNAME = "kubernetes.io/hostname"
Images = Mapping[str, Mapping[str, int]]
"""By node: sizes by name."""


class SlowScores:
    """The cluster and one pod; `nodes` are all, `fitting` those whose scores are compared."""

    def __init__(
        self,
        nodes: list[Node],
        fitting: list[Node],
        there: list[There],
        images: Images,
        own: PodMarks,
        constraints: Constraints,
        asked: Preferences,
    ) -> None:
        self.nodes, self.fitting, self.there, self.images = nodes, fitting, there, images
        self.own, self.constraints, self.asked = own, constraints, asked
        self.by_name = {node.name: node for node in nodes}

    def totals(self) -> dict[str, int]:
        """kube-scheduler's sum of the five plugins with its weights, by node."""
        parts = (
            (3, self.taints()),
            (2, self.node_affinity()),
            (2, self.spread()),
            (2, self.pod_affinity()),
            (1, self.image_locality()),
        )
        return {
            node.name: sum(weight * part[node.name] for weight, part in parts)
            for node in self.fitting
        }

    def taints(self) -> dict[str, int]:
        def count(node: Node) -> int:
            return sum(
                1
                for taint in node.taints
                if taint.effect == "PreferNoSchedule"
                and not any(each.tolerates(taint) for each in self.constraints.tolerations)
            )

        found = self.of_most(count)
        return {name: 100 - points for name, points in found.items()}

    def node_affinity(self) -> dict[str, int]:
        return self.of_most(
            lambda node: sum(
                wish.weight
                for wish in self.asked.nodes
                if wish.term.matches(node.name, node.labels)
            )
        )

    def of_most(self, count: Callable[[Node], int]) -> dict[str, int]:
        counts = {node.name: count(node) for node in self.fitting}
        most = max(counts.values())
        return {name: 100 * n // most if most else 0 for name, n in counts.items()}

    def pod_affinity(self) -> dict[str, int]:
        sums: dict[tuple[str, str], int] = {}
        for pod in self.there:
            node = self.by_name.get(pod.node)
            if node is None:
                continue
            ours = [w for w in self.asked.pods if selects(w.term.pods, pod.marks)]
            theirs = [w for w in pod.marks.draws or () if selects(w.term.pods, self.own)]
            for wish in ours + theirs:
                key = wish.term.topology_key
                if key in node.labels:
                    pair = key, node.labels[key]
                    sums[pair] = sums.get(pair, 0) + wish.weight
        raw = {
            node.name: sum(sums.get(pair, 0) for pair in node.labels.items())
            for node in self.fitting
        }
        least, most = min(raw.values()), max(raw.values())
        if least == most:
            return dict.fromkeys(raw, 0)
        return {name: int(100.0 * ((n - least) / (most - least))) for name, n in raw.items()}

    def spread(self) -> dict[str, int]:
        rules, need_all = self.asked.spread, not self.asked.by_default
        if not rules:
            return {node.name: 0 for node in self.fitting}
        keys = {rule.topology_key for rule in rules}
        scored = [n for n in self.fitting if not need_all or keys <= n.labels.keys()]
        costs: dict[str, float] = {node.name: 0.0 for node in scored}
        for rule in rules:
            key = rule.topology_key
            domains = {node.labels.get(key, "") for node in scored}
            size = len(scored) if key == HOSTNAME else len(domains)
            for node in scored:
                if key in node.labels:
                    count = self.matching(rule, node, keys, need_all)
                    costs[node.name] += count * math.log(size + 2) + rule.max_skew - 1
        whole = {name: math.floor(cost + 0.5) for name, cost in costs.items()}
        least, most = min(whole.values(), default=0), max(whole.values(), default=0)
        points = {
            name: 100 * (most + least - cost) // most if most else 100
            for name, cost in whole.items()
        }
        return {node.name: points.get(node.name, 0) for node in self.fitting}

    def matching(self, rule: SpreadRule, node: Node, keys: set[str], need_all: bool) -> int:
        """Pods of the rule in the node's domain; on the node alone, if it is by host."""
        key = rule.topology_key
        if key == HOSTNAME:
            return self.on(node, rule)
        total = 0
        for other in self.nodes:
            if need_all and not keys <= other.labels.keys():
                continue
            if rule.honors_affinity and not self.constraints.accepts_labels(
                other.name, other.labels
            ):
                continue
            if rule.honors_taints and self.constraints.untolerated(other.taints) is not None:
                continue
            if other.labels.get(key, "") == node.labels[key]:
                total += self.on(other, rule)
        return total

    def on(self, node: Node, rule: SpreadRule) -> int:
        if not rule.pods.labels:
            return 0
        return sum(
            1
            for pod in self.there
            if pod.node == node.name and not pod.marks.terminating and selects(rule.pods, pod.marks)
        )

    def image_locality(self) -> dict[str, int]:
        found = {}
        for node in self.fitting:
            total = 0
            for name in self.asked.images:
                if name in self.images.get(node.name, {}):
                    having = [n for n in self.nodes if name in self.images.get(n.name, {})]
                    size = self.images[node.name][name]
                    total += int(float(size) * (len(having) / len(self.nodes)))
            most = 1000 * MIB * max(1, self.asked.containers)
            total = min(max(total, 23 * MIB), most)
            found[node.name] = 100 * (total - 23 * MIB) // (most - 23 * MIB)
        return found
