"""Tries moves of pods on a ledger, one at a time, and restores the ledger afterwards. A pod is
evicted; the waiting pod is tried first, as it has waited longest; then the evicted pod is placed by
its profile. Only then is the next pod evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from weft.core.engine import deciding
from weft.core.engine.assessment import Assessment, Assessor
from weft.model import PodRequest

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine


class MovablePod(msgspec.Struct, frozen=True):
    """A bound pod that may be moved: `lost_gpu_s` is the work lost by moving it, GPU seconds:
    what the pod states, or all since it was bound; `budgets` are the names of the disruption
    budgets that it counts against."""

    request: PodRequest
    lost_gpu_s: float = 0.0
    budgets: tuple[str, ...] = ()


class PodMove(msgspec.Struct, frozen=True):
    """A pod, by UID, and the nodes from and to which it moves."""

    uid: str
    from_node: str
    to_node: str


class MovesPlayed(msgspec.Struct, frozen=True):
    """The outcome of moves: where each pod went, and the node that then has room for the waiting
    pod."""

    node: str
    moves: tuple[PodMove, ...]


class MoveTrials:
    """Tries moves on an engine's ledger. `budgets` are the evictions that each disruption budget
    allows; `progress` is called with the number of every hundredth trial."""

    def __init__(
        self,
        engine: Engine,
        movable: Sequence[MovablePod],
        budgets: Mapping[str, int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.engine, self.ledger = engine, engine.ledger
        self.movable = {pod.request.uid: pod for pod in movable}
        self.tried = 0
        engine.follow_first()
        self._assessor = Assessor(engine.ledger)
        self._budgets, self._progress = budgets or {}, progress

    def allowed(self, uids: Sequence[str]) -> bool:
        """Return True if the disruption budgets allow all these evictions."""
        counts: dict[str, int] = {}
        for uid in uids:
            for budget in self.movable[uid].budgets:
                counts[budget] = counts.get(budget, 0) + 1
        return all(count <= self._budgets.get(name, 0) for name, count in counts.items())

    def lost_gpu_s(self, uids: Sequence[str]) -> float:
        """Return the work lost by moving these pods, GPU seconds."""
        return sum(self.movable[uid].lost_gpu_s for uid in uids)

    def assess(self, pod: PodRequest) -> Assessment:
        """Assess all nodes for the pod as the engine does, with a separate cache."""
        engine = self.engine
        profile = engine.profile_of(pod)
        self._assessor.observed = engine.assessor.observed
        shape = profile.shaped(engine.oom_history.shape_of(pod))
        return engine.asked_of(self._assessor, profile, shape, pod)

    def fits_without(self, pod: PodRequest, node: str, uids: Sequence[str]) -> bool:
        """Return True if the pod fits on the node once the pods `uids` are gone."""
        with self.trial():
            for uid in uids:
                self.evict(uid)
            return bool(self.assess(pod).codes[self.ledger.table.row_of[node]] == 0)

    def play(
        self, pod: PodRequest | None, uids: Sequence[str], *, waits: bool
    ) -> MovesPlayed | None:
        """Play these moves in this order; return None if one of the moved pods, or `pod`, finds no
        place. `waits`: `pod` is tried after each eviction; otherwise, after all moves. The result's
        node is "" if `pod` is None."""
        with self.trial():
            node = self.place(pod) if pod is not None and waits else None
            moves = []
            for uid in uids:
                from_node = self.evict(uid)
                if pod is not None and waits and node is None:
                    node = self.place(pod)
                to_node = self.place(self.movable[uid].request)
                if to_node is None:
                    return None
                moves.append(PodMove(uid, from_node, to_node))
            if pod is None:
                return MovesPlayed("", tuple(moves))
            node = node or self.place(pod)
            return None if node is None else MovesPlayed(node, tuple(moves))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all changes to the ledger at the end of the context."""
        self.tried += 1
        if self._progress is not None and self.tried % 100 == 0:
            self._progress(self.tried)
        with self.engine.trial():
            yield

    def evict(self, uid: str) -> str:
        """Free what the pod holds; return its node."""
        held = self.ledger.release(uid)
        assert held is not None
        self.engine.existing.remove(uid)
        return held.placement.node

    def place(self, pod: PodRequest) -> str | None:
        """Reserve a place as the engine would; return its node, None if there is none."""
        return reserve_place(self.engine, self.assess(pod), pod)


def reserve_place(engine: Engine, known: Assessment, pod: PodRequest) -> str | None:
    """Reserve, on trial, the place that the pod's first attempt would take given this assessment;
    return its node, None if there is none."""
    table, profile, key = engine.ledger.table, engine.profile_of(pod), f"{engine.seed}/{pod.uid}/1"
    row = deciding.best_row(known, profile, key)
    if row < 0:
        return None
    shares = deciding.shares_on(table, row, known, profile, key)
    placement = deciding.placement_on(table, row, pod.uid, shares, known.shape)
    reserved = engine.ledger.reserve(placement, asks=known.demand.asks)
    if reserved:
        engine.existing.put_asked(pod, placement.node)
    return placement.node if reserved else None
