"""Decision records: what they count, list and say."""

from random import Random

import msgspec
import pytest
from engine_talk import bind, engine_of, one_card
from long_form import few_or_many

from fakes.reference import ReferenceLedger
from fakes.reference_fit import fitting_nodes
from weft.core.engine import Bind, Engine, PodAdded, PodGone, Record, Unschedulable, assessment
from weft.core.framework import Plugin, Policy, Profile, Query
from weft.core.policies.packing import BestFit, Binpack
from weft.core.policies.spreading import Exclusive, SpreadPolicy
from weft.model import PodRequest
from weft.model.reason import TEXT, Code
from weft.testing import node, pod, random_nodes, random_shape


def record_of(engine: Engine, asked: PodRequest) -> Record:
    command = engine.handle(PodAdded(asked), 5)[0]
    assert isinstance(command, Bind | Unschedulable)
    return command.record


def some_records() -> list[tuple[Engine, Record]]:
    """Decisions of every kind of profile in random clusters that fill up."""
    found = []
    for seed in range(60):
        random = Random(seed)
        lead = random.choice((BestFit, SpreadPolicy, Binpack, Exclusive))()
        profile = Profile("weft", [Plugin(lead), Plugin(BestFit(), seed % 3)])
        engine = Engine([profile], random_nodes(random, 5), keep_top=3)
        for index in range(8):
            asks = random_shape(random, engine.ledger.table.nodes)
            found.append((engine, record_of(engine, PodRequest(f"p{index}", "p", asks))))
    return found


def test_reasons_and_fits_add_up_to_all_nodes() -> None:
    records = some_records()
    assert {record.outcome for _, record in records} == {"placed", "unschedulable"}
    for engine, record in records:
        assert sum(record.counts) == engine.ledger.table.count
        assert min(record.counts) >= 0
        assert (record.counts[0] > 0) == (record.outcome == "placed")
        assert sum(record.reasons().values()) == sum(record.counts[1:])


def test_counts_are_right_after_mending_as_when_asked_afresh() -> None:
    """The histogram is adjusted where nodes changed; it must not drift."""
    for seed in range(few_or_many(4, 40)):
        random = Random(seed)
        engine = engine_of(*random_nodes(random, 5), policies=(BestFit(),))
        shapes = [random_shape(random, engine.ledger.table.nodes) for _ in range(3)]
        for index in range(25):
            record = record_of(engine, PodRequest(f"p{index}", "p", random.choice(shapes)))
            if record.outcome == "unschedulable" or random.random() < 0.3:
                engine.handle(PodGone(random.choice([f"p{index}", f"p{index // 2}"])), 5)
            for asked in shapes:
                known = engine.assessor.assess(engine.profiles["weft"], asked)
                table = engine.ledger.table
                accounts = {
                    holding.placement.uid: holding for holding in engine.ledger.holdings.values()
                }
                fresh = engine_of(*table.nodes, policies=(BestFit(),))
                for holding in accounts.values():
                    fresh.ledger.adopt(holding.placement)
                again = fresh.assessor.assess(fresh.profiles["weft"], asked)
                assert known.counts == again.counts
                assert (known.codes == again.codes).all()
                assert (known.total == again.total).all()


class ByName(Policy):
    """Scores nodes by a number in their CPU."""

    name = "by-name"

    def score_nodes(self, query: Query):  # type: ignore[no-untyped-def]
        return query.cpu_total


def test_the_top_is_the_true_top_by_a_slow_sort() -> None:
    for seed in range(30):
        random = Random(seed)
        nodes = [
            node(f"n{i}", gpus=random.randint(0, 1), cpu_milli=random.randint(1, 4), rank=i % 3)
            for i in range(random.randint(1, 9))
        ]
        engine = engine_of(*nodes, policies=(ByName(),), keep_top=4)
        asked = pod("p", memory_mib=1)
        fitting = sorted(fitting_nodes(ReferenceLedger(nodes), asked.shape))
        by_name = {one.name: one for one in nodes}
        slow = sorted((-by_name[name].cpu_milli, by_name[name].rank, name) for name in fitting)
        record = record_of(engine, asked)
        assert [(top.node, top.score) for top in record.top] == [
            (name, -cpu) for cpu, _, name in slow[:4]
        ]
        if slow:
            assert (record.node, record.score) == (slow[0][2], -slow[0][0])
            assert record.top[0].scores == {"by-name": record.score}


