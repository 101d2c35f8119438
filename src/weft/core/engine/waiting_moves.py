"""Decides when movable pods are moved for a pod of several GPUs that fits nowhere and waits.

    fits nowhere ──`after_ns`──▶ SEARCHED ──▶ its place is kept, others are moved
         ▲                           │ nothing found, too costly, or enough moved this hour
         └──── looked at again ◀─────┘

A move is a preemption: the pod is evicted, its controller creates it again, and there is room for
it elsewhere. No pod is moved for a less important one. The cost is the GPU time that the moved pods
have to run again. It must not exceed the GPU time for which the waiting pod has waited, so that
moves never cost more than waiting did. No pod is moved for pods of one GPU or less: they soon find
room, and would take what larger pods wait for. Nothing is stored: a new process starts counting
again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from weft.core.engine.records import MoveCost
from weft.core.engine.team_queues import charge_of
from weft.core.ledger import FAR
from weft.model.queue_rules import NO_MOVES, MoveRules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.core.engine.engine import Engine
    from weft.model import Placement, PodRequest

HOUR_NS = 3_600_000_000_000
AGAIN_NS = 30_000_000_000
"""Moves are searched for one pod at most once in this time."""
LOOKED_AT = 8
"""The most waiting pods that are tried again at once."""
_MILLI_NS = 1000 * 1_000_000_000


class MoveLoss(NamedTuple):
    """Work lost with a move: thousandths of GPUs × ns now, and the increase per ns."""

    milli_ns: int
    grows: int


class WaitingMoves:
    """Tracks since when pods have fitted nowhere, and the moves of the last hour. `moved` is the
    number of pods moved so far, `lost_gpu_s` their lost work, GPU seconds."""

    def __init__(self, rules: MoveRules) -> None:
        self.rules, self.on = rules, rules.after_ns > 0
        self.since: dict[str, int] = {}
        self.due_ns = FAR
        self.moved, self.lost_gpu_s = 0, 0.0
        self._searched: dict[str, int] = {}
        self._again: dict[str, int] = {}
        self._changed_ns = self._looked_ns = -FAR
        self._hour: deque[int] = deque()

    def waited_ns(self, uid: str, now_ns: int) -> int:
        """Return how long the pod has been known to fit nowhere; the time begins now if it was not
        known."""
        return now_ns - self.since.setdefault(uid, now_ns)

    def ready_ns(self, uid: str) -> int:
        """Return when moves may be searched for the pod; `FAR` if nothing has changed since the
        last search."""
        searched_ns = self._searched.get(uid)
        if searched_ns is None:
            return self.since[uid] + self.rules.after_ns
        changed = searched_ns <= self._changed_ns
        again_ns = searched_ns + AGAIN_NS if changed else FAR
        return min(again_ns, self._again.get(uid, FAR))

    def may_search(self, pod: PodRequest, now_ns: int) -> bool:
        """Return True if moves may be searched for the pod now; otherwise, schedule a try for when
        they may."""
        uid = pod.uid
        if pod.shape.gpus <= 1:
            return False
        self.waited_ns(uid, now_ns)
        if (ready_ns := self.ready_ns(uid)) > now_ns:
            self.look_at(ready_ns)
            return False
        self._again.pop(uid, None)
        return True

    def searched(self, uid: str, now_ns: int) -> None:
        """Note that moves were searched for the pod; not to be called if the search failed with an
        error."""
        self._searched[uid] = now_ns

    def may_move(self, uid: str, count: int, now_ns: int) -> bool:
        """Return True if `count` pods may be moved for this pod now; otherwise, schedule a try for
        when they may."""
        while self._hour and self._hour[0] <= now_ns - HOUR_NS:
            self._hour.popleft()
        short = len(self._hour) + count - self.rules.an_hour
        if 0 < short <= len(self._hour):
            self._try_at(uid, self._hour[short - 1] + HOUR_NS)
        return short <= 0

    def is_worth(self, uid: str, lost: Sequence[MoveLoss], milli: int, now_ns: int) -> bool:
        """Return True if the lost work is no more than the pod's wait for `milli` thousandths of
        GPUs; otherwise, schedule a try for when it will be."""
        missing = sum(each.milli_ns for each in lost) - self.waited_ns(uid, now_ns) * milli
        pace = milli - sum(each.grows for each in lost)
        if missing > 0 and pace > 0:
            self._try_at(uid, now_ns + max(AGAIN_NS, -(-missing // pace)))
        return missing <= 0

    def begin(self, count: int, lost_gpu_s: float, now_ns: int) -> None:
        """Count pods that are about to be moved."""
        self._hour.extend([now_ns] * count)
        self.moved += count
        self.lost_gpu_s += lost_gpu_s

    def forget(self, uid: str) -> None:
        """Forget a pod that has a place or is gone."""
        for times in (self.since, self._searched, self._again):
            times.pop(uid, None)

    def changed(self, now_ns: int) -> None:
        """Schedule a try for the waiting pods, as there is more room, or more pods may move."""
        if not self.since:
            return
        self._changed_ns = now_ns
        self.look_at(max(now_ns, self._looked_ns + AGAIN_NS))

    def begin_look(self, now_ns: int) -> bool:
        """Return True if waiting pods are due to be tried now."""
        if now_ns < self.due_ns:
            return False
        self.due_ns, self._looked_ns = FAR, now_ns
        return True

    def _try_at(self, uid: str, at_ns: int) -> None:
        self._again[uid] = min(at_ns, self._again.get(uid, FAR))
        self.look_at(at_ns)

    def look_at(self, at_ns: int) -> None:
        """Schedule a try for the waiting pods at this time, unless an earlier one is scheduled."""
        self.due_ns = min(self.due_ns, at_ns)

    def next_ns(self, wake_ns: int | None) -> int | None:
        """Return the earlier of `wake_ns` and the next time at which waiting pods are tried."""
        if self.due_ns < (FAR if wake_ns is None else wake_ns):
            return self.due_ns
        return wake_ns


NONE_MOVED = WaitingMoves(NO_MOVES)
"""The `WaitingMoves` of engines that move no pods; nothing is recorded in it."""


def gpu_milli(engine: Engine, placement: Placement) -> int:
    """Return the thousandths of GPUs that the placement holds, as queues are charged for them."""
    row = engine.ledger.table.row_of.get(placement.node)
    return charge_of(placement, None if row is None else engine.ledger.table.nodes[row]).gpu_milli


def lost_by(engine: Engine, uid: str, now_ns: int) -> MoveLoss:
    """Return the work that is lost if this pod moves: what the pod states, or everything since its
    placement."""
    preemption = engine.preemption
    milli = gpu_milli(engine, engine.ledger.holdings[uid].placement)
    restart_s = preemption.movable[uid].restart_s
    if isinstance(restart_s, int):
        return MoveLoss(restart_s * 1_000_000_000 * milli, 0)
    return MoveLoss(max(0, now_ns - preemption.standings[uid][1]) * milli, milli)


def cost_of_moves(lost: Sequence[MoveLoss], waited_milli_ns: int) -> MoveCost:
    """Return the lost work and the waiting time, both in GPUs x seconds."""
    lost_milli_ns = sum(each.milli_ns for each in lost)
    return MoveCost(round(lost_milli_ns / _MILLI_NS, 1), round(waited_milli_ns / _MILLI_NS, 1))


def look(engine: Engine, now_ns: int) -> None:
    """Wake pods for which moves may be searched now, the most important and the oldest first; one
    of each group."""
    moves, queue = engine.preemption.moves, engine.queue
    if not moves.begin_look(now_ns):
        return
    ready = []
    for uid in list(moves.since):
        waiting = queue.get(uid)
        if waiting is None:
            moves.forget(uid)
        elif waiting.state == "parked":
            if moves.ready_ns(uid) <= now_ns:
                ready.append(waiting)
            else:
                moves.look_at(moves.ready_ns(uid))
    ready.sort(key=lambda each: (-each.pod.priority, moves.since[each.pod.uid], each.key[-1]))
    first = {each.group: each for each in reversed(ready)}
    chosen = [each for each in ready if first[each.group] is each]
    for waiting in chosen[:LOOKED_AT]:
        queue.wake(waiting.pod.uid, now_ns)
    if len(chosen) > LOOKED_AT:
        moves.look_at(now_ns + AGAIN_NS)
