"""Finds the fewest pods to move (evict and place again) so that another pod finds a place.

Every returned plan was tried (`MoveTrials.play`). A set of pods that helps must contain its *base*,
pods of one node without which the waiting pod fits there; each other pod of the set makes room for
a pod of the set that would find no place. A pod is never moved for a pod that requests no more than
it does: the latter could use the new place itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, permutations
from typing import NamedTuple

import msgspec

from weft.core.engine.engine import Engine
from weft.core.engine.move_trials import MovablePod, MovesPlayed, MoveTrials, PodMove
from weft.core.framework.demand import Demand
from weft.core.ledger import Holding
from weft.core.ledger.table import LedgerTable
from weft.model import Code, PodRequest, Shape

MOST_ORDERED = 3
"""For up to this many pods all orders of moves are tried; for more, only orders by size."""

LOOKS_A_TRIAL = 100
"""A search ends after considering this many sets of pods for each trial allowed. Most sets are
considered without a trial: they free too little, or lose more work than the best set so far."""


class _Candidate(NamedTuple):
    """Pods of one node, their bit mask among the node's movable pods, and the work lost by moving
    them."""

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
        that contain a smaller set that is enough."""
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
        """Yield the `bases`, extended to `count` pods by pods that make room for those pods of the
        set that would find no place."""
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
        """Return the pods that may leave the node for a pod of shape `wanted`, except pods that
        request at least as much."""
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

    def _shortfall(self, pod: PodRequest, node: str, here: Sequence[Holding]) -> "NodeShortfall":
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


# --- what a node lacks ----------------------------------------------------------------------------
# Bounds, by sums alone, which pods must leave a node before another pod could fit: no set of pods
# that makes room is missed, and few are tried in vain.
#
# Sums are of CPU, memory and thousandths of a GPU. A GPU requested as a whole must lose all its
# holders, a shared GPU enough of them. Only a trial checks links and policies.


class NodeShortfall:
    """The shortfall of one node for one demand. `movable` are holdings there that may leave,
    numbered as given: a set of them is a bit mask. `held` are all holdings on the node."""

    def __init__(
        self,
        table: LedgerTable,
        row: int,
        demand: Demand,
        movable: Sequence[Holding],
        held: Sequence[Holding],
    ) -> None:
        self._count = len(movable)
        # A card that is out of use may be usable without its pods: the sums then underestimate.
        self._sums_tell = not table.has_parents and table.usable_gpus[row] == table.gpus[row]
        needs = [demand.cpu_milli, demand.memory_mib, demand.milli if self._sums_tell else 0]
        free = [int(table.cpu_free[row]), int(table.memory_free[row]), int(table.milli_free[row])]
        amounts = [_amounts(holding) for holding in movable]
        # A pod that requests none of a resource fits a node where that resource is overbooked.
        short = [at for at, need in enumerate(needs) if need > 0 and need > free[at]]
        self._lacks = [needs[at] - free[at] for at in short]
        self._frees = [[holding[at] for holding in amounts] for at in short]
        self._table, self._row, self._demand = table, row, demand
        self._movable, self._held = movable, held

    def masks(self, count: int) -> Iterator[int]:
        """Yield each set of `count` pods, as a bit mask, without which the pod might fit."""
        if self._count < count or not self._may_do(count):
            return
        seen: set[int] = set()
        for core in self._cores(count):
            rest = [1 << at for at in range(self._count) if not core >> at & 1]
            for some in combinations(rest, count - core.bit_count()):
                mask = core | sum(some)
                if mask not in seen and self.enough(mask):
                    seen.add(mask)
                    yield mask

    def enough(self, mask: int) -> bool:
        """Return True if the pods of this mask free as much CPU, memory and GPU as the node lacks,
        by sums."""
        return all(
            sum(free for at, free in enumerate(frees) if mask >> at & 1) >= lack
            for frees, lack in zip(self._frees, self._lacks, strict=True)
        )

    def _may_do(self, count: int) -> bool:
        """Return True if the largest `count` holdings free what the node lacks."""
        return all(
            sum(sorted(frees, reverse=True)[:count]) >= lack
            for frees, lack in zip(self._frees, self._lacks, strict=True)
        )

    def _cores(self, count: int) -> list[int]:
        """Return sets of at most `count` pods, as bit masks: every set of pods that frees the
        needed GPUs contains at least one of these sets whole."""
        if not self._sums_tell or self._demand.mode not in ("node", "device"):
            return [0]
        table, begin = self._table, self._table.start[self._row]
        on: dict[int, int] = dict.fromkeys(range(begin, table.start[self._row + 1]), 0)
        for at, holding in enumerate(self._movable):
            for device in self._devices(holding):
                on[device] |= 1 << at
        if self._demand.need.whole:
            return self._cleared(on, count)
        cores: dict[int, None] = {}
        for device, mask in on.items():
            cores.update(dict.fromkeys(self._thinned(device, mask, count)))
        return list(cores)

    def _devices(self, holding: Holding) -> list[int]:
        rows = [self._table.device_row(self._row, share.gpu) for share in holding.placement.shares]
        return [device for device in dict.fromkeys(rows) if device >= 0]

    def _cleared(self, on: dict[int, int], count: int) -> list[int]:
        """Return masks of the pods to remove so that enough GPUs are idle: all pods of each GPU."""
        may_go = {holding.placement.uid for holding in self._movable}
        stay = (holding for holding in self._held if holding.placement.uid not in may_go)
        stuck = {device for holding in stay for device in self._devices(holding)}
        masks = [
            mask
            for device, mask in on.items()
            if mask and device not in stuck and mask.bit_count() <= count
        ]
        idle = int(self._table.idle[self._row])
        sets: dict[int, None] = {}
        for some in combinations(masks, max(0, self._demand.need.count - idle)):
            core = 0
            for mask in some:
                core |= mask
            if core.bit_count() <= count:
                sets[core] = None
        return list(sets)

    def _thinned(self, device: int, mask: int, count: int) -> Iterator[int]:
        """Yield minimal sets of a shared GPU's holders that free enough of it."""
        table, need = self._table, self._demand.need
        lacks = [need.milli - int(table.device_milli_free[device]), 0]
        if not self._demand.harvests:
            asked = int(need.ask_mib[table.kind_of[device]])
            lacks[1] = asked - int(table.device_memory_free[device])
        frees = {}
        for at in range(self._count):
            if mask >> at & 1:
                frees[1 << at] = self._on(self._movable[at], device)
        needed: list[int] = []
        for size in range(min(count, len(frees)) + 1):
            for some in combinations(frees, size):
                core = sum(some)
                if any(smaller & core == smaller for smaller in needed):
                    continue
                if all(
                    sum(frees[pod][of] for pod in some) >= lack for of, lack in enumerate(lacks)
                ):
                    needed.append(core)
        yield from needed

    def _on(self, holding: Holding, device: int) -> tuple[int, int]:
        """Return the thousandths and MiB of the device that the pod holds."""
        shares = [
            share
            for share in holding.placement.shares
            if self._table.device_row(self._row, share.gpu) == device
        ]
        return sum(share.milli for share in shares), sum(share.memory_mib for share in shares)


def _amounts(holding: Holding) -> tuple[int, int, int]:
    place = holding.placement
    return place.cpu_milli, place.memory_mib, sum(share.milli for share in place.shares)
