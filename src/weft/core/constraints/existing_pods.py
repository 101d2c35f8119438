"""Pods that have a node, counted by node for every selector that somebody asks about.

A selector's count is made once, by going through the pods there are; from then on it is raised and
lowered as pods come, go and are relabelled. A pod's labels are matched against the living selectors
once each time: an index by label finds the few that may select it.
"""

import functools
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.core.ledger.node_labels import LabelColumn
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import (
    InterPodRules,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Preferences,
    WeightedTerm,
)

KEPT, WATCHED = 1_024, 8_192
"""Selectors whose counts are kept; the one that was asked about least recently goes first. So many
more are watched without a count: somebody may wait for what they select."""


class CountKey(NamedTuple):
    """The pods that all of these selectors select, with those that are terminating or without."""

    selectors: tuple[PodSelector, ...]
    with_terminating: bool = True

    def counts(self, marks: PodMarks) -> bool:
        """True if such a pod is among them."""
        return (self.with_terminating or not marks.terminating) and all(
            _by_sets(each).matches(marks.namespace, marks.labels) for each in self.selectors
        )


class PodsMoved(NamedTuple):
    """Since somebody looked last: counts and anti-affinity terms (by their owners) that rose
    somewhere, and that fell."""

    rose: frozenset[CountKey | PodTerm]
    fell: frozenset[CountKey | PodTerm]

    def help(self, rules: InterPodRules) -> bool:
        """True if a pod with these rules, which fitted nowhere, may fit somewhere now."""
        if any(term in self.fell for term in rules.kept_off_by):
            return True
        if rules.affinity:
            near = affinity_key(rules)  # without the last of them it may be the first
            if near in self.rose or (rules.is_its_own and near in self.fell):
                return True
        if any(CountKey((term.pods,)) in self.fell for term in rules.anti_affinity):
            return True
        spread = [CountKey((rule.pods,), with_terminating=False) for rule in rules.spread]
        return any(key in self.fell or key in self.rose for key in spread)


def affinity_key(rules: InterPodRules) -> CountKey:
    """The pods that a pod's required affinity is to: all of its terms select them."""
    return CountKey(tuple(term.pods for term in rules.affinity))


class CountByNode:
    """Pods of one kind by node; for a table's nodes as a column, and by topology domain."""

    __slots__ = ("_column", "_row_of", "_sums", "by_node")

    def __init__(self) -> None:
        self.by_node: dict[str, int] = {}
        self._column: Ints | None = None
        self._row_of: dict[str, int] = {}  # of the layout that the column is of
        self._sums: dict[str, tuple[Ints, Ints]] = {}  # by key: each node's domain, and sums

    def add(self, node: str, by: int) -> None:
        """So many more on this node, which may be in no table."""
        count = self.by_node.get(node, 0) + by
        if count:
            self.by_node[node] = count
        else:
            self.by_node.pop(node, None)
        if self._column is not None and (row := self._row_of.get(node)) is not None:
            self._column[row] = count
            for of_node, sums in self._sums.values():
                if domain := of_node[row]:
                    sums[domain] += by

    def on(self, table: LedgerTable) -> Ints:
        """The count on each of the table's nodes, [N]."""
        if self._column is None or self._row_of is not table.row_of:
            self._row_of, self._column = table.row_of, np.zeros(table.count, dtype=np.int64)
            for node, count in self.by_node.items():
                if (row := table.row_of.get(node)) is not None:
                    self._column[row] = count
            self._sums = {}
        return self._column

    def sums(self, table: LedgerTable, key: str) -> Ints:
        """The counts by domain of this topology key, numbered as the nodes' labels are; of nodes
        without the label, 0, none."""
        column = self.on(table)
        if key not in self._sums:
            domains = table.labels.domains(key)
            self._sums[key] = domains.of_node, summed(domains, column)
        return self._sums[key][1]


def summed(domains: LabelColumn, counts: Ints, within: Bools | None = None) -> Ints:
    """Sums of the nodes' counts by domain; of these nodes alone, where they are named."""
    of_node = domains.of_node
    if within is not None:
        of_node, counts = of_node[within], counts[within]
    size = len(domains.values) + 1
    sums = np.bincount(of_node, weights=counts, minlength=size).astype(np.int64)
    sums[0] = 0
    return np.asarray(sums)


T = TypeVar("T")


