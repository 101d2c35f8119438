"""Queues take back what others borrowed: who is ended for whom, and who never is."""

from engine_talk import SECOND, add, of_team, places
from msgspec.structs import replace

from weft.core.engine import Command, Engine, Evict, PodBound, PodGone
from weft.core.explain.sentences import preempted_in_words
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
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
    add(engine, *(of_team("b", f"b{i}", priority=100) for i in range(4)))
    (evicted,) = ended(add(engine, of_team("a", "a0"), at_s=1))
    assert evicted.placement.uid in {"b2", "b3"}
    why = evicted.record.preempted
    assert why
    assert preempted_in_words(why) == ("preempted by default/a0: queue a reclaims its guarantee")
    assert places(engine.handle(PodGone(evicted.placement.uid), 2 * SECOND)) == {"a0": "n"}
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
