"""Gangs: places for as many pods as a group needs, or for none."""

from typing import Any

import pytest
from engine_talk import SECOND, engine_of, one_card, places, refused, wakes
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    BindFailed,
    Engine,
    Evict,
    Faulted,
    NodesChanged,
    NotEvicted,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
    gang_search,
)
from weft.core.engine.nominations import REFUSED_NS
from weft.core.framework.residency import Residencies
from weft.core.ledger import audit
from weft.core.ledger.audit import differences
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import BestFit
from weft.model import Code, Constraints, Gang, Node, Placement, PodRequest, Shape
from weft.model.request import HostPort
from weft.testing import node, placement, pod, shape

FOUR = Gang("scheduler-plugins", "default", "train", least=4)


def member(name: str, gang: Gang = FOUR, **asked: object) -> PodRequest:
    return replace(pod(name, **(asked or {"gpus": 1})), gang=gang)  # type: ignore[arg-type]


NAMES = ("p0", "p1", "p2", "p3")


def breaks_off_for(monkeypatch: pytest.MonkeyPatch, uid: str) -> None:
    """An account kept of pods with a place breaks off for this one."""
    rightly = Residencies.add

    def refuses(self: Residencies, placed: Placement, at_ns: int) -> None:
        if placed.uid == uid:
            raise ZeroDivisionError(uid)
        rightly(self, placed, at_ns)

    monkeypatch.setattr(Residencies, "add", refuses)


def labelled(name: str, gpus: int, **labels: str) -> Node:
    return replace(node(name, gpus=gpus), labels=labels)


def add(engine: Engine, *pods: PodRequest, now_ns: int = 0) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in pods:
        found |= places(engine.handle(PodAdded(each), now_ns))
    return found


def members(*names: str, gang: Gang = FOUR) -> list[PodRequest]:
    return [member(name, gang) for name in names]


def test_nothing_is_bound_before_as_many_pods_exist_as_the_gang_needs() -> None:
    engine = engine_of(node("a", gpus=8))
    for count, each in enumerate(members("p0", "p1", "p2"), 1):
        commands = engine.handle(PodAdded(each), 0)
        told = [c for c in commands if isinstance(c, Unschedulable)]
        assert not places(commands)
        assert len(told) == 1
        assert told[0].record.gang is not None
        assert (told[0].record.gang.there, told[0].record.gang.least) == (count, 4)
        assert told[0].record.counts[Code.GROUP_INCOMPLETE] == 1
    assert set(places(engine.handle(PodAdded(member("p3")), 0))) == {"p0", "p1", "p2", "p3"}
    assert audit(engine.ledger) == []


def test_a_gang_that_fits_only_in_part_holds_nothing_and_others_take_the_room() -> None:
    engine = engine_of(node("a", gpus=2), node("b", gpus=1))
    assert add(engine, *members("p0", "p1", "p2", "p3")) == {}
    assert engine.ledger.holdings == {}
    assert add(engine, pod("alone", gpus=2)) == {"alone": "a"}


def test_the_refusal_names_how_many_found_a_place_and_tells_every_member() -> None:
    engine = engine_of(node("a", gpus=3))
    add(engine, *members("p0", "p1", "p2"))
    commands = engine.handle(PodAdded(member("p3")), 0)
    (told,) = [c for c in commands if isinstance(c, Unschedulable)]
    assert told.record.gang is not None
    assert (told.record.gang.found, told.record.gang.least) == (3, 4)
    assert told.record.counts[Code.NOT_IDLE] == 1
    assert {told.pod.uid, *(each.uid for each in told.others)} == {"p0", "p1", "p2", "p3"}


def test_a_waiting_gang_gets_its_places_when_room_for_all_is_freed() -> None:
    engine = engine_of(node("a", gpus=4))
    add(engine, pod("old", gpus=1))
    engine.handle(PodBound("old"), 0)
    assert add(engine, *members("p0", "p1", "p2", "p3")) == {}
    commands = engine.handle(PodGone("old"), 20 * SECOND)
    assert set(places(commands)) == {"p0", "p1", "p2", "p3"}


