"""Pods that may be moved are, for one of several GPUs that fits nowhere and has waited."""

from engine_talk import SECOND, one_card, places
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    BindFailed,
    BudgetsChanged,
    Command,
    Engine,
    Evict,
    Faulted,
    NodesChanged,
    NotEvicted,
    PodAdded,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
    Wake,
)
from weft.core.engine.waiting_moves import AGAIN_NS, HOUR_NS
from weft.core.explain.sentences import decision_notes
from weft.core.framework import Policy, Profile, Query
from weft.core.ledger import audit
from weft.core.ledger.table import Ints
from weft.core.policies.packing import BestFit
from weft.core.preempt import Budget
from weft.model import Constraints, PodMarks, PodRequest
from weft.model.queue_rules import MoveRules, QueueAmounts, QueueRules, QueueTerms
from weft.model.selectors import PodSelector, Requirement
from weft.model.storage import MountedVolumes, StorageRules
from weft.testing import node, placement, pod

AFTER = 60 * SECOND


def waiting_on_moves(
    *shares: tuple[str, int, int],
    restart_s: int | None = 30,
    an_hour: int = 60,
    policy: Policy | None = None,
) -> Engine:
    """Node a has two cards, and node b one that is free. Each share is a pod's name, its card of a,
    and its priority; it holds half of the card, and may move."""
    rules = MoveRules(AFTER, an_hour)
    profile = Profile("weft", [policy or BestFit()], preempts=False)
    engine = Engine([profile], [node("a", gpus=2), one_card("b")], moves=rules)
    for name, gpu, priority in shares:
        asked = pod(name, memory_mib=8_000, priority=priority)
        anew = asked if restart_s is None else replace(asked, restart_s=restart_s)
        where = placement(name, "a", gpu, memory_mib=8_000)
        marks = PodMarks("default", {"app": name})
        engine.handle(PodSeenBound(where, marks=marks, priority=priority, movable=anew), 0)
    return engine


def two(priority: int = 0) -> PodRequest:
    return pod("two", gpus=2, priority=priority)


def asked_to_move(commands: list[Command]) -> dict[str, str]:
    evicted = [each.record for each in commands if isinstance(each, Evict)]
    return {each.uid: each.preempted.moves_to for each in evicted if each.preempted}


def wake_of(commands: list[Command]) -> int:
    return max(each.at_ns for each in commands if isinstance(each, Wake))


def after_a_minute(engine: Engine, asked: PodRequest) -> list[Command]:
    commands = engine.handle(PodAdded(asked), 0)
    assert not asked_to_move(commands)
    assert wake_of(commands) == AFTER
    return engine.handle(Tick(), AFTER)


def test_after_a_minute_a_share_moves_and_its_place_is_kept() -> None:
    engine = waiting_on_moves(("one", 0, 0))
    commands = after_a_minute(engine, two())
    assert asked_to_move(commands) == {"one": "b"}
    (told,) = (each.record for each in commands if isinstance(each, Unschedulable))
    assert decision_notes(told)[-1] == (
        "pods are moved for it: 15 GPU s of work are repeated, and it has waited for 120 GPU s"
    )
    assert places(engine.handle(PodGone("one"), AFTER + SECOND)) == {"two": "a"}
    anew = pod("anew", memory_mib=8_000)
    assert places(engine.handle(PodAdded(anew), AFTER + SECOND)) == {"anew": "b"}
    assert engine.preemption.moves.moved == 1
    assert round(engine.preemption.moves.lost_gpu_s) == 15
    assert audit(engine.ledger) == []


def test_nobody_moves_where_it_is_off_or_for_a_pod_of_one_gpu() -> None:
    assert not Engine([Profile("weft", [BestFit()])]).preemption.on
    engine = waiting_on_moves(("one", 0, 0))
    engine.handle(PodSeenBound(placement("full", "a", 1, memory_mib=16_000), priority=0), 0)
    engine.handle(PodSeenBound(placement("b", "b", 0, memory_mib=1_000), priority=0), 0)
    commands = engine.handle(PodAdded(pod("whole", gpus=1)), 0)
    assert not asked_to_move([*commands, *engine.handle(Tick(), AFTER)])


def test_nobody_moves_for_a_less_important_pod() -> None:
    engine = waiting_on_moves(("one", 0, 1))
    assert asked_to_move(after_a_minute(engine, two())) == {}
    equal = waiting_on_moves(("one", 0, 1))
    assert asked_to_move(after_a_minute(equal, two(priority=1))) == {"one": "b"}


