"""Pods that ask alike get their places in the order in which they came, and none is forgotten.

Pods of three shapes wait for the memory of two cards. Looks at the GPUs, frees, arrivals, removals,
refused bindings and mere time happen in any order; before each, the engine is checked.
"""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from long_form import few_or_many

from weft.core.engine import (
    Bind,
    BindFailed,
    Engine,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    SignalsChanged,
    Tick,
)
from weft.core.engine.parked import BACKOFF_MOST_NS
from weft.core.framework import Policy, Profile
from weft.core.framework.signals import FRESH, snapshot
from weft.core.ledger import RequestLimits
from weft.model import PodRequest
from weft.testing import node, pod

S = 1_000_000_000
CARD = 10_000
SIZES = (3_000, 4_500, 10_000)


class Harvesting(Policy):
    """Any GPU, idle memory included."""

    name = "harvesting"
    harvests = True
    reads = frozenset({"signals"})


class Order(RuleBasedStateMachine):
    """The order in which pods came, and those that have a place."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(
            [Profile("weft", [Harvesting()])], limits=RequestLimits(harvest_permille=1_500)
        )
        self.now = self.made = self.version = 0
        self.waiting: dict[str, PodRequest] = {}
        self.placed: dict[str, PodRequest] = {}
        self.lost: set[str] = set()
        self.tell(NodesChanged((node("a", gpus=2, memory_mib=CARD),)))

    def tell(self, event: Any) -> None:
        for command in self.engine.handle(event, self.now):
            if isinstance(command, Bind):
                mine = self.waiting.pop(command.pod.uid)
                for other in self.waiting.values():
                    alike = other.shape == mine.shape and other.uid not in self.lost
                    ahead = (-other.priority, other.created_ns) < (-mine.priority, mine.created_ns)
                    assert not (alike and ahead), f"{mine.uid} overtook {other.uid}"
                self.placed[mine.uid] = mine

    @rule(size=st.sampled_from(SIZES), priority=st.sampled_from([0, 0, 0, 5]))
    def comes(self, size: int, priority: int) -> None:
        self.made += 1
        asks = pod(f"p{self.made}", memory_mib=size, priority=priority, created_ns=self.made)
        self.waiting[asks.uid] = asks
        self.tell(PodAdded(asks))

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        del self.placed[uid]
        self.lost.discard(uid)
        self.tell(PodGone(uid))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def is_withdrawn(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[uid]
        self.lost.discard(uid)
        self.tell(PodGone(uid))

    @precondition(lambda self: self.placed)
    @rule(data=st.data(), refused=st.sampled_from([False, False, True]))
    def binding_is_answered(self, data: st.DataObject, refused: bool) -> None:
        """Whoever is refused rests, and others may go meanwhile."""
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        if not refused:
            self.tell(PodBound(uid))
        elif self.engine.ledger.holdings[uid].state == "reserved":
            self.waiting[uid] = self.placed.pop(uid)
            self.lost.add(uid)
            self.tell(BindFailed(uid))

    @rule(seconds=st.sampled_from([0, 1, 3, 20]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * S
        self.tell(Tick())

    @rule(data=st.data())
    def is_looked_at(self, data: st.DataObject) -> None:
        self.version += 1
        idle = {uid: (data.draw(st.sampled_from([0, 2_000, 6_000])),) for uid in self.placed}
        fresh = np.array([FRESH, FRESH], dtype=np.int8)
        columns = {"memory_need_mib": (np.full(2, float(self.version)), fresh)}
        told = snapshot(self.version, self.now, [("a", 0), ("a", 1)], columns, idle_mib=idle)
        self.tell(SignalsChanged(told))

    # --- what must hold ---

    @invariant()
    def nobody_who_fits_waits_for_long(self) -> None:
        """As soon as those who rest have rested, who still waits does not fit."""
        queue, profile = self.engine.queue, self.engine.profiles["weft"]
        resting = [one for one in queue.waiting() if one.state == "backoff"]
        shapes = {one.shape for one in resting}
        for asks in self.waiting.values():
            known = self.engine.assess(profile, asks)
            fits = bool((known.codes == 0).any())
            assert not fits or known.shape in shapes, f"{asks.uid} fits and is not tried"
        assert all(one.ready_ns - self.now <= BACKOFF_MOST_NS for one in resting)
        if resting:
            wake = queue.next_ns()
            assert wake is not None
            assert wake <= min(one.ready_ns for one in resting)

    @invariant()
    def nothing_is_left_over(self) -> None:
        queue = self.engine.queue
        assert {one.pod.uid for one in queue.waiting()} == self.waiting.keys()
        for key, woken in queue._woken.items():
            assert woken.state == "backoff"
            assert woken.group == key
            assert queue.get(woken.pod.uid) is woken
        for group in queue._parked.values():
            parked = [one for _, one in group.heap if one.state == "parked"]
            assert len(parked) == group.parked > 0
            assert len(group.heap) <= 2 * group.parked + 8
        assert not any(one.state == "active" for one in queue.waiting())


TestOrder = Order.TestCase
TestOrder.settings = settings(max_examples=few_or_many(12, 100), stateful_step_count=40)