def test_more_pods_than_needed_are_placed_as_far_as_there_is_room() -> None:
    engine = engine_of(node("a", gpus=4))
    two = replace(FOUR, least=2)
    engine.handle(PodAdded(pod("blocks", gpus=4)), 0)
    engine.handle(PodBound("blocks"), 0)
    add(engine, *members("p0", "p1", "p2", "p3", "p4", gang=two))
    commands = engine.handle(PodGone("blocks"), 20 * SECOND)
    assert set(places(commands)) == {"p0", "p1", "p2", "p3"}
    assert refused(commands) == ["p4"]
    for uid in ("p0", "p1", "p2", "p3"):
        engine.handle(PodBound(uid), 20 * SECOND)
    assert places(engine.handle(PodGone("p1"), 40 * SECOND)) == {"p4": "a"}


def test_later_pods_of_a_gang_that_runs_follow_one_by_one() -> None:
    engine = engine_of(node("a", gpus=6))
    add(engine, *members("p0", "p1", "p2", "p3"))
    assert add(engine, member("p4")) == {"p4": "a"}


def test_a_pod_that_dies_is_replaced_with_the_others_counted() -> None:
    engine = engine_of(node("a", gpus=4))
    add(engine, *members("p0", "p1", "p2", "p3"))
    for uid in ("p0", "p1", "p2", "p3"):
        engine.handle(PodBound(uid), 0)
    engine.handle(PodGone("p2"), SECOND)
    assert add(engine, member("p2-again"), now_ns=2 * SECOND) == {"p2-again": "a"}


def test_who_was_bound_before_a_restart_counts() -> None:
    engine = engine_of(node("a", gpus=4))
    for uid in ("p0", "p1", "p2"):
        seen = PodSeenBound(placement(uid, "a", int(uid[1]), milli=1000), gang=FOUR)
        engine.handle(seen, 0)
    assert add(engine, member("p3")) == {"p3": "a"}


def test_the_rest_of_a_gang_goes_on_when_another_scheduler_binds_the_pod_that_waited_for_all() -> (
    None
):
    engine = engine_of(node("a", gpus=1))
    pair = replace(FOUR, least=2)
    assert add(engine, *members("p0", "p1", gang=pair)) == {}
    engine.handle(PodSeenBound(placement("p0", "a", 0, milli=1000), gang=pair), SECOND)
    commands = engine.handle(NodesChanged((node("b", gpus=1),)), 60 * SECOND)
    assert places(commands) == {"p1": "b"}


def test_a_refused_binding_is_tried_again_by_itself() -> None:
    engine = engine_of(node("a", gpus=4))
    add(engine, *members("p0", "p1", "p2", "p3"))
    for uid in ("p0", "p1", "p2"):
        engine.handle(PodBound(uid), 0)
    assert places(engine.handle(BindFailed("p3"), 0)) == {}
    assert places(engine.handle(Tick(), 2 * SECOND)) == {"p3": "a"}


def test_a_gang_whose_group_is_unknown_waits_until_its_size_is_known() -> None:
    engine = engine_of(node("a", gpus=4))
    unknown = replace(FOUR, least=0)
    assert add(engine, *members("p0", "p1", "p2", "p3", gang=unknown)) == {}
    found = add(engine, *members("p0", "p1", "p2", "p3"))
    assert set(found) == {"p0", "p1", "p2", "p3"}


def test_a_lowered_size_wakes_the_gang() -> None:
    engine = engine_of(node("a", gpus=2))
    assert add(engine, *members("p0", "p1", "p2", "p3")) == {}
    two = replace(FOUR, least=2)
    found = add(engine, *members("p0", "p1", "p2", "p3", gang=two), now_ns=20 * SECOND)
    found |= places(engine.handle(Tick(), 40 * SECOND))
    assert len(found) == 2