def test_all_that_move_must_have_room() -> None:
    both = waiting_on_moves(("one", 0, 0), ("two-b", 1, 0))
    assert asked_to_move(after_a_minute(both, two())) == {"one": "b", "two-b": "b"}
    three = waiting_on_moves(("one", 0, 0), ("two-b", 1, 0), ("three", 1, 0))
    assert asked_to_move(after_a_minute(three, two())) == {}
    assert three.handle(Tick(), HOUR_NS) == []
    found = three.handle(PodGone("three"), HOUR_NS)
    found += three.handle(Tick(), HOUR_NS + AGAIN_NS)
    assert asked_to_move(found) == {"one": "b", "two-b": "b"}


def test_a_move_waits_until_as_much_was_waited_as_it_loses() -> None:
    """600 s of half a GPU: a pod of two waits 150 s for it."""
    engine = waiting_on_moves(("one", 0, 0), restart_s=600)
    commands = after_a_minute(engine, two())
    assert not asked_to_move(commands)
    at_ns = wake_of(commands)
    assert abs(at_ns / SECOND - 146.5) < 4
    assert asked_to_move(engine.handle(Tick(), at_ns)) == {"one": "b"}


def test_without_a_restart_cost_all_work_since_the_start_is_lost() -> None:
    engine = waiting_on_moves(("one", 0, 0), restart_s=None)
    engine.preemption.standings["one"] = 0, -1_000 * SECOND
    commands = after_a_minute(engine, two())
    assert not asked_to_move(commands)
    assert asked_to_move(engine.handle(Tick(), wake_of(commands))) == {"one": "b"}


def test_of_as_few_pods_those_move_that_lose_least() -> None:
    engine = waiting_on_moves(("cheap", 0, 0))
    dear = replace(pod("dear", memory_mib=8_000), restart_s=90)
    where = placement("dear", "c", 0, memory_mib=8_000)
    engine.handle(PodSeenBound(where, priority=0, movable=dear), 0)
    engine.handle(NodesChanged((node("c", gpus=2),)), 0)
    assert asked_to_move(after_a_minute(engine, two())) == {"cheap": "b"}


def test_no_more_move_in_an_hour_than_may() -> None:
    engine = waiting_on_moves(("one", 0, 0), ("other", 1, 0), an_hour=1)
    assert asked_to_move(after_a_minute(engine, two())) == {}
    one = waiting_on_moves(("one", 0, 0), an_hour=1)
    assert asked_to_move(after_a_minute(one, two())) == {"one": "b"}
    assert not one.preemption.moves.may_move("another", 1, AFTER)
    assert one.preemption.moves.may_move("another", 1, AFTER + HOUR_NS)


def test_whom_a_budget_guards_stays_and_whom_the_api_keeps_is_asked_later() -> None:
    guarded = waiting_on_moves(("one", 0, 0))
    chosen = PodSelector(("default",), (Requirement("app", "In", ("one",)),))
    guarded.handle(BudgetsChanged((Budget("default/one", chosen, 0),)), 0)
    assert asked_to_move(after_a_minute(guarded, two())) == {}
    engine = waiting_on_moves(("one", 0, 0))
    assert asked_to_move(after_a_minute(engine, two())) == {"one": "b"}
    commands = engine.handle(NotEvicted("one", "too many requests"), AFTER)
    assert not engine.preemption.nominations
    assert not asked_to_move(commands)


def test_a_pod_that_waited_and_goes_is_forgotten() -> None:
    engine = waiting_on_moves(("one", 0, 0))
    engine.handle(PodAdded(two()), 0)
    assert list(engine.preemption.moves.since) == ["two"]
    engine.handle(PodGone("two"), SECOND)
    assert not engine.preemption.moves.since
    assert not [each for each in engine.handle(Tick(), AFTER) if isinstance(each, Bind | Evict)]


def test_a_pod_of_a_queue_at_its_limit_moves_all_the_same() -> None:
    """While it is there the queue has no room for one more; it goes before it comes again."""
    rules = QueueRules(queues=(QueueTerms("a", limits=QueueAmounts(gpu_milli=500)),))
    nodes, profile = [node("a", gpus=2), one_card("b")], Profile("weft", [BestFit()])
    engine = Engine([profile], nodes, moves=MoveRules(AFTER, 60), queues=rules)
    asked = replace(pod("one", memory_mib=8_000), restart_s=30, queue="a")
    marks = PodMarks("default", {"app": "one"})
    where = placement("one", "a", 0, memory_mib=8_000)
    engine.handle(PodSeenBound(where, marks=marks, priority=0, movable=asked, queue="a"), 0)
    assert asked_to_move(after_a_minute(engine, two())) == {"one": "b"}


