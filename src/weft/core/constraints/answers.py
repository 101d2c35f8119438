"""Filters nodes by the rules about other pods: kube-scheduler's PodTopologySpread and
InterPodAffinity filters, for all nodes at once.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec import UnsetType

from weft.core.constraints.answer import PodAnswer, Words
from weft.core.constraints.counts import CountByNode, SumsByDomain, summed
from weft.core.constraints.existing_pods import CountKey, ExistingPods, affinity_key
from weft.core.constraints.storage_answers import storage_answers
from weft.core.ledger.node_labels import WITHOUT, LabelColumn, as_bits
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Constraints, InterPodRules, PodRequest, PodTerm, SpreadRule

KEPT_RULES = 1_024
"""Maximum number of pods' rules whose look-ups are cached; a full cache is cleared."""
_NO_RULES = InterPodRules()


def answers(
    existing: ExistingPods,
    table: LedgerTable,
    own: InterPodRules | UnsetType,
    constraints: Constraints,
    pod: PodRequest | None = None,
) -> list[PodAnswer]:
    """Return the answers of all of a pod's rules about other pods and volumes. `own` are the pod's
    own rules about other pods; `constraints` are all its constraints, including the anti-affinity
    terms of other pods that select it. `pod` is read for the names of its claims."""
    found: list[PodAnswer] = []
    if constraints.pods:
        asked = _asked(existing, table, own or _NO_RULES)
        found += asked.answers(table, constraints, constraints.pods.kept_off_by)
    if constraints.storage and pod is not None:
        found += storage_answers(existing.volumes, table, constraints.storage, pod)
    return found


def _asked(existing: ExistingPods, table: LedgerTable, rules: InterPodRules) -> "AskedRules":
    """Look up the pod counts that the rules need, once for all pods with the same rules."""
    known = existing.asked_rules.get(rules)
    if known is None or not known.is_true(table):
        if len(existing.asked_rules) >= KEPT_RULES:
            existing.asked_rules.clear()
        known = existing.asked_rules[rules] = AskedRules(existing, table, rules)
    return known


class AskedRules:
    """Rules that several pods have in common, with the pod counts and texts that their answers
    need, for one layout of nodes (`LedgerTable`). Counts change as pods come and go, and are read
    for each answer."""

    def __init__(self, existing: ExistingPods, table: LedgerTable, rules: InterPodRules) -> None:
        self._existing, self._rules, self._row_of = existing, rules, table.row_of
        self._near: list[_NearByDomain] = []
        near = existing.count(affinity_key(rules)) if rules.affinity else None
        if near is not None:
            by_domain = [near.by_domain(table, term.topology_key) for term in rules.affinity]
            self._near = [
                _NearByDomain(sums, partial(_affinity_words, term, sums.domains))
                for term, sums in zip(rules.affinity, by_domain, strict=True)
            ]
        away = [existing.count(CountKey((term.pods,))) for term in rules.anti_affinity]
        self._away = [
            _away(table, term, count, Code.POD_ANTI_AFFINITY)
            for term, count in zip(rules.anti_affinity, away, strict=True)
        ]
        spread = [pods_of(existing, rule) for rule in rules.spread]
        self._spread = [
            CountedSpread(rule, table, count)
            for rule, count in zip(rules.spread, spread, strict=True)
        ]
        self._counts = _laid_out(table, [near, *away, *spread])
        self._off: Sequence[PodTerm] = ()  # other pods' terms at the last call
        self._off_counts: list[tuple[CountByNode, object]] = []
        self._kept_off: list[tuple[PodTerm | None, PodAnswer | _AwayByDomain]] = []

    def is_true(self, table: LedgerTable) -> bool:
        """Return True if the counts and the layout are still current; also marks the counts as
        used."""
        return self._row_of is table.row_of and self._existing.ask_again(self._counts)

    def answers(
        self, table: LedgerTable, constraints: Constraints, off: Sequence[PodTerm]
    ) -> list[PodAnswer]:
        """Return which nodes these rules, and other pods' anti-affinity terms (`off`), refuse
        now."""
        found = self._affinity(table) if self._near else []
        for each in self._away:
            found.append(each if isinstance(each, PodAnswer) else each.now())
        if off:
            if off != self._off or not self._existing.ask_again(self._off_counts):
                self._keep_off(table, off)
            strangers = self._existing.strangers
            for own, each in self._kept_off:
                if own is None or own in strangers:
                    found.append(each if isinstance(each, PodAnswer) else each.now())
        if self._spread:
            parts = nodes_within(table, constraints, self._rules.spread)
            for spread, part in zip(self._spread, parts, strict=True):
                found.append(spread.now(table, part))
            if self._existing.kept:  # also without pods that only have a kept place
                found += [
                    CountedSpread(rule, table, pods_of(self._existing, rule, with_kept=False)).now(
                        table, part
                    )
                    for rule, part in zip(self._rules.spread, parts, strict=True)
                ]
        return found

    def _keep_off(self, table: LedgerTable, off: Sequence[PodTerm]) -> None:
        """Look up the pods that have the anti-affinity terms `off`. A term that this pod has too
        already refuses the nodes of all pods that the term selects; it is answered again only for
        `strangers`: pods that have the term but are not selected by it."""
        owners, same = [self._existing.owners[term] for term in off], self._rules.anti_affinity
        self._kept_off = [
            (term if term in same else None, _away(table, term, count, Code.ANTI_AFFINITY))
            for term, count in zip(off, owners, strict=True)
        ]
        self._off, self._off_counts = off, _laid_out(table, owners)

    def _affinity(self, table: LedgerTable) -> list[PodAnswer]:
        """Return the answers of required affinity. An existing pod counts only if it matches all
        terms; the first of several pods with affinity to each other may run on any node that has
        all topology keys."""
        rules, existing, near = self._rules, self._existing, self._near
        is_first = rules.is_its_own and _nowhere([each.sums for each in near])
        if is_first and existing.kept:  # a nominated pod may start there soon
            kept = existing.count(affinity_key(rules, with_kept=True))
            is_first = _nowhere(
                [kept.by_domain(table, term.topology_key) for term in rules.affinity]
            )
        return [
            PodAnswer(
                Code.POD_AFFINITY,
                WITHOUT if is_first else each.sums.none_in,
                each.words,
                each.sums.domains,
            )
            for each in near
        ]


