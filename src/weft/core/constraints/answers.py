"""Which nodes the rules about other pods leave: kube-scheduler's PodTopologySpread and
InterPodAffinity filters, for all nodes at once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.constraints.existing_pods import CountKey, ExistingPods, affinity_key
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Constraints, InterPodRules, PodTerm, SpreadRule

Words = Callable[[int], str]


class PodAnswer(NamedTuple):
    """One rule's answer: the nodes that it `refuses`, [N], with this code, and why it refuses the
    node of a row, in words."""

    code: Code
    refuses: Bools
    words: Words


class _Domains(NamedTuple):
    """The domains of one topology key: the number of each node's, [N] (0: it has no such label),
    and their names from 1 on."""

    key: str
    of_node: Ints
    names: Sequence[str]

    def sums(self, counts: Ints, within: Bools | None = None) -> Ints:
        """Sums of the nodes' counts by domain, those of nodes in none left out."""
        of_node = self.of_node
        if within is not None:
            of_node, counts = of_node[within], counts[within]
        sums = np.bincount(of_node, weights=counts, minlength=len(self.names) + 1).astype(np.int64)
        sums[0] = 0
        return np.asarray(sums)

    def called(self, row: int) -> str:
        """The domain of a node, for people."""
        return f"{self.key}={self.names[self.of_node[row] - 1]}"


def answers(
    existing: ExistingPods, table: LedgerTable, constraints: Constraints
) -> list[PodAnswer]:
    """The answers of all rules of a pod with these constraints about other pods."""
    rules = constraints.pods
    if not rules:
        return []
    found = _affinity(existing, table, rules) if rules.affinity else []
    for term in rules.anti_affinity:
        counts = existing.count(CountKey((term.pods,))).on(table)
        found.append(_away(table, term, counts, Code.POD_ANTI_AFFINITY))
    for term in rules.kept_off_by:
        counts = existing.owners[term].on(table)
        found.append(_away(table, term, counts, Code.ANTI_AFFINITY))
    return found + _spread(existing, table, constraints, rules.spread)


def _domains(table: LedgerTable, key: str) -> _Domains:
    return _Domains(key, *table.labels.domains(key))


def _affinity(existing: ExistingPods, table: LedgerTable, rules: InterPodRules) -> list[PodAnswer]:
    """One pod must match all terms to count for any; the first of pods that are near to each other
    may be anywhere where all topology keys are."""
    counts = existing.count(affinity_key(rules)).on(table)
    domains = [_domains(table, term.topology_key) for term in rules.affinity]
    sums = [domain.sums(counts) for domain in domains]
    is_first = rules.is_its_own and not any(each.any() for each in sums)
    found = []
    for term, domain, each in zip(rules.affinity, domains, sums, strict=True):
        lacks = domain.of_node == 0
        refuses = lacks if is_first else lacks | (each.take(domain.of_node) == 0)
        found.append(PodAnswer(Code.POD_AFFINITY, refuses, _affinity_words(term, domain)))
    return found


def _affinity_words(term: PodTerm, domain: _Domains) -> Words:
    def words(row: int) -> str:
        if not domain.of_node[row]:
            return f"node has no label {domain.key}, which the pod's affinity names"
        return f"no {term.pods} in {domain.called(row)}, which the pod must be near to"

    return words


def _away(table: LedgerTable, term: PodTerm, counts: Ints, code: Code) -> PodAnswer:
    domain = _domains(table, term.topology_key)
    sums = domain.sums(counts)

    def words(row: int) -> str:
        number, where = int(sums[domain.of_node[row]]), domain.called(row)
        if code is Code.ANTI_AFFINITY:
            who = "a pod" if number == 1 else f"{number:,} pods"
            keep = "keeps" if number == 1 else "keep"
            return f"{who} in {where} {keep} {term.pods} away"
        return f"{where} has {number:,} of {term.pods}, from which the pod stays away"

    return PodAnswer(code, sums.take(domain.of_node) > 0, words)


def _spread(
    existing: ExistingPods,
    table: LedgerTable,
    constraints: Constraints,
    rules: Sequence[SpreadRule],
) -> list[PodAnswer]:
    if not rules:
        return []
    domains = [_domains(table, rule.topology_key) for rule in rules]
    have_all = np.ones(table.count, dtype=np.bool_)
    for domain in domains:
        have_all &= domain.of_node > 0
    honoured = have_all
    if any(rule.honors_affinity for rule in rules):
        honoured = have_all & table.labels.accepts_labels(constraints)
    found = []
    for rule, domain in zip(rules, domains, strict=True):
        within = honoured if rule.honors_affinity else have_all
        if rule.honors_taints:
            within = within & _tolerated(table, constraints)
        # An empty selector selects every pod, and kube-scheduler counts none for it.
        counts = (
            existing.count(CountKey((rule.pods,), with_terminating=False)).on(table)
            if rule.pods.labels
            else np.zeros(table.count, dtype=np.int64)
        )
        found.append(_skewed(rule, domain, domain.sums(counts, within), within))
    return found


def _skewed(rule: SpreadRule, domain: _Domains, sums: Ints, within: Bools) -> PodAnswer:
    there = np.unique(domain.of_node[within])
    least, enough = 0, len(there) >= rule.min_domains
    if len(there) and enough:
        least = int(sums.take(there).min())
    lacks = domain.of_node == 0
    skew = sums.take(domain.of_node) + int(rule.counts_itself) - least

    def words(row: int) -> str:
        if lacks[row]:
            return f"node has no label {domain.key}, by which the pod is to be spread"
        has = f"{domain.called(row)} already has {int(sums[domain.of_node[row]]):,} of {rule.pods}"
        if not enough:
            few = f"there are {len(there)} of at least {rule.min_domains} domains"
            return f"{has}, {few}: skew at most {rule.max_skew} over none"
        fewest = next((int(n) for n in there if sums[n] == least), 0)
        name = domain.names[fewest - 1] if fewest else "any other"
        return f"{has}, {name} {least:,}, skew at most {rule.max_skew}"

    return PodAnswer(Code.TOPOLOGY_SPREAD, lacks | (skew > rule.max_skew), words)


def _tolerated(table: LedgerTable, constraints: Constraints) -> Bools:
    taints = table.taints
    good = [constraints.untolerated(each) is None for each in taints.sets]
    return np.asarray(np.array(good, dtype=np.bool_).take(taints.of_node))
