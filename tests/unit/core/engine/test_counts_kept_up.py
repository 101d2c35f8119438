"""Counts by domain that are kept up are those added up again, whatever comes and goes."""

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from weft.core.constraints.counts import SumsByDomain
from weft.core.constraints.existing_pods import CountKey, ExistingPods
from weft.core.engine import Engine, PodGone, PodSeenBound
from weft.core.framework import Profile
from weft.core.ledger.node_labels import LabelColumn, as_bits
from weft.core.policies.packing import FirstFit
from weft.model import (
    Code,
    Constraints,
    InterPodRules,
    PodMarks,
    PodSelector,
    PodTerm,
    Requirement,
)
from weft.testing import node, placement, pod, shape


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


@pytest.mark.parametrize("key", ["host", "zone"])
def test_a_term_that_others_have_too_is_asked_once_but_where_it_does_not_select_them(
    key: str,
) -> None:
    """Pods that keep away from each other: their own term says of each node what the others' does,
    unless a pod has the term that is not one of these pods."""
    away = PodTerm(key, selector("app", "web"))
    rules = InterPodRules(anti_affinity=(away,))
    nodes = [
        replace(node(f"n{at}"), labels={"host": f"n{at}", "zone": f"z{at // 2}"}) for at in range(6)
    ]
    engine = Engine([Profile("weft", (FirstFit(),))], nodes)
    asks = replace(shape(), constraints=Constraints(pods=rules))
    asked = replace(pod("asked", asks=asks), labels={"app": "web"})
    profile = engine.profiles["weft"]

    def codes() -> list[int]:
        found: list[int] = engine.assess(profile, asked).codes.tolist()
        return found

    def seen(uid: str, where: str, app: str) -> None:
        marks = PodMarks("default", {"app": app}, (away,))
        engine.handle(PodSeenBound(placement(uid, where), marks=marks), 0)

    at_once = 1 if key == "host" else 2
    own, others = int(Code.POD_ANTI_AFFINITY), int(Code.ANTI_AFFINITY)
    seen("web", "n0", "web")
    assert codes() == [own] * at_once + [0] * (6 - at_once)
    seen("db", "n2", "db")
    assert codes()[2] == others
    assert codes().count(others) == at_once
    engine.handle(PodGone("db"), 0)
    assert codes() == [own] * at_once + [0] * (6 - at_once)
    seen("web", "n0", "db")  # relabelled
    assert codes()[0] == others
    assert not engine.existing.count(CountKey((away.pods,))).by_node
    engine.handle(PodGone("web"), 0)
    assert codes() == [0] * 6
    assert not engine.existing.strangers


def test_terms_found_for_labels_are_those_of_a_new_index_whatever_comes_and_goes() -> None:
    """Terms found for a pod's labels are forgotten where a term comes or goes that may select
    it, and what is kept of labels grows with pods' different labels alone."""
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
            for each, (where, marks) in there.items():
                anew.put(each, where, marks)
            for app in ("a", "b", "c", None):
                asked = {} if app is None else {"app": app, "tier": "b"}
                for namespace in ("red", "blue"):
                    found = existing.keeping_off(namespace, asked)
                    assert set(found) == set(anew.keeping_off(namespace, asked))
        for uid in list(there):
            existing.remove(uid)
        kept = existing._away._found
        assert len(kept._found) <= 2 * 4 * 4, "namespaces, and values of two labels or none"
        known = {pair for _, labels in kept._found for pair in labels}
        assert set(kept._with) == known
        assert all(kept._with[pair] for pair in known)