def test_two_gangs_never_hold_half_of_what_both_need() -> None:
    engine = engine_of(node("a", gpus=6))
    other = replace(FOUR, name="other")
    found: dict[str, str] = {}
    for number in range(4):
        found |= add(engine, member(f"p{number}"), member(f"q{number}", other))
    assert set(found) == {"p0", "p1", "p2", "p3"}


def test_a_pod_that_leaves_makes_the_gang_incomplete() -> None:
    engine = engine_of(node("a", gpus=3))
    add(engine, *members("p0", "p1", "p2", "p3"))
    engine.handle(PodGone("p0"), SECOND)
    engine.handle(Tick(), 60 * SECOND)
    assert engine.ledger.holdings == {}
    assert engine.queue.gangs.of(FOUR).head is None  # type: ignore[union-attr]


def test_all_pods_are_in_one_domain_of_the_topology_key() -> None:
    nodes = [labelled(f"a{n}", 2, rack="a") for n in range(2)]
    nodes += [labelled(f"b{n}", 2, rack="b") for n in range(3)]
    gang = replace(FOUR, least=5, topology_key="rack")
    engine = engine_of(*nodes, node("free", gpus=8))
    found = add(engine, *members("p0", "p1", "p2", "p3", "p4", gang=gang))
    assert {each[0] for each in found.values()} == {"b"}
    assert add(engine, member("p5", gang)) != {}
    (told,) = [
        c for c in engine.handle(PodAdded(member("p6", gang)), 0) if isinstance(c, Unschedulable)
    ]
    assert told.record.counts[Code.GROUP_ELSEWHERE] == 3


def test_the_fullest_domain_that_has_room_is_taken() -> None:
    nodes = [labelled(f"a{n}", 8, rack="a") for n in range(2)]
    nodes += [labelled(f"b{n}", 2, rack="b") for n in range(2)]
    gang = replace(FOUR, topology_key="rack")
    engine = engine_of(*nodes, policies=(LeastStranding(),))
    found = add(engine, *members("p0", "p1", "p2", "p3", gang=gang))
    assert {each[0] for each in found.values()} == {"b"}


def racked(rack: str, count: int, extended: dict[str, int] | None = None, **has: Any) -> list[Node]:
    """Nodes of one rack."""
    made = [node(f"{rack}-{at:03d}", extended=extended, **has) for at in range(count)]
    return [replace(each, labels={"rack": rack}) for each in made]


RACKED = Gang("scheduler-plugins", "default", "train", least=300, topology_key="rack")


def racked_pods(asks: Shape, gang: Gang = RACKED) -> list[PodRequest]:
    return [replace(pod(f"p{at:03d}", asks=asks), gang=gang) for at in range(gang.least)]


@pytest.mark.parametrize("name", ["pods", "example.com/nic"])
def test_a_domain_that_allows_too_few_pods_is_not_taken_for_one_with_room(name: str) -> None:
    few, many = ({name: each, "other": 9} for each in (5, 110))
    engine = engine_of(*racked("few", 40, few, gpus=8), *racked("many", 41, many, gpus=8))
    asks = shape(gpus=1, extended={name: 1})
    found = add(engine, *racked_pods(asks))
    assert len(found) == 300
    assert all(each.startswith("many") for each in found.values())
    (told,) = engine_of(*racked("few", 40, few, gpus=8)).handle(PodAdded(racked_pods(asks)[0]), 0)
    assert isinstance(told, Unschedulable)
    assert told.record.gang is not None
    assert told.record.gang.most == 200


def test_a_port_is_free_for_one_pod_of_each_node() -> None:
    ports = Constraints(ports=(HostPort(8080),))
    asks = replace(shape(gpus=1), constraints=ports)
    gang = replace(RACKED, least=4)
    engine = engine_of(*racked("few", 2, gpus=2), *racked("many", 4, gpus=2))
    found = add(engine, *racked_pods(asks, gang))
    assert sorted(found.values()) == ["many-000", "many-001", "many-002", "many-003"]
    (told,) = engine_of(*racked("few", 2, gpus=2)).handle(PodAdded(racked_pods(asks, gang)[0]), 0)
    assert isinstance(told, Unschedulable)
    assert told.record.gang is not None
    assert told.record.gang.most == 2


