"""Finds the fewest pods to move (evict and place again) so that another pod finds a place.

Every returned plan was tried (`MoveTrials.play`). A set of pods that helps must contain its *base*,
pods of one node without which the waiting pod fits there; each other pod of the set makes room for
a pod of the set that would find no place. A pod is never moved for a pod that requests no more than
it does: the latter could use the new place itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from typing import NamedTuple

import msgspec

from weft.core.engine.engine import Engine
from weft.core.engine.move_trials import MovablePod, MovesPlayed, MoveTrials, PodMove
from weft.core.engine.node_shortfall import NodeShortfall
from weft.core.ledger import Holding
from weft.model import Code, PodRequest, Shape

MOST_ORDERED = 3
"""For up to this many pods all orders of moves are tried; for more, only orders by size."""

LOOKS_A_TRIAL = 100
"""For each trial allowed, this many sets may be skipped because of their sums or their lost
work."""


class _Candidate(NamedTuple):
    """Pods of one node: a bit mask of those that may leave it, and the work lost with them."""

    node: str
    mask: int
    uids: tuple[str, ...]
    lost_gpu_s: float


class MovePlan(msgspec.Struct, frozen=True):
    """Pods to move one at a time, in this order, so that the pod fits on `node`.

    `smallest`: no plan moves fewer pods, and none with as many moves loses less work; if False, the
    search was cut off before all plans were tried.
    """

    node: str
    moves: tuple[PodMove, ...]
    lost_gpu_s: float
    smallest: bool = True


class RoomSearch:
    """Searches plans on an engine's ledger, and restores the ledger afterwards.

    `budgets` are the evictions that each disruption budget allows; `most_trials` limits how often
    moves are tried for one plan. `waits`: the pod is in the queue, so it gets its place before the
    pods that are moved for it; otherwise it comes after all moves.
    """

    def __init__(
        self,
        engine: Engine,
        movable: Sequence[MovablePod],
        budgets: Mapping[str, int] | None = None,
        *,
        most_trials: int = 3_000,
        waits: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._trials = MoveTrials(engine, movable, budgets, progress)
        self._ledger, self._most_trials, self._waits = engine.ledger, most_trials, waits
        self._begin = self._looked = 0
        self._fit: dict[str, list[int]] = {}
        self._helpers: dict[tuple[Shape, int], dict[str, None]] = {}
        self._on: dict[str, list[Holding]] = {}

    def plan(self, pod: PodRequest, most_moves: int = 3) -> MovePlan | None:
        """Return the smallest plan of at most `most_moves` moves; None if there is none, or none
        was found within the trials (`cut_off`). Among plans of one size, the one that loses the
        least work."""
        trials = self._trials
        self._begin, self._looked, self._fit, self._on = trials.tried, 0, {}, {}
        self._helpers.clear()
        if (played := trials.play(pod, (), waits=self._waits)) is not None:
            return MovePlan(played.node, (), 0.0)
        bases: list[tuple[str, ...]] = []
        for count in range(1, most_moves + 1):
            candidates = sorted(
                self._candidates(pod, count), key=lambda candidate: candidate.lost_gpu_s
            )
            sets = chain(
                (candidate.uids for candidate in candidates), self._helped(pod, bases, count)
            )
            best = self._best_of(pod, sets)
            if best is not None:
                smallest = not self.cut_off and count <= MOST_ORDERED
                return msgspec.structs.replace(best, smallest=smallest)
            if count < most_moves:
                bases += [
                    candidate.uids for candidate in candidates if self._is_base(pod, candidate)
                ]
        return None

    @property
    def cut_off(self) -> bool:
        """True if the last search ended before all plans were tried."""
        tried = self._trials.tried - self._begin
        return tried >= self._most_trials or self._looked >= LOOKS_A_TRIAL * self._most_trials

    def _best_of(self, pod: PodRequest, sets: Iterable[tuple[str, ...]]) -> MovePlan | None:
        """Return the plan that loses the least work among those that move one of these sets, all of
        one size."""
        best: MovePlan | None = None
        for chosen in sets:
            if self.cut_off:
                break
            self._looked += 1
            lost = self._trials.lost_gpu_s(chosen)
            if best is not None and lost >= best.lost_gpu_s:
                continue
            if (played := self._played(pod, chosen)) is not None:
                best = MovePlan(played.node, played.moves, lost)
        return best

    def _played(self, pod: PodRequest, uids: Sequence[str]) -> MovesPlayed | None:
        """Play these moves in the first order that works; None if no order does."""
        orders = permutations(sorted(uids, key=self._by_size))
        for order in islice(orders, None if len(uids) <= MOST_ORDERED else 1):
            if (played := self._trials.play(pod, order, waits=self._waits)) is not None:
                return played
        return None

    def _by_size(self, uid: str) -> tuple[int, str]:
        """Return a sort key by size, the largest pod first."""
        asks = self._trials.movable[uid].request.shape.gpu_requests
        return -sum(ask.count * (1000 if ask.whole else ask.milli) for ask in asks), uid

    # --- which sets of pods ---

    def _candidates(self, pod: PodRequest, count: int) -> Iterator[_Candidate]:
        """Yield sets of `count` pods of one node without which the pod might fit there, except sets
        with a smaller one that is enough."""
        for node in self._in_the_way(pod):
            here = self._movable_on(node, pod.shape)
            fit = self._fit.get(node, ())
            for mask in self._shortfall(pod, node, here).masks(count):
                self._looked += 1
                if self.cut_off:
                    return
                if any(mask & known == known for known in fit):
                    continue
                uids = tuple(
                    holding.placement.uid for at, holding in enumerate(here) if mask >> at & 1
                )
                if self._trials.allowed(uids):
                    yield _Candidate(node, mask, uids, self._trials.lost_gpu_s(uids))

    def _is_base(self, pod: PodRequest, candidate: _Candidate) -> bool:
        """Return True if the pod fits on the candidate's node without the candidate's pods."""
        if self.cut_off or not self._trials.fits_without(pod, candidate.node, candidate.uids):
            return False
        self._fit.setdefault(candidate.node, []).append(candidate.mask)
        return True

    def _helped(
        self, pod: PodRequest, bases: Sequence[tuple[str, ...]], count: int
    ) -> Iterator[tuple[str, ...]]:
        """Extend sets of fewer pods by pods that make room for those of them that found no
        place."""
        seen: set[frozenset[str]] = set()
        for base in bases:
            for helpers in self._helping((pod.uid, *base), base, count - len(base)):
                whole = frozenset((*base, *helpers))
                if whole not in seen and self._trials.allowed(tuple(whole)):
                    seen.add(whole)
                    yield tuple(sorted(whole))

    def _helping(
        self, known: Sequence[str], base: Sequence[str], count: int
    ) -> Iterator[tuple[str, ...]]:
        """Yield sets of `count` other pods, each pod on a node where one of the previous pods could
        then be placed."""
        if count == 0:
            yield ()
            return
        for uid in dict.fromkeys(
            helper
            for candidate in base
            for helper in self._helpers_of(candidate, count)
            if helper not in known
        ):
            for rest in self._helping((*known, uid), (*base, uid), count - 1):
                yield uid, *rest

    def _helpers_of(self, uid: str, most: int) -> dict[str, None]:
        """Return the pods that occur in a set of at most `most` pods whose leaving makes room for
        this pod."""
        request = self._trials.movable[uid].request
        known = self._helpers.get((request.shape, most))
        if known is None:
            known = self._helpers[request.shape, most] = {}
            codes = self._trials.assess(request).codes.tolist()
            for node, code in zip(self._ledger.table.nodes, codes, strict=True):
                if code and not Code(code).is_by_others:
                    continue
                here = self._movable_on(node.name, request.shape)
                shortfall = self._shortfall(request, node.name, here)
                for count in range(1, most + 1):
                    for mask in shortfall.masks(count):
                        for at, holding in enumerate(here):
                            if mask >> at & 1:
                                known[holding.placement.uid] = None
        return known

    def _in_the_way(self, pod: PodRequest) -> list[str]:
        """Return the nodes that the pod might use if other pods left."""
        codes = self._trials.assess(pod).codes.tolist()
        nodes = zip(self._ledger.table.nodes, codes, strict=True)
        return [node.name for node, code in nodes if code == 0 or Code(code).is_by_others]

    def _movable_on(self, node: str, wanted: Shape) -> list[Holding]:
        """Return the pods that may leave the node for a pod of shape `wanted`, except those that
        request as much."""
        return [
            holding
            for holding in self._held_on(node)
            if (pod := self._trials.movable.get(holding.placement.uid)) is not None
            and not _asks_as_much(pod.request.shape, wanted)
        ]

    def _held_on(self, node: str) -> list[Holding]:
        held = self._on.get(node)
        if held is None:
            held = self._on[node] = list(self._ledger.pods_on(node))
        return held

    def _shortfall(self, pod: PodRequest, node: str, here: Sequence[Holding]) -> NodeShortfall:
        table, demand = self._ledger.table, self._trials.assess(pod).demand
        return NodeShortfall(table, table.row_of[node], demand, here, self._held_on(node))


def _asks_as_much(shape: Shape, wanted: Shape) -> bool:
    """Return True if every place that suits the first shape would suit the second too."""
    if _plain(shape) != _plain(wanted) or not _beside(shape, wanted):
        return False
    if shape.gpu_requests == wanted.gpu_requests:
        return True
    if len(shape.gpu_requests) != 1 or len(wanted.gpu_requests) != 1:
        return False
    (asked,), (other,) = shape.gpu_requests, wanted.gpu_requests
    if asked.whole:
        return other == msgspec.structs.replace(asked, count=min(asked.count, other.count))
    return other == msgspec.structs.replace(asked, milli=min(asked.milli, other.milli))


def _beside(shape: Shape, wanted: Shape) -> bool:
    return shape.cpu_milli >= wanted.cpu_milli and shape.memory_mib >= wanted.memory_mib


def _plain(shape: Shape) -> Shape:
    """Return the shape without its GPUs, CPU and memory."""
    return msgspec.structs.replace(shape, gpu_requests=(), cpu_milli=0, memory_mib=0, trace_spec="")
