"""Rules about other pods that are large, or wait for each other: bounded work, and nobody else
waits for it."""

import time

import pytest
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    PodAdded,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
)
from weft.core.framework import Profile
from weft.core.policies.packing import FirstFit
from weft.model import (
    Code,
    Constraints,
    InterPodRules,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Requirement,
    SpreadRule,
)
from weft.testing import node, placement, pod

MINUTE = 60 * 10**9
ALL = PodSelector(("ml",), ())


def of(app: str) -> PodSelector:
    return PodSelector(("ml",), (Requirement("app", "In", (app,)),))


def asking(name: str, app: str, rules: InterPodRules | None = None) -> PodRequest:
    plain = pod(name, gpus=1)
    pods = {} if rules is None else {"pods": rules}
    shape = replace(plain.shape, constraints=Constraints(**pods))
    return replace(plain, shape=shape, namespace="ml", labels={"app": app})


def cluster(nodes: int, key: str = "zone", domains: int = 2) -> Engine:
    laid = [
        replace(node(f"n{number}", gpus=2), labels={key: f"d{number % domains}"})
        for number in range(nodes)
    ]
    return Engine([Profile("weft", (FirstFit(),))], laid)


class Timed:
    """Hands events to an engine; the most CPU time that one took, in seconds."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.most_s, self.now_ns = engine, 0.0, 0

    def __call__(self, event: Event) -> list[Command]:
        self.now_ns += MINUTE
        began = time.process_time()
        told = self.engine.handle(event, self.now_ns)
        self.most_s = max(self.most_s, time.process_time() - began)
        return told


def bound(told: list[Command]) -> list[str]:
    return [one.pod.uid for one in told if isinstance(one, Bind)]


def test_two_pods_that_wait_for_each_other_hold_up_nobody() -> None:
    engine = cluster(4)
    looks, told = Timed(engine), []
    for mine, other in (("a", "b"), ("b", "a")):
        near = InterPodRules(affinity=(PodTerm("zone", of(other)),))
        told += looks(PodAdded(asking(mine, mine, near)))
    refused = [one for one in told if isinstance(one, Unschedulable)]
    assert [one.record.counts[Code.POD_AFFINITY] for one in refused] == [4, 4]
    assert bound(looks(PodAdded(asking("plain", "c")))) == ["plain"]
    before = engine.assessor.looked
    for _ in range(50):
        assert not looks(Tick())
    assert engine.assessor.looked == before, "nothing moved that could help: nobody is tried"
    told = looks(PodSeenBound(placement("third", "n1"), marks=PodMarks("ml", {"app": "b"})))
    told += looks(Tick())
    assert sorted(bound(told)) == ["a", "b"], "one of them is near to the third, the other to it"


@pytest.mark.parametrize("apart", [True, False], ids=["spread", "apart from its own kind"])
def test_a_key_of_ten_thousand_domains(*, apart: bool) -> None:
    """Two of 10,001 nodes are in one domain: nodes are not the domains."""
    engine = cluster(10_001, "rack", 10_000)
    rules = InterPodRules(anti_affinity=(PodTerm("rack", of("web")),))
    if apart:
        rules = InterPodRules(spread=(SpreadRule("rack", 1, of("web"), counts_itself=True),))
    looks = Timed(engine)
    for number in range(10):
        assert bound(looks(PodAdded(asking(f"w{number}", "web", rules))))
    looks.most_s = 0.0
    for number in range(10, 20):
        assert bound(looks(PodAdded(asking(f"w{number}", "web", rules))))
        looks(PodGone(f"w{number - 5}"))
    rows = {holding.placement.node for holding in engine.ledger.holdings.values()}
    assert len(rows) == 10
    assert looks.most_s < 0.05


def test_a_term_that_matches_each_of_fifty_thousand_pods() -> None:
    engine = cluster(100, domains=10)
    for number in range(50_000):
        marks = PodMarks("ml", {"app": f"a{number % 500}", "number": str(number)})
        engine.existing.put(f"p{number}", f"n{number % 90}", marks)
    looks = Timed(engine)
    away = InterPodRules(anti_affinity=(PodTerm("zone", ALL),))
    told = looks(PodAdded(asking("away", "x", away)))
    assert not bound(told), "each zone has pods of the namespace"
    spread = InterPodRules(spread=(SpreadRule("zone", 1, of("a1"), counts_itself=True),))
    assert bound(looks(PodAdded(asking("spread", "a1", spread))))
    assert looks.most_s < 1.0, "pods are counted once"
    looks.most_s = 0.0
    for number in range(10):
        looks(PodAdded(asking(f"late-{number}", "x", away)))
        looks(PodGone(f"p{number}"))
    assert bound(looks(PodAdded(asking("plain", "c")))) == ["plain"]
    assert looks.most_s < 0.05