def test_without_a_wish_for_them_no_top_is_kept() -> None:
    assert record_of(engine_of(one_card()), pod("p", gpus=1)).top == ()


def test_two_policies_are_normalised_and_weighed() -> None:
    """BestFit's raw scores are 0 to 100, Spread's millions: alone by raw, together by rank.

    Nodes: `full` has 1,000 MiB left on its card, `empty` 16,384. Spread wants `empty`, Binpack
    `full`; whoever weighs more wins, however large the raw scores are.
    """
    nodes = [one_card("empty"), one_card("full")]

    def choice(binpack: int, spread: int) -> Record:
        plugins = [Plugin(Binpack(), binpack), Plugin(SpreadPolicy(), spread)]
        engine = Engine([Profile("weft", plugins)], nodes, keep_top=2)
        bind(engine, pod("x", memory_mib=15_384, node_name="full"))
        return record_of(engine, pod("p", memory_mib=500))

    assert choice(2, 1).node == "full"
    assert choice(1, 2).node == "empty"
    record = choice(3, 4)
    assert (record.node, record.score) == ("empty", 400)
    assert [(top.node, top.score) for top in record.top] == [("empty", 400), ("full", 300)]
    assert record.top[0].scores["spread"] == 16_384_999
    assert choice(1, 1).node == "empty", "equal totals go to the first node"


def test_equal_scores_normalise_to_nothing() -> None:
    plugins = [Plugin(Binpack(), 5), Plugin(SpreadPolicy(), 7)]
    engine = Engine([Profile("weft", plugins)], [one_card("a"), one_card("b")])
    record = record_of(engine, pod("p", memory_mib=500))
    assert (record.node, record.score) == ("a", 0)


def test_records_survive_json() -> None:
    records = [record for _, record in some_records()]
    text = msgspec.json.encode(records)
    assert msgspec.json.decode(text, type=list[Record]) == records


def test_a_record_names_pod_time_attempt_and_sequence() -> None:
    engine = engine_of(one_card())
    bind(engine, pod("x", gpus=1))
    record = record_of(engine, pod("p", gpus=1))
    assert (record.seq, record.at_ns, record.uid, record.namespace, record.name) == (
        2,
        5,
        "p",
        "default",
        "p",
    )
    assert (record.profile, record.attempt, record.outcome, record.node) == (
        "weft",
        1,
        "unschedulable",
        "",
    )
    assert record.reasons() == {TEXT[Code.NOT_IDLE]: 1}


def test_least_used_shapes_are_forgotten_and_answers_stay_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assessment, "KEPT_ROWS", 2 * 300)
    engine = engine_of(one_card("a"), one_card("b", memory_mib=1000))
    profile = engine.profiles["weft"]
    for mib in range(1, 400):
        assert engine.assessor.assess(profile, pod(memory_mib=mib).shape).counts[0] == 2
    assert len(engine.assessor._known) == 300
    bind(engine, pod("x", memory_mib=16_384))
    for mib in (1, 399, 1000, 1001):
        fits = engine.assessor.assess(profile, pod(memory_mib=mib).shape).counts[0]
        assert fits == (1 if mib <= 1000 else 0)


def test_stopping_before_a_decision_leaves_the_state_it_would_meet() -> None:
    class ReachedError(Exception):
        pass

    engine = engine_of(one_card())
    engine.journal.stop_before(2, ReachedError)
    bind(engine, pod("x", gpus=1))
    with pytest.raises(ReachedError):
        engine.handle(PodAdded(pod("p", gpus=1)), 1)
    assert list(engine.ledger.holdings) == ["x"]