def test_the_next_domain_is_tried_where_the_first_fails_by_what_amounts_do_not_show() -> None:
    uneven = racked("uneven", 150, gpus=2, memory_mib=(40_000, 16_000))
    engine = engine_of(*uneven, *racked("even", 310, gpus=2, memory_mib=16_000))
    found = add(engine, *racked_pods(shape(gpus=2, memory_mib=9_000)))
    assert len(found) == 300
    assert all(each.startswith("even") for each in found.values())


def test_few_pods_are_tried_however_many_domains_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    racks = [racked(f"r{at}", 150, gpus=2, memory_mib=(40_000, 16_000)) for at in range(9)]
    engine = engine_of(*(each for rack in racks for each in rack))
    *first, last = racked_pods(shape(gpus=2, memory_mib=9_000))
    add(engine, *first)
    tried, rightly = [0], gang_search.deciding.choose_place

    def counted(*given: Any) -> Any:
        tried[0] += 1
        return rightly(*given)

    monkeypatch.setattr(gang_search.deciding, "choose_place", counted)
    assert add(engine, last) == {}
    assert gang_search.SEARCHED // 2 < tried[0] < gang_search.SEARCHED + 300


def test_a_gang_takes_as_few_nodes_as_fit() -> None:
    nodes = [node(f"n{size}", gpus=size) for size in (1, 2, 4, 3)]
    engine = engine_of(*nodes, policies=(BestFit(),))
    assert set(add(engine, *members("p0", "p1", "p2", "p3")).values()) == {"n4"}


def test_a_large_pod_of_a_gang_gets_its_place_before_small_ones() -> None:
    engine = engine_of(node("a", gpus=2), one_card("b"))
    gang = replace(FOUR, least=2)
    small, large = member("small", gang), member("large", gang, gpus=2)
    assert add(engine, small, large) == {"small": "b", "large": "a"}


def test_small_pods_of_a_gang_get_places_where_a_large_one_would_take_them() -> None:
    engine = engine_of(node("a", gpus=4))
    gang = replace(FOUR, least=2)
    sizes = {"large": 4, "small": 2, "other": 2}
    members = [member(name, gang, gpus=gpus) for name, gpus in sizes.items()]
    unknown = [replace(each, gang=replace(gang, least=0)) for each in members]
    assert add(engine, *unknown) == {}
    assert set(add(engine, *members)) == {"small", "other"}


def test_a_large_pod_of_a_gang_leaves_the_larger_node_to_others_that_need_it() -> None:
    engine = engine_of(node("a", gpus=6), node("b", gpus=4))
    sizes = {"large": 4, "p1": 3, "p2": 3}
    members = [member(name, replace(FOUR, least=3), gpus=gpus) for name, gpus in sizes.items()]
    assert add(engine, *members) == {"large": "b", "p1": "a", "p2": "a"}


def test_a_small_pod_makes_a_topology_domain_worth_a_try() -> None:
    nodes = [labelled("a", 1, rack="a"), labelled("b", 1)]
    gang = replace(FOUR, least=1, topology_key="rack")
    members = [member("large", replace(gang, least=0), gpus=4), member("small", gang)]
    assert add(engine_of(*nodes), *members) == {"small": "a"}


def test_a_gang_that_has_a_pod_outside_all_domains_gets_no_more_places() -> None:
    """As kube-scheduler has it: no place would be in one domain with that pod."""
    nodes = [labelled("a", 4, rack="a"), labelled("b", 4)]
    gang = replace(FOUR, least=2, topology_key="rack")
    engine = engine_of(*nodes)
    engine.handle(PodSeenBound(placement("p0", "b", 0, milli=1000), gang=gang), 0)
    assert add(engine, member("p1", gang)) == {}


