"""Defaults of a policy, and what a profile makes of several."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from weft.core.framework import Demand, Plugin, Policy, Profile, Query
from weft.core.framework.policy import (
    NO_BOUND,
    PlacementOptions,
    RemainingRequest,
    draw,
    queue_order,
)
from weft.core.ledger import Ledger
from weft.core.ledger.table import Bools, Ints
from weft.core.policies.catalog import built_in
from weft.model import BadInputError, Gang
from weft.testing import decide, node, placement, pod, shape


class Silent(Policy):
    """Overrides nothing."""

    name = "silent"


class ByNode(Policy):
    """Scores nodes."""

    name = "by-node"

    def score_nodes(self, query: Query) -> Ints:
        return query.cpu_free


class ByDevice(Policy):
    """Scores devices, breaks ties by the last node, filters all it can."""

    name = "by-device"

    def score_devices(self, query: Query) -> Ints:
        return query.device_local

    def choose_node(self, rows: Ints, key: str) -> int:
        return len(rows) - 1

    def filter_nodes(self, query: Query) -> Bools:
        return query.cpu_free > 0

    def filter_devices(self, query: Query) -> Bools:
        return query.device_local < 1


def one_node_query(asked_mib: int = 0) -> Query:
    ledger = Ledger([node("a", gpus=3, memory_mib=1000)])
    ledger.reserve(placement("p", "a", 1, memory_mib=300, milli=900))
    ledger.reserve(placement("q", "a", 2, memory_mib=900, milli=100))
    asked = shape(memory_mib=asked_mib) if asked_mib else shape(milli=50)
    return Query(ledger.table, Demand(asked, ledger.table), np.array([0]))


def test_a_policy_without_opinions_accepts_and_scores_nothing() -> None:
    policy, query, asked = Silent(), one_node_query(), pod("p")
    assert policy.filter_nodes(query) is None
    assert policy.filter_devices(query) is None
    assert policy.score_nodes(query) is None
    assert policy.score_devices(query) is None
    assert policy.pre_filter(asked.shape) is asked.shape
    assert policy.choose_node(np.array([4, 7]), "key") == 0
    policy.take_input("anything", None)
    none: Any = np.zeros((2, 0))
    way = PlacementOptions(none, none, none, none, none, none)
    with pytest.raises(NotImplementedError):
        policy.rate_options(way)
    assert policy.bound_options(way, RemainingRequest(none, 0, 0)).tolist() == [NO_BOUND] * 2


def test_pods_queue_by_their_priority_then_age_whatever_their_dialect_s_own() -> None:
    key = Silent().queue_key
    pods = [
        pod("old"),
        pod("new", created_ns=5),
        pod("urgent", priority=1, created_ns=9),
        pod("first", queue_priority=1, created_ns=9),
    ]
    assert [p.name for p in sorted(pods, key=key)] == [
        "urgent",
        "old",
        "new",
        "first",
    ]


def test_the_tightest_device_is_chosen_in_what_the_claim_shares_by() -> None:
    fits = np.array([0, 1, 2])
    assert Silent().choose_device(one_node_query(), fits, "") == 1
    assert Silent().choose_device(one_node_query(asked_mib=50), fits, "") == 2
    assert Silent().choose_device(one_node_query(), np.array([0, 2]), "") == 1


def test_scores_are_normalised_by_their_range() -> None:
    assert Silent().normalize(np.array([-5, 0, 5])).tolist() == [0, 50, 100]
    assert Silent().normalize(np.array([7, 7])).tolist() == [0, 0]


def test_a_draw_is_the_key_s_own_and_even() -> None:
    assert draw("0/pod-1/1", 10) == draw("0/pod-1/1", 10)
    drawn = [draw(f"0/pod-{i}/1", 4) for i in range(400)]
    assert set(drawn) == {0, 1, 2, 3}
    assert all(70 < drawn.count(value) < 130 for value in range(4))


# --- profiles ------------------------------------------------------------------------------------


def test_a_profile_knows_who_does_what() -> None:
    silent, by_node, by_device = Silent(), ByNode(), ByDevice()
    profile = Profile("test", [silent, Plugin(by_node, 3), by_device])
    assert profile.lead is silent
    assert not profile.breaks_ties
    assert [plugin.policy for plugin in profile.scorers] == [by_node, by_device]
    assert [plugin.weight for plugin in profile.scorers] == [3, 1]
    assert profile.device_scorer is by_device
    assert profile.node_filters == profile.device_filters == (by_device,)
    assert profile.pre_filters == ()
    assert Profile("other", [by_device]).breaks_ties


def test_a_weight_of_zero_silences_a_scorer() -> None:
    profile = Profile("test", [Silent(), Plugin(ByDevice(), 0)])
    assert profile.scorers == ()
    assert profile.device_scorer is None


def test_a_profile_needs_a_policy_and_weights_are_not_negative() -> None:
    with pytest.raises(ValueError, match="profile test has no policy"):
        Profile("test", [])
    with pytest.raises(ValueError, match="weight of by-node is -1"):
        Plugin(ByNode(), -1)


# --- through the engine --------------------------------------------------------------------------


def test_one_scorer_decides_by_its_raw_scores() -> None:
    nodes = [node("a", cpu_milli=1000), node("b", cpu_milli=3000), node("c", cpu_milli=2000)]
    found = decide([ByNode()], nodes, [pod(f"p{i}", cpu_milli=900) for i in range(6)])
    assert [place.node if place else None for place in found.values()] == [
        "b",
        "b",
        "c",
        "b",
        "c",
        "a",
    ]


def test_several_scorers_are_normalised_and_weighed() -> None:
    class Opposite(ByNode):
        name = "opposite"

        def score_nodes(self, query: Query) -> Ints:
            return -query.cpu_free

    nodes = [node("a", cpu_milli=1000), node("b", cpu_milli=3000)]
    for weight, winner in ((2, "b"), (0, "a")):
        found = decide([Plugin(ByNode(), weight), Opposite()], nodes, [pod("p")])
        assert found["p"] is not None
        assert found["p"].node == winner


def test_filters_leave_what_they_accept_and_ties_go_where_the_lead_says() -> None:
    nodes = [node("a", gpus=2), node("b", gpus=2), node("c", gpus=2, cpu_milli=0)]
    found = decide([ByDevice()], nodes, [pod(f"p{i}", milli=600) for i in range(3)])
    places = [(place.node, place.shares[0].gpu) if place else None for place in found.values()]
    assert places == [("b", 0), ("a", 0), None]


def test_a_policy_spec_with_options_is_made_and_remembered() -> None:
    policy = built_in().from_spec("elastic-binpack:compat=exact")
    assert policy.made_with == {"compat": "exact"}
    assert built_in().from_spec("best-fit").made_with == {}


@pytest.mark.parametrize(
    ("spec", "says"),
    [("elastic-binpack:compat", "write option=value"), ("elastic-binpack:nope=1", "unknown")],
)
def test_a_broken_policy_spec_is_named(spec: str, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        built_in().from_spec(spec)


def test_a_gang_of_unknown_age_is_as_old_as_its_pod() -> None:
    def at(created_ns: int, gang_ns: int) -> tuple[int, ...]:
        gang = Gang("owner", "default", "train", least=1, created_ns=gang_ns)
        return queue_order(Silent(), replace(pod("p", created_ns=created_ns), gang=gang)).key

    alone = queue_order(Silent(), pod("alone", created_ns=7)).key
    assert at(9, 0) > alone > at(5, 0)
    assert at(9, 3) == at(4, 3) < alone, "its PodGroup's age counts for all its pods"
