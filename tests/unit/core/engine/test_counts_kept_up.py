"""Counts by domain that are kept up are those added up again, whatever comes and goes."""

from random import Random

import numpy as np

from weft.core.constraints.counts import SumsByDomain
from weft.core.constraints.existing_pods import CountKey, ExistingPods
from weft.core.ledger.node_labels import LabelColumn, as_bits
from weft.model import PodMarks, PodSelector, PodTerm, Requirement


def test_sums_by_domain_are_those_added_up_again() -> None:
    for seed in range(200):
        dice = Random(seed)
        column = LabelColumn([dice.choice([None, "a", "b", "c", "d"]) for _ in range(8)])
        counts = [dice.choice([0, 0, 1, 2]) for _ in range(8)]
        kept = SumsByDomain(column, np.arange(8), np.array(counts))
        most = 1
        for _ in range(60):
            row, by = dice.randrange(8), dice.choice([-2, -1, -1, 1, 1, 2])
            by = max(by, -counts[row])
            counts[row] += by
            kept.add(row, by)
            if dice.random() < 0.2:
                most = dice.randrange(4)
            sums = [0] * column.count
            for domain, count in zip(column.of_node.tolist(), counts, strict=True):
                sums[domain] += count if domain else 0
            assert kept.sums.tolist() == sums
            assert kept.none_in == as_bits(np.array(sums) == 0)
            if dice.random() < 0.5:
                assert kept.least == min(sums[1:], default=0)
                assert kept.beyond(most) == as_bits(np.array(sums) > most)


def selector(key: str, *values: str) -> PodSelector:
    return PodSelector(None, (Requirement(key, "In", values),))


def test_terms_found_for_labels_are_those_of_a_new_index_whatever_comes_and_goes() -> None:
    """Terms found for a pod's labels are forgotten where a term comes or goes that may select it,
    and nothing is kept for labels of which nothing is found any more."""
    selectors = [
        *(selector(key, *values) for key in ("app", "tier") for values in (("a",), ("b", "c"))),
        PodSelector(None, ()),
        PodSelector(None, (Requirement("app", "NotIn", ("a",)),)),
        PodSelector(("red",), (Requirement("app", "In", ("a",)),)),
    ]
    terms = [PodTerm("zone", each) for each in selectors]
    for seed in range(40):
        dice = Random(seed)
        existing, there = ExistingPods(), dict[str, tuple[str, PodMarks]]()
        for step in range(60):
            uid = f"u{dice.randrange(6)}"
            if dice.random() < 0.4:
                existing.remove(uid)
                there.pop(uid, None)
            else:
                labels = {key: dice.choice("abc") for key in ("app", "tier") if dice.random() < 0.7}
                keeps = tuple(dice.sample(terms, dice.randrange(3)))
                there[uid] = "n", PodMarks(dice.choice(["red", "blue"]), labels, keeps)
                existing.put(uid, *there[uid])
            if step % 7 == 0:
                existing.count(CountKey((dice.choice(selectors),)))
            anew = ExistingPods()
            for each, (node, marks) in there.items():
                anew.put(each, node, marks)
            for app in ("a", "b", "c", None):
                asked = {} if app is None else {"app": app, "tier": "b"}
                for namespace in ("red", "blue"):
                    found = existing.keeping_off(namespace, asked)
                    assert set(found) == set(anew.keeping_off(namespace, asked))
        for uid in list(there):
            existing.remove(uid)
        index = existing._away
        assert len(index._found) <= 8
        assert set(index._found_with) <= {pair for _, labels in index._found for pair in labels}
