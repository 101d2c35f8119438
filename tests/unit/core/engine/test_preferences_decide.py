"""Preferences against policies: how much they count, where, and what is said of it."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import Bind, BindOn, Engine, ImagesSeen, NodesChanged, PodAdded, PodSeenBound
from weft.core.engine.records import Record
from weft.core.explain.sentences import decision_notes
from weft.core.framework import Plugin, Policy, Profile, Query
from weft.core.ledger.table import Ints
from weft.core.policies.catalog import built_in
from weft.core.record import (
    DecisionsWriter,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    explain,
    read,
    replay,
)
from weft.model import (
    Constraints,
    Node,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Preference,
    Preferences,
    Requirement,
    SpreadRule,
    Taint,
    Term,
    WeightedTerm,
)
from weft.testing import node, placement, pod

GIB = 1 << 30


class ByLabel(Policy):
    """Scores each node as its label `score` says."""

    name = "by-label"

    def score_nodes(self, query: Query) -> Ints:
        every = np.array([int(each.labels["score"]) for each in query.table.nodes], dtype=np.int64)
        return every if query.rows is None else every.take(query.rows)


def rated(*scores: int) -> list[Node]:
    """Nodes n0, n1, …, which the policy rates so."""
    return [
        replace(node(f"n{number}", gpus=1), labels={"score": str(score), "name": f"n{number}"})
        for number, score in enumerate(scores)
    ]


def preferring(name: str, uid: str = "p", **more: object) -> PodRequest:
    wish = Preference(10, Term((Requirement("name", "In", (name,)),)))
    return replace(pod(uid, gpus=1), preferences=Preferences(nodes=(wish,)), **more)


def placed(nodes: list[Node], asked: PodRequest, *, preferences: int = 2) -> Record:
    engine = Engine([Profile("weft", [ByLabel()], preferences=preferences)])
    engine.handle(NodesChanged(tuple(nodes)), 0)
    outcome = engine.handle(PodAdded(asked), 1)[0]
    assert isinstance(outcome, Bind)
    return outcome.record


@pytest.mark.parametrize(
    ("scores", "preferences", "chosen"),
    [
        ((100, 98, 0), 2, "n1"),
        ((100, 97, 0), 2, "n0"),
        ((1_000, 980, 900), 2, "n0"),  # 2 % of the range, not of the score
        ((7, 7), 2, "n1"),
        ((7, 7), 0, "n0"),
        ((100, 0), 100, "n1"),
        ((100, 0), 99, "n0"),
        ((-5_000_000_000_000, -5_000_000_000_001, -9_000_000_000_000), 1, "n1"),
    ],
)
def test_they_decide_within_a_part_of_the_scores_range(
    scores: tuple[int, ...], preferences: int, chosen: str
) -> None:
    assert placed(rated(*scores), preferring("n1"), preferences=preferences).node == chosen


def test_nodes_without_the_label_are_not_those_where_it_is_empty() -> None:
    """Three pods that run where nobody says a zone do not keep the pod off the zone called ""."""
    labels = ({"zone": ""}, {}, {"zone": "a"})
    nodes = [
        replace(node(f"n{number}", gpus=1), labels={"score": "1", **own})
        for number, own in enumerate(labels)
    ]
    alike = PodSelector(("default",), (Requirement("app", "In", ("web",)),))
    asked = replace(
        pod("p", gpus=1), preferences=Preferences(spread=(SpreadRule("zone", 1, alike),))
    )
    engine = Engine([Profile("weft", [ByLabel()])])
    engine.handle(NodesChanged(tuple(nodes)), 0)
    for number, where in enumerate(("n1", "n1", "n1", "n2")):
        there = placement(f"web-{number}", where)
        engine.handle(PodSeenBound(there, marks=PodMarks("default", {"app": "web"})), 0)
    outcome = engine.handle(PodAdded(asked), 1)[0]
    assert isinstance(outcome, Bind)
    assert outcome.record.node == "n0"


def test_where_wishes_outweigh_each_other_nothing_is_said() -> None:
    """The pod had rather be on n0, and as much near to one of n1: the score decides."""
    near = PodTerm("name", PodSelector(None, (Requirement("app", "In", ("web",)),)))
    asked = preferring("n0")
    wishes = replace(asked.preferences, pods=(WeightedTerm(10, near),))
    engine = Engine([Profile("weft", [ByLabel()], preferences=100)])
    engine.handle(NodesChanged(tuple(rated(1, 2))), 0)
    marks = PodMarks("default", {"app": "web"})
    engine.handle(PodSeenBound(placement("web", "n1"), marks=marks), 0)
    outcome = engine.handle(PodAdded(replace(asked, preferences=wishes)), 1)[0]
    assert isinstance(outcome, Bind)
    assert outcome.record.node == "n1"
    assert outcome.record.preferred is UNSET


def test_where_they_decided_it_is_said() -> None:
    record = placed(rated(100, 99, 100, 0), preferring("n1"))
    assert decision_notes(record) == [
        "preferred: node affinity +200 of 200; among 3 nodes that the policies rate within 2 % of "
        "the best"
    ]


@pytest.mark.parametrize(
    ("scores", "wish"),
    [((100, 0), "n1"), ((100, 100), "elsewhere")],
    ids=["one node is best", "no node is preferred"],
)
def test_where_they_decided_nothing_nothing_is_said(scores: tuple[int, ...], wish: str) -> None:
    record = placed(rated(*scores), preferring(wish))
    assert record.node == "n0"
    assert record.preferred is UNSET
    assert decision_notes(record) == []


def test_of_nodes_that_are_preferred_alike_policies_choose() -> None:
    nodes = rated(98, 99, 100, 0)
    wish = Preference(10, Term((Requirement("name", "In", ("n0", "n1")),)))
    asked = replace(pod("p", gpus=1), preferences=Preferences(nodes=(wish,)))
    assert placed(nodes, asked).node == "n1"


def test_several_policies_weigh_first() -> None:
    plugins = [Plugin(ByLabel(), 50), Plugin(built_in().create("binpack"), 1)]
    engine = Engine([Profile("weft", plugins)])
    engine.handle(NodesChanged(tuple(rated(100, 99, 0))), 0)
    outcome = engine.handle(PodAdded(preferring("n1")), 1)[0]
    assert isinstance(outcome, Bind)
    assert outcome.placement.node == "n1"


@pytest.mark.parametrize("policy", built_in().names())
def test_they_work_with_every_policy(policy: str) -> None:
    """Three nodes alike; the one that is preferred is no policy's first or last."""
    engine = Engine([Profile("weft", [built_in().create(policy)])], seed=3)
    engine.handle(NodesChanged(tuple(rated(1, 1, 1))), 0)
    outcome = engine.handle(PodAdded(preferring("n1")), 1)[0]
    assert isinstance(outcome, Bind)
    one_place = policy == "coscheml"  # it leaves the pod one GPU, and nothing to choose
    assert outcome.record.counts[0] == (1 if one_place else 3)
    assert outcome.placement.node == ("n0" if one_place else "n1")


