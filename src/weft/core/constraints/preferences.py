"""Scores a pod's preferences: kube-scheduler's TaintToleration, NodeAffinity, PodTopologySpread,
InterPodAffinity and ImageLocality scores, for all nodes at once.

Each part is 0 to 100 over the nodes that fit, as kube-scheduler normalises it, times its weight.
"""

import math
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from weft.core.constraints.answer import DomainsLeft
from weft.core.constraints.answers import nodes_within, pods_of
from weft.core.constraints.existing_pods import CountKey, ExistingPods
from weft.core.constraints.images import ImagesOnNodes
from weft.core.ledger.node_labels import LabelColumn
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Constraints, PodRequest, Preferences, SpreadRule

HOSTNAME = "kubernetes.io/hostname"
PartName = Literal["taints", "node-affinity", "spread", "pod-affinity", "images"]
WEIGHTS: dict[PartName, int] = {
    "taints": 3,
    "node-affinity": 2,
    "spread": 2,
    "pod-affinity": 2,
    "images": 1,
}
"""kube-scheduler's default weights of its plugins."""
_MOST = 100
_NONE = Preferences()


class PreferencePart(NamedTuple):
    """Points by one part of a pod's preferences, one for each of the rows passed to
    `PodWishes.parts`."""

    name: PartName
    points: Ints

    @property
    def tells_apart(self) -> bool:
        """Return True if the rows have different points."""
        points = self.points  # for few rows, min() and max() take several times as long
        return bool(points[points.argmin()] < points[points.argmax()])


class PartPoints(msgspec.Struct, frozen=True, gc=False):
    """A node's points by one part of a pod's preferences, of at most `most`."""

    name: PartName
    points: int
    most: int


class PreferredPlace(msgspec.Struct, frozen=True, gc=False):
    """The reason why preferences chose a node. `nodes` is the number of nodes whose policy score is
    within `percent` % of the range of scores from the best; `parts` differ among those nodes."""

    nodes: int
    percent: int
    parts: tuple[PartPoints, ...]


class PreferredAmong(NamedTuple):
    """The rows among which a pod's preferences decided. `near` are the positions in `rows` (None:
    all) whose policy score is within `percent` % of the range of scores from the best; `parts`
    differ among those rows."""

    rows: Ints
    near: Ints | None
    percent: int
    parts: list[PreferencePart]

    def place(self, row: int) -> PreferredPlace:
        """Return the reason why this one of the `rows` was chosen."""
        at, near = int(self.rows.searchsorted(row)), self.near
        if near is not None:
            at = int(near.searchsorted(at))
        parts = [
            PartPoints(name, points.item(at), _MOST * WEIGHTS[name]) for name, points in self.parts
        ]
        nodes = len(self.rows if near is None else near)
        return PreferredPlace(nodes, self.percent, tuple(parts))


