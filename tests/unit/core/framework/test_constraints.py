"""Kubernetes' own constraints: taints, selectors, affinity, volumes, ports, soft wishes."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodBound, PodGone, Unschedulable
from weft.core.engine.reasons import reason_of_each
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.model import (
    Code,
    Constraints,
    HostPort,
    Node,
    PodRequest,
    Preference,
    Preferences,
    Requirement,
    Taint,
    Term,
    Toleration,
)
from weft.model.request import CORDON
from weft.testing import node, pod


def tainted(name: str, *taints: Taint, **labels: str) -> Node:
    return msgspec.structs.replace(node(name, gpus=1), taints=taints, labels=labels)


def constrained(name: str = "pod", **constraints: object) -> PodRequest:
    made = pod(name, memory_mib=100)
    asked = msgspec.structs.replace(made.shape, constraints=Constraints(**constraints))
    return msgspec.structs.replace(made, shape=asked)


def decide(nodes: list[Node], asked: PodRequest, policy: str = "first-fit") -> str | dict[str, int]:
    """The node, or the reasons."""
    engine = Engine([Profile("weft", [built_in().create(policy)])])
    engine.handle(NodesChanged(tuple(nodes)), 0)
    outcome = engine.handle(PodAdded(asked), 1)[0]
    if isinstance(outcome, Bind):
        return outcome.placement.node
    assert isinstance(outcome, Unschedulable)
    return {Code(c).name: n for c, n in enumerate(outcome.record.counts) if n}


def term(key: str, operator: str, *values: str) -> Term:
    return Term((Requirement(key, operator, values),))


NO_SCHEDULE = Taint("gpu", "NoSchedule", "yes")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("gpu", "Equal", "yes", "NoSchedule"), True),
        (Toleration("gpu", "Equal", "yes"), True),
        (Toleration("gpu", "", "yes"), True),
        (Toleration("gpu", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("gpu", "Equal", "no"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("gpu", "Exists", effect="NoExecute"), False),
        (Toleration("gpu", "Exist"), False),
        (Toleration("", "Equal", "yes"), False),
    ],
)
def test_a_taint_keeps_off_whoever_does_not_tolerate_it(
    toleration: Toleration, tolerates: bool
) -> None:
    found = decide([tainted("a", NO_SCHEDULE)], constrained(tolerations=(toleration,)))
    assert found == ("a" if tolerates else {"TAINT": 1})


def test_a_cordon_keeps_off_all_but_those_who_tolerate_it() -> None:
    assert decide([tainted("a", CORDON)], constrained()) == {"UNSCHEDULABLE": 1}
    everything = (Toleration(operator="Exists"),)
    assert decide([tainted("a", CORDON)], constrained(tolerations=everything)) == "a"


def test_pods_without_any_constraint_stay_off_tainted_nodes() -> None:
    assert decide([tainted("a", NO_SCHEDULE), tainted("b")], constrained()) == "b"
    assert decide([tainted("a", Taint("x", "NoExecute"))], constrained()) == {"TAINT": 1}


def test_prefer_no_schedule_is_a_wish() -> None:
    soft = Taint("spot", "PreferNoSchedule")
    assert decide([tainted("a", soft), tainted("b")], constrained()) == "b"
    assert decide([tainted("a", soft)], constrained()) == "a"


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        (term("zone", "In", "a", "b"), True),
        (term("zone", "In", "b"), False),
        (term("zone", "NotIn", "b"), True),
        (term("zone", "NotIn", "a"), False),
        (term("missing", "NotIn", "a"), True),
        (term("zone", "Exists"), True),
        (term("missing", "Exists"), False),
        (term("missing", "DoesNotExist"), True),
        (term("cores", "Gt", "7"), True),
        (term("cores", "Gt", "8"), False),
        (term("cores", "Lt", "9"), True),
        (term("zone", "Gt", "1"), False),
        (term("cores", "Gt"), False),
        (term("cores", "Gt", "0_7"), False),
        (term("cores", "Gt", "\u0667"), False),
        (term("zone", "Near", "a"), False),
        (Term(), False),
        (Term(fields=(Requirement("metadata.name", "In", ("a",)),)), True),
        (Term(fields=(Requirement("metadata.name", "In", ("b",)),)), False),
    ],
)
def test_required_affinity(asked: Term, fits: bool) -> None:
    found = decide([tainted("a", zone="a", cores="8")], constrained(affinity=(asked,)))
    assert found == ("a" if fits else {"NODE_AFFINITY": 1})


def test_one_of_several_terms_is_enough_and_none_is_never() -> None:
    there = [tainted("a", zone="a")]
    both = (term("zone", "In", "x"), term("zone", "In", "a"))
    assert decide(there, constrained(affinity=both)) == "a"
    assert decide(there, constrained(affinity=())) == {"NODE_AFFINITY": 1}


def test_node_selector_needs_every_pair() -> None:
    there = [tainted("a", zone="a", disk="ssd")]
    assert decide(there, constrained(selector=(("zone", "a"), ("disk", "ssd")))) == "a"
    wrong = constrained(selector=(("zone", "a"), ("disk", "hdd")))
    assert decide(there, wrong) == {"NODE_AFFINITY": 1}


def test_every_bound_volume_must_be_reachable() -> None:
    nodes = [tainted("a", zone="a"), tainted("b", zone="b")]
    here, there = (term("zone", "In", "b"),), (term("zone", "In", "a"),)
    assert decide(nodes, constrained(volumes=(here,))) == "b"
    assert decide(nodes, constrained(volumes=(here, there))) == {"VOLUME": 2}


def test_preferred_affinity_moves_a_pod_where_the_policy_is_indifferent() -> None:
    nodes = [tainted("a", zone="a"), tainted("b", zone="b")]
    wish = Preferences(nodes=(Preference(10, term("zone", "In", "b")),))
    asked = msgspec.structs.replace(constrained(), preferences=wish)
    assert decide(nodes, asked) == "b"
    assert decide(nodes, constrained()) == "a"


def test_what_is_not_honoured_yet_is_pending_with_that_reason() -> None:
    asked = constrained(unsupported="spec.topologySpreadConstraints")
    assert decide([tainted("a")], asked) == {"UNSUPPORTED": 1}


def test_host_ports_are_held_and_given_back() -> None:
    engine = Engine([Profile("weft", [built_in().create("first-fit")])])
    engine.handle(NodesChanged((node("a", gpus=1),)), 0)
    first = constrained("first", ports=(HostPort(80),))
    second = constrained("second", ports=(HostPort(80, ip="10.0.0.1"),))
    other = constrained("other", ports=(HostPort(80, "UDP"),))
    assert isinstance(engine.handle(PodAdded(first), 1)[0], Bind)
    engine.handle(PodBound(first.uid), 1)
    refused = engine.handle(PodAdded(second), 2)[0]
    assert isinstance(refused, Unschedulable)
    assert refused.record.counts[Code.HOST_PORT] == 1
    assert isinstance(engine.handle(PodAdded(other), 3)[0], Bind)
    later = engine.handle(PodGone(first.uid), 60_000_000_000)
    assert [c.pod.name for c in later if isinstance(c, Bind)] == ["second"]
    assert engine.ledger.table.ports == {0: [HostPort(80, "UDP"), HostPort(80, ip="10.0.0.1")]}


@given(
    st.sampled_from(["", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::"]),
    st.sampled_from(["", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::"]),
)
def test_port_conflicts_are_mutual(left: str, right: str) -> None:
    one, two = HostPort(80, ip=left), HostPort(80, ip=right)
    assert one.conflicts(two) == two.conflicts(one)
    everywhere = {"", "0.0.0.0"}
    assert one.conflicts(two) == (left == right or bool(everywhere & {left, right}))


def test_a_feature_that_some_nodes_do_not_declare() -> None:
    nodes = [
        msgspec.structs.replace(node(f"n{index:02}", gpus=1), declared_features=declared)
        for index, declared in enumerate([("A",), ("A", "B"), ("A",), ("B",)])
    ]
    bare = node("bare", gpus=1)
    assert decide([*nodes, bare], constrained(features=("A", "B"))) == "n01"
    lacking = [nodes[0], nodes[3], bare]
    engine = Engine([Profile("weft", [built_in().create("first-fit")])])
    engine.handle(NodesChanged(tuple(lacking)), 0)
    refused = engine.handle(PodAdded(constrained(features=("A", "B"))), 1)[0]
    assert isinstance(refused, Unschedulable)
    assert refused.record.counts[Code.DECLARED_FEATURES] == 3
    known = engine.assess(engine.profiles["weft"], constrained(features=("A", "B")))
    words = reason_of_each(engine.ledger.table, known, np.arange(3), ())
    assert sorted(words) == [f"node does not declare {each}" for each in ("A", "A and B", "B")]
    assert decide([bare], constrained()) == "bare"
