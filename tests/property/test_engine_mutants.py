"""The random world would notice: each of these mistakes, put into the engine, is caught."""

from collections.abc import Callable
from typing import Any

import pytest
from engine_world import walk
from ways import CHOSEN, FIRST, SHIPPED, WAYS

from weft.core.constraints import ExistingPods, ServingVolumes
from weft.core.constraints.counts import CountByNode
from weft.core.engine import Command
from weft.core.engine.assessment import Assessor
from weft.core.engine.decision_faults import SideTasks
from weft.core.engine.engine import Engine
from weft.core.engine.parked import FreedNode, ParkedGroup
from weft.core.engine.pricing import PriceLists
from weft.core.engine.queue import Queue
from weft.core.ledger import Ledger
from weft.core.policies.least_stranding import LeastStranding
from weft.model import PodMarks
from weft.model.errors import PolicyError

Mutant = Callable[[pytest.MonkeyPatch], None]


def nothing(*_: object, **__: object) -> None:
    """Does nothing, as a forgotten call."""


def a_dropped_reservation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "reserve", lambda *_, **__: True)


def a_release_that_forgets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_gone", nothing)


def a_double_release(patch: pytest.MonkeyPatch) -> None:
    once = Ledger._take_away

    def twice(self: Ledger, held) -> None:  # type: ignore[no-untyped-def]
        once(self, held)
        self._book(held.placement.node, held, -1)

    patch.setattr(Ledger, "_take_away", twice)


def a_refused_bind_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_bind_failed", nothing)


def a_refused_bind_believed_though_the_pod_is_bound(patch: pytest.MonkeyPatch) -> None:
    def lost(self: Engine, uid: str, now_ns: int, out: list[Command]) -> None:
        if self.ledger.release(uid) is not None and uid in self.placed:
            self._unwind(uid, now_ns, out)

    patch.setattr(Engine, "_bind_failed", lost)


def nobody_woken_by_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "wake_for_freed", nothing)


def nobody_woken_by_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "wake_all", nothing)


def a_chain_that_breaks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "next_of_group", nothing)


def too_choosy_about_whom_to_wake(patch: pytest.MonkeyPatch) -> None:
    fits = ParkedGroup.could_fit

    def choosy(self: ParkedGroup, room: FreedNode, **how: bool) -> bool:
        return fits(self, room._replace(cells=[cell - 1 for cell in room.cells]), **how)

    patch.setattr(ParkedGroup, "could_fit", choosy)


def seen_pods_stay_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    def adopted(self: Engine, event: Any, *_: object) -> None:
        self.ledger.adopt(event.placement)

    patch.setattr(Engine, "_seen_bound", adopted)


def a_stale_answer_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    once = Ledger._book

    def without_a_mark(self: Ledger, name: str, holding, sign: int) -> None:  # type: ignore[no-untyped-def]
        marks = self.table.changed_at.copy()
        once(self, name, holding, sign)
        self.table.changed_at[:] = marks

    patch.setattr(Ledger, "_book", without_a_mark)


def added_pods_decided_though_they_are_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Engine, "_add", lambda self, pod, now, _: self.queue.add(pod, self.profile_of(pod), now)
    )


# --- rules about other pods, and volumes ---


def nobody_asks_the_rules(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("weft.core.engine.engine.answers", lambda *_: [])


def nobody_woken_by_pods(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "wake_for_pods", nothing)


def who_left_is_counted_on(patch: pytest.MonkeyPatch) -> None:
    add = CountByNode.add
    patch.setattr(CountByNode, "add", lambda self, node, by: add(self, node, max(by, 0)))


def others_keep_nobody_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExistingPods, "keeping_off", lambda *_: ())


def seen_pods_have_no_marks(patch: pytest.MonkeyPatch) -> None:
    put = ExistingPods.put

    def bare(self: ExistingPods, uid: str, node: str, marks: PodMarks, *mounted: Any) -> None:
        put(self, uid, node, PodMarks(marks.namespace), *mounted)

    patch.setattr(ExistingPods, "put", bare)


def a_volume_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServingVolumes, "assume", nothing)


