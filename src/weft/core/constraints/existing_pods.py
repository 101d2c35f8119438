"""Counts the pods that have a node, by node and selector. A selector's count is computed once from
all pods, and then updated as pods come, go and are relabelled. For each such change the pod's
labels are matched against the current selectors: an index by label finds the few that may select
the pod.
"""

import functools
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.core.constraints.counts import CountByNode
from weft.core.constraints.volumes import Moved, ServingVolumes, wanted_by
from weft.model import (
    ChosenVolume,
    Constraints,
    InterPodRules,
    MountedVolumes,
    Node,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Preferences,
    Shape,
    WeightedTerm,
)
from weft.model.storage import mounted_by

if TYPE_CHECKING:
    from weft.core.constraints.answers import AskedRules

KEPT, WATCHED = 1_024, 8_192
"""Maximum number of selectors with a stored count (the least recently used count is dropped), and
of selectors without one whose changes are still noticed, as pods may wait for them."""
KEPT_LABELS, KEPT_SHAPES = 1_024, 16
"""Maximum number of label sets with cached matching selectors, and for each the maximum number of
cached pod shapes with other pods' terms filled in."""


class CountKey(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Key of a count: the pods that all of these selectors select, with or without terminating
    pods, and with or without pods that have no place yet but one kept free for them (`kept`)."""

    selectors: tuple[PodSelector, ...]
    with_terminating: bool = True
    with_kept: bool = True

    def counts(self, marks: PodMarks) -> bool:
        """Return True if a pod with these marks is counted."""
        return self.takes(marks) and all(
            _by_sets(each).matches(marks.namespace, marks.labels) for each in self.selectors
        )

    def takes(self, marks: PodMarks) -> bool:
        """Return True if a pod with these marks is counted, given that the selectors select it."""
        return (self.with_terminating or not marks.terminating) and (
            self.with_kept or not marks.kept
        )


class PodsMoved(NamedTuple):
    """Changes on any node that may let waiting pods fit: pod counts that rose or fell,
    anti-affinity terms that more or fewer pods have, and `volumes` that became available. Also used
    for the changes that one pod waits for."""

    rose: frozenset[CountKey | PodTerm]
    fell: frozenset[CountKey | PodTerm]
    volumes: frozenset[Moved] = frozenset()


_NOTHING_MOVED = PodsMoved(frozenset(), frozenset())


def waits_for(constraints: Constraints) -> PodsMoved:
    """Return the changes of which one must happen before a pod with these rules may fit."""
    rules, storage = constraints.pods, constraints.storage
    if not rules and not storage:
        return _NOTHING_MOVED
    rose: set[CountKey | PodTerm] = set()
    fell: set[CountKey | PodTerm] = set()
    if rules:
        fell.update(rules.kept_off_by)
        fell.update(CountKey((term.pods,)) for term in rules.anti_affinity)
        spread = [CountKey((rule.pods,), with_terminating=False) for rule in rules.spread]
        rose.update(spread)
        fell.update(spread)
    if rules and rules.affinity:
        rose.add(affinity_key(rules))
        if rules.is_its_own:  # once the last such pod is gone, this one may be the first
            fell.update((affinity_key(rules), affinity_key(rules, with_kept=True)))
    volumes = wanted_by(storage) if storage else frozenset()
    return PodsMoved(frozenset(rose), frozenset(fell), volumes)


def affinity_key(rules: InterPodRules, *, with_kept: bool = False) -> CountKey:
    """Return the key of the pods that a pod's required affinity selects by all of its terms. Pods
    that have no place yet but one kept free for them do not count unless `with_kept`, as they may
    never start there."""
    return CountKey(tuple(term.pods for term in rules.affinity), with_kept=with_kept)


T = TypeVar("T")


class _Selected(NamedTuple):
    """An indexed item: its number, and the conditions that remain for a pod with the label by which
    it was found."""

    number: int
    namespaces: tuple[str, ...] | None
    more: tuple[PodSelector, ...]

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return True if the item selects a pod of this namespace with these labels, given that the
        pod has the label by which the item was found."""
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return all(each.matches(namespace, labels) for each in self.more)


_AlikeKey = tuple[str, frozenset[tuple[str, str]]]
_Counts = list[tuple["CountKey", CountByNode | None]]
_Owned = list[tuple[PodTerm, bool]]


class _Alike:
    """Caches what is known about pods of one namespace with the same labels: the items that each
    index `found` (None: not asked yet), and values computed from them, with their source."""

    __slots__ = ("counts", "filled", "found", "owned")

    def __init__(self, indexes: int) -> None:
        self.found: list[Any] = [None] * indexes
        self.counts: tuple[object, _Counts] = None, []
        self.owned: tuple[object, _Owned] = None, []
        self.filled: tuple[object, dict[Shape, Shape]] = None, {}


class _FoundByLabels:
    """Caches the items that several indexes found for pods with the same namespace and labels, by
    the index's number: a decision asks all indexes about the same labels."""

    def __init__(self, indexes: int) -> None:
        self._indexes = indexes
        self._found: dict[_AlikeKey, _Alike] = {}
        self._with: dict[tuple[str, str], list[_AlikeKey]] = {}  # keys of pods with this label
        self._last: tuple[str, Mapping[str, str], _Alike] | None = None

    def of(self, namespace: str, labels: Mapping[str, str]) -> _Alike:
        """Return the cache entry for pods of this namespace with these labels, to be filled in by
        the caller."""
        last = self._last
        if last is not None and last[1] is labels and last[0] == namespace:
            return last[2]
        key = namespace, frozenset(labels.items())
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= KEPT_LABELS:
                self._found.clear()
                self._with.clear()
            found = self._found[key] = _Alike(self._indexes)
            for pair in key[1]:
                self._with.setdefault(pair, []).append(key)
        self._last = namespace, labels, found
        return found

    def forget(self, index: int, pairs: Sequence[tuple[str, str]]) -> None:
        """Forget what this index found for pods with one of these labels; for all pods if none is
        given."""
        if not pairs:
            for alike in self._found.values():
                alike.found[index] = None
        for pair in pairs:
            for key in self._with.get(pair, ()):
                self._found[key].found[index] = None


class _Index(Generic[T]):
    """Finds items by the pods that all of their selectors select, without checking every item.
    Results for some labels are cached in `found` until an item that may select them is added or
    removed."""

    def __init__(self, found: _FoundByLabels, number: int) -> None:
        """Create an empty index; `number` distinguishes it from other indexes with the same
        `found`."""
        self._found, self._number = found, number
        self._by_label: dict[str, dict[str, dict[T, _Selected]]] = {}
        self._others: dict[T, _Selected] = {}
        self._next = 0

    def add(self, item: T, selectors: Sequence[PodSelector]) -> None:
        """Add an item, to be found for pods that all of these selectors select."""
        self._next += 1
        first = selectors[0]
        pairs = _pairs_of(first)
        self._found.forget(self._number, pairs)
        is_all = bool(pairs) and len(first.labels or ()) == 1
        more = tuple(_by_sets(each) for each in selectors[is_all:])
        asked = _Selected(self._next, first.namespaces, more)
        if not pairs:
            self._others[item] = asked
        for key, value in pairs:
            self._by_label.setdefault(key, {}).setdefault(value, {})[item] = asked

    def remove(self, item: T, selectors: Sequence[PodSelector]) -> None:
        """Remove the item."""
        self._others.pop(item, None)
        pairs = _pairs_of(selectors[0])
        self._found.forget(self._number, pairs)
        for key, value in pairs:
            by_value = self._by_label[key]
            bucket = by_value[value]
            bucket.pop(item, None)
            if not bucket:
                del by_value[value]
                if not by_value:
                    del self._by_label[key]

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> tuple[T, ...]:
        """Return the items whose selectors select a pod of this namespace with these labels, in the
        order in which they were added."""
        of_labels = self._found.of(namespace, labels).found
        found: tuple[T, ...] | None = of_labels[self._number]
        if found is None:
            found = of_labels[self._number] = self._select(namespace, labels)
        return found

    def forget_found(self, selectors: Sequence[PodSelector]) -> None:
        """Forget cached results for pods that these selectors may select."""
        self._found.forget(self._number, _pairs_of(selectors[0]))

    def _select(self, namespace: str, labels: Mapping[str, str]) -> tuple[T, ...]:
        buckets = [self._others] if self._others else []
        for key in self._by_label if len(self._by_label) < len(labels) else labels:
            value = labels.get(key)
            if value is not None and (bucket := self._by_label.get(key, {}).get(value)):
                buckets.append(bucket)
        found = [
            (asked.number, item)
            for bucket in buckets
            for item, asked in bucket.items()
            if asked.has(namespace, labels)
        ]
        if len(buckets) > 1:
            found.sort(key=itemgetter(0))
        return tuple(item for _, item in found)


def _pairs_of(selector: PodSelector) -> tuple[tuple[str, str], ...]:
    """Return label pairs of which a selected pod must have one; empty if no label is required."""
    needed = (r for r in selector.labels or () if r.operator == "In" and r.values)
    first = next(needed, None)
    return () if first is None else tuple((first.key, v) for v in dict.fromkeys(first.values))


@functools.lru_cache(maxsize=KEPT + WATCHED)
def _by_sets(selector: PodSelector) -> PodSelector:
    """Return the selector with sets instead of lists of values, which is faster for thousands of
    pods and values."""
    quick = [
        replace(each, values=frozenset(each.values)) if each.operator in ("In", "NotIn") else each
        for each in selector.labels or ()
    ]
    return selector if selector.labels is None else replace(selector, labels=tuple(quick))


class _PodsByLabel:
    """UIDs of pods by each of their labels, so that a selector is compared with few pods."""

    def __init__(self) -> None:
        self._uids: dict[tuple[str, str], dict[str, None]] = {}
        self._values: dict[str, dict[str, None]] = {}  # values by key

    def add(self, uid: str, labels: Mapping[str, str]) -> None:
        """Add a pod under each of its labels."""
        for pair in labels.items():
            here = self._uids.get(pair)
            if here is None:
                self._uids[pair] = {uid: None}
                self._values.setdefault(pair[0], {})[pair[1]] = None
            else:
                here[uid] = None

    def remove(self, uid: str, labels: Mapping[str, str]) -> None:
        """Remove the pod."""
        for pair in labels.items():
            here = self._uids[pair]
            del here[uid]
            if not here:
                del self._uids[pair]
                values = self._values[pair[0]]
                del values[pair[1]]
                if not values:
                    del self._values[pair[0]]

    def near(self, selector: PodSelector, most: int) -> list[str] | None:
        """Return UIDs of the pods that the selector may select; None if there are `most` or more,
        or if the selector requires no label."""
        found: list[str] | None = None
        for rule in selector.labels or ():
            if rule.operator not in ("In", "Exists"):
                continue
            there = self._values.get(rule.key, {})
            values = dict.fromkeys(rule.values) if rule.operator == "In" else there
            buckets = [self._uids[rule.key, value] for value in values if value in there]
            if (count := sum(map(len, buckets))) < most:
                found, most = [uid for bucket in buckets for uid in bucket], count
        return found


@functools.lru_cache(maxsize=KEPT)
def draws_of(
    affinity: Sequence[PodTerm], preferences: Preferences | UnsetType
) -> tuple[WeightedTerm, ...] | UnsetType:
    """Return the terms by which the pod affects the preferences of later pods: its preferred terms,
    and its required affinity with weight 1 (kube-scheduler's hardPodAffinityWeight)."""
    own = preferences.pods if preferences else ()
    return (*own, *(WeightedTerm(1, term) for term in affinity)) or UNSET


_Undo = tuple[str, tuple[str, PodMarks] | None, MountedVolumes | UnsetType]
"""The state of a pod before a change: its UID, its node and marks, and what it mounted."""


class ExistingPods:
    """The pods that have a node, or are just getting a node. `owners` counts, for each required
    anti-affinity term, the pods that have it, by node; `strangers` counts those of them that the
    term itself does not select. `drawers` does the same for terms that count in other pods'
    preferences. `volumes` are what pods mount, and may mount. `has_moved` is True if counts or
    terms changed since `take_moved`; for volumes see `volumes.moved`. `kept` is the number of pods
    without a place for which one is kept free."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, PodMarks]] = {}
        self._by_namespace: dict[str, dict[str, None]] = {}
        self._by_label = _PodsByLabel()
        self._counts: dict[CountKey, CountByNode] = {}
        self._asked = 0
        self._watched: OrderedDict[CountKey, None] = OrderedDict()
        self._alike = found = _FoundByLabels(3)
        self._counted: _Index[CountKey] = _Index(found, 0)  # with the watched ones
        self.owners: dict[PodTerm, CountByNode] = {}
        self.strangers: Counter[PodTerm] = Counter()
        self._away: _Index[PodTerm] = _Index(found, 1)
        self.drawers: dict[WeightedTerm, CountByNode] = {}
        self._drawn: _Index[WeightedTerm] = _Index(found, 2)
        self._undo: list[_Undo] | None = None
        self.volumes = ServingVolumes()
        self.has_moved = False
        self.kept = 0
        self.asked_rules: dict[InterPodRules, AskedRules] = {}  # cached by `answers`
        self._rose: set[CountKey | PodTerm] = set()
        self._fell: set[CountKey | PodTerm] = set()

    @property
    def are_counted(self) -> bool:
        """Return True if rules about other pods are counted."""
        return bool(self._counts or self.owners)

    def put(
        self,
        uid: str,
        node: str,
        marks: PodMarks,
        mounted: MountedVolumes | UnsetType = UNSET,
    ) -> None:
        """Record that the pod is on this node, with these labels and rules."""
        before = self._pods.get(uid)
        volumes = self.volumes
        if before == (node, marks) and volumes.mounts.get(uid, (node, UNSET)) == (node, mounted):
            return
        if before is not None:
            self._take_off(uid)
        elif self._undo is not None:
            self._undo.append((uid, None, UNSET))
        self._pods[uid] = node, marks
        self._by_namespace.setdefault(marks.namespace, {})[uid] = None
        self._by_label.add(uid, marks.labels)
        if marks.kept:
            self.kept += 1
        self._add(node, marks, 1)
        if mounted:
            volumes.put(uid, node, mounted)

    def marks_of(self, uid: str) -> PodMarks | None:
        """Return the pod as other pods' rules see it; None if it is unknown."""
        known = self._pods.get(uid)
        return None if known is None else known[1]

    def nodes_of(self, namespace: str) -> set[str]:
        """Return the nodes that pods of the namespace are on."""
        return {self._pods[uid][0] for uid in self._by_namespace.get(namespace, ())}

    def filled_in(self, pod: PodRequest, shape: Shape) -> Shape:
        """Return the pod's shape with what other pods add: their anti-affinity terms that select
        it, and the volumes chosen for claims that it shares."""
        storage = shape.constraints.storage
        labels = pod.labels or {}
        if self.owners and (off := self.keeping_off(pod.namespace, labels)):
            shape = self._kept_off(shape, off, self._alike.of(pod.namespace, labels))
        if storage:
            assumed = self.volumes.as_assumed(storage, pod.namespace, pod.claims)
            if assumed is not storage:
                shape = replace(shape, constraints=replace(shape.constraints, storage=assumed))
        return shape

    def _kept_off(self, shape: Shape, off: tuple[PodTerm, ...], alike: _Alike) -> Shape:
        if alike.filled[0] is not off or len(alike.filled[1]) >= KEPT_SHAPES:
            alike.filled = off, {}
        filled = alike.filled[1].get(shape)
        if filled is None:
            rules = replace(shape.constraints.pods or InterPodRules(), kept_off_by=off)
            filled = replace(shape, constraints=replace(shape.constraints, pods=rules))
            alike.filled[1][shape] = filled
        return filled

    def choose(self, pod: PodRequest, shape: Shape, node: Node) -> tuple[ChosenVolume, ...]:
        """Return how the pod's claims are served on this node, which the rules in `shape`
        accept."""
        storage = shape.constraints.storage
        return self.volumes.choose(storage, pod.claims, node) if storage else ()

    def put_asked(self, pod: PodRequest, node: str, chosen: tuple[ChosenVolume, ...] = ()) -> None:
        """Record that the pod gets a place on the node, with these volumes for its claims."""
        constraints = pod.shape.constraints
        keeps_away = constraints.pods.anti_affinity if constraints.pods else ()
        mounted: MountedVolumes | UnsetType = UNSET
        if constraints.storage:
            mounted = mounted_by(constraints.storage, pod.namespace, pod.claims)
        draws = draws_of(constraints.pods.affinity if constraints.pods else (), pod.preferences)
        marks = PodMarks(pod.namespace, pod.labels or {}, keeps_away, draws=draws)
        self.put(pod.uid, node, marks, mounted)
        if chosen:
            self.volumes.assume(pod.uid, pod.namespace, node, chosen)

    def put_kept(self, uid: str, pod: PodRequest, node: str) -> None:
        """Record, under this UID, that a place on the node is kept free for a pod that has none
        yet."""
        rules = pod.shape.constraints.pods
        keeps_away = rules.anti_affinity if rules else ()
        self.put(uid, node, PodMarks(pod.namespace, pod.labels or {}, keeps_away, kept=True))

    def moved_to(self, uid: str, node: str) -> None:
        """Record that the pod is on this node, with the labels and rules known before; does nothing
        for an unknown pod."""
        if (known := self._pods.get(uid)) is not None:
            self.put(uid, node, known[1], self._mounted(uid))

    def _mounted(self, uid: str) -> MountedVolumes | UnsetType:
        return self.volumes.mounts.get(uid, ("", UNSET))[1]

    def remove(self, uid: str) -> None:
        """Remove the pod: it has no node any more."""
        if uid in self.volumes.picks:
            self.volumes.release(uid)
        self._take_off(uid)

    def _take_off(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        if known is None:
            return
        if self._undo is not None:
            self._undo.append((uid, known, self._mounted(uid)))
        node, marks = known
        here = self._by_namespace[marks.namespace]
        del here[uid]
        if not here:
            del self._by_namespace[marks.namespace]
        self._by_label.remove(uid, marks.labels)
        if marks.kept:
            self.kept -= 1
        self._add(node, marks, -1)
        if uid in self.volumes.mounts:
            self.volumes.remove(uid)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo, at the end of the context, all additions and removals of pods made in it; waiting
        pods are not tried again because of them."""
        undo: list[_Undo] = []
        self._undo, before_trial = undo, (set(self._rose), set(self._fell))
        with self.volumes.trial():
            try:
                yield
            finally:
                self._undo = None
                for uid, before, mounted in reversed(undo):
                    self._take_off(uid)
                    if before is not None:
                        self.put(uid, *before, mounted)
                self._rose, self._fell = before_trial
                self.has_moved = bool(self._rose or self._fell)

    def count(self, key: CountKey) -> CountByNode:
        """Return the count by node of the key's pods; it is updated until its `ended` is True."""
        known = self._counts.get(key)
        self._asked += 1
        if known is not None:
            known.asked = self._asked
            return known
        known = self._counts[key] = CountByNode(self._asked)
        by_node = known.by_node
        for node, marks in self._selected(key.selectors):
            if key.takes(marks):
                by_node[node] = by_node.get(node, 0) + 1
        if key in self._watched:
            del self._watched[key]
            self._counted.forget_found(key.selectors)
        else:
            self._counted.add(key, key.selectors)
        if len(self._counts) > KEPT:
            oldest = min(self._counts, key=lambda each: self._counts[each].asked)
            self._counts.pop(oldest).ended = True
            self._watched[oldest] = None
        while len(self._watched) > WATCHED and self._undo is None:
            self._forget_oldest()
        return known

    def ask_again(self, counts: Sequence[tuple[CountByNode, object]]) -> bool:
        """Mark these counts as used; return False if one of them is no longer updated or has
        another layout."""
        self._asked += 1
        for count, layout in counts:
            if count.ended or count.layout is not layout:
                return False
            count.asked = self._asked
        return True

    def _forget_oldest(self) -> None:
        """Stop watching the key that has been watched longest without a stored count. Pods that
        wait for its changes are tried again, as later changes would go unnoticed."""
        oldest, _ = self._watched.popitem(last=False)
        self._counted.remove(oldest, oldest.selectors)
        self._rose.add(oldest)
        self._fell.add(oldest)
        self.has_moved = True

    def keeping_off(self, namespace: str, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
        """Return the anti-affinity terms of existing pods that select a pod with these labels."""
        return self._away.selecting(namespace, labels)

    def drawing(
        self, namespace: str, labels: Mapping[str, str]
    ) -> list[tuple[WeightedTerm, CountByNode]]:
        """Return the preferred terms of existing pods that select a pod with these labels, each
        with the count of the pods that have it."""
        if not self.drawers:
            return []
        drawn = self._drawn.selecting(namespace, labels)
        return [(wish, self.drawers[wish]) for wish in drawn]

    def take_moved(self) -> PodsMoved:
        """Return the changes of counts, anti-affinity terms and volumes since the last call."""
        volumes = self.volumes.take_moved()
        moved = PodsMoved(frozenset(self._rose), frozenset(self._fell), volumes)
        self.has_moved = False
        self._rose.clear()
        self._fell.clear()
        return moved

    def _selected(self, selectors: tuple[PodSelector, ...]) -> list[tuple[str, PodMarks]]:
        """Return the pods that all of these selectors select, with their nodes."""
        uids, found_by = self._of(selectors)
        found = [self._pods[uid] for uid in uids]
        for each in selectors:
            if each is found_by and len(each.labels or ()) == 1:  # found by that label alone
                if (names := each.namespaces) is not None:
                    found = [pod for pod in found if pod[1].namespace in names]
            else:
                of_pods = _by_sets(each)
                found = [
                    (node, marks)
                    for node, marks in found
                    if of_pods.matches(marks.namespace, marks.labels)
                ]
        return found

    def _of(self, selectors: tuple[PodSelector, ...]) -> tuple[Collection[str], PodSelector | None]:
        """Return UIDs that include all pods that the selectors select, and the selector by whose
        labels they were found; None if they were not found by labels."""
        found_by: PodSelector | None = None
        named = [s.namespaces for s in selectors if s.namespaces is not None]
        fewest: Collection[str] = self._pods
        if named:
            names = [self._by_namespace.get(name, {}) for name in min(named, key=len)]
            fewest = names[0] if len(names) == 1 else [uid for here in names for uid in here]
        for selector in selectors:
            if (near := self._by_label.near(selector, len(fewest))) is not None:
                fewest, found_by = near, selector
        return fewest, found_by

    def _add(self, node: str, marks: PodMarks, by: int) -> None:
        moved = self._rose if by > 0 else self._fell
        if self._counts:
            by_all = not marks.terminating and not marks.kept
            for key, count in self._counts_of(marks):
                if by_all or key.takes(marks):
                    if count is not None:
                        count.add(node, by)
                    moved.add(key)
        for term, is_stranger in self._owned_by(marks) if marks.anti_affinity else ():
            _count_owner(self.owners, self._away, (term, term.pods), node, by)
            moved.add(term)
            if is_stranger:
                self.strangers[term] += by
                if not self.strangers[term]:
                    del self.strangers[term]
        self.has_moved = self.has_moved or bool(moved)
        for wish in marks.draws or ():
            _count_owner(self.drawers, self._drawn, (wish, wish.term.pods), node, by)

    def _counts_of(self, marks: PodMarks) -> _Counts:
        """Return the keys that select the pod, each with its count; None if the key's count is no
        longer stored."""
        keys = self._counted.selecting(marks.namespace, marks.labels)
        alike = self._alike.of(marks.namespace, marks.labels)
        if alike.counts[0] is not keys:
            alike.counts = keys, [(key, self._counts.get(key)) for key in keys]
        return alike.counts[1]

    def _owned_by(self, marks: PodMarks) -> _Owned:
        """Return the pod's required anti-affinity terms, each with True if it does not select the
        pod itself."""
        alike, terms = self._alike.of(marks.namespace, marks.labels), marks.anti_affinity
        if alike.owned[0] != terms:
            alike.owned = (
                terms,
                [
                    (term, not _by_sets(term.pods).matches(marks.namespace, marks.labels))
                    for term in dict.fromkeys(terms)
                ],
            )
        return alike.owned[1]


def _count_owner(
    owners: dict[T, CountByNode], index: _Index[T], item: tuple[T, PodSelector], node: str, by: int
) -> None:
    """Count `by` more pods with this term on the node; a term without pods is dropped."""
    term, pods = item
    count = owners.get(term)
    if count is None:
        count = owners[term] = CountByNode()
        index.add(term, (pods,))
    count.add(node, by)
    if not count.by_node:
        owners.pop(term).ended = True
        index.remove(term, (pods,))
