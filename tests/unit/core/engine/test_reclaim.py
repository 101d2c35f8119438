"""Queues take back what others borrowed: who is ended for whom, and who never is."""

from engine_talk import SECOND, add, of_team, places
from msgspec.structs import replace

from weft.core.engine import (
    BudgetsChanged,
    Command,
    Engine,
    Evict,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
)
from weft.core.engine.questions import OfferedVictims, offered_victims
from weft.core.explain.sentences import preempted_in_words
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.core.preempt import Budget
from weft.model import DeviceRule, Gang, PodMarks, PodRequest
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.model.selectors import PodSelector, Requirement
from weft.testing import node


def promised(**gpus: int) -> QueueRules:
    queues = tuple(
        QueueTerms(name, guarantee=QueueAmounts(1000 * n)) for name, n in sorted(gpus.items())
    )
    return QueueRules("fair", queues, reclaim=True)


def deciding(rules: QueueRules, gpus: int = 4, preempts: bool = True) -> Engine:
    return Engine(
        [Profile("weft", [BestFit()], preempts=preempts)], [node("n", gpus=gpus)], queues=rules
    )


def ended(commands: list[Command]) -> list[Evict]:
    return [command for command in commands if isinstance(command, Evict)]


def test_borrowers_end_for_a_queue_below_its_guarantee_whatever_their_priority() -> None:
    engine = deciding(promised(a=2, b=2))
    for number in range(4):
        add(engine, of_team("b", f"b{number}", priority=100), at_s=number)
    (evicted,) = ended(add(engine, of_team("a", "a0"), at_s=4))
    assert evicted.placement.uid == "b3", "the latest of equals"
    why = evicted.record.preempted
    assert why
    assert preempted_in_words(why) == ("preempted by default/a0: queue a reclaims its guarantee")
    assert places(engine.handle(PodGone(evicted.placement.uid), 5 * SECOND)) == {"a0": "n"}
    assert audit(engine.ledger) == []


def test_it_ends_at_the_guarantees() -> None:
    engine = deciding(promised(a=2, b=2))
    add(engine, *(of_team("b", f"b{i}") for i in range(4)))
    for number in range(3):
        for evicted in ended(add(engine, of_team("a", f"a{number}"), at_s=number)):
            for uid in places(engine.handle(PodGone(evicted.placement.uid), number * SECOND)):
                engine.handle(PodBound(uid), number * SECOND)
    assert engine.teams.use("a").gpu_milli == engine.teams.use("b").gpu_milli == 2_000
    assert "a2" in engine.queue


def test_nobody_takes_what_is_a_queues_own_however_important() -> None:
    engine = deciding(promised(a=2, b=2))
    add(engine, of_team("a", "a0"), of_team("a", "a1"), of_team("b", "b0"), of_team("b", "b1"))
    commands = add(engine, of_team("c", "stranger", priority=1_000), at_s=2)
    assert not ended(commands)


def test_within_a_queue_priority_decides() -> None:
    engine = deciding(promised(a=2, b=2))
    add(engine, of_team("a", "a0"), of_team("a", "a1"), of_team("b", "b0"), of_team("b", "b1"))
    (evicted,) = ended(add(engine, of_team("b", "vip", priority=1_000), at_s=1))
    assert evicted.placement.uid in {"b0", "b1"}
    assert evicted.record.preempted
    assert evicted.record.preempted.queue == ""


def test_queues_do_not_end_each_others_pods_by_turns() -> None:
    """The borrower's next pod, more important, does not take the place that is kept, nor the one
    that was given back."""
    engine = deciding(promised(a=2, b=2))
    add(engine, *(of_team("b", f"b{i}", priority=100) for i in range(4)))
    (evicted,) = ended(add(engine, of_team("a", "a0"), at_s=1))
    again = add(engine, of_team("b", "b9", priority=1_000), at_s=2)
    assert {one.placement.uid for one in ended(again)} <= {"b0", "b1", "b2", "b3"}
    engine.handle(PodGone(evicted.placement.uid), 3 * SECOND)
    assert engine.teams.use("a").gpu_milli == 1_000
    commands = add(engine, of_team("b", "b10", priority=1_000), at_s=4)
    assert "a0" not in {one.placement.uid for one in ended(commands)}


def test_without_reclaim_or_preemption_nobody_is_ended_for_a_queue() -> None:
    for rules, preempts in ((replace(promised(a=2), reclaim=False), True), (promised(a=2), False)):
        engine = deciding(rules, preempts=preempts)
        add(engine, *(of_team("b", f"b{i}") for i in range(4)))
        assert not ended(add(engine, of_team("a", "a0"), at_s=1))


# --- borrowers first, and of these the least -----------------------------------------------------


def uids(commands: list[Command]) -> list[str]:
    return sorted(each.placement.uid for each in ended(commands))