def test_as_many_pods_of_each_task_are_needed() -> None:
    tasks = (("ps", 1), ("worker", 2))
    worker = Gang("volcano", "default", "job", least=2, task="worker", least_by_task=tasks)
    server = replace(worker, task="ps")
    engine = engine_of(node("a", gpus=8))
    assert add(engine, *members("w0", "w1", gang=worker)) == {}
    assert set(add(engine, member("ps", server))) == {"w0", "w1", "ps"}


def test_a_gang_that_needs_few_of_very_many_pods_is_not_decided_for_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_search, "MOST_GANG_PODS", 3)
    tasks = (("ps", 1), ("worker", 1))
    worker = Gang("volcano", "default", "job", least=2, task="worker", least_by_task=tasks)
    engine = engine_of(node("a", gpus=8))
    workers = members("w0", "w1", "w2", "w3", "w4", "w5", gang=worker)
    assert add(engine, *workers) == {}
    commands = engine.handle(PodAdded(member("ps", replace(worker, task="ps"))), 0)
    together = {c.pod.uid for c in commands if isinstance(c, Bind) and c.record.gang}
    assert together == {"ps", "w0", "w1"}
    assert set(places(commands)) == {"ps", "w0", "w1", "w2", "w3", "w4", "w5"}


def test_a_gang_of_a_higher_priority_goes_first() -> None:
    engine = engine_of(node("a", gpus=4))
    engine.handle(PodAdded(pod("blocks", gpus=4)), 0)
    engine.handle(PodBound("blocks"), 0)
    add(engine, *members("p0", "p1", "p2", "p3"))
    other = replace(FOUR, name="urgent")
    add(engine, *(replace(member(f"u{n}", other), priority=9) for n in range(4)))
    commands = engine.handle(PodGone("blocks"), 60 * SECOND)
    assert set(places(commands)) == {"u0", "u1", "u2", "u3"}


def test_pods_alike_that_wait_alone_are_not_kept_by_a_gang() -> None:
    engine = engine_of(node("a", gpus=3))
    add(engine, *members("p0", "p1", "p2", "p3"))
    assert add(engine, pod("alone", gpus=1)) == {"alone": "a"}


def broken_gang() -> Engine:
    """Three of four pods run; the fourth died, and another took its place."""
    engine = engine_of(node("a", gpus=4))
    add(engine, *members("p0", "p1", "p2", "p3"))
    for uid in ("p0", "p1", "p2", "p3"):
        engine.handle(PodBound(uid), 0)
    engine.handle(PodGone("p3"), 0)
    add(engine, pod("other", gpus=1))
    engine.handle(PodBound("other"), 0)
    assert add(engine, member("p3-again"), now_ns=SECOND) == {}
    return engine


def evicted(engine: Engine, at_s: int) -> set[str]:
    commands = engine.handle(Tick(), at_s * SECOND)
    return {c.placement.uid for c in commands if isinstance(c, Evict)}


def test_pods_of_a_gang_that_cannot_be_whole_again_are_asked_to_go_after_a_minute() -> None:
    engine = broken_gang()
    assert evicted(engine, 59) == set()
    assert evicted(engine, 62) == {"p0", "p1", "p2"}
    assert evicted(engine, 63) == set()
    told = engine.handle(NotEvicted("p1"), 64 * SECOND)
    assert wakes(told) == [64 * SECOND + REFUSED_NS], "nothing else may happen until then"
    assert evicted(engine, 65) == {"p1"}


def test_a_gang_that_is_whole_again_in_time_keeps_its_pods() -> None:
    engine = broken_gang()
    assert places(engine.handle(PodGone("other"), 30 * SECOND)) == {"p3-again": "a"}
    assert evicted(engine, 100) == set()


