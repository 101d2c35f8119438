"""Preemption: pods of lower priority end for one that fits nowhere, and its place is kept."""

import time

import numpy as np
import pytest
from engine_talk import SECOND, one_card, places, refused
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    BindFailed,
    BindOn,
    BudgetsChanged,
    Command,
    Engine,
    Evict,
    Faulted,
    NodesChanged,
    Nominate,
    NotEvicted,
    PodAdded,
    PodBound,
    PodGone,
    PodNominated,
    PodSeenBound,
    Tick,
    Unschedulable,
)
from weft.core.engine.gang_preempting import MOST_NODES
from weft.core.explain.smallest_change import ChangeSearch
from weft.core.framework import Policy, Profile, Query
from weft.core.framework.residency import Residencies
from weft.core.ledger import audit
from weft.core.ledger.table import Bools
from weft.core.policies.kube_knots import SmallestFirst
from weft.core.policies.packing import BestFit
from weft.core.preempt import Budget
from weft.kube.lease import LeaseOptions
from weft.model import Gang, Node, PodMarks, PodRequest
from weft.model.ceilings import MOST_GANG_PODS
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine
from weft.model.selectors import PodSelector, Requirement
from weft.testing import node, placement, pod

HALF = 8_192
CARD = 16_384


def preempting_on(*nodes: Node, law: bool = False) -> Engine:
    profile = Profile("weft", [BestFit()], preempts=True, budgets_are_law=law)
    return Engine([profile], nodes)


def bound(engine: Engine, *pods: PodRequest, now_ns: int = 0) -> None:
    for each in pods:
        found = places(engine.handle(PodAdded(each), now_ns))
        assert each.uid in found
        engine.handle(PodBound(each.uid), now_ns)


def ended(commands: list[Command]) -> list[str]:
    return sorted(c.placement.uid for c in commands if isinstance(c, Evict))


def nodes_kept(commands: list[Command]) -> dict[str, str]:
    return {c.pod.uid: c.node for c in commands if isinstance(c, Nominate)}


def share(name: str, memory_mib: int = HALF, priority: int = 0, **more: int) -> PodRequest:
    return pod(name, memory_mib=memory_mib, priority=priority, **more)  # type: ignore[arg-type]


def whole(name: str, priority: int = 0, gpus: int = 1) -> PodRequest:
    return pod(name, gpus=gpus, priority=priority)


def test_the_least_important_pod_ends_and_the_other_runs_in_its_place() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", priority=1), share("mid", priority=5))
    commands = engine.handle(PodAdded(share("high", priority=9)), 0)
    assert ended(commands) == ["low"]
    assert nodes_kept(commands) == {"high": "a"}
    assert not places(commands)
    assert places(engine.handle(PodGone("low"), SECOND)) == {"high": "a"}
    assert audit(engine.ledger) == []


def test_a_record_says_for_whom_and_who_has_to_go() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", CARD, priority=1))
    commands = engine.handle(PodAdded(share("high", priority=9)), 0)
    (told,) = (c for c in commands if isinstance(c, Unschedulable))
    assert told.record.preempts
    assert (told.record.preempts.node, told.record.preempts.victims) == ("a", ("low",))
    assert told.record.counts[0] == 0, "no node has room now"
    (evict,) = (c for c in commands if isinstance(c, Evict))
    assert evict.record.preempted
    assert (evict.record.preempted.pod, evict.record.preempted.pod_priority) == ("default/high", 9)


def test_nobody_of_equal_priority_ends_nor_for_who_never_preempts() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", CARD, priority=5))
    assert not ended(engine.handle(PodAdded(share("equal", priority=5)), 0))
    never = replace(share("never", priority=9), never_preempts=True)
    assert not ended(engine.handle(PodAdded(never), 0))


def test_only_those_on_the_card_that_is_needed_end() -> None:
    engine = preempting_on(node("a", gpus=2))
    bound(engine, share("a1", 12_000, priority=1), share("b1", 12_000, priority=1))
    bound(engine, share("b2", 2_000, priority=1))
    commands = engine.handle(PodAdded(share("high", 10_000, priority=9)), 0)
    assert len(ended(commands)) == 1
    assert ended(commands)[0] in {"a1", "b1"}