class _Index(Generic[T]):
    """Finds things by the pods that their first selector selects, without asking all of them."""

    def __init__(self) -> None:
        self._by_label: dict[tuple[str, str], dict[T, int]] = {}
        self._others: dict[T, int] = {}
        self._next = 0

    def add(self, item: T, selector: PodSelector) -> None:
        """One more."""
        self._next += 1
        pairs = _pairs_of(selector)
        buckets = [self._by_label.setdefault(pair, {}) for pair in pairs] or [self._others]
        for bucket in buckets:
            bucket[item] = self._next

    def remove(self, item: T, selector: PodSelector) -> None:
        """One less."""
        self._others.pop(item, None)
        for pair in _pairs_of(selector):
            bucket = self._by_label[pair]
            bucket.pop(item, None)
            if not bucket:
                del self._by_label[pair]

    def near(self, labels: Mapping[str, str]) -> list[T]:
        """Those that may select a pod with these labels, in the order in which they came."""
        found = list(self._others.items())
        for pair in labels.items():
            if (bucket := self._by_label.get(pair)) is not None:
                found += bucket.items()
        found.sort(key=lambda entry: entry[1])
        return [item for item, _ in found]


def _pairs_of(selector: PodSelector) -> tuple[tuple[str, str], ...]:
    """Labels of which a selected pod has one; none where no label is needed."""
    needed = (r for r in selector.labels or () if r.operator == "In" and r.values)
    first = next(needed, None)
    return () if first is None else tuple((first.key, v) for v in dict.fromkeys(first.values))


@functools.lru_cache(maxsize=KEPT + WATCHED)
def _by_sets(selector: PodSelector) -> PodSelector:
    """The same for asking thousands of pods: a selector may list thousands of values."""
    quick = [
        replace(each, values=frozenset(each.values)) if each.operator in ("In", "NotIn") else each
        for each in selector.labels or ()
    ]
    return selector if selector.labels is None else replace(selector, labels=tuple(quick))


def draws_of(
    affinity: Sequence[PodTerm], preferences: Preferences | UnsetType
) -> tuple[WeightedTerm, ...] | UnsetType:
    """Terms by which a pod changes the preferences of those that come after it: its own, and its
    required affinity as one of weight 1 (kube-scheduler's hardPodAffinityWeight)."""
    own = preferences.pods if preferences else ()
    return (*own, *(WeightedTerm(1, term) for term in affinity)) or UNSET


