"""Pods with rules about other pods: what they see of these, and what of it wakes them."""

import time

import pytest
from msgspec.structs import replace

from weft.core.constraints import existing_pods
from weft.core.constraints.existing_pods import CountKey
from weft.core.engine import Bind, Engine, Event, PodAdded, PodGone, PodSeenBound, Tick
from weft.core.framework import Profile
from weft.core.policies.packing import FirstFit
from weft.model import (
    Constraints,
    InterPodRules,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Requirement,
)
from weft.testing import node, placement, pod

MINUTE = 60 * 10**9


def of(app: str) -> PodSelector:
    return PodSelector(("ml",), (Requirement("app", "In", (app,)),))


def asking(name: str, rules: InterPodRules | None = None, **labels: str) -> PodRequest:
    """A pod of the namespace ml with these labels and rules, and a GPU's share."""
    plain = pod(name, gpus=1)
    shape = plain.shape
    if rules is not None:
        shape = replace(shape, constraints=Constraints(pods=rules))
    made = replace(plain, shape=shape, namespace="ml")
    return replace(made, labels=labels) if labels else made


def cluster() -> Engine:
    """Zone a: a node whose GPU is taken, and one without; zone b: one with a free GPU."""
    nodes = [
        replace(node("full", gpus=1), labels={"zone": "a"}),
        replace(node("bare"), labels={"zone": "a"}),
        replace(node("free", gpus=1), labels={"zone": "b"}),
    ]
    engine = Engine([Profile("weft", (FirstFit(),))], nodes)
    engine.handle(PodSeenBound(placement("other", "full", 0, memory_mib=24_000, milli=1000)), 0)
    return engine


def bound(engine: Engine, event: Event) -> dict[str, str]:
    """The pods that get a place, and where, once back-offs have ended after the event."""
    told = [*engine.handle(event, MINUTE), *engine.handle(Tick(), 2 * MINUTE)]
    return {one.pod.uid: one.placement.node for one in told if isinstance(one, Bind)}


@pytest.mark.parametrize(
    "event",
    [
        PodGone("db"),
        PodSeenBound(placement("db", "bare"), marks=PodMarks("ml", {"app": "old"})),
    ],
)
def test_who_may_be_the_first_is_woken_when_the_last_goes(event: Event) -> None:
    engine = cluster()
    engine.handle(PodSeenBound(placement("db", "bare"), marks=PodMarks("ml", {"app": "db"})), 0)
    near = InterPodRules(affinity=(PodTerm("zone", of("db")),), is_its_own=True)
    assert not bound(engine, PodAdded(asking("waits", near, app="db")))
    assert bound(engine, event) == {"waits": "free"}


def test_a_pod_without_labels_counts_from_its_decision_on() -> None:
    engine = Engine(
        [Profile("weft", (FirstFit(),))],
        [replace(node("one", gpus=2), labels={"zone": "a"})],
    )
    assert bound(engine, PodAdded(asking("plain"))) == {"plain": "one"}
    alone = InterPodRules(anti_affinity=(PodTerm("zone", PodSelector(("ml",), ())),))
    assert not bound(engine, PodAdded(asking("alone", alone)))


@pytest.mark.parametrize("many", [64, 64 + 512])
def test_who_waits_for_pods_is_woken_however_many_wait_for_others(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as counts are kept for, and as many as are watched besides."""
    monkeypatch.setattr(existing_pods, "KEPT", 64)
    monkeypatch.setattr(existing_pods, "WATCHED", 512)
    engine = cluster()
    near = InterPodRules(affinity=(PodTerm("zone", of("db")),))
    engine.handle(PodAdded(asking("waits", near)), 0)
    for number in range(many):
        others = InterPodRules(affinity=(PodTerm("zone", of(f"app-{number}")),))
        engine.handle(PodAdded(asking(f"p{number}", others)), 0)
    came = PodSeenBound(placement("db", "free"), marks=PodMarks("ml", {"app": "db"}))
    assert bound(engine, came) == {"waits": "free"}


def test_pods_are_counted_in_time_for_a_selector_of_thousands_of_values() -> None:
    """Asked value by value it took half a second for each; 0.2 s is far more than it takes."""
    engine = cluster()
    for number in range(5_000):
        engine.existing.put(f"p{number}", "full", PodMarks("ml", {"app": f"other-{number}"}))
    engine.existing.put("last", "free", PodMarks("ml", {"app": "v9999"}))
    values = tuple(f"v{number}" for number in range(10_000))
    for operator, counted in (("In", 1), ("NotIn", 5_000)):
        selector = PodSelector(("ml",), (Requirement("app", operator, values),))
        began = time.process_time()
        count = engine.existing.count(CountKey((selector,)))
        assert time.process_time() - began < 0.2
        assert sum(count.by_node.values()) == counted
