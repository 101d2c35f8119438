"""A pod that only its queue's limit keeps waiting ends less important ones of its own queue."""

from random import Random

import pytest
from engine_talk import SECOND, add, of_team, places
from msgspec.structs import replace

from weft.core.engine import Command, Engine, Evict, PodAdded, PodGone
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.packing import BestFit
from weft.model import DeviceRule, Gang, Node, PodRequest
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, pod, shape


def at_most(gpus: float, *, reclaim: bool = False, models: int = 0) -> QueueRules:
    by_model = (("H100", 1000 * models),) if models else ()
    limits = QueueAmounts(gpu_milli=int(1000 * gpus), models=by_model)
    return QueueRules("fair", (QueueTerms("a", limits=limits),), reclaim=reclaim)


def deciding(rules: QueueRules, *nodes: Node, preempts: bool = True) -> Engine:
    profile = Profile("weft", [BestFit()], preempts=preempts)
    return Engine([profile], nodes or (node("n", gpus=4), node("m", gpus=4)), queues=rules)


def ended(commands: list[Command]) -> list[str]:
    return sorted(each.placement.uid for each in commands if isinstance(each, Evict))


def test_the_least_important_of_its_queue_ends_and_nobody_of_another() -> None:
    engine = deciding(at_most(3))
    add(
        engine,
        of_team("a", "low", priority=1),
        of_team("a", "mid", priority=5),
        of_team("b", "other"),
    )
    add(engine, of_team("a", "top", priority=9))
    assert ended(add(engine, of_team("a", "high", priority=9), at_s=1)) == ["low"]
    out = engine.handle(PodGone("low"), 2 * SECOND)
    assert [*places(out)] == ["high"]
    assert engine.teams.use("a").gpu_milli == 3_000
    assert audit(engine.ledger) == []


def test_as_many_end_as_the_limit_asks_for() -> None:
    engine = deciding(at_most(4))
    add(engine, *(of_team("a", f"low{i}", priority=1) for i in range(4)))
    assert len(ended(add(engine, of_team("a", "high", gpus=3, priority=9), at_s=1))) == 3


def test_nobody_ends_of_equal_priority_nor_where_the_pod_alone_is_beyond_the_limit() -> None:
    engine = deciding(at_most(2))
    add(engine, of_team("a", "a0", priority=5), of_team("a", "a1", priority=5))
    assert not ended(add(engine, of_team("a", "equal", priority=5), at_s=1))
    assert not ended(add(engine, of_team("a", "large", gpus=3, priority=9), at_s=1))


def test_where_its_own_do_not_help_nobody_ends() -> None:
    """Only pods of other queues are in the way of both cards, beside one of its own."""
    engine = deciding(at_most(2), node("n", gpus=2))
    add(engine, of_team("a", "own", priority=1), of_team("b", "other", priority=9))
    assert not ended(add(engine, of_team("a", "high", gpus=2, priority=8), at_s=1))


def test_a_profile_that_does_not_preempt_and_a_pod_that_never_does_wait() -> None:
    engine = deciding(at_most(1), preempts=False)
    add(engine, of_team("a", "low", priority=1))
    assert not ended(add(engine, of_team("a", "high", priority=9), at_s=1))
    engine = deciding(at_most(1))
    add(engine, of_team("a", "low", priority=1))
    never = replace(of_team("a", "never", priority=9), never_preempts=True)
    assert not ended(add(engine, never, at_s=1))


def test_it_is_so_too_where_queues_take_back_what_others_borrow() -> None:
    engine = deciding(at_most(2, reclaim=True))
    add(
        engine,
        of_team("a", "low", priority=1),
        of_team("a", "mid", priority=5),
        of_team("b", "other"),
    )
    assert ended(add(engine, of_team("a", "high", priority=9), at_s=1)) == ["low"]


def test_room_within_a_models_limit_is_made_by_who_holds_that_model() -> None:
    nodes = node("n", gpus=2, model="H100"), node("m", gpus=2, model="A100")
    engine = deciding(at_most(9, models=1), *nodes)
    add(
        engine,
        on("A100", of_team("a", "a100", priority=1)),
        on("H100", of_team("a", "h100", priority=2)),
    )
    assert ended(add(engine, on("H100", of_team("a", "high", priority=9)), at_s=1)) == ["h100"]


def on(model: str, asked: PodRequest) -> PodRequest:
    return replace(asked, shape=replace(asked.shape, devices=DeviceRule(models=(model,))))


@pytest.mark.parametrize("seed", range(100))
def test_nobody_ends_in_vain_and_the_limit_holds(seed: int) -> None:
    random = Random(seed)
    gpus = random.choice((2, 3, 4.5))
    engine = deciding(at_most(gpus, reclaim=random.random() < 0.3))
    for number in range(random.randint(3, 14)):
        part = {"gpus": random.choice((1, 1, 2))} if random.random() < 0.6 else {"milli": 500}
        team, priority = random.choice("aab"), random.randint(1, 6)
        add(engine, replace(pod(f"p{number}", priority=priority, **part), queue=team))  # type: ignore[arg-type]
    high = of_team("a", "high", gpus=random.choice((1, 2)), priority=random.choice((3, 7)))
    lower = {
        u for u, (priority, _) in engine.preemption.standings.items() if priority < high.priority
    }
    out = add(engine, high, at_s=1)
    evicted = [each for each in out if isinstance(each, Evict) and each.record.preempted]
    victims = [e.placement.uid for e in evicted if e.record.preempted.uid == "high"]
    assert set(victims) <= lower
    for uid in victims:
        with engine.trial([each for each in victims if each != uid]):
            row = engine.ledger.table.row_of[engine.ledger.holdings[uid].placement.node]
            assert engine.assess(engine.profile_of(high), high).codes[row], f"{uid} for nothing"
    for uid in [*engine.preemption.going]:  # some were to go before
        out += engine.handle(PodGone(uid), 2 * SECOND)
    assert not victims or "high" in places(out)
    assert engine.teams.use("a").gpu_milli <= 1000 * gpus
    assert audit(engine.ledger) == []


def test_a_gang_for_which_others_went_has_its_places_within_the_limit() -> None:
    """Its own places, kept until then, do not count against the limit beside those it takes."""
    rules = replace(at_most(3), order="priority")
    engine = deciding(rules, node("n", gpus=3), node("m", gpus=1))
    add(engine, *(of_team("b", f"low{number}") for number in range(4)))
    gang = Gang("kubernetes", "default", "train", least=2)
    members = [
        replace(of_team("a", f"train-{gpus}", priority=5), shape=shape(gpus=gpus), gang=gang)
        for gpus in (2, 1)
    ]
    asked = [command for each in members for command in engine.handle(PodAdded(each), SECOND)]
    assert len(ended(asked)) == 3
    bound: dict[str, str] = {}
    for uid in ended(asked):
        bound |= places(engine.handle(PodGone(uid), 2 * SECOND))
    assert bound.keys() == {"train-2", "train-1"}
    assert audit(engine.ledger) == []
