"""The random world would notice: each of these mistakes, put into the engine, is caught."""

from collections.abc import Callable
from random import Random

import pytest
from engine_world import random_world, step

from weft.core.engine.engine import Engine
from weft.core.engine.queue import Queue
from weft.core.engine.waiting_pods import FreedNode, ParkedGroup
from weft.core.ledger import Ledger

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
    def lost(self: Engine, uid: str, now_ns: int) -> None:
        if self.ledger.release(uid) is not None and uid in self.placed:
            self._unwind(uid, now_ns)

    patch.setattr(Engine, "_bind_failed", lost)


def nobody_woken_by_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "wake_for_freed", nothing)


def nobody_woken_by_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "wake_all", nothing)


def a_chain_that_breaks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Queue, "next_of_group", nothing)


def too_choosy_about_whom_to_wake(patch: pytest.MonkeyPatch) -> None:
    fits = ParkedGroup.could_fit

    def choosy(self: ParkedGroup, room: FreedNode) -> bool:
        return fits(self, room._replace(cells=[cell - 1 for cell in room.cells]))

    patch.setattr(ParkedGroup, "could_fit", choosy)


def seen_pods_stay_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Engine, "_seen_bound", lambda self, event, _: self.ledger.adopt(event.placement) and None
    )


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
]


SEEDS = (45, *range(45), *range(46, 60))
"""45 first: it alone meets the rarest mistake, `a_chain_that_breaks`."""


def walk_on() -> None:
    for seed in SEEDS:
        random = Random(seed)
        world = random_world(random)
        for _ in range(70):
            step(world, random)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_random_world_catches(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, KeyError)):
        walk_on()