def _laid_out(
    table: LedgerTable, counts: Sequence[CountByNode | None]
) -> list[tuple[CountByNode, object]]:
    """Return the counts, each with its layout for this table."""
    found = []
    for count in counts:
        if count is not None:
            count.rows(table)
            found.append((count, count.layout))
    return found


def _nowhere(near: Sequence[SumsByDomain]) -> bool:
    """Return True if no domain has a matching pod."""
    return all(sums.none_in == sums.domains.everywhere for sums in near)


def _affinity_words(term: PodTerm, domains: LabelColumn, row: int) -> str:
    domain = _domain(domains, term.topology_key, row)
    if not domain:
        return f"node has no label {term.topology_key}, which the pod's affinity names"
    return f"no {term.pods} in {domain}, and the pod's affinity requires one there"


def _domain(domains: LabelColumn, key: str, row: int) -> str:
    """Return the node's domain as `KEY=VALUE` for messages; "" if the node lacks the label."""
    number = int(domains.of_node[row])
    return f"{key}={domains.values[number - 1]}" if number else ""


class _NearByDomain(NamedTuple):
    """A required affinity term: refuses domains without matching pods."""

    sums: SumsByDomain
    words: Words


class _AwayByDomain(NamedTuple):
    """An anti-affinity term: refuses domains with matching pods."""

    code: Code
    sums: SumsByDomain
    words: Words

    def now(self) -> PodAnswer:
        """Return the answer that refuses the domains that have matching pods now."""
        domains = self.sums.domains
        here = domains.everywhere ^ self.sums.none_in
        return PodAnswer(self.code, here, self.words, domains)


def _away(
    table: LedgerTable, term: PodTerm, count: CountByNode, code: Code
) -> PodAnswer | _AwayByDomain:
    """Return an anti-affinity term's answer, by node or by domain; it changes as pods come and
    go."""
    words = partial(_away_words, term, table, count, code)
    if table.labels.domains(term.topology_key).tells_nodes_apart:
        return PodAnswer(code, count.anywhere(table), words, rows=count.rows(table))
    return _AwayByDomain(code, count.by_domain(table, term.topology_key), words)


def _away_words(term: PodTerm, table: LedgerTable, count: CountByNode, code: Code, row: int) -> str:
    by_domain = count.by_domain(table, term.topology_key)
    domains = by_domain.domains
    where = _domain(domains, term.topology_key, row)
    number = int(by_domain.sums[domains.of_node[row]])
    if code is Code.ANTI_AFFINITY:
        who = "a pod" if number == 1 else f"{number:,} pods"
        keep = "keeps" if number == 1 else "keep"
        return f"{who} in {where} {keep} {term.pods} away by anti-affinity"
    return f"{where} has {number:,} of {term.pods}, which the pod's anti-affinity excludes"