def test_whole_cards_are_cleared_where_that_ends_fewest() -> None:
    engine = preempting_on(node("a", gpus=3))
    bound(engine, share("a1", 9_000, 1), share("b1", 9_000, 1), share("c1", 9_000, 1))
    bound(engine, share("a2", 7_000, 1))
    commands = engine.handle(PodAdded(whole("high", 9, gpus=2)), 0)
    assert ended(commands) == ["b1", "c1"]


def test_what_is_free_of_the_place_is_not_taken_by_others_meanwhile() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", 9_000, 1), share("mid", 5_000, 5))
    assert ended(engine.handle(PodAdded(share("high", 11_000, 9)), 0)) == ["low"]
    assert refused(engine.handle(PodAdded(share("small", 2_000, 1)), 0)) == ["small"]
    assert refused(engine.handle(PodAdded(share("equal", 2_000, 9)), 0)) == ["equal"]
    assert places(engine.handle(PodGone("low"), 2 * SECOND)) == {"high": "a"}


def test_one_of_several_victims_leaves_and_its_share_is_kept() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("one", priority=1), share("two", priority=1))
    assert ended(engine.handle(PodAdded(whole("high", 9)), 0)) == ["one", "two"]
    engine.handle(PodGone("one"), SECOND)
    assert not places(engine.handle(PodAdded(share("small", 1_000, 1)), SECOND))
    assert places(engine.handle(PodGone("two"), 2 * SECOND)) == {"high": "a"}


def test_nobody_else_ends_for_a_pod_while_its_victims_leave() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    bound(engine, share("one", CARD, 1), share("two", CARD, 1))
    first = ended(engine.handle(PodAdded(whole("high", 9)), 0))
    assert len(first) == 1
    assert not ended(engine.handle(NodesChanged((node("c", gpus=0),)), SECOND))
    assert not ended(engine.handle(Tick(), 20 * SECOND))


def test_each_of_two_pods_has_victims_of_its_own() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    bound(engine, share("one", CARD, 1), share("two", CARD, 1))
    first = ended(engine.handle(PodAdded(whole("high", 9)), 0))
    second = ended(engine.handle(PodAdded(whole("next", 9)), 0))
    assert sorted(first + second) == ["one", "two"]
    assert len(places(engine.handle(PodGone("one"), SECOND))) == 1
    assert len(places(engine.handle(PodGone("two"), SECOND))) == 1


def test_a_higher_priority_takes_what_is_kept_and_ends_nobody_for_it_twice() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", CARD, 1))
    engine.handle(PodAdded(whole("high", 9)), 0)
    commands = engine.handle(PodAdded(whole("highest", 20)), 0)
    assert not ended(commands)
    assert nodes_kept(commands) == {"high": "", "highest": "a"}
    assert places(engine.handle(PodGone("low"), 20 * SECOND)) == {"highest": "a"}
    assert audit(engine.ledger) == []


def test_who_ends_nobody_takes_what_is_kept_for_a_less_important_pod_too() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", 9_000, 1), share("mid", 5_000, 5))
    assert ended(engine.handle(PodAdded(share("high", 11_000, 9)), 0)) == ["low"]
    equal = replace(share("equal", 300, 9), never_preempts=True)
    assert refused(engine.handle(PodAdded(equal), 0)) == ["equal"]
    never = replace(share("never", 300, 20), never_preempts=True)
    commands = engine.handle(PodAdded(never), 0)
    assert (places(commands), ended(commands)) == ({"never": "a"}, [])
    assert audit(engine.ledger) == []


def test_a_kept_place_that_is_free_now_is_taken_at_once() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    bound(engine, share("low", 9_000, 1), share("mid", CARD, 5))
    assert ended(engine.handle(PodAdded(share("high", 9_000, 9)), 0)) == ["low"]
    commands = engine.handle(PodAdded(share("higher", 7_000, 20)), 0)
    assert (places(commands), ended(commands)) == ({"higher": "a"}, [])
    assert audit(engine.ledger) == []


@pytest.mark.parametrize("keeps", [NOTHING_KEPT, HeadOfLine(0, SECOND, pods_after_ns=SECOND)])
def test_a_profile_without_preemption_takes_what_is_kept_for_less_important_pods(
    keeps: HeadOfLine,
) -> None:
    profiles = Profile("weft", [BestFit()], preempts=True), Profile("plain", [BestFit()])
    engine = Engine(profiles, [one_card()], head_of_line=keeps)
    bound(engine, share("low", 9_000, 1))
    assert ended(engine.handle(PodAdded(share("high", 11_000, 9)), 0)) == ["low"]
    other = replace(share("other", 7_000, 20), scheduler_name="plain")
    assert places(engine.handle(PodAdded(other), 0)) == {"other": "a"}


