"""Many unlike pods of one namespace: no event does more than its part, no honest pod waits long.

Everything is counted, nothing timed: looks at nodes, decisions of one event, rows that policies are
asked about, GPUs whose account is derived. `benchmarks/bench_poison.py` times the same attacks.
Each mistake below, put into the engine, is caught.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodSeenBound,
    Tick,
    Unschedulable,
    Wake,
    assessment,
    engine,
)
from weft.core.engine.assessment import Assessment, Assessor
from weft.core.engine.queue import ActivePods
from weft.core.framework import Profile, Query, feasibility
from weft.core.ledger import Ledger
from weft.core.ledger.table import LedgerTable
from weft.core.policies import interference
from weft.core.policies.catalog import built_in
from weft.model import GpuMemoryRequest, GpuRequest, PodRequest
from weft.testing import node, placement, pod

Patch = pytest.MonkeyPatch
NODES, TURN, DECISION = 40, 6_000, 25_000
"""Looks: of one event, and of the most that its last decision takes here."""
MINUTE = 60 * 10**9


class Attack:
    """Full nodes, and pods that fit nowhere. What was done is counted by event."""

    def __init__(self, patch: Patch, policy: str = "auto") -> None:
        profile = Profile("weft", [built_in().create(policy)])
        nodes = [node(f"n{at}", gpus=2) for at in range(NODES)]
        self.engine = Engine([profile], nodes, turn_looks=TURN)
        self.looks, self.decisions, self.rows, self.derived = 0, 0, 0, 0
        for at in range(2 * NODES):
            there = placement(f"h{at}", f"n{at // 2}", at % 2, memory_mib=15_000)
            self.engine.handle(PodSeenBound(there), 0)
        self._count(patch)

    def _count(self, patch: Patch) -> None:
        codes, derive = feasibility.codes, LedgerTable._derive_device

        def asked(query: Query) -> feasibility.Codes:
            self.rows += query.n
            return codes(query)

        def derived(table: LedgerTable, device: int) -> None:
            self.derived += 1
            derive(table, device)

        patch.setattr(feasibility, "codes", asked)
        patch.setattr(LedgerTable, "_derive_device", derived)

    def handle(self, event: Event, now: int = MINUTE) -> list[Command]:
        looked = self.engine.assessor.looked
        commands = self.engine.handle(event, now)
        self.looks = max(self.looks, self.engine.assessor.looked - looked)
        self.decisions = max(self.decisions, len(decided(commands)))
        return commands

    def drain(self, commands: list[Command], now: int = MINUTE) -> list[str]:
        order = decided(commands)
        while any(isinstance(c, Wake) and c.at_ns <= now for c in commands):
            commands = self.handle(Tick(), now)
            order += decided(commands)
        return order

    def wait(self, pods: list[PodRequest]) -> None:
        for asks in pods:
            self.drain(self.handle(PodAdded(asks), 1), 1)
        self.looks = self.decisions = self.rows = self.derived = 0

    def node_joins(self, *more: PodRequest) -> list[str]:
        """The order of decisions where a small node joins and these pods come right after."""
        commands = self.handle(NodesChanged((node("new", gpus=1, memory_mib=900),)))
        order = decided(commands)
        for asks in more:
            commands = self.handle(PodAdded(asks))
            order += decided(commands)
        return order + self.drain(commands)[len(decided(commands)) :]


def decided(commands: list[Command]) -> list[str]:
    return [c.pod.uid for c in commands if isinstance(c, Bind | Unschedulable)]


def unlike(count: int, containers: int = 1, priority: int = 0) -> list[PodRequest]:
    def asks(at: int) -> list[GpuRequest]:
        least = 7_000 + 40 * at + priority
        sizes = range(least, least + containers)
        return [GpuRequest(memory=GpuMemoryRequest("mib", mib)) for mib in sizes]

    return [
        replace(pod(f"p{priority}-{at}", gpu_requests=asks(at), priority=priority), namespace="bad")
        for at in range(count)
    ]


def honest(name: str = "honest") -> PodRequest:
    return replace(pod(name, memory_mib=100, created_ns=MINUTE), namespace="good")


def nobody_waits_for_many_shapes(patch: Patch) -> None:
    attack = Attack(patch)
    attack.wait([*unlike(150), *unlike(3, priority=9)])
    order = attack.node_joins(honest())
    assert len(order) == len({*order}) == 154
    assert order.index("honest") < 40
    assert {order.index(f"p9-{at}") for at in range(3)} == {0, 1, 2}
    assert attack.looks < TURN + DECISION


def the_highest_priority_goes_first_whoever_had_turns(patch: Patch) -> None:
    attack = Attack(patch)
    attack.wait(unlike(60))
    late = replace(pod("late", memory_mib=200, priority=9, created_ns=MINUTE), namespace="bad")
    order = attack.node_joins(honest(), late)
    assert order.index("late") < order.index("honest")


def only_what_changed_is_looked_at(patch: Patch) -> None:
    """A row for each shape; the accounts of the node that came; and scores of what fits alone."""
    attack = Attack(patch)
    attack.wait(unlike(60))
    assert len(attack.node_joins()) == 60
    assert attack.rows == 60
    assert attack.derived < 8
    attack.engine.assessor.reprice()
    attack.drain(attack.handle(Tick()))
    assert attack.rows == 60


def what_is_kept_is_true(patch: Patch) -> None:
    attack = Attack(patch, "best-fit")
    attack.wait(unlike(5))
    engine = attack.engine
    big = NodesChanged((node("large", gpus=2), replace(node("n1", gpus=2), rank=9)), ("n3",))
    engine.handle(big, MINUTE)
    for asks in [one for one in unlike(5) if one.uid in engine.queue] or unlike(5):
        profile = engine.profiles["weft"]
        kept = engine.assessor.assess(profile, asks.shape)
        anew = Assessor(engine.ledger).assess(profile, asks.shape)
        assert kept.codes.tolist() == anew.codes.tolist()
        assert kept.total.tolist() == anew.total.tolist()


def containers_count(patch: Patch) -> None:
    attack = Attack(patch)
    attack.wait(unlike(6, containers=136))
    attack.node_joins()
    assert attack.decisions <= 2
    attack = Attack(patch)
    attack.wait(unlike(6, containers=12))
    attack.node_joins()
    assert attack.decisions <= 2


def work_ahead_counts(patch: Patch) -> None:
    attack = Attack(patch, "least-stranding")
    attack.wait(unlike(150))
    assessor, most = attack.engine.assessor, 0
    assessor.reprice()
    while assessor.dear:
        before = len(assessor.dear)
        attack.engine.handle(Tick(), MINUTE)
        most = max(most, before - len(assessor.dear))
    assert 0 < most <= TURN // 100


def many_in_one_breath_share_a_turn(patch: Patch) -> None:
    """An honest pod that comes behind them waits for one turn, not for a decision about each."""
    attack = Attack(patch)
    before = attack.engine.assessor.looked
    at_once = [c for asks in unlike(150) for c in attack.handle(PodAdded(asks))]
    assert 0 < len(decided(at_once)) < 30
    assert attack.engine.assessor.looked - before < TURN + DECISION
    late = attack.handle(PodAdded(honest()))
    assert decided(late) == []
    order = decided(at_once) + attack.drain(late)
    assert len(order) == len({*order}) == 151
    assert order.index("honest") < 60


def who_cannot_have_it_is_not_weighed(patch: Patch) -> None:
    """Nor more than so many shapes, where all that wait could have it."""
    weighed: list[object] = []
    worth = interference.InterferencePolicy._worth

    def counted(*asked: Any) -> Any:
        weighed.append(asked)
        return worth(*asked)

    patch.setattr(interference.InterferencePolicy, "_worth", counted)
    attack = Attack(patch, "interference")
    attack.wait(unlike(150))
    attack.node_joins(honest())
    assert 0 < len(weighed) < 4
    attack = Attack(patch, "interference")
    attack.wait(unlike(150))
    weighed.clear()
    attack.handle(NodesChanged((node("new", gpus=1),)), 2 * MINUTE)
    assert 0 < len(weighed) <= interference.MOST_UNLIKE + 1 <= 60


CHECKS = [
    nobody_waits_for_many_shapes,
    the_highest_priority_goes_first_whoever_had_turns,
    only_what_changed_is_looked_at,
    what_is_kept_is_true,
    containers_count,
    work_ahead_counts,
    many_in_one_breath_share_a_turn,
    who_cannot_have_it_is_not_weighed,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_work_is_bounded_and_fair(check: Callable[[Patch], None], monkeypatch: Patch) -> None:
    check(monkeypatch)


# --- mistakes that must be caught ---


def the_oldest_first_however_many(patch: Patch) -> None:
    patch.setattr(ActivePods, "take_turns", lambda *_, **__: None)


def turns_that_know_no_priority(patch: Patch) -> None:
    heap_of = ActivePods._heap_of

    def alike(self: ActivePods, waiting):  # type: ignore[no-untyped-def]
        waiting.rank = 0, 0
        return heap_of(self, waiting)

    patch.setattr(ActivePods, "_heap_of", alike)


def work_of_no_namespace(patch: Patch) -> None:
    patch.setattr(ActivePods, "worked", lambda *_: None)


def all_nodes_again_where_one_came(patch: Patch) -> None:
    patch.setattr(Assessment, "carry", lambda *_: False)


def a_node_that_came_is_not_asked_about(patch: Patch) -> None:
    rows_then = Ledger.rows_then
    patch.setattr(
        Ledger, "rows_then", lambda *args: None if (r := rows_then(*args)) is None else abs(r)
    )
    patch.setattr(Ledger, "_lay_out", _without_a_mark(Ledger._lay_out))
    patch.setattr(Ledger, "_lay_out_anew", _without_a_mark(Ledger._lay_out_anew))


def _without_a_mark(lay_out):  # type: ignore[no-untyped-def]
    def unmarked(self: Ledger, nodes) -> None:  # type: ignore[no-untyped-def]
        lay_out(self, nodes)
        self.table.changed_at[:] = 0

    return unmarked


def all_accounts_again_where_one_node_came(patch: Patch) -> None:
    patch.setattr(Ledger, "_lay_out_anew", Ledger._lay_out)


def new_prices_ask_what_fits(patch: Patch) -> None:
    stale = Assessor._stale
    patch.setattr(
        Assessor, "_stale", lambda self, one: None if self._is_dear(one) else stale(self, one)
    )


def containers_that_cost_nothing(patch: Patch) -> None:
    patch.setattr(assessment, "LOOKS_REQUEST", 0)


def searches_that_cost_nothing(patch: Patch) -> None:
    patch.setattr(assessment, "LOOKS_STEP", 0)


def work_ahead_that_costs_nothing(patch: Patch) -> None:
    patch.setattr(assessment, "LOOKS_AHEAD", 0)


def a_turn_for_each_event(patch: Patch) -> None:
    patch.setattr(engine, "TURN_NS", 0)


def who_cannot_have_it_is_weighed(patch: Patch) -> None:
    patch.setattr(interference, "_could_take", lambda *_, **__: True)


def all_that_wait_are_weighed(patch: Patch) -> None:
    patch.setattr(interference, "MOST_UNLIKE", 10**6)


def requests_carried_that_cost_nothing(patch: Patch) -> None:
    of_this_layout = Assessor._of_this_layout

    def free(self: Assessor, *asked: Any) -> Assessment:
        before = len(self._known), self.looked
        known = of_this_layout(self, *asked)
        if len(self._known) == before[0] and self.looked > before[1]:
            self.looked = before[1]
        return known

    patch.setattr(Assessor, "_of_this_layout", free)


MISTAKES: dict[Callable[[Patch], None], Callable[[Patch], None]] = {
    the_oldest_first_however_many: many_in_one_breath_share_a_turn,
    turns_that_know_no_priority: the_highest_priority_goes_first_whoever_had_turns,
    work_of_no_namespace: nobody_waits_for_many_shapes,
    all_nodes_again_where_one_came: only_what_changed_is_looked_at,
    a_node_that_came_is_not_asked_about: what_is_kept_is_true,
    all_accounts_again_where_one_node_came: only_what_changed_is_looked_at,
    new_prices_ask_what_fits: only_what_changed_is_looked_at,
    containers_that_cost_nothing: containers_count,
    searches_that_cost_nothing: containers_count,
    work_ahead_that_costs_nothing: work_ahead_counts,
    a_turn_for_each_event: many_in_one_breath_share_a_turn,
    who_cannot_have_it_is_weighed: who_cannot_have_it_is_not_weighed,
    all_that_wait_are_weighed: who_cannot_have_it_is_not_weighed,
    requests_carried_that_cost_nothing: containers_count,
}
"""Each with the check that catches it."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_each_mistake_is_caught(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        MISTAKES[mistake](monkeypatch)


def test_no_event_loads_what_numpy_loads_late() -> None:
    """`np.unique` loads numpy.ma at its first call, in the middle of a decision."""
    asked = "import sys, weft.core.engine; print('numpy.ma' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
