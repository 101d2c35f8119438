"""Answers that nodes keep when others join, leave or change equal those worked out anew.

Engines of every policy hear of random nodes, GPUs, pods and closed nodes; what is kept of each
shape is compared with a fresh assessor on the same ledger, with the same policies and prices.
"""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.constraints import PodAnswer
from weft.core.engine import Engine, NodesChanged, NodesClosed, PodAdded, PodGone, PodSeenBound
from weft.core.engine.assessment import Assessment, Assessor
from weft.core.framework import Plugin, Profile
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.model import (
    ClosedNode,
    Code,
    Constraints,
    Node,
    Requirement,
    Shape,
    Taint,
    Term,
)
from weft.model.gpu_links import GpuLinks
from weft.testing import node, placement, pod, random_node, random_shape

NAMES = [policy.name for policy in BUILT_IN]
WORLDS = few_or_many(1, 60)
COLUMNS = ("codes", "counts", "declared", "total", "connected", "connectable")


def profile_of(name: str) -> Profile:
    lead = built_in().create(name)
    more = [Plugin(built_in().create("spread"), 2)] if name == "best-fit" else []
    return Profile("weft", [lead, *more])


def some_node(dice: Random, *, plain: bool) -> Node:
    name = f"n{dice.randint(0, 15)}"
    if plain:
        made = node(name, gpus=dice.choice([2, 2, 4]), broken=dice.choice([(), (), (0,)]))
    else:
        made = random_node(dice, name)
    if len(made.gpus) == 2 and dice.random() < 0.5:
        made = replace(made, links=GpuLinks((0, 1), ("X NV4", "NV4 X")))
    effect = dice.choice(["PreferNoSchedule", "NoSchedule"])
    taints = (Taint("a", effect),) if dice.random() < 0.1 else ()
    return replace(made, labels={"zone": dice.choice("ab")}, taints=taints)


def some_shape(dice: Random, nodes: list[Node]) -> Shape:
    made = random_shape(dice, nodes or [node("n1", gpus=2)])
    zone = Term((Requirement("zone", "In", ("a",)),))
    if dice.random() < 0.15:
        made = replace(made, constraints=Constraints(affinity=(zone,)))
    return made


def something_happens(engine: Engine, dice: Random, step: int, *, plain: bool) -> None:
    table, now = engine.ledger.table, step * 10**9
    name = dice.choice([one.name for one in table.nodes] or ["n1"])
    match dice.choice(["node", "node", "leave", "bound", "bound", "gone", "pod", "close"]):
        case "node":
            engine.handle(NodesChanged((some_node(dice, plain=plain),)), now)
        case "leave":
            engine.handle(NodesChanged(removed=(name,)), now)
        case "bound":
            there = placement(f"b{step}", name, dice.randint(0, 1), memory_mib=6_000, milli=300)
            engine.handle(PodSeenBound(there), now)
        case "gone" if engine.ledger.holdings:
            engine.handle(PodGone(dice.choice(sorted(engine.ledger.holdings))), now)
        case "pod":
            asks = some_shape(dice, table.nodes)
            engine.handle(PodAdded(pod(f"p{step}", asks=asks)), now)
        case "close":
            taints = next((one.taints for one in table.nodes if one.name == name), ())
            engine.handle(NodesClosed((ClosedNode(name, taints, schedulable=False),)), now)


def is_bounded(known: Assessment) -> bool:
    return known.inexact is not None or bool(known.counts[Code.NOT_SEARCHED])


def check(engine: Engine, shape: Shape, profile: Profile) -> int:
    """1 where the answers are equal, 0 where a search ended at its bound."""
    kept = engine.assessor.assess(profile, shape)
    fresh = Assessor(engine.ledger)
    fresh.observed = engine.assessor.observed
    anew = fresh.assess(profile, shape)
    if is_bounded(kept) or is_bounded(anew):
        return 0
    for name in COLUMNS:
        one, other = getattr(kept, name), getattr(anew, name)
        assert (one is None) == (other is None), name
        assert one is None or np.array_equal(one, other), name
    if kept.position is not None and anew.position is not None:
        fits = kept.codes == 0
        assert np.array_equal(kept.position[fits], anew.position[fits])
    assert kept.never == anew.never
    return 1


@pytest.mark.parametrize("name", NAMES)
def test_kept_answers_equal_those_worked_out_anew(name: str) -> None:
    compared = 0
    for world in range(NAMES.index(name) % 2, NAMES.index(name) % 2 + WORLDS):  # plain or not
        dice = Random(f"{name}/{world}")
        plain, profile = world % 2 == 0, profile_of(name)
        nodes = {made.name: made for made in (some_node(dice, plain=plain) for _ in range(14))}
        engine = Engine([profile], nodes.values())
        shapes = [some_shape(dice, list(nodes.values())) for _ in range(6)]
        for step in range(30):
            something_happens(engine, dice, step, plain=plain)
            for shape in dice.sample(shapes, 2):
                compared += check(engine, profile.shaped(shape), profile)
    assert compared > 20 * WORLDS


def test_only_nodes_that_came_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that fits nowhere: prices that are made anew ask about no other node either."""
    asked: list[int] = []
    engine = Engine([profile_of("least-stranding")], [node(f"n{at}", gpus=2) for at in range(50)])
    for at in range(100):
        there = placement(f"h{at}", f"n{at // 2}", at % 2, memory_mib=16_000)
        engine.handle(PodSeenBound(there), 0)
    engine.handle(PodAdded(pod("p", memory_mib=9_000)), 0)
    mend = Assessor._mend

    def noted(
        self: Assessor, known: Assessment, profile: Profile, beside: Sequence[PodAnswer]
    ) -> None:
        rows = self._stale(known) if known.version >= 0 else None
        asked.append(engine.ledger.table.count if rows is None else len(rows))
        mend(self, known, profile, beside)

    monkeypatch.setattr(Assessor, "_mend", noted)
    few = node("new", gpus=1, memory_mib=500)
    engine.handle(NodesChanged((few, node("n7", gpus=2, cpu_milli=1)), ("n9",)), 60 * 10**9)
    assert asked == [2]
