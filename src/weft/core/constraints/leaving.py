"""Counts how many pods would have to leave a node before a pod may run there by its rules about
other pods: for all nodes at once, before any eviction is tried.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from weft.core.constraints.answers import CountedSpread, nodes_within, pods_of
from weft.core.constraints.counts import CountByNode
from weft.core.constraints.existing_pods import CountKey, ExistingPods, affinity_key
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Constraints, InterPodRules, PodTerm, SpreadRule

ANY_NUMBER = 1 << 40


class PodsToLeave(NamedTuple):
    """One rule's demand on each node, [N]: at least `least` of the pods that it `counts` (by UID)
    have to leave the node's domain, and at most `most` may leave. `there` is how many such pods
    are on the node itself (a huge number if pods of several nodes may leave at once)."""

    counts: Callable[[str], bool]
    least: Ints
    most: Ints
    there: Ints

    @property
    def is_possible(self) -> Bools:
        """Return a mask of the nodes where enough of the pods can leave, [N]."""
        return np.asarray((self.least <= self.there) & (self.most >= 0))


def pods_to_leave(
    existing: ExistingPods,
    table: LedgerTable,
    constraints: Constraints,
    off: Sequence[PodTerm],
    *,
    by_domain: bool,
) -> list[PodsToLeave]:
    """Return the demand of each rule of a pod with these constraints, and of other pods' terms that
    keep it `off`. `by_domain`: pods of several nodes may leave at once, as for gangs. Rules that
    every node already satisfies are left out, and so is affinity to pods like the pod itself, as
    the first such pod may run anywhere."""
    found, rules = list[PodsToLeave](), constraints.pods
    for term in rules.anti_affinity if rules else ():
        key = CountKey((term.pods,))
        counts = partial(_is_counted, existing, key)
        found.append(_all_of(existing.count(key), table, term, counts))
    for term in off:
        found.append(_all_of(existing.owners[term], table, term, partial(_owns, existing, term)))
    if rules and rules.affinity and not rules.is_its_own:
        found += _one_stays(existing, table, rules)
    if rules and rules.spread:
        within = nodes_within(table, constraints, rules.spread)
        for rule, nodes in zip(rules.spread, within, strict=True):
            found.append(_skewed(existing, table, rule, nodes))
    any_number = np.full(table.count, ANY_NUMBER)
    if by_domain:
        found = [
            each._replace(there=any_number, most=np.where(each.most < 0, each.most, any_number))
            for each in found
        ]
    return [each for each in found if each.least.any() or (each.most < each.there).any()]


def _is_counted(existing: ExistingPods, key: CountKey, uid: str) -> bool:
    marks = existing.marks_of(uid)
    return marks is not None and key.counts(marks)


def _owns(existing: ExistingPods, term: PodTerm, uid: str) -> bool:
    marks = existing.marks_of(uid)
    return marks is not None and term in marks.anti_affinity


def _all_of(
    count: CountByNode, table: LedgerTable, term: PodTerm, counts: Callable[[str], bool]
) -> PodsToLeave:
    """Demand, by node, that all pods in `count` leave the node's domain."""
    domains, there = table.labels.domains(term.topology_key), count.on(table)
    least = there
    if not domains.tells_nodes_apart:
        least = count.by_domain(table, term.topology_key).sums.take(domains.of_node)
    return PodsToLeave(counts, least, np.full(table.count, ANY_NUMBER), there)


def _one_stays(
    existing: ExistingPods, table: LedgerTable, rules: InterPodRules
) -> list[PodsToLeave]:
    """Demand that one of the pods that satisfy required affinity stays in the domain."""
    key, nobody = affinity_key(rules), np.zeros(table.count, dtype=np.int64)
    count, found = existing.count(key), list[PodsToLeave]()
    for term in rules.affinity:
        sums = count.by_domain(table, term.topology_key)
        most = (sums.sums - 1).take(sums.domains.of_node)
        counts = partial(_is_counted, existing, key)
        found.append(PodsToLeave(counts, nobody, most, count.on(table)))
    return found


def _skewed(
    existing: ExistingPods, table: LedgerTable, rule: SpreadRule, within: Bools | None
) -> PodsToLeave:
    """Demand that as many of a domain's pods leave as exceed the skew allowed over the domain with
    the fewest; nodes in no domain are impossible."""
    count, domains = pods_of(existing, rule), table.labels.domains(rule.topology_key)
    spread = CountedSpread(rule, table, count)
    sums, _, least = spread.skew(table, within)
    over = np.maximum(0, sums - least - spread.most_more)
    over[0] = ANY_NUMBER
    there = np.zeros(table.count, dtype=np.int64) if count is None else count.on(table)
    if within is not None:
        there = np.where(within, there, 0)
    key = CountKey((rule.pods,), with_terminating=False)
    counts = partial(_is_counted, existing, key)
    return PodsToLeave(counts, over.take(domains.of_node), np.full(table.count, ANY_NUMBER), there)
