"""Says which pods may be evicted for a pod where queues of teams count (order `fair`).

    of the pod's own queue      pods of lower priority
    of another queue            none; but if queues reclaim, and the pod's queue holds less than its
                                guarantee, pods of any priority with which that queue borrows

A queue borrows what it holds beyond its guarantee. All victims together must leave every other
queue its guarantee. So no queue loses its guaranteed share to another, whatever the priority, and
no two queues evict each other's pods in turn: a queue that gave back all that it borrowed still has
its guarantee.

Borrowers go first: pods of the pod's own queue are evicted only where borrowers alone do not make
room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.core.ledger.table import Bools
from weft.core.preempt import BorrowingQueue, Victim
from weft.model import PodRequest

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine

ANY_PRIORITY = 1 << 40
"""A priority above all others."""


class QueueRights:
    """The rights of one pod by its queue. `reclaims`: it may evict borrowers; `below`: its victims
    have a lower priority than this."""

    def __init__(self, engine: Engine, pod: PodRequest) -> None:
        self._engine, self._pod = engine, pod
        self._teams, self._queue = engine.teams, pod.team_queue
        self._beyond: dict[str, tuple[int, ...]] = {}
        self.reclaims = self._wants() and any(
            self._may_give_back(name) for name in self._teams.names() if name != self._queue
        )
        self.below = ANY_PRIORITY if self.reclaims else pod.priority

    def _wants(self) -> bool:
        """Return True if the pod's queue reclaims: it holds less than its guarantee, also with the
        places that are kept for its other pods."""
        if not self._teams.rules.reclaim:
            return False
        kept = self._engine.preemption.nominations.values()
        others = [each for each in kept if not self._pod.goes_with(each.pod)]
        return self._teams.is_below_guarantee(self._queue, others)

    def _may_give_back(self, name: str) -> bool:
        beyond = self._beyond_of(name)
        return not beyond or max(beyond) >= 0

    def _beyond_of(self, name: str) -> tuple[int, ...]:
        """Return how much more than its guarantee the queue holds of each guaranteed amount, once
        pods that are being evicted are gone; nothing for a queue without a guarantee."""
        if (beyond := self._beyond.get(name)) is None:
            going = self._engine.preemption.going
            beyond = self._beyond[name] = self._teams.beyond_guarantee(name, going)
        return beyond

    def victims(self, there: Sequence[Victim], *, borrowers: bool = False) -> list[Victim]:
        """Return those of these pods that may be evicted for the pod; `borrowers`: only pods of
        other queues."""
        victims = [each for each in there if self._may_evict(each, borrowers=borrowers)]
        if not self.reclaims:
            return victims
        alone, keep = np.eye(len(victims)), np.ones(len(victims), dtype=np.bool_)
        for queue in self.borrowing(victims):
            keep &= queue.keeps_guarantee(alone)
        return [victims[at] for at in np.flatnonzero(keep)]

    def _may_evict(self, victim: Victim, *, borrowers: bool) -> bool:
        for uid in victim.uids:
            name = self._teams.name_of(uid)
            if name != self._queue:
                if not (self.reclaims and name):
                    return False
            elif borrowers or victim.priority >= self._pod.priority:
                return False
        return True

    def allow(self, proposed: Sequence[str]) -> bool:
        """Return True if these pods, all of lower priority, may be evicted for the pod. Pods of no
        known queue may be."""
        names = {self._teams.name_of(uid) for uid in proposed} - {self._queue, ""}
        queues, together = self.borrowing([Victim((*proposed,), 0)]), np.ones((1, 1))
        kept = all(queue.keeps_guarantee(together)[0] for queue in queues)
        return not names or (self.reclaims and kept)

    def borrowing(self, victims: Sequence[Victim]) -> list[BorrowingQueue]:
        """Return the other queues with a guarantee that these pods belong to."""
        of: dict[str, list[tuple[int, str]]] = {}
        for at, victim in enumerate(victims):
            for uid in victim.uids:
                name = self._teams.name_of(uid)
                if name != self._queue and self._beyond_of(name):
                    of.setdefault(name, []).append((at, uid))
        found = []
        for name, pods in of.items():
            beyond = self._beyond_of(name)
            count, held = np.zeros(len(victims)), np.zeros((len(victims), len(beyond)))
            for at, uid in pods:
                count[at] += 1
                held[at] += self._teams.guaranteed_of(uid)
            found.append(BorrowingQueue(count, held, np.array(beyond)))
        return found

    def nodes(self, *, borrowers: bool = False) -> Bools:
        """Return a mask of the nodes with pods of queues whose pods `victims` may return, [N]."""
        table, own = self._engine.ledger.table, self._queue
        names = [] if borrowers else [own]
        if self.reclaims:
            names += [
                each for each in self._teams.names() if each != own and self._may_give_back(each)
            ]
        mask, row_of = np.zeros(table.count, dtype=np.bool_), table.row_of
        rows = {row_of.get(node, -1) for name in names for node in self._teams.nodes_of(name)}
        mask[[row for row in rows if row >= 0]] = True
        return mask