def test_a_pod_whose_volume_nobody_else_may_have_moves_all_the_same() -> None:
    mounted = MountedVolumes(lone_claims=("default/data",))
    asked = replace(pod("one", memory_mib=8_000), restart_s=30)
    rules = Constraints(storage=StorageRules(mounts=mounted))
    asked = replace(asked, shape=replace(asked.shape, constraints=rules))
    engine = waiting_on_moves()
    marks = PodMarks("default", {"app": "one"})
    where = placement("one", "a", 0, memory_mib=8_000)
    seen = PodSeenBound(where, marks=marks, mounted=mounted, priority=0, movable=asked)
    engine.handle(seen, 0)
    assert asked_to_move(after_a_minute(engine, two())) == {"one": "b"}


def test_moves_are_searched_again_when_the_api_may_be_asked_again() -> None:
    engine = waiting_on_moves(("one", 0, 0))
    assert asked_to_move(after_a_minute(engine, two())) == {"one": "b"}
    commands = engine.handle(NotEvicted("one", "too many requests"), AFTER)
    commands = until_moved(engine, commands, AFTER + 2 * AGAIN_NS)
    assert asked_to_move(commands) == {"one": "b"}


def test_moves_are_searched_again_when_a_budget_lets_more_pods_go() -> None:
    engine = waiting_on_moves(("one", 0, 0))
    chosen = PodSelector(("default",), (Requirement("app", "In", ("one",)),))
    engine.handle(BudgetsChanged((Budget("default/one", chosen, 0),)), 0)
    assert asked_to_move(after_a_minute(engine, two())) == {}
    raised = BudgetsChanged((Budget("default/one", chosen, 1),))
    commands = engine.handle(raised, 2 * AFTER)
    commands = until_moved(engine, commands, 2 * AFTER + AGAIN_NS)
    assert asked_to_move(commands) == {"one": "b"}


def test_moves_are_searched_again_when_there_is_another_node() -> None:
    engine = waiting_on_moves(("one", 0, 0))
    engine.handle(PodSeenBound(placement("b", "b", 0, memory_mib=16_000), priority=1), 0)
    assert asked_to_move(after_a_minute(engine, two())) == {}
    commands = engine.handle(NodesChanged((one_card("c"),)), 2 * AFTER)
    commands = until_moved(engine, commands, 2 * AFTER + AGAIN_NS)
    assert asked_to_move(commands) == {"one": "c"}


def test_moves_are_searched_again_after_a_place_was_given_up() -> None:
    engine = waiting_on_moves(("one", 0, 0))
    assert places(engine.handle(PodAdded(pod("late", gpus=1)), 0)) == {"late": "b"}
    assert asked_to_move(after_a_minute(engine, two())) == {}
    commands = engine.handle(BindFailed("late"), 2 * AFTER)
    engine.handle(PodGone("late"), 2 * AFTER)
    commands = until_moved(engine, commands, 2 * AFTER + AGAIN_NS)
    assert asked_to_move(commands) == {"one": "b"}


class BreaksOnce(BestFit):
    """Breaks off the next time that it rates nodes, if told so."""

    breaks = False

    def score_nodes(self, query: Query) -> Ints:
        if self.breaks:
            self.breaks = False
            raise OverflowError("too large")
        return super().score_nodes(query)


def test_a_search_that_broke_off_is_repeated() -> None:
    policy = BreaksOnce()
    engine = waiting_on_moves(("one", 0, 0), policy=policy)
    engine.handle(PodSeenBound(placement("x", "b", 0, memory_mib=1_000), priority=0), 0)
    engine.handle(PodAdded(two()), 0)
    policy.breaks = True
    assert [each for each in engine.handle(Tick(), AFTER) if isinstance(each, Faulted)]
    commands = engine.handle(PodGone("x"), AFTER + SECOND)
    commands = until_moved(engine, commands, AFTER + AGAIN_NS // 2)
    assert asked_to_move(commands) == {"one": "b"}


def until_moved(engine: Engine, commands: list[Command], until_ns: int) -> list[Command]:
    """Let the engine go on after these commands, as it asks for it, until it asks a pod to move."""
    while not asked_to_move(commands) and (at_ns := wake_of(commands)) <= until_ns:
        commands = engine.handle(Tick(), at_ns)
    return commands