def test_kube_scheduler_has_judged_them_for_those_it_asks_about() -> None:
    nodes = rated(100, 100)
    engine = Engine([Profile("weft", [ByLabel()])])
    engine.handle(NodesChanged((replace(nodes[0], taints=(SOFT,)), nodes[1])), 0)
    asked = pod("p", gpus=1)
    shape = replace(asked.shape, constraints=Constraints(judged_elsewhere=True))
    elsewhere = replace(asked, shape=shape)
    assert engine.assess(engine.profiles["weft"], elsewhere).wishes is None
    bound = engine.handle(BindOn(elsewhere, "n0", "weft"), 1)[0]
    assert isinstance(bound, Bind)
    assert bound.record.preferred is UNSET


SOFT = Taint("spot", "PreferNoSchedule")
WEB = PodSelector(("default",), (Requirement("app", "In", ("web",)),))


def test_a_pod_says_which_come_near_it() -> None:
    """And takes it with it when it goes."""
    nodes = rated(1, 1, 1)
    engine = Engine([Profile("weft", [ByLabel()])])
    engine.handle(NodesChanged(tuple(nodes)), 0)
    near, asked = WeightedTerm(5, PodTerm("name", WEB)), pod("p")
    asked = replace(asked, labels={"app": "web"})
    profile = engine.profiles["weft"]
    for where in ("n1", "n2"):
        marks = PodMarks("default", draws=(near,))
        engine.handle(PodSeenBound(placement("there", where), marks=marks), 1)
        known = engine.assess(profile, asked)
        assert known.wishes is not None
    engine.handle(PodSeenBound(placement("there", "n2"), marks=PodMarks("default")), 2)
    assert engine.assess(profile, asked).wishes is None


def test_images_count_where_they_are_now() -> None:
    engine = Engine([Profile("weft", [ByLabel()])])
    engine.handle(NodesChanged(tuple(rated(1, 1, 1))), 0)
    image = ("repo/a:1", 30 * GIB)
    found = []
    for number, nodes in enumerate(({"n2": (0,)}, {"n1": (0,)}, {"n2": ()}, {"n1": ()})):
        engine.handle(ImagesSeen((image,), nodes), number)
        asked = Preferences(images=("repo/a:1",), containers=1)
        uid = f"p{number}"
        outcome = engine.handle(PodAdded(replace(pod(uid), preferences=asked)), number)[0]
        assert isinstance(outcome, Bind)
        found.append(outcome.placement.node)
    assert found == ["n2", "n1", "n1", "n0"]


def test_decisions_by_preferences_replay_and_are_explained(tmp_path: Path) -> None:
    create, path = built_in().create, tmp_path / "d.jsonl"
    use = ProfileUse("weft", [PolicyUse("first-fit")], preferences=40)
    header = Header([use])
    with path.open("wb") as out:
        writer = DecisionsWriter(out)
        recorder = Recorder(header.engine(create), header, writer.write)
        recorder.handle(NodesChanged(tuple(rated(1, 1, 1))), 0)
        recorder.handle(ImagesSeen((("repo/a:1", 30 * GIB),), {"n2": (0,)}), 1)
        near = WeightedTerm(-5, PodTerm("name", WEB))
        recorder.handle(PodSeenBound(placement("x", "n2"), marks=PodMarks("d", draws=(near,))), 2)
        web, images = {"app": "web"}, Preferences(images=("repo/a:1",), containers=1)
        recorder.handle(PodAdded(replace(pod("a"), labels=web)), 3)
        recorder.handle(PodAdded(replace(pod("b"), preferences=images)), 4)
        recorder.handle(PodAdded(preferring("n1", "c")), 5)
        writer.close()
    again, lines = read(path)
    assert again.engine(create).profiles["weft"].preferences == 40
    assert replay(again, lines, create).identical
    notes = {name: explain(path, name, create) for name in "abc"}
    assert [note.node for note in notes.values()] == ["n0", "n2", "n1"]
    assert "preferred: images on the node +" in notes["b"].notes[0]
    assert notes["c"].notes[0].endswith("that the policies rate within 40 % of the best")


def test_no_more_than_a_whole_range() -> None:
    with pytest.raises(ValueError, match="preferences of profile weft are 101; write 0 to 100"):
        Profile("weft", [ByLabel()], preferences=101)
