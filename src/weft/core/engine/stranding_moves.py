"""Finds pods to move so that less GPU is stranded (free, but of no use to usual pods), greedily:
each time the move that reduces stranded GPUs the most. The gain of a move is estimated from its two
nodes (the old one without the pod, the new one with it), so that few moves are tried. A pod is
moved at most once. The moves are tried one after the other on the ledger, which is restored
afterwards."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import numpy as np

from weft.core.engine.engine import Engine
from weft.core.engine.move_trials import MovablePod, MoveTrials, PodMove
from weft.core.framework.stranded import StrandedMeter
from weft.core.ledger.table import Ints
from weft.model import Shape

MOST_TRIED = 32
"""The most moves that are tried for each move chosen, the most promising first."""


class StrandingPlan(msgspec.Struct, frozen=True):
    """Moves in order. `stranded_milli` are the stranded GPUs, thousandths, before the first move
    and after each; `lost_gpu_s` is the work lost with all moves, GPU seconds."""

    moves: tuple[PodMove, ...]
    stranded_milli: tuple[int, ...]
    lost_gpu_s: float


class _Arrival(msgspec.Struct, frozen=True):
    """The node row where a shape's next pod would go, and how much more GPU, thousandths, would be
    stranded there with it."""

    row: int
    milli: int


class _Promise(NamedTuple):
    """A bound on how much moving a pod reduces stranded GPU, thousandths. `is_sure`: the bound is
    mostly exact, as the pod would move to another node; otherwise that node is unknown."""

    milli: int
    uid: str
    is_sure: bool


class StrandingSearch:
    """Searches moves on an engine's ledger, given the shapes of `usual` pods.

    `budgets` are the evictions that each disruption budget allows; moves that gain less than
    `least_milli` are not made. `progress` is called with the number of moves found.
    """

    def __init__(
        self,
        engine: Engine,
        movable: Sequence[MovablePod],
        usual: Iterable[Shape],
        budgets: Mapping[str, int] | None = None,
        *,
        least_milli: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._trials = MoveTrials(engine, movable, budgets)
        self._ledger, self._least_milli, self._progress = engine.ledger, least_milli, progress
        self._meter = StrandedMeter(engine.ledger.table, usual)
        self._stranded: Ints = np.zeros(0, dtype=np.int64)
        self._leaving: dict[str, int] = {}
        self._arriving: dict[tuple[str, Shape], _Arrival | None] = {}
        self._under_trial = False

    def plan(self, most_moves: int) -> StrandingPlan:
        """Plan at most `most_moves` moves; fewer if no further move helps."""
        table = self._ledger.table
        self._arriving.clear()
        self._stranded = self._meter.of().by.sum(axis=0)
        self._leaving = self._without_each(range(table.count))
        moves: list[PodMove] = []
        milli = [int(self._stranded.sum())]
        with self._trials.trial():
            self._under_trial = True
            try:
                while len(moves) < most_moves and (uid := self._best(moves)) is not None:
                    moves.append(self._take(uid))
                    milli.append(int(self._stranded.sum()))
                    if self._progress is not None:
                        self._progress(len(moves))
            finally:
                self._under_trial = False
        lost = self._trials.lost_gpu_s([move.uid for move in moves])
        return StrandingPlan(tuple(moves), tuple(milli), round(lost, 1))

    def _best(self, moves: Sequence[PodMove]) -> str | None:
        """Return the pod whose move reduces stranded GPU the most; None if no move gains enough."""
        moved = [move.uid for move in moves]
        self._renew_arrivals()
        best, gain, tried = None, self._least_milli - 1, 0
        for promise in sorted(self._promised(), key=lambda promise: (-promise.milli, promise.uid)):
            if promise.milli <= gain or tried >= MOST_TRIED:
                break
            if not self._trials.allowed([*moved, promise.uid]):
                continue
            tried += promise.is_sure
            if (brings := self._brings(promise.uid)) > gain:
                best, gain = promise.uid, brings
        return best

    def _promised(self) -> Iterator[_Promise]:
        """Yield for each pod a bound on how much its move reduces stranded GPU."""
        table = self._ledger.table
        for uid, milli in self._leaving.items():
            arrival = self._arriving[self._key(uid)]
            if arrival is None:
                continue  # without it, it would only fit on its own node
            place = self._ledger.holdings[uid].placement
            if table.row_of[place.node] != arrival.row:
                yield _Promise(-milli - arrival.milli, uid, is_sure=True)
            else:  # it may go elsewhere, and reduce what is stranded there by at most its own share
                held = sum(share.milli for share in place.shares)
                yield _Promise(held - milli, uid, is_sure=False)

    def _brings(self, uid: str) -> int:
        """Compute how much less GPU, thousandths, is stranded if the pod is moved; 0 if it finds no
        other place."""
        with self._gone([uid]) as (held,):
            to_node = self._trials.place(self._trials.movable[uid].request)
            if to_node is None:
                return 0
            rows = self._rows(held, to_node)
            after = int(self._meter.of(rows).by.sum())
            self._ledger.release(uid)
        return int(self._stranded[rows].sum()) - after if held != to_node else 0

    def _take(self, uid: str) -> PodMove:
        """Move the pod on trial, and update the estimates."""
        from_node = self._trials.evict(uid)
        to_node = self._trials.place(self._trials.movable[uid].request)
        assert to_node is not None
        rows = self._rows(from_node, to_node)
        self._stranded[rows] = self._meter.of(rows).by.sum(axis=0)
        del self._leaving[uid]
        anew = self._without_each(rows.tolist())
        self._leaving |= {pod: milli for pod, milli in anew.items() if pod in self._leaving}
        for key, arrival in self._arriving.items():
            if arrival is not None and arrival.row in rows:
                self._arriving[key] = None
        return PodMove(uid, from_node, to_node)

    def _rows(self, *nodes: str) -> Ints:
        return np.array(sorted({self._ledger.table.row_of[node] for node in nodes}))

    # --- what one pod changes ---

    def _without_each(self, rows: Iterable[int]) -> dict[str, int]:
        """Compute, for each movable pod on the nodes of these rows, how much more GPU, thousandths,
        is stranded there once it is gone."""
        nodes = self._ledger.table.nodes
        stranded: dict[str, int] = {}
        there = {row: self._movable_on(nodes[row].name) for row in rows}
        while there := {row: uids for row, uids in there.items() if uids}:
            layer = {row: uids.pop() for row, uids in there.items()}  # on different nodes
            of = np.array(list(layer))
            with self._gone(list(layer.values())):
                more = self._meter.of(of).by.sum(axis=0) - self._stranded[of]
            stranded.update(zip(layer.values(), more.tolist(), strict=True))
        return stranded

    def _movable_on(self, node: str) -> list[str]:
        held = (holding.placement.uid for holding in self._ledger.pods_on(node))
        return [uid for uid in held if uid in self._trials.movable]

    def _renew_arrivals(self) -> None:
        """Compute where each shape's next pod would go now, and how much more would be stranded
        there."""
        for uid in {self._key(uid): uid for uid in self._leaving}.values():
            pod, key = (
                msgspec.structs.replace(self._trials.movable[uid].request, uid="weft-defrag"),
                self._key(uid),
            )
            node, known = self._trials.place(pod), self._arriving.get(key)
            if node is None:
                self._arriving[key] = None
                continue
            row = self._ledger.table.row_of[node]
            if known is None or known.row != row:
                more = int(self._meter.of(np.array([row])).by.sum() - self._stranded[row])
                self._arriving[key] = _Arrival(row, more)
            self._ledger.release(pod.uid)

    def _key(self, uid: str) -> tuple[str, Shape]:
        request = self._trials.movable[uid].request
        return request.scheduler_name, request.shape

    @contextmanager
    def _gone(self, uids: Sequence[str]) -> Iterator[list[str]]:
        """Remove these pods for the duration of the context; yields their nodes."""
        if not self._under_trial:
            with self._trials.trial():
                yield [self._trials.evict(uid) for uid in uids]
            return
        held = [holding for uid in uids if (holding := self._ledger.release(uid)) is not None]
        yield [holding.placement.node for holding in held]
        for holding in held:
            self._ledger.adopt(holding.placement)