class ExistingPods:
    """The pods that have a node, or are just getting one. `owners`: by required
    anti-affinity term, how many pods with it each node has. `drawers` likewise, by
    terms that count in others' preferences. `has_moved`: `take_moved` has news."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, PodMarks]] = {}
        self._by_namespace: dict[str, dict[str, None]] = {}
        self._counts: OrderedDict[CountKey, CountByNode] = OrderedDict()
        self._watched: OrderedDict[CountKey, None] = OrderedDict()
        self._counted: _Index[CountKey] = _Index()  # these, and the watched ones
        self.owners: dict[PodTerm, CountByNode] = {}
        self._away: _Index[PodTerm] = _Index()
        self.drawers: dict[WeightedTerm, CountByNode] = {}
        self._drawn: _Index[WeightedTerm] = _Index()
        self._undo: list[tuple[str, tuple[str, PodMarks] | None]] | None = None
        self.has_moved = False
        self._rose: set[CountKey | PodTerm] = set()
        self._fell: set[CountKey | PodTerm] = set()

    @property
    def are_counted(self) -> bool:
        """True if somebody has rules about other pods."""
        return bool(self._counts or self.owners)

    def put(self, uid: str, node: str, marks: PodMarks) -> None:
        """The pod is on this node now, and looks like this."""
        before = self._pods.get(uid)
        if before == (node, marks):
            return
        self.remove(uid)
        if before is None and self._undo is not None:
            self._undo.append((uid, None))
        self._pods[uid] = node, marks
        self._by_namespace.setdefault(marks.namespace, {})[uid] = None
        self._add(node, marks, 1)

    def put_asked(self, pod: PodRequest, node: str) -> None:
        """This pod gets a place on the node."""
        rules = pod.shape.constraints.pods
        keeps_away = rules.anti_affinity if rules else ()
        draws = draws_of(rules.affinity if rules else (), pod.preferences)
        self.put(pod.uid, node, PodMarks(pod.namespace, pod.labels or {}, keeps_away, draws=draws))

    def moved_to(self, uid: str, node: str) -> None:
        """The pod is there, as it was known; nothing, where nobody said what it looks like."""
        if (known := self._pods.get(uid)) is not None:
            self.put(uid, node, known[1])

    def remove(self, uid: str) -> None:
        """The pod has no node any more."""
        known = self._pods.pop(uid, None)
        if known is None:
            return
        if self._undo is not None:
            self._undo.append((uid, known))
        node, marks = known
        here = self._by_namespace[marks.namespace]
        del here[uid]
        if not here:
            del self._by_namespace[marks.namespace]
        self._add(node, marks, -1)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo at the end what pods come and go meanwhile; that wakes nobody."""
        undo: list[tuple[str, tuple[str, PodMarks] | None]] = []
        self._undo, before_trial = undo, (set(self._rose), set(self._fell))
        try:
            yield
        finally:
            self._undo = None
            for uid, before in reversed(undo):
                self.remove(uid)
                if before is not None:
                    self.put(uid, *before)
            self._rose, self._fell = before_trial
            self.has_moved = bool(self._rose or self._fell)

    def count(self, key: CountKey) -> CountByNode:
        """How many of these pods each node has."""
        known = self._counts.get(key)
        if known is not None:
            self._counts.move_to_end(key)
            return known
        known = self._counts[key] = CountByNode()
        for uid in self._of(key.selectors):
            node, marks = self._pods[uid]
            if key.counts(marks):
                known.add(node, 1)
        if key in self._watched:
            del self._watched[key]
        else:
            self._counted.add(key, key.selectors[0])
        if len(self._counts) > KEPT:
            self._watched[self._counts.popitem(last=False)[0]] = None
        while len(self._watched) > WATCHED and self._undo is None:
            self._forget_oldest()
        return known

    def _forget_oldest(self) -> None:
        """Watch the oldest no more: who waits for it looks again, as nobody would tell it later."""
        oldest, _ = self._watched.popitem(last=False)
        self._counted.remove(oldest, oldest.selectors[0])
        self._rose.add(oldest)
        self._fell.add(oldest)
        self.has_moved = True

    def keeping_off(self, namespace: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
        """The anti-affinity terms of pods here that select a pod like this."""
        near = self._away.near(labels)
        return tuple(term for term in near if _by_sets(term.pods).matches(namespace, labels))

    def drawing(
        self, namespace: str, labels: Mapping[str, str]
    ) -> list[tuple[WeightedTerm, CountByNode]]:
        """The terms by which pods here would have a pod like this near or far, with who has them:
        so many terms each node has."""
        if not self.drawers:
            return []
        return [
            (wish, self.drawers[wish])
            for wish in self._drawn.near(labels)
            if _by_sets(wish.term.pods).matches(namespace, labels)
        ]

    def take_moved(self) -> PodsMoved:
        """Counts and terms that rose or fell since this was asked last."""
        moved = PodsMoved(frozenset(self._rose), frozenset(self._fell))
        self.has_moved = False
        self._rose.clear()
        self._fell.clear()
        return moved

    def _of(self, selectors: tuple[PodSelector, ...]) -> Collection[str]:
        """UIDs of the pods that they may select."""
        named = [s.namespaces for s in selectors if s.namespaces is not None]
        if not named:
            return self._pods
        fewest = min(named, key=len)
        return [uid for namespace in fewest for uid in self._by_namespace.get(namespace, ())]

    def _add(self, node: str, marks: PodMarks, by: int) -> None:
        moved = self._rose if by > 0 else self._fell
        if self._counts:
            for key in self._counted.near(marks.labels):
                if key.counts(marks):
                    if (count := self._counts.get(key)) is not None:
                        count.add(node, by)
                    moved.add(key)
        for term in dict.fromkeys(marks.anti_affinity):
            owners = self.owners.get(term)
            if owners is None:
                owners = self.owners[term] = CountByNode()
                self._away.add(term, term.pods)
            owners.add(node, by)
            moved.add(term)
            if not owners.by_node:
                del self.owners[term]
                self._away.remove(term, term.pods)
        self.has_moved = self.has_moved or bool(moved)
        for wish in marks.draws or ():
            self._count_drawer(wish, node, by)

    def _count_drawer(self, wish: WeightedTerm, node: str, by: int) -> None:
        drawers = self.drawers.get(wish)
        if drawers is None:
            drawers = self.drawers[wish] = CountByNode()
            self._drawn.add(wish, wish.term.pods)
        drawers.add(node, by)
        if not drawers.by_node:
            del self.drawers[wish]
            self._drawn.remove(wish, wish.term.pods)