def with_an_own_low_pod(borrowers: int = 3, gpus: int = 4) -> Engine:
    """Queue a has a pod of priority 0 and less than its guarantee; queue b borrows all but one."""
    engine = deciding(promised(a=3, b=1), gpus)
    add(engine, of_team("a", "own-low", priority=0))
    for number in range(borrowers):
        add(engine, of_team("b", f"b{number}", priority=10), at_s=number)
    return engine


def test_a_borrower_ends_before_a_less_important_pod_of_the_own_queue() -> None:
    engine = with_an_own_low_pod()
    assert uids(add(engine, of_team("a", "high", priority=5), at_s=9)) == ["b2"]


def test_where_borrowers_alone_are_not_enough_own_pods_end_too() -> None:
    engine = with_an_own_low_pod(borrowers=2, gpus=3)  # b borrows one only
    found = uids(add(engine, of_team("a", "high", gpus=2, priority=5), at_s=9))
    assert found == ["b1", "own-low"]


def test_a_borrower_ends_before_an_own_pod_though_its_budget_allows_nothing() -> None:
    engine = with_an_own_low_pod()
    none = Budget("default/b", PodSelector(("default",), (Requirement("team", "In", ("b",)),)))
    for number in range(3):
        seen = engine.ledger.holdings[f"b{number}"].placement
        marks = PodMarks("default", {"team": "b"})
        engine.handle(PodSeenBound(seen, marks=marks, priority=10, queue="b"), SECOND)
    engine.handle(BudgetsChanged((none,)), SECOND)
    assert uids(add(engine, of_team("a", "high", priority=5), at_s=9))[0].startswith("b")


def test_the_least_important_borrower_ends_and_not_the_latest() -> None:
    engine = deciding(promised(a=2, b=1))
    priorities = {"b0": 100, "b1": 3, "b2": 100, "b3": 7}
    add(engine, *(of_team("b", name, priority=p) for name, p in priorities.items()))
    assert uids(add(engine, of_team("a", "a0"), at_s=1)) == ["b1"]
    assert uids(add(engine, of_team("a", "a1"), at_s=2)) == ["b3"]


def test_an_older_borrower_ends_where_the_latest_are_on_other_gpus() -> None:
    """Which pods of a queue borrow follows from which have to end, not from when they came."""
    nodes = node("h", gpus=1, model="H100"), node("t", gpus=1, model="T4")
    profile = Profile("weft", [BestFit()], preempts=True)
    engine = Engine([profile], nodes, queues=promised(a=1, b=1))
    add(engine, on("H100", of_team("b", "first")), on("T4", of_team("b", "latest")))
    assert uids(add(engine, on("H100", of_team("a", "a0")), at_s=1)) == ["first"]


def on(model: str, asked: PodRequest) -> PodRequest:
    return replace(asked, shape=replace(asked.shape, devices=DeviceRule(models=(model,))))


def test_all_victims_together_leave_their_queue_its_guarantee() -> None:
    """Each of the three could be ended alone; two GPUs more would be taken from what is its own."""
    engine = deciding(promised(a=4, b=2), 3)
    add(engine, *(of_team("b", f"b{i}") for i in range(3)))
    assert not ended(add(engine, of_team("a", "large", gpus=2), at_s=1))
    assert len(ended(add(engine, of_team("a", "small"), at_s=2))) == 1


def test_pods_that_leave_already_do_not_count_as_borrowed_again() -> None:
    engine = deciding(promised(a=4, b=2))
    add(engine, *(of_team("b", f"b{i}", priority=4 - i) for i in range(4)))
    for number in range(4):
        add(engine, of_team("a", f"a{number}"), at_s=1)
    assert engine.preemption.going.keys() == {"b2", "b3"}


def test_places_that_are_kept_count_towards_the_guarantee_that_is_reclaimed() -> None:
    """While the borrower still ends, the queue's next pod does not reclaim beyond the guarantee."""
    engine = deciding(promised(a=1))
    add(engine, *(of_team("b", f"b{i}") for i in range(4)))
    assert len(ended(add(engine, of_team("a", "a0"), at_s=1))) == 1
    assert not ended(add(engine, of_team("a", "a1"), at_s=1))


def members(team: str, name: str, size: int, priority: int = 0) -> list[PodRequest]:
    gang = Gang("kubernetes", "default", name, least=size)
    return [
        replace(of_team(team, f"{name}-{at}", priority=priority), gang=gang) for at in range(size)
    ]


def test_for_a_gang_borrowers_end_first_too_and_the_least_important() -> None:
    engine = deciding(promised(a=4, b=1), 5)
    add(engine, of_team("a", "own-low"))
    add(engine, *(of_team("b", f"b{i}", priority=10 + i) for i in range(4)))
    assert uids(add(engine, *members("a", "two", 2, priority=5), at_s=1)) == ["b0", "b1"]