def test_a_gang_of_which_some_pods_are_done_is_left_alone() -> None:
    engine = engine_of(node("a", gpus=4))
    add(engine, *members("p0", "p1", "p2", "p3"))
    for uid in ("p0", "p1", "p2", "p3"):
        engine.handle(PodBound(uid), 0)
    engine.handle(PodGone("p3", completed=True), 0)
    assert evicted(engine, 1000) == set()


def most_told(engine: Engine, *pods: PodRequest) -> list[object]:
    told = [c for each in pods for c in engine.handle(PodAdded(each), 0)]
    return [c.record.gang and c.record.gang.most for c in told if isinstance(c, Unschedulable)]


def test_a_gang_larger_than_the_cluster_hears_so_from_its_first_pod_on() -> None:
    engine = engine_of(node("a", gpus=2), node("b", gpus=1))
    engine.handle(PodAdded(pod("other", gpus=2)), 0)
    assert most_told(engine, *members("p0", "p1", "p2", "p3")) == [3, 3, 3, 3]
    engine.handle(NodesChanged((node("c", gpus=1),)), 0)
    again = engine.handle(Tick(), 60 * SECOND)
    assert [c.record.gang.most for c in again if isinstance(c, Unschedulable)] == [UNSET]  # type: ignore[union-attr]


def test_the_room_of_an_empty_cluster_is_counted_for_shares_and_in_one_topology_domain() -> None:
    engine = engine_of(labelled("a", 1, rack="a"), labelled("b", 1, rack="b"), node("free", gpus=8))
    gang = replace(FOUR, topology_key="rack")
    shares = [member(name, gang, milli=500, memory_mib=100) for name in ("p0", "p1", "p2", "p3")]
    assert most_told(engine, *shares) == [2, 2, 2, 2]


def test_a_gang_that_an_empty_cluster_has_room_for_is_told_nothing_of_it() -> None:
    engine = engine_of(node("a", gpus=4))
    engine.handle(PodAdded(pod("other", gpus=2)), 0)
    assert most_told(engine, *members("p0", "p1", "p2", "p3")) == [UNSET] * 4


def test_a_gang_of_pods_of_two_priorities_goes_as_one_by_the_higher() -> None:
    engine = engine_of(node("a", gpus=4))
    engine.handle(PodAdded(pod("blocks", gpus=4)), 0)
    engine.handle(PodBound("blocks"), 0)
    add(engine, *(replace(each, priority=5) for each in members("m0", "m1", "m2", "m3")))
    two = replace(FOUR, name="two")
    pods = [replace(member(f"p{n}", two), priority=9 if n == 3 else 0) for n in range(4)]
    assert add(engine, *pods) == {}
    commands = engine.handle(PodGone("blocks"), 60 * SECOND)
    assert set(places(commands)) == {"p0", "p1", "p2", "p3"}


def test_a_group_that_is_deleted_and_made_anew_during_its_binding_goes_on() -> None:
    engine = engine_of(node("a", gpus=4))
    found = members("p0", "p1", "p2", "p3")
    assert len(add(engine, *found)) == 4
    engine.handle(PodBound("p0"), 0)
    gone = replace(FOUR, least=0)
    seen = PodSeenBound(placement("p0", "a", 0, milli=1000), gang=gone)
    engine.handle(seen, 0)
    engine.handle(BindFailed("p1"), 0)
    found_again = add(engine, replace(found[1], gang=gone), now_ns=SECOND)
    engine.handle(PodSeenBound(placement("p0", "a", 0, milli=1000), gang=FOUR), 2 * SECOND)
    found_again |= add(engine, found[1], now_ns=2 * SECOND)
    assert found_again | places(engine.handle(Tick(), 60 * SECOND)) == {"p1": "a"}
    assert len(engine.ledger.holdings) == 4


