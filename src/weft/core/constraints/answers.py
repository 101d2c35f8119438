"""Which nodes the rules about other pods leave: kube-scheduler's PodTopologySpread and
InterPodAffinity filters, for all nodes at once.
"""

from collections.abc import Sequence

import numpy as np

from weft.core.constraints.answer import PodAnswer, Words
from weft.core.constraints.counts import CountByNode, summed
from weft.core.constraints.existing_pods import CountKey, ExistingPods, affinity_key
from weft.core.constraints.storage_answers import storage_answers
from weft.core.ledger.node_labels import WITHOUT, LabelColumn, as_bits
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Constraints, InterPodRules, PodRequest, PodTerm, SpreadRule


def answers(
    existing: ExistingPods,
    table: LedgerTable,
    constraints: Constraints,
    pod: PodRequest | None = None,
) -> list[PodAnswer]:
    """The answers of all rules about other pods, and about volumes, of a pod with these
    constraints; `pod` has the names of its claims."""
    rules, found = constraints.pods, list[PodAnswer]()
    if rules:
        found += _affinity(existing, table, rules) if rules.affinity else []
        for term in rules.anti_affinity:
            count = existing.count(CountKey((term.pods,)))
            found.append(_away(table, term, count, Code.POD_ANTI_AFFINITY))
        for term in rules.kept_off_by:
            found.append(_away(table, term, existing.owners[term], Code.ANTI_AFFINITY))
        found += _spread(existing, table, constraints, rules.spread)
    if constraints.storage and pod is not None:
        found += storage_answers(existing.volumes, table, constraints.storage, pod)
    return found


def _affinity(existing: ExistingPods, table: LedgerTable, rules: InterPodRules) -> list[PodAnswer]:
    """One pod must match all terms to count for any; the first of pods that are near to each other
    may be anywhere where all topology keys are."""
    count = existing.count(affinity_key(rules))
    columns = [table.labels.domains(term.topology_key) for term in rules.affinity]
    none_in = [count.none_in(table, term.topology_key) for term in rules.affinity]
    is_first = rules.is_its_own and _nowhere(none_in, columns)
    if is_first and existing.kept:  # another one may have a place soon
        kept = existing.count(affinity_key(rules, with_kept=True))
        also = [kept.none_in(table, term.topology_key) for term in rules.affinity]
        is_first = _nowhere(also, columns)
    found = []
    for term, none, column in zip(rules.affinity, none_in, columns, strict=True):
        where = WITHOUT if is_first else none
        found.append(PodAnswer(Code.POD_AFFINITY, where, _affinity_words(term, table), column))
    return found


def _nowhere(none_in: Sequence[int], columns: Sequence[LabelColumn]) -> bool:
    """True if there are none in any domain."""
    return all(none == each.everywhere for none, each in zip(none_in, columns, strict=True))


def _affinity_words(term: PodTerm, table: LedgerTable) -> Words:
    def words(row: int) -> str:
        domain = _domain(table, term.topology_key, row)
        if not domain:
            return f"node has no label {term.topology_key}, which the pod's affinity names"
        return f"no {term.pods} in {domain}, which the pod must be near to"

    return words


def _domain(table: LedgerTable, key: str, row: int) -> str:
    """The node's domain, for people; "" where it is in none."""
    domains = table.labels.domains(key)
    number = int(domains.of_node[row])
    return f"{key}={domains.values[number - 1]}" if number else ""


def _away(table: LedgerTable, term: PodTerm, count: CountByNode, code: Code) -> PodAnswer:
    key = term.topology_key
    domains = table.labels.domains(key)

    def words(row: int) -> str:
        number, where = int(count.sums(table, key)[domains.of_node[row]]), _domain(table, key, row)
        if code is Code.ANTI_AFFINITY:
            who = "a pod" if number == 1 else f"{number:,} pods"
            keep = "keeps" if number == 1 else "keep"
            return f"{who} in {where} {keep} {term.pods} away"
        return f"{where} has {number:,} of {term.pods}, from which the pod stays away"

    if domains.tells_nodes_apart:
        return PodAnswer(code, count.rows(table), words)
    return PodAnswer(code, domains.everywhere ^ count.none_in(table, key), words, domains)


