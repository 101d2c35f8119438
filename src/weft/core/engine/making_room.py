"""Finds the fewest pods to move, evict and place anew, so that another pod finds a place.

Every plan was played: on the ledger under a checkpoint the pods go, the waiting pod is placed, then
those that went, the largest first, each where its profile puts it; then all is rolled back. A set
of pods that helps must hold some of one node without which the waiting pod fits there, so that sets
are made of these and, where a pod that went finds no place, of others beside.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from weft.core.engine import selection
from weft.core.engine.assessment import Assessment, Assessor
from weft.core.engine.engine import Engine
from weft.model import Code, PodRequest


class MovablePod(msgspec.Struct, frozen=True):
    """A bound pod that may be moved: `lost_gpu_s` is the work that is lost with it, GPU seconds
    since it started; `budgets` name the disruption budgets that it counts against."""

    request: PodRequest
    lost_gpu_s: float = 0.0
    budgets: tuple[str, ...] = ()


class PodMove(msgspec.Struct, frozen=True):
    """A pod, by UID, and where it goes from and to."""

    uid: str
    from_node: str
    to_node: str


class MovePlan(msgspec.Struct, frozen=True):
    """Pods to move, in the order in which they are placed anew, so that the pod fits on `node`.

    `smallest`: no plan moves fewer pods, and none of as many loses less work; else the search was
    cut off before all were tried.
    """

    node: str
    moves: tuple[PodMove, ...]
    lost_gpu_s: float
    smallest: bool = True


class RoomSearch:
    """Searches plans on an engine's ledger, which is as before afterwards.

    `budgets` are how many pods each disruption budget lets go; `most_trials` bounds the sets of
    pods that are tried out for one plan.
    """

    def __init__(
        self,
        engine: Engine,
        movable: Sequence[MovablePod],
        budgets: Mapping[str, int] | None = None,
        *,
        most_trials: int = 50_000,
        told: Callable[[int], None] | None = None,
    ) -> None:
        self._engine, self._assessor = engine, Assessor(engine.ledger)
        self._movable = {one.request.uid: one for one in movable}
        self._budgets, self._most_trials, self._told = budgets or {}, most_trials, told
        self._trials = 0

    def plan(self, pod: PodRequest, most_moves: int = 3) -> MovePlan | None:
        """The smallest plan of at most `most_moves` moves; None: there is none, or none was found
        within the trials (`cut_off`). Of plans as small, the one that loses least work."""
        self._trials = 0
        if (played := self._play(pod, ())) is not None:
            return MovePlan(played[0].to_node, (), 0.0)
        for count in range(1, most_moves + 1):
            best: MovePlan | None = None
            for chosen in self._sets(pod, count):
                lost = sum(self._movable[uid].lost_gpu_s for uid in chosen)
                if best is not None and lost >= best.lost_gpu_s:
                    continue
                if (played := self._play(pod, chosen)) is not None:
                    best = MovePlan(played[0].to_node, tuple(played[1:]), lost)
            if best is not None:
                return msgspec.structs.replace(best, smallest=not self.cut_off)
        return None

    @property
    def cut_off(self) -> bool:
        """True if the last search ended before everything was tried."""
        return self._trials >= self._most_trials

    def _sets(self, pod: PodRequest, count: int) -> Iterator[tuple[str, ...]]:
        """Sets of so many pods without which the pod fits somewhere; each once."""
        codes = self._assess(pod).codes.tolist()
        nodes = [
            node.name
            for node, code in zip(self._engine.ledger.table.nodes, codes, strict=True)
            if code == 0 or code > Code.OUT_OF_SERVICE  # what others hold there is in the way
        ]
        seen: set[frozenset[str]] = set()
        for part in range(count, 0, -1):  # first those that are all of one node
            for some in self._of_one_node(pod, nodes, part):
                others = sorted(self._movable.keys() - set(some) - {pod.uid})
                for rest in combinations(others, count - part):
                    if self._spent():
                        return
                    whole = frozenset((*some, *rest))
                    if whole not in seen and self._allowed((*some, *rest)):
                        seen.add(whole)
                        yield tuple(sorted(whole))

    def _of_one_node(
        self, pod: PodRequest, nodes: Sequence[str], part: int
    ) -> Iterator[tuple[str, ...]]:
        """So many pods of one of these nodes without which the pod fits there."""
        for node in nodes:
            held = (holding.placement.uid for holding in self._engine.ledger.pods_on(node))
            here = sorted(uid for uid in held if uid in self._movable and uid != pod.uid)
            for some in combinations(here, part):
                if self._spent():
                    return
                if self._allowed(some) and self._fits_without(pod, node, some):
                    yield some

    def _spent(self) -> bool:
        self._trials += 1
        if self._told is not None and self._trials % 1000 == 0:
            self._told(self._trials)
        return self.cut_off

    def _allowed(self, uids: Sequence[str]) -> bool:
        """True if every disruption budget lets as many go."""
        counts: dict[str, int] = {}
        for uid in uids:
            for budget in self._movable[uid].budgets:
                counts[budget] = counts.get(budget, 0) + 1
        return all(count <= self._budgets.get(name, 0) for name, count in counts.items())

    def _fits_without(self, pod: PodRequest, node: str, uids: Sequence[str]) -> bool:
        ledger = self._engine.ledger
        ledger.checkpoint()
        try:
            for uid in uids:
                ledger.release(uid)
            return bool(self._assess(pod).codes[ledger.table.row_of[node]] == 0)
        finally:
            ledger.rollback()

    def _assess(self, pod: PodRequest) -> Assessment:
        """Like the engine's own answer, kept apart from its."""
        engine = self._engine
        profile = engine.profile_of(pod)
        self._assessor.observed = engine.assessor.observed
        shape = profile.shaped(engine.oom_history.shape_of(pod))
        return self._assessor.assess(profile, shape)

    def _play(self, pod: PodRequest, uids: Sequence[str]) -> list[PodMove] | None:
        """Where the pod and then these are placed; None if one of them finds no place."""
        ledger = self._engine.ledger
        ledger.checkpoint()
        try:
            from_node = {}
            for uid in uids:
                held = ledger.release(uid)
                assert held is not None
                from_node[uid] = held.placement.node
            went = [self._movable[uid].request for uid in uids]
            went.sort(key=lambda one: (-_milli(one), one.uid))
            moves = []
            for one in (pod, *went):
                node = self._place(one)
                if node is None:
                    return None
                moves.append(PodMove(one.uid, from_node.get(one.uid, ""), node))
            return moves
        finally:
            ledger.rollback()

    def _place(self, pod: PodRequest) -> str | None:
        """Reserve a place as the engine would; its node, None where there is none."""
        table, profile = self._engine.ledger.table, self._engine.profile_of(pod)
        known, key = self._assess(pod), f"{self._engine.seed}/{pod.uid}/1"
        row = selection.best_row(known, profile, key)
        if row < 0:
            return None
        shares = selection.shares_on(table, row, known, profile, key)
        placement = selection.placement_on(table, row, pod.uid, shares, known.shape)
        reserved = self._engine.ledger.reserve(placement, asks=known.demand.asks)
        return placement.node if reserved else None


def _milli(pod: PodRequest) -> int:
    return sum(ask.count * (1000 if ask.whole else ask.milli) for ask in pod.shape.gpu_requests)