def test_a_nominated_pod_goes_elsewhere_if_it_fits_there_sooner() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", CARD, 1))
    engine.handle(PodAdded(whole("high", 9)), 0)
    commands = engine.handle(NodesChanged((one_card("b"),)), 20 * SECOND)
    commands += engine.handle(Tick(), 40 * SECOND)
    assert places(commands) == {"high": "b"}
    assert places(engine.handle(PodAdded(share("small", 1_000, 1)), 41 * SECOND)) == {}
    assert set(places(engine.handle(PodGone("low"), 60 * SECOND))) == {"small"}


def test_a_nominated_pod_starts_beside_its_victim_where_others_leave_it_enough() -> None:
    engine = preempting_on(node("a", gpus=3))
    bound(engine, whole("low"))
    engine.handle(PodAdded(whole("first", priority=9)), 0)
    commands = engine.handle(PodAdded(whole("high", priority=9, gpus=2)), 0)
    assert ended(commands) == ["low"]
    assert places(engine.handle(BindFailed("first"), SECOND)) == {"high": "a"}
    assert "low" in engine.ledger.holdings, "it is still leaving"
    assert not audit(engine.ledger)


@pytest.mark.parametrize(("of", "step"), [(BestFit, "score_nodes"), (Residencies, "add")])
def test_a_place_is_kept_through_a_decision_that_breaks_off(
    of: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = preempting_on(one_card(), one_card("b"))
    bound(engine, share("low", CARD), share("beside", CARD, priority=9))
    engine.handle(PodAdded(share("high", CARD, priority=9)), 0)
    monkeypatch.setattr(of, step, lambda *_: 1 // 0)
    commands = engine.handle(PodGone("low"), SECOND)
    assert [c.pod.uid for c in commands if isinstance(c, Faulted) and c.pod] == ["high"]
    monkeypatch.undo()
    assert not places(engine.handle(PodAdded(share("mid", CARD, priority=5)), 2 * SECOND))
    assert "high" in places(engine.handle(PodGone("beside"), 60 * SECOND))
    assert audit(engine.ledger) == []


def test_nothing_is_kept_for_a_pod_that_is_gone() -> None:
    engine = preempting_on(one_card())
    bound(engine, share("low", 9_000, 1))
    engine.handle(PodAdded(share("high", 11_000, 9)), 0)
    engine.handle(PodGone("high"), SECOND)
    assert places(engine.handle(PodAdded(share("small", 7_000, 1)), 2 * SECOND)) == {"small": "a"}
    assert set(engine.ledger.holdings) == {"low", "small"}


def seen(name: str, app: str, memory_mib: int, on: str = "a", priority: int = 1) -> PodSeenBound:
    marks = PodMarks("default", {"app": app})
    place = placement(name, on, 0, memory_mib=memory_mib)
    return PodSeenBound(place, marks=marks, priority=priority)


def budget(app: str, allowed: int) -> Budget:
    chosen = PodSelector(("default",), (Requirement("app", "In", (app,)),))
    return Budget(f"default/{app}", chosen, allowed)


def test_a_budget_is_spared_even_where_that_ends_a_more_important_pod() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    engine.handle(BudgetsChanged((budget("guarded", 0),)), 0)
    engine.handle(seen("guarded", "guarded", CARD, "a", 1), 0)
    engine.handle(seen("other", "other", CARD, "b", 5), 0)
    assert ended(engine.handle(PodAdded(whole("high", 9)), 0)) == ["other"]


def test_a_budget_is_violated_last_and_that_is_said_unless_it_is_law() -> None:
    for law in (False, True):
        engine = preempting_on(one_card(), law=law)
        engine.handle(BudgetsChanged((budget("guarded", 0),)), 0)
        engine.handle(seen("guarded", "guarded", CARD), 0)
        commands = engine.handle(PodAdded(whole("high", 9)), 0)
        assert ended(commands) == ([] if law else ["guarded"])
        (told,) = (c for c in commands if isinstance(c, Unschedulable))
        assert law or (told.record.preempts and told.record.preempts.violations == 1)


def test_a_budget_that_lets_pods_go_again_wakes_who_waits_for_it() -> None:
    engine = preempting_on(one_card(), law=True)
    engine.handle(BudgetsChanged((budget("guarded", 0),)), 0)
    engine.handle(seen("guarded", "guarded", CARD), 0)
    engine.handle(PodAdded(whole("high", 9)), 0)
    commands = engine.handle(BudgetsChanged((budget("guarded", 1),)), 20 * SECOND)
    commands += engine.handle(Tick(), 40 * SECOND)
    assert ended(commands) == ["guarded"]


def test_a_victim_that_does_not_go_is_left_alone_and_another_is_chosen() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    bound(engine, share("one", CARD, 1), share("two", CARD, 2))
    assert ended(engine.handle(PodAdded(whole("high", 9)), 0)) == ["one"]
    commands = engine.handle(NotEvicted("one", "it still exists", stays=True), 60 * SECOND)
    assert ended(commands) == ["two"]
    assert places(engine.handle(PodGone("two"), 70 * SECOND)) == {"high": "b"}


def test_a_place_is_kept_again_after_a_restart() -> None:
    engine = preempting_on(one_card())
    engine.handle(seen("low", "low", 9_000), 0)
    high = share("high", 11_000, 9)
    engine.handle(PodNominated(high, "a", ("low",)), 0)
    assert refused(engine.handle(PodAdded(share("small", 5_000, 1)), 0)) == ["small"]
    assert not ended(engine.handle(PodAdded(high), 0))
    assert set(places(engine.handle(PodGone("low"), SECOND))) == {"high", "small"}


def test_a_pod_of_unknown_priority_or_of_another_scheduler_is_never_ended() -> None:
    engine = preempting_on(one_card())
    engine.handle(PodSeenBound(placement("foreign", "a", 0, memory_mib=CARD)), 0)
    assert not ended(engine.handle(PodAdded(whole("high", 9)), 0))


def test_a_pod_that_another_scheduler_bound_after_all_is_not_ended() -> None:
    """Weft was to bind it (extender), and nobody heard of that: kube-scheduler bound it itself."""
    engine = preempting_on(one_card())
    (bind,) = (
        c for c in engine.handle(BindOn(share("low", CARD), "a", "weft"), 0) if isinstance(c, Bind)
    )
    engine.handle(PodSeenBound(bind.placement), SECOND)
    assert ended(engine.handle(PodAdded(share("high", priority=9)), 2 * SECOND)) == []


def test_a_gang_that_ends_as_one_ends_whole_or_not_at_all() -> None:
    train = Gang("kubernetes", "default", "train", least=2, ends_as_one=True)
    engine = preempting_on(one_card("a"), one_card("b"), one_card("c"))
    for name in ("p0", "p1"):
        engine.handle(PodAdded(replace(whole(name, 1), gang=train)), 0)
        engine.handle(PodBound(name), 0)
    bound(engine, whole("single", 2))
    assert ended(engine.handle(PodAdded(whole("high", 9)), 0)) == ["p0", "p1"]


def test_a_profile_that_does_not_preempt_ends_nobody() -> None:
    engine = Engine([Profile("weft", [BestFit()])], [one_card()])
    bound(engine, share("low", CARD, 1))
    assert not ended(engine.handle(PodAdded(whole("high", 9)), 0))


def test_who_may_end_others_looks_again_when_a_more_important_pod_left() -> None:
    engine = preempting_on(node("a", gpus=2))
    bound(engine, whole("equal", 9), share("low", CARD, 1))
    assert not ended(engine.handle(PodAdded(whole("high", 9, gpus=2)), 0))
    commands = engine.handle(PodGone("equal"), SECOND)
    commands += engine.handle(Tick(), 20 * SECOND)
    assert ended(commands) == ["low"]
    assert places(engine.handle(PodGone("low"), 30 * SECOND)) == {"high": "a"}


def test_pods_without_gpus_end_for_cpu() -> None:
    engine = preempting_on(node("a", gpus=0, cpu_milli=4_000))
    bound(engine, pod("one", cpu_milli=1_500, priority=1), pod("two", cpu_milli=2_000, priority=1))
    commands = engine.handle(PodAdded(pod("high", cpu_milli=2_000, priority=9)), 0)
    assert ended(commands) == ["two"] or ended(commands) == ["one"]


def gang_of(count: int, priority: int, key: str = "") -> list[PodRequest]:
    train = Gang("kubernetes", "default", "big", least=count, topology_key=key)
    return [replace(whole(f"g{at}", priority), gang=train) for at in range(count)]


def added(engine: Engine, pods: list[PodRequest], now_ns: int = 0) -> list[Command]:
    return [c for each in pods for c in engine.handle(PodAdded(each), now_ns)]


def test_a_gang_ends_as_many_as_it_needs_and_all_its_places_are_kept() -> None:
    engine = preempting_on(node("a", gpus=2), node("b", gpus=2))
    bound(engine, whole("low0", 1), whole("low1", 1), whole("same", 9))
    commands = added(engine, gang_of(3, 9))
    assert len(ended(commands)) == 2
    assert set(nodes_kept(commands)) == {"g0", "g1", "g2"}
    assert refused(engine.handle(PodAdded(whole("equal", 9)), 0)) == ["equal"]
    first, second = ended(commands)
    assert not places(engine.handle(PodGone(first), SECOND))
    assert not ended(engine.handle(Tick(), 20 * SECOND))
    assert set(places(engine.handle(PodGone(second), 30 * SECOND))) == {"g0", "g1", "g2"}
    assert not engine.preemption.nominations
    assert audit(engine.ledger) == []


def test_a_large_gang_ends_those_that_it_lacks_places_for_where_most_nodes_are_free() -> None:
    engine = preempting_on(*(one_card(f"n{at:02d}") for at in range(MOST_NODES + 2)))
    bound(engine, whole("low", 1))
    assert ended(added(engine, gang_of(MOST_NODES + 2, 9))) == ["low"]


def test_the_largest_gang_is_decided_before_the_lease_runs_out() -> None:
    """In the time of one decision the process does not renew its lease."""
    options = LeaseOptions()
    engine = preempting_on(*(one_card(f"n{at:04d}") for at in range(MOST_GANG_PODS)))
    bound(engine, whole("low", 1))
    *others, last = gang_of(MOST_GANG_PODS, 9)
    added(engine, others)
    began = time.thread_time()
    assert ended(engine.handle(PodAdded(last), 0)) == ["low"]
    took = time.thread_time() - began
    assert took < options.duration_s - options.renew_s - 2 * options.request_timeout_s


def test_a_gang_for_which_even_all_would_not_be_enough_ends_nobody() -> None:
    engine = preempting_on(node("a", gpus=2), node("b", gpus=2))
    bound(engine, whole("equal", 9), whole("low", 1))
    assert not ended(added(engine, gang_of(4, 9)))
    assert set(engine.ledger.holdings) == {"equal", "low"}


def test_a_gang_ends_pods_of_one_topology_domain_only() -> None:
    zones = [replace(node(name, gpus=2), labels={"zone": name}) for name in ("a", "b")]
    engine = preempting_on(*zones)
    bound(engine, *(whole(f"low{at}", 1) for at in range(4)))
    commands = added(engine, gang_of(2, 9, "zone"))
    assert len(ended(commands)) == 2
    assert len(set(nodes_kept(commands).values())) == 1


def test_nothing_is_kept_for_a_gang_of_which_a_pod_is_gone() -> None:
    engine = preempting_on(node("a", gpus=2))
    bound(engine, whole("low", 1))
    assert ended(added(engine, gang_of(2, 9))) == ["low"]
    engine.handle(PodGone("g1"), SECOND)
    assert not engine.preemption.nominations
    assert places(engine.handle(PodAdded(whole("small", 1)), SECOND)) == {"small": "a"}


def test_a_higher_pod_takes_the_place_kept_for_a_gang_which_then_looks_again() -> None:
    engine = preempting_on(node("a", gpus=2), node("b", gpus=2))
    bound(engine, *(whole(f"low{at}", 1) for at in range(4)))
    victims = ended(added(engine, gang_of(2, 9)))
    assert len(victims) == 2
    commands = engine.handle(PodAdded(whole("highest", 20)), SECOND)
    commands += engine.handle(Tick(), 20 * SECOND)
    for uid in {*victims, *ended(commands)}:
        commands += engine.handle(PodGone(uid), 30 * SECOND)
    for now in (50, 70):
        found = engine.handle(Tick(), now * SECOND)
        commands += found
        for uid in ended(found):
            commands += engine.handle(PodGone(uid), now * SECOND)
    assert set(places(commands)) >= {"highest", "g0", "g1"}
    assert audit(engine.ledger) == []


def test_a_place_that_is_kept_is_no_pod_that_somebody_could_end() -> None:
    """The search for the smallest change tried to end it, and named a pod that there is not."""
    engine = preempting_on(one_card())
    bound(engine, share("one", priority=1, milli=500), share("two", priority=1, milli=500))
    engine.handle(PodAdded(whole("high", priority=9)), 0)
    engine.handle(PodGone("one"), SECOND)
    assert "kept-for/high" in engine.ledger.holdings
    waits = share("waits", priority=5, milli=500)
    engine.handle(PodAdded(waits), SECOND)
    search = ChangeSearch(engine, engine.profile_of(waits), waits)
    for _ in search.steps():
        pass
    free = [uid for change in search.found for uid in change.free]
    assert free == ["two"]


def test_room_that_a_higher_pod_took_over_is_nobodys_else_of_its_priority() -> None:
    engine = preempting_on(one_card())
    bound(engine, whole("low", 1))
    assert ended(engine.handle(PodAdded(whole("mid", 5)), 0)) == ["low"]
    assert nodes_kept(engine.handle(PodAdded(whole("high", 9)), 0))["high"] == "a"
    assert nodes_kept(engine.handle(PodAdded(whole("equal", 9)), 0)) == {}
    assert places(engine.handle(PodGone("low"), 20 * SECOND)) == {"high": "a"}


def test_who_can_end_nobody_is_not_woken_by_each_pod_that_goes() -> None:
    """Each vain try made its back-off longer, and capacity that was freed waited for its end."""
    engine = preempting_on(one_card("a"), one_card("b"))
    bound(engine, share("small", 1_000), share("large", CARD - 2_000), whole("other"))
    engine.handle(PodAdded(whole("waits")), 0)
    for number in range(5):
        bound(engine, share(f"brief-{number}", 1), now_ns=number * SECOND)
        gone = engine.handle(PodGone(f"brief-{number}"), number * SECOND)
        assert not any(isinstance(each, Unschedulable) for each in gone)
    assert places(engine.handle(PodGone("other"), 5 * SECOND))


def test_room_that_is_left_beside_a_place_kept_for_an_equal_is_had_before_others_end() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    bound(engine, share("low", 12_000, 1), share("mid", CARD, 5))
    assert ended(engine.handle(PodAdded(share("high", 8_000, 9)), 0)) == ["low"]
    commands = engine.handle(PodAdded(share("equal", 7_000, 9)), 0)
    assert (ended(commands), nodes_kept(commands)) == ([], {"equal": "a"})
    assert refused(engine.handle(PodAdded(share("small", 2_000, 1)), 0)) == ["small"]
    assert places(engine.handle(PodGone("low"), SECOND)) == {"high": "a", "equal": "a"}
    assert audit(engine.ledger) == []


def test_room_that_is_not_left_beside_a_place_kept_for_an_equal_is_not_counted_on() -> None:
    engine = preempting_on(one_card("a"), one_card("b"))
    bound(engine, share("low", 12_000, 1), share("mid", CARD, 5))
    assert ended(engine.handle(PodAdded(share("high", 8_000, 9)), 0)) == ["low"]
    assert ended(engine.handle(PodAdded(share("equal", 9_000, 9)), 0)) == ["mid"]
    assert places(engine.handle(PodGone("low"), SECOND)) == {"high": "a"}
    assert places(engine.handle(PodGone("mid"), 2 * SECOND)) == {"equal": "b"}


def test_a_place_beside_one_that_is_kept_needs_fewer_victims() -> None:
    engine = preempting_on(one_card("a"), node("b", gpus=0))
    bound(engine, share("low", 9_000, 1), share("mid", 5_000, 5), share("top", 2_000, 9))
    assert ended(engine.handle(PodAdded(share("high", 7_000, 9)), 0)) == ["low"]
    commands = engine.handle(PodAdded(share("equal", 7_000, 9)), 0)
    assert ended(commands) == ["mid"]
    engine.handle(PodGone("mid"), SECOND)
    assert places(engine.handle(PodGone("low"), SECOND)) == {"high": "a", "equal": "a"}


def test_places_of_a_gang_are_taken_by_its_heads_priority_alone() -> None:
    """A pod between its pods' priorities takes none: gang and pod would take turns for ever."""
    engine = preempting_on(node("a", gpus=2), node("b", gpus=2), node("c", gpus=2))
    bound(engine, *(pod(f"low{number}", gpus=1, priority=-5) for number in range(4)))
    bound(engine, *(pod(f"mid{number}", gpus=1, priority=4) for number in range(2)))
    gang = Gang("kubernetes", "default", "train", least=2)
    first, second = (
        replace(pod(f"train-{priority}", gpus=2, priority=priority), gang=gang)
        for priority in (5, 0)
    )
    asked = [c for each in (first, second) for c in engine.handle(PodAdded(each), SECOND)]
    assert nodes_kept(asked).keys() == {"train-5", "train-0"}
    out = engine.handle(PodAdded(pod("between", gpus=2, priority=1)), 2 * SECOND)
    assert refused(out) == ["between"]
    assert engine.preemption.nominations.keys() == {"train-5", "train-0"}


class NotAlone(Policy):
    """Admits only GPUs with two others on them."""

    name = "not-alone"
    reads = frozenset({"co_residents"})

    def filter_devices(self, query: Query) -> Bools:
        return np.asarray(query.device_pods >= 2)


class Alone(Policy):
    """Admits only idle GPUs."""

    name = "alone"

    def filter_devices(self, query: Query) -> Bools:
        return np.asarray(query.device_pods == 0)


def test_a_place_that_is_kept_wakes_whom_a_policy_lets_join_it() -> None:
    profiles = [
        Profile("weft", [Alone()], preempts=True),
        Profile("joins", [NotAlone()]),
    ]
    engine = Engine(profiles, [one_card()])
    bound(engine, share("low", 5_000, priority=0))
    joins = replace(share("joins", 1_000, priority=1), scheduler_name="joins")
    assert refused(engine.handle(PodAdded(joins), 0)) == ["joins"]
    commands = engine.handle(PodAdded(share("high", HALF, priority=1)), 20 * SECOND)
    assert ended(commands) == ["low"]
    assert places(commands) == {"joins": "a"}


@pytest.mark.parametrize("by_weft", [True, False], ids=["another-profile", "another-scheduler"])
def test_a_pod_wakes_whom_a_policy_lets_join_it(by_weft: bool) -> None:
    """Though no policy of its own profile asks who is on a GPU."""
    profiles = [Profile("weft", [BestFit()]), Profile("joins", [NotAlone()])]
    engine = Engine(profiles, [one_card()])
    bound(engine, share("one", 2_000, priority=0))
    joins = replace(share("joins", 1_000, priority=0), scheduler_name="joins")
    assert refused(engine.handle(PodAdded(joins), 0)) == ["joins"]
    two = share("two", 2_000, priority=0)
    if by_weft:
        commands = engine.handle(PodAdded(two), 20 * SECOND)
    else:
        there = placement(two.uid, "a", 0, memory_mib=2_000)
        commands = engine.handle(PodSeenBound(there), 20 * SECOND)
    assert places(commands)["joins"] == "a"


def test_nobody_is_ended_while_a_more_important_pod_has_its_turn() -> None:
    """By size it comes after another one of its profile, and takes the place: in vain the first one
    would have ended somebody."""
    by_size = Profile("by-size", [SmallestFirst(), BestFit()], preempts=True)
    engine = Engine([Profile("weft", [BestFit()], preempts=True), by_size], [one_card()])
    bound(engine, share("top", 10_000, priority=9), share("low", 6_000, priority=0))
    small = replace(share("small", 500, priority=0), scheduler_name="by-size")
    more = replace(share("more", 10_000, priority=2), scheduler_name="by-size")
    for each in (share("less", 12_000, priority=1), small, more):
        assert refused(engine.handle(PodAdded(each), 0)) == [each.uid]
    commands = engine.handle(PodGone("top"), 60 * SECOND)
    assert not ended(commands)
    assert places(commands) == {"more": "a"}


def test_of_pods_that_were_ended_long_ago_nothing_stays() -> None:
    engine = preempting_on(one_card())
    for number in range(50):
        now_ns = number * 600 * SECOND
        bound(engine, share(f"low{number}", CARD, priority=1), now_ns=now_ns)
        assert ended(engine.handle(PodAdded(share(f"high{number}", CARD, priority=9)), now_ns))
        assert places(engine.handle(PodGone(f"low{number}"), now_ns)) == {f"high{number}": "a"}
        engine.handle(PodGone(f"high{number}"), now_ns)
    assert len(engine.slowdown_eviction._sent) == 1
    assert not engine.preemption.standings
    assert not engine.preemption.going