# --- beside deciding: the world in which mistakes are made there ---


def scores_made_ahead_for_the_nodes_of_before(patch: pytest.MonkeyPatch) -> None:
    def work_ahead(self: Assessor, _: int) -> None:
        while self.dear:
            known = self.dear.pop()
            if self._known.get((known.profile.name, known.shape)) is known:
                self._bring_up(known)

    patch.setattr(Assessor, "work_ahead", work_ahead)


def prices_of_the_nodes_of_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PriceLists, "nodes_changed", lambda *_: False)


def mistakes_beside_deciding_are_raised(patch: pytest.MonkeyPatch) -> None:
    def broke_off(self: SideTasks, task: str, error: Exception) -> None:
        raise error

    patch.setattr(SideTasks, "broke_off", broke_off)


def mistakes_beside_deciding_are_hushed_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SideTasks, "take_faults", lambda self: [])


def mistakes_beside_deciding_are_told_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SideTasks, "take_faults", lambda self: list(self.faults))


def no_prices_once_some_could_not_be_made(patch: pytest.MonkeyPatch) -> None:
    """They are made in the pod's decision, and cost it its turn."""
    rightly = LeastStranding.take_input

    def take_input(self: LeastStranding, name: str, value: Any) -> None:
        rightly(self, name, value)
        self._prices = None

    patch.setattr(LeastStranding, "take_input", take_input)


def what_was_learnt_is_looked_up_in_the_decision(patch: pytest.MonkeyPatch) -> None:
    """Where that breaks off, the pod has no turn."""
    rightly = Engine.assess

    def assess(self: Engine, profile: Any, pod: Any, beside: Any = ()) -> Any:
        self._learnt_shape(profile, pod)
        return rightly(self, profile, pod, beside)

    patch.setattr(Engine, "assess", assess)


MUTANTS = [
    a_dropped_reservation,
    a_release_that_forgets,
    a_double_release,
    a_refused_bind_forgotten,
    a_refused_bind_believed_though_the_pod_is_bound,
    nobody_woken_by_room,
    nobody_woken_by_nodes,
    a_chain_that_breaks,
    too_choosy_about_whom_to_wake,
    seen_pods_stay_in_the_queue,
    a_stale_answer_from_the_cache,
    added_pods_decided_though_they_are_bound,
    nobody_asks_the_rules,
    nobody_woken_by_pods,
    who_left_is_counted_on,
    others_keep_nobody_off,
    seen_pods_have_no_marks,
    a_volume_is_given_twice,
]
BESIDE = [
    scores_made_ahead_for_the_nodes_of_before,
    prices_of_the_nodes_of_before,
    mistakes_beside_deciding_are_raised,
    mistakes_beside_deciding_are_hushed_up,
    mistakes_beside_deciding_are_told_again,
    no_prices_once_some_could_not_be_made,
    what_was_learnt_is_looked_up_in_the_decision,
]


WALKS = 60
BEGINS = {
    a_chain_that_breaks: 115,
    too_choosy_about_whom_to_wake: 9,
    nobody_woken_by_pods: 77,
    others_keep_nobody_off: 77,
    a_volume_is_given_twice: 121,
    prices_of_the_nodes_of_before: 10,
    no_prices_once_some_could_not_be_made: 121,
}
"""The walk to begin with: one that showed it, so that little time is lost."""


def walk_on(mutant: Mutant, *, mistakes: bool = False) -> None:
    """By what ships, one after another; where something is beside deciding, by what has prices."""
    ways = (WAYS["profile weft"], WAYS["auto"]) if mistakes else SHIPPED
    first = FIRST if CHOSEN else BEGINS.get(mutant, 0)
    for seed in range(first, first + WALKS):
        walk(seed, ways[seed % len(ways)], mistakes=mistakes and bool(seed % 4))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_random_world_catches(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, KeyError)):
        walk_on(mutant)


@pytest.mark.parametrize("mutant", BESIDE, ids=lambda mutant: mutant.__name__)
def test_the_random_world_catches_mistakes_beside_deciding(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, ArithmeticError, ValueError, PolicyError)):
        walk_on(mutant, mistakes=True)