class PodWishes:
    """Evaluates one pod's preferences, with other pods' preferences about it. `rules` is the number
    of all these preferences, a measure of the work."""

    __slots__ = ("_asked", "_constraints", "_drawing", "_existing", "_images", "_table", "rules")

    def __init__(
        self,
        existing: ExistingPods,
        images: ImagesOnNodes,
        table: LedgerTable,
        pod: PodRequest,
        constraints: Constraints,
    ) -> None:
        self._existing, self._images, self._table = existing, images, table
        self._asked, self._constraints = pod.preferences or _NONE, constraints
        self._drawing = existing.drawing(pod.namespace, pod.labels or {})
        asked = self._asked
        self.rules = len(asked.nodes) + len(asked.pods) + len(asked.spread) + len(self._drawing)
        if asked.images and images.have_any(asked.images):
            self.rules += 1
        if table.has_taints and table.taints.are_disliked:
            self.rules += 1

    def parts(
        self, rows: Ints, at: Ints | None = None, left: DomainsLeft | None = None
    ) -> list[PreferencePart]:
        """Return the points of each part for these rows, which are all that fit, in the domains
        `left`; or only for the rows `at` these positions. A part that gives all of them equal
        points may be left out."""
        table, asked = self._table, self._asked
        found: list[PreferencePart] = []

        def add(name: PartName, points: Ints) -> None:
            points = points if at is None else points.take(at)
            found.append(PreferencePart(name, points * WEIGHTS[name]))

        if table.has_taints and table.taints.are_disliked:
            add("taints", self._by_taints(rows))
        if asked.nodes:
            weights = table.labels.preferred(asked.nodes).take(rows)
            add("node-affinity", _of_most(weights))
        if asked.spread:
            add("spread", self._by_spread(rows))
        if (asked.pods or self._drawing) and (by_pods := self._by_pods(rows, at, left)):
            found.append(by_pods)
        if asked.images and self._images.have_any(asked.images):
            add("images", self._images.points(table, asked.images, asked.containers, rows))
        return found

    def _by_taints(self, rows: Ints) -> Ints:
        """Score by PreferNoSchedule taints that the pod does not tolerate: the fewer, the more
        points."""
        taints = self._table.taints
        disliked = np.array([self._constraints.disliked(each) for each in taints.sets])
        counts = disliked.astype(np.int64).take(taints.of_node.take(rows))
        return _MOST - _of_most(counts)

    def _by_pods(
        self, rows: Ints, at: Ints | None, left: DomainsLeft | None
    ) -> PreferencePart | None:
        """Score by sums of weights: of the pod's terms for each pod that they select, and of other
        pods' terms that select this pod. Returns points for the rows `at` these positions; None if
        all rows are equal."""
        by_key: dict[str, Ints] = {}
        own = [(w, self._existing.count(CountKey((w.term.pods,)))) for w in self._asked.pods]
        for wish, count in (*own, *self._drawing):
            key = wish.term.topology_key
            by_domain = count.by_domain(self._table, key).sums
            by_domain = by_domain if wish.weight == 1 else by_domain * wish.weight
            by_key[key] = by_key[key] + by_domain if key in by_key else by_domain
        labels = self._table.labels
        if len(by_key) == 1:  # by domain, of which there are fewer
            (key, sums), *_ = by_key.items()
            domains = labels.domains(key)
            if left is not None and left.domains is domains and left.all_with(rows):
                every = sums[domains.mask_of(left.which)]
            else:
                every = sums[np.bincount(domains.of_node.take(rows)).nonzero()[0]]
            which = rows if at is None else rows.take(at)
        else:
            columns = [
                sums.take(labels.domains(key).of_node.take(rows)) for key, sums in by_key.items()
            ]
            sums = every = np.sum(columns, axis=0)
            domains, which = None, np.arange(len(rows)) if at is None else at
        least, most = int(every[every.argmin()]), int(every[every.argmax()])
        if least == most:
            return None
        # In floats, and cut off instead of rounded, as kube-scheduler does.
        points = (_MOST * ((sums - least) / float(most - least))).astype(np.int64)
        points *= WEIGHTS["pod-affinity"]
        which = which if domains is None else domains.of_node.take(which)
        return PreferencePart("pod-affinity", points.take(which))

    def _by_spread(self, rows: Ints) -> Ints:
        """Score by spread: the fewer matching pods in a node's domain, the more points; no points
        where a topology label is missing."""
        table, asked = self._table, self._asked
        columns = [table.labels.domains(rule.topology_key) for rule in asked.spread]
        scored = np.ones(len(rows), dtype=np.bool_)
        if not asked.by_default:
            for column in columns:
                scored &= column.of_node.take(rows) > 0
        here = rows[scored]
        if not len(here):
            return np.zeros(len(rows), dtype=np.int64)
        need_all = not asked.by_default
        within = nodes_within(table, self._constraints, asked.spread, need_all=need_all)
        costs = np.zeros(len(here), dtype=np.float64)
        for rule, column, there in zip(asked.spread, columns, within, strict=True):
            count, domains = self._counted(rule, column, there, here)
            cost = count * math.log(domains + 2) + (rule.max_skew - 1)
            costs += np.where(column.of_node.take(here) > 0, cost, 0.0)
        whole = np.floor(costs + 0.5).astype(np.int64)
        least, most = int(whole.min()), int(whole.max())
        points = np.zeros(len(rows), dtype=np.int64)
        points[scored] = _MOST * (most + least - whole) // most if most else _MOST
        return points

    def _counted(
        self, rule: SpreadRule, column: LabelColumn, within: Bools | None, rows: Ints
    ) -> tuple[Ints, int]:
        """Return how many pods of the rule each row's domain has, and how many domains the rows are
        in."""
        table, count = self._table, pods_of(self._existing, rule)
        if rule.topology_key == HOSTNAME:  # each node is a domain, whatever its label
            alone = np.zeros(len(rows), np.int64) if count is None else count.on(table).take(rows)
            return alone, len(rows)
        of_node = column.of_node
        # Where nodes without the label count, kube-scheduler treats "" as no label.
        empty = column.numbers.get("", 0) if self._asked.by_default else 0
        if empty:
            of_node = np.where(of_node == empty, 0, of_node)
        domains = of_node.take(rows)
        different = int(np.count_nonzero(np.bincount(domains)))
        if count is None:
            return np.zeros(len(rows), np.int64), different
        if within is None and not empty:
            return count.by_domain(table, rule.topology_key).sums.take(domains), different
        on_nodes = count.on(table)
        if within is not None:
            of_node, on_nodes = of_node[within], on_nodes[within]
        sums = np.bincount(of_node, weights=on_nodes, minlength=len(column.values) + 1)
        return sums.astype(np.int64).take(domains), different


def _of_most(counts: Ints) -> Ints:
    """Scale the counts so that the largest becomes 100."""
    most = int(counts.max(initial=0))
    return counts * _MOST // most if most else counts