def nodes_within(
    table: LedgerTable,
    constraints: Constraints,
    rules: Sequence[SpreadRule],
    *,
    need_all: bool = True,
) -> list[Bools | None]:
    """Return, for each spread rule, a mask of the nodes whose pods it counts, None for all nodes.
    With `need_all` only nodes that have the topology keys of all rules count."""
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


def pods_of(
    existing: ExistingPods, rule: SpreadRule, *, with_kept: bool = True
) -> CountByNode | None:
    """Return the count by node of the pods that the rule selects; None if its selector is empty, as
    kube-scheduler then counts no pods."""
    if not rule.pods.labels:
        return None
    return existing.count(CountKey((rule.pods,), with_terminating=False, with_kept=with_kept))


class CountedSpread:
    """A spread rule with the pods that it counts, for one layout of nodes (`LedgerTable`).

    `most_more` is by how many pods a domain may exceed the domain with the fewest, before this pod
    is added.
    """

    __slots__ = ("_count", "_domains", "_everywhere", "_rule", "_sums", "most_more")

    def __init__(self, rule: SpreadRule, table: LedgerTable, count: CountByNode | None) -> None:
        self._rule, self._count = rule, count
        self._domains = table.labels.domains(rule.topology_key)
        self._everywhere = range(1, self._domains.count)
        self.most_more = rule.max_skew - int(rule.counts_itself)
        self._sums: SumsByDomain | None = None  # computed when first needed

    def now(self, table: LedgerTable, within: Bools | None) -> PodAnswer:
        """Return the rule's answer, counting pods on all nodes, or only on the nodes of
        `within`."""
        sums, there, least = self.skew(table, within)
        most = least + self.most_more
        if within is None and self._sums is not None:
            too_many = self._sums.beyond(most)
        else:
            too_many = as_bits(sums > most)
        words = partial(_skew_words, self._rule, self._domains, sums, there, least)
        return PodAnswer(Code.TOPOLOGY_SPREAD, too_many | WITHOUT, words, self._domains)

    def skew(
        self, table: LedgerTable, within: Bools | None
    ) -> tuple[Ints, Sequence[int] | Ints, int]:
        """Return the number of pods in each domain, the numbers of the domains that count, and the
        fewest pods in any of those (0 if there are fewer than minDomains)."""
        domains, count = self._domains, self._count
        there: Sequence[int] | Ints = self._everywhere
        if within is not None:
            there = np.flatnonzero(np.bincount(domains.of_node[within]))
            there = there[there > 0]
        enough = len(there) >= self._rule.min_domains
        if within is None and count is not None:
            if (by_domain := self._sums) is None:
                by_domain = self._sums = count.by_domain(table, self._rule.topology_key)
            return by_domain.sums, there, by_domain.least if enough else 0
        sums = np.zeros(domains.count, dtype=np.int64)
        if count is not None:
            sums = summed(domains, count.on(table), within)
        return sums, there, min(sums.take(there).tolist(), default=0) if enough else 0


def _skew_words(
    rule: SpreadRule,
    domains: LabelColumn,
    sums: Ints,
    there: Sequence[int] | Ints,
    least: int,
    row: int,
) -> str:
    where = _domain(domains, rule.topology_key, row)
    if not where:
        return f"node has no label {rule.topology_key}, which the pod's topology spread needs"
    has = f"{where} already has {int(sums[domains.of_node[row]]):,} of {rule.pods}"
    if len(there) < rule.min_domains:
        few = f"only {len(there)} of at least {rule.min_domains} domains exist"
        return f"{has}; {few}, so the minimum counts as 0: skew at most {rule.max_skew}"
    fewest = next((int(n) for n in there if sums[n] == least), 0)
    name = domains.values[fewest - 1] if fewest else "any other"
    return f"{has}, {name} {least:,}, skew at most {rule.max_skew}"


def _tolerated(table: LedgerTable, constraints: Constraints) -> Bools:
    taints = table.taints
    own = [tuple(taint for taint in each if not taint.is_cordon) for each in taints.sets]
    good = [constraints.untolerated(each) is None for each in own]
    return np.asarray(np.array(good, dtype=np.bool_).take(taints.of_node))