def test_a_decision_that_breaks_off_half_way_is_undone_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, fresh = (engine_of(node("a", gpus=4)) for _ in range(2))
    breaks_off_for(monkeypatch, "p2")
    commands = [c for each in members(*NAMES) for c in engine.handle(PodAdded(each), 0)]
    assert [c.pod.uid for c in commands if isinstance(c, Faulted) and c.pod] == ["p0"]
    assert places(commands) == {}, "nothing of a gang is bound before all of it has places"
    assert engine.ledger.holdings == {}
    assert engine.placed == {}
    assert differences(engine.ledger.table, fresh.ledger.table) == []
    assert {*NAMES} == {each.pod.uid for each in engine.queue.waiting()}
    assert add(engine, pod("other", gpus=1), now_ns=SECOND) == {"other": "a"}
    assert audit(engine.ledger) == []


def test_a_gang_whose_decision_broke_off_starts_whole_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(node("a", gpus=4))
    breaks_off_for(monkeypatch, "p0")
    add(engine, *members(*NAMES))
    monkeypatch.undo()
    commands = engine.handle(NodesChanged((node("b", gpus=1),)), 60 * SECOND)
    assert set(places(commands)) == {*NAMES}


def test_a_gang_waits_whose_group_is_deleted_while_too_few_of_its_pods_have_places() -> None:
    """The pod with a place hears of it last."""
    engine = engine_of(node("a", gpus=4))
    gang, deleted = (Gang("kubernetes", "default", "g", least) for least in (3, 0))
    engine.handle(PodSeenBound(placement("p0", "a", 0, memory_mib=16_000), gang=gang), 0)
    engine.handle(PodSeenBound(placement("full", "a", 1, memory_mib=16_000)), 0)
    engine.handle(PodSeenBound(placement("late", "a", 2, memory_mib=16_000)), 0)
    pods = [replace(pod(name, gpus=1), gang=gang) for name in ("p1", "p2")]
    for each in (*pods, *(replace(each, gang=deleted) for each in pods)):
        engine.handle(PodAdded(each), 0)
    engine.handle(PodSeenBound(placement("p0", "a", 0, memory_mib=16_000), gang=deleted), 0)
    commands = engine.handle(PodGone("full"), 60 * 1_000_000_000)
    commands += engine.handle(PodGone("late"), 120 * 1_000_000_000)
    assert not [each for each in commands if isinstance(each, Faulted)]
    assert "p1" not in engine.ledger.holdings


# --- whose turn it is ----------------------------------------------------------------------------


def unknown_age(name: str, least: int, *came_s: int) -> list[PodRequest]:
    """Pods of a gang without a group object, created at these times."""
    gang = Gang("owner", "default", name, least=least)
    return [
        replace(pod(f"{name}-{at}", gpus=1), gang=gang, created_ns=at * SECOND) for at in came_s
    ]


def one_by_one(engine: Engine, *waiting: PodRequest) -> list[str]:
    """Fill the node, let these pods wait, and free GPU after GPU; the order in which they start."""
    full = [pod(f"full-{number}", gpus=1) for number in range(2)]
    for each in (*full, *waiting):
        engine.handle(PodAdded(each), 0)
    runs, order, now_ns = [each.uid for each in full], list[str](), 100 * SECOND
    while runs:
        now_ns += 100 * SECOND
        for uid in places(engine.handle(PodGone(runs.pop(0)), now_ns)):
            engine.handle(PodBound(uid), now_ns)
            order.append(uid)
            runs.append(uid)
    return order


def test_a_gang_of_unknown_age_waits_behind_older_pods_of_its_priority() -> None:
    older, younger = (replace(pod(f"at-{at}", gpus=1), created_ns=at * SECOND) for at in (5, 20))
    order = one_by_one(engine_of(node("a", gpus=2)), *unknown_age("one", 1, 10), younger, older)
    assert order == ["at-5", "one-10", "at-20"]


def test_gangs_of_unknown_age_are_as_old_as_their_oldest_waiting_pod() -> None:
    engine = engine_of(node("a", gpus=2))
    order = one_by_one(engine, *unknown_age("second", 2, 11, 12), *unknown_age("first", 2, 30, 10))
    assert [name.split("-")[0] for name in order] == ["first", "first", "second", "second"]