def _spread(
    existing: ExistingPods,
    table: LedgerTable,
    constraints: Constraints,
    rules: Sequence[SpreadRule],
) -> list[PodAnswer]:
    if not rules:
        return []
    found = []
    for rule, within in zip(rules, nodes_within(table, constraints, rules), strict=True):
        found.append(_skewed(rule, table, _counted(existing, table, rule, within), within))
    return found


def nodes_within(
    table: LedgerTable,
    constraints: Constraints,
    rules: Sequence[SpreadRule],
    *,
    need_all: bool = True,
) -> list[Bools | None]:
    """The nodes that each of a pod's spread rules counts on, None for all; those with all of their
    topology keys, if they `need_all`."""
    have_all = None
    by_labels = tolerated = None
    if len(rules) > 1 and need_all:
        columns = [table.labels.domains(rule.topology_key) for rule in rules]
        if not all(column.is_everywhere for column in columns):
            have_all = np.logical_and.reduce([column.of_node > 0 for column in columns])
    if constraints.selector or constraints.affinity is not None:
        by_labels = table.labels.accepts_labels(constraints)
    if table.has_taints and any(rule.honors_taints for rule in rules):
        tolerated = _tolerated(table, constraints)
    if have_all is None and by_labels is None and tolerated is None:
        return [None] * len(rules)
    found: list[Bools | None] = []
    for rule in rules:
        of_rule = (by_labels, rule.honors_affinity), (tolerated, rule.honors_taints)
        parts = [have_all, *(part for part, honors in of_rule if honors)]
        there = [part for part in parts if part is not None]
        found.append(np.logical_and.reduce(there) if there else None)
    return found


def pods_of(existing: ExistingPods, rule: SpreadRule) -> CountByNode | None:
    """The rule's pods by node, None for none: an empty selector selects every pod, and
    kube-scheduler counts none for it."""
    if not rule.pods.labels:
        return None
    return existing.count(CountKey((rule.pods,), with_terminating=False))


def _counted(
    existing: ExistingPods, table: LedgerTable, rule: SpreadRule, within: Bools | None
) -> Ints:
    """The rule's pods by domain, on all nodes or those of `within`."""
    domains = table.labels.domains(rule.topology_key)
    if (count := pods_of(existing, rule)) is None:
        return np.zeros(len(domains.values) + 1, dtype=np.int64)
    if within is None:
        return count.sums(table, rule.topology_key)
    return summed(domains, count.on(table), within)


def _skewed(rule: SpreadRule, table: LedgerTable, sums: Ints, within: Bools | None) -> PodAnswer:
    domains = table.labels.domains(rule.topology_key)
    there: Sequence[int] | Ints = range(1, len(domains.values) + 1)
    counts = sums[1:]
    if within is not None:
        there = np.flatnonzero(np.bincount(domains.of_node[within]))
        there = there[there > 0]
        counts = sums.take(there)
    least, enough = 0, len(there) >= rule.min_domains
    if len(there) and enough:
        least = int(counts.min())
    too_many = as_bits(sums > rule.max_skew + least - int(rule.counts_itself)) | WITHOUT

    def words(row: int) -> str:
        where = _domain(table, rule.topology_key, row)
        if not where:
            return f"node has no label {rule.topology_key}, by which the pod is to be spread"
        has = f"{where} already has {int(sums[domains.of_node[row]]):,} of {rule.pods}"
        if not enough:
            few = f"there are {len(there)} of at least {rule.min_domains} domains"
            return f"{has}, {few}: skew at most {rule.max_skew} over none"
        fewest = next((int(n) for n in there if sums[n] == least), 0)
        name = domains.values[fewest - 1] if fewest else "any other"
        return f"{has}, {name} {least:,}, skew at most {rule.max_skew}"

    return PodAnswer(Code.TOPOLOGY_SPREAD, too_many, words, domains)


def _tolerated(table: LedgerTable, constraints: Constraints) -> Bools:
    taints = table.taints
    own = [tuple(taint for taint in each if not taint.is_cordon) for each in taints.sets]
    good = [constraints.untolerated(each) is None for each in own]
    return np.asarray(np.array(good, dtype=np.bool_).take(taints.of_node))
