"""The preempt verb chooses victims on cards, also when it is sent empty lists (Kubernetes after
1.37), and places that are kept for less important pods are free to it, filter and bind."""

import json
from typing import Any

import msgspec
from extender_world import WEFT, StubCluster, args, bind_args, elastic

from weft.cluster.extender.service import Extender, ExtenderReply
from weft.core.engine import (
    BindOn,
    BudgetsChanged,
    Nominate,
    PodAdded,
    PodGone,
    PodSeenBound,
)
from weft.core.ledger.audit import audit
from weft.core.preempt import Budget
from weft.kube.pods import Pod
from weft.model import Gang, PodMarks
from weft.model.selectors import PodSelector, Requirement
from weft.testing.builders import node, placement


def two() -> StubCluster:
    nodes = [node("n1", gpus=1, memory_mib=1000), node("n2", gpus=2, memory_mib=4000)]
    return StubCluster(nodes)


def load(reply: ExtenderReply) -> Any:
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def preempt(extender: Extender, pod: dict[str, Any], victims: Any) -> Any:
    asked = {"Pod": pod, "NodeNameToMetaVictims": victims, "NodeNameToVictims": None}
    return load(extender.preempt(WEFT, msgspec.json.encode(asked)))["NodeNameToMetaVictims"]


def rated(name: str, priority: int, memory: int = 2000) -> dict[str, Any]:
    pod = elastic(name, memory=memory)
    pod["spec"]["priority"] = priority
    return pod


def held(
    cluster: StubCluster, name: str, gpu: int, memory_mib: int, priority: int, on: str = "n2"
) -> None:
    """A pod of Weft's, shown bound."""
    where = placement(name, on, gpu, memory_mib=memory_mib)
    cluster.handle(PodSeenBound(where, priority=priority))


def offered(*uids: str, violations: int = 0) -> dict[str, Any]:
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}


def filtered(extender: Extender, pod: dict[str, Any], *nodes: str) -> list[str]:
    names: list[str] = load(extender.filter(WEFT, args(pod, [*nodes])))["NodeNames"]
    return names


def test_an_empty_list_gets_the_least_important_pods_of_the_card_that_is_needed() -> None:
    cluster = two()
    for name, gpu, mib, priority in (("a", 0, 3000, 3), ("b", 0, 900, 1), ("c", 1, 3500, 5)):
        held(cluster, name, gpu, mib, priority)
    extender = Extender(cluster)
    assert preempt(extender, rated("p", 9), {"n2": offered()}) == {"n2": offered("a")}
    assert preempt(extender, rated("p", 9, 4000), {"n2": offered()}) == {"n2": offered("a", "b")}
    assert preempt(extender, rated("p", 3), {"n2": offered()}) == {}
    assert len(cluster.engine.ledger.holdings) == 3


def test_no_node_is_answered_with_an_empty_list() -> None:
    """kube-scheduler takes that for an error, and ends nobody at all."""
    cluster = two()
    held(cluster, "a", 0, 3000, 3)
    extender = Extender(cluster)
    asked = {"n1": offered(), "n2": offered(), "n9": offered()}
    assert preempt(extender, rated("p", 9), asked) == {}
    assert preempt(extender, rated("p", 9, 20_000), asked) == {}


def test_victims_that_do_not_help_make_way_for_some_that_do() -> None:
    cluster = two()
    for name, gpu, mib, priority in (("a", 0, 2000, 4), ("b", 0, 2000, 2), ("c", 1, 4000, 1)):
        held(cluster, name, gpu, mib, priority)
    extender, pod = Extender(cluster), rated("p", 9, 3500)
    assert preempt(extender, pod, {"n2": offered("b")}) == {"n2": offered("c")}
    of_pods = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    pod["spec"]["volumes"] = [{"name": "token", "projected": {}}]
    assert preempt(extender, pod, {"n2": offered("b")}) == {"n2": offered("c")}
    pod["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [of_pods]}
    }
    assert preempt(extender, pod, {"n2": offered("b")}) == {"n2": offered("b", "c")}


def test_budgets_are_spared_and_violations_counted() -> None:
    cluster = two()
    for name, gpu, priority in (("a", 0, 1), ("b", 1, 5)):
        marks = PodMarks("ns", {"app": name})
        where = placement(name, "n2", gpu, memory_mib=3500)
        cluster.handle(PodSeenBound(where, priority=priority, marks=marks))
    none = Budget("ns/a", PodSelector(("ns",), (Requirement("app", "In", ("a",)),)), 0)
    cluster.handle(BudgetsChanged((none,)))
    extender = Extender(cluster)
    assert preempt(extender, rated("p", 9), {"n2": offered()}) == {"n2": offered("b")}
    lower = preempt(extender, rated("p", 4), {"n2": offered()})
    assert lower == {"n2": offered("a", violations=1)}


def test_nobody_is_offered_who_is_not_there_for_kube_scheduler() -> None:
    """A pod whose binding is under way, and a gang with pods on other nodes."""
    cluster = two()
    cluster.handle(BindOn(cluster.parse(msgspec.convert(rated("new", 1, 3500), Pod)), "n2", "weft"))
    for name, gpu, on in (("far", 0, "n1"), ("near", 1, "n2")):
        where = placement(name, on, gpu, memory_mib=1000 if on == "n1" else 3500)
        gang = Gang("kubernetes", "ns", "g", 2, ends_as_one=True)
        cluster.handle(PodSeenBound(where, priority=1, gang=gang))
    assert preempt(Extender(cluster), rated("p", 9), {"n2": offered()}) == {}


async def test_a_place_kept_for_a_less_important_pod_is_free_to_kube_scheduler() -> None:
    cluster = kept_for_waits()
    extender, engine = Extender(cluster), cluster.engine
    assert filtered(extender, rated("equal", 3, 2500), "n2") == []
    assert filtered(extender, rated("p", 9, 2500), "n2") == ["n2"]
    assert load(await extender.bind(WEFT, bind_args("p", "n2")))["Error"] == ""
    assert engine.ledger.holdings["u-p"].placement.node == "n2"
    assert not engine.preemption.nominations
    assert audit(engine.ledger) == []


async def test_a_place_kept_for_a_pod_of_equal_priority_is_not_bound_over() -> None:
    cluster = kept_for_waits()
    extender = Extender(cluster)
    filtered(extender, rated("equal", 3, 2500), "n2")
    assert "n2" in load(await extender.bind(WEFT, bind_args("equal", "n2")))["Error"]
    assert [*cluster.engine.preemption.nominations] == ["u-waits"]


def test_who_goes_for_a_less_important_pod_goes_for_this_one() -> None:
    extender = Extender(kept_for_waits())
    assert preempt(extender, rated("p", 9, 4000), {"n2": offered()}) == {"n2": offered("late")}
    assert preempt(extender, rated("equal", 3, 4000), {"n2": offered()}) == {}


def kept_for_waits() -> StubCluster:
    """GPU 0 of n2 has 2,500 MiB free, kept for a pod of priority 3 until the pod of 1,500
    has left too."""
    cluster = two()
    held(cluster, "soon", 0, 2000, 1)
    held(cluster, "late", 0, 1500, 1)
    held(cluster, "above", 1, 4000, 9)
    waits = cluster.parse(msgspec.convert(rated("waits", 3, 3500), Pod))
    (kept,) = [each for each in cluster.handle(PodAdded(waits)) if isinstance(each, Nominate)]
    assert kept.node == "n2"
    cluster.handle(PodGone("soon"))
    assert "kept-for/u-waits" in cluster.engine.ledger.holdings
    return cluster