def test_for_a_gang_own_pods_end_where_borrowers_are_not_enough_and_no_guarantee_is_taken() -> None:
    engine = deciding(promised(a=4, b=2))
    add(engine, of_team("a", "own-low"))
    add(engine, *(of_team("b", f"b{i}", priority=10 - i) for i in range(3)))
    assert not ended(add(engine, *members("a", "three", 3, priority=5), at_s=1))
    for each in members("a", "three", 3):
        engine.handle(PodGone(each.uid), 2 * SECOND)
    assert uids(add(engine, *members("a", "two", 2, priority=5), at_s=3)) == ["b2", "own-low"]


# --- fair order without reclaim -------------------------------------------------------------------


def fair(**gpus: int) -> QueueRules:
    return replace(promised(**gpus), reclaim=False)


def test_in_fair_order_priority_ends_pods_of_the_own_queue_alone() -> None:
    engine = deciding(fair(a=2))
    add(engine, *(of_team("a", f"a{i}") for i in range(2)))
    add(engine, *(of_team("b", f"b{i}", priority=5 * i) for i in range(2)))
    assert not ended(add(engine, of_team("c", "stranger", priority=1_000), at_s=1))
    assert not ended(add(engine, *members("c", "gang", 2, priority=1_000), at_s=1))
    assert uids(add(engine, of_team("b", "vip", priority=9), at_s=2)) == ["b0"]


def test_in_fair_order_no_priority_takes_a_place_kept_for_another_queue() -> None:
    engine = deciding(fair(a=2), 1)
    add(engine, of_team("a", "a0"))
    assert uids(add(engine, of_team("a", "vip", priority=1), at_s=1)) == ["a0"]
    add(engine, of_team("b", "stranger", priority=1_000), at_s=2)
    assert places(engine.handle(PodGone("a0"), 3 * SECOND)) == {"vip": "n"}


def test_by_priority_alone_whose_queue_a_pod_is_in_does_not_matter() -> None:
    engine = deciding(QueueRules(queues=fair(a=4).queues))
    add(engine, *(of_team("a", f"a{i}") for i in range(4)))
    assert len(ended(add(engine, of_team("c", "stranger", priority=1_000), at_s=1))) == 1


# --- what wakes a pod that may reclaim -----------------------------------------------------------


def with_two_models(rules: QueueRules) -> Engine:
    nodes = node("h", gpus=1, model="H100"), node("t", gpus=2, model="T4")
    return Engine([Profile("weft", [BestFit()], preempts=True)], nodes, queues=rules)


def test_a_pod_reclaims_once_another_queue_borrows_elsewhere() -> None:
    """The other queue borrows with its pod on the H100 once it has one more on a T4."""
    engine = with_two_models(promised(a=1, b=1))
    add(engine, on("H100", of_team("b", "b0")))
    assert not ended(add(engine, on("H100", of_team("a", "a0")), at_s=1))
    out = add(engine, on("T4", of_team("b", "b1")), at_s=20)
    assert uids(out + engine.handle(Tick(), 40 * SECOND)) == ["b0"]


def test_a_pod_reclaims_once_its_queue_falls_below_its_guarantee() -> None:
    engine = with_two_models(promised(a=1, b=1))
    add(engine, on("T4", of_team("a", "a0")), on("T4", of_team("b", "b0")))
    add(engine, on("H100", of_team("b", "b1")))
    assert not ended(add(engine, on("H100", of_team("a", "high", priority=9)), at_s=1))
    out = engine.handle(PodGone("a0"), 20 * SECOND)
    assert uids(out + engine.handle(Tick(), 40 * SECOND)) == ["b1"]


# --- victims that kube-scheduler proposes --------------------------------------------------------


def offers(engine: Engine, pod: PodRequest, *proposed: str, by_sums: bool) -> list[str]:
    """The victims on node n that are offered for this proposal."""
    told = {"n": OfferedVictims(proposed)}
    found = offered_victims(engine, engine.profile_of(pod), pod, told, by_sums=by_sums)
    return sorted(uid for each in found.values() for uid in each.uids)


def test_victims_of_another_queue_are_not_offered_however_unimportant() -> None:
    engine = deciding(fair(a=2))
    add(engine, *(of_team("a", f"a{i}") for i in range(2)), of_team("c", "own", priority=1))
    add(engine, of_team("b", "b0"))
    vip = of_team("c", "vip", priority=9)
    assert offers(engine, vip, "a0", by_sums=False) == []
    assert offers(engine, vip, "a0", by_sums=True) == ["own"]
    assert offers(engine, vip, "own", by_sums=False) == ["own"]


def test_borrowers_are_offered_to_a_queue_that_reclaims_and_nobody_of_a_guarantee() -> None:
    engine = deciding(promised(a=2, b=2))
    add(engine, *(of_team("b", f"b{i}") for i in range(3)))
    add(engine, of_team("c", "other"))
    low = of_team("a", "a0", gpus=2, priority=9)
    assert offers(engine, low, "b0", "b1", by_sums=False) == []
    assert offers(engine, low, "b0", "other", by_sums=False) == ["b0", "other"]
    assert offers(engine, low, by_sums=False) == ["b0", "other"]
