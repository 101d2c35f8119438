"""Finds the pods that may be evicted for another pod if queues reclaim what other queues borrow
(`queues.reclaim`).

    of the pod's own queue      pods of lower priority
    of another queue            pods with which that queue borrows, of any priority, while the
                                pod's queue has less than its guarantee

So no queue loses its guaranteed share to another, whatever the priority, and no two queues evict
each other's pods in turn: a queue that gave back all that it borrowed still has its guarantee.
"""

from collections.abc import Sequence

from weft.core.engine.team_queues import TeamQueues
from weft.core.preempt import Victim
from weft.model import PodRequest

ANY_PRIORITY = 1 << 40
"""A priority above all others."""


class TakesBack:
    """The right of a pod to evict others, with reclaim. `below`: victims have a lower priority than
    this."""

    def __init__(self, teams: TeamQueues, pod: PodRequest) -> None:
        self._teams, self._pod, self._queue = teams, pod, pod.team_queue
        wants = teams.is_below_guarantee(self._queue)
        self._lent = frozenset(teams.borrowed()) if wants else frozenset()
        self.below = ANY_PRIORITY if self._lent else pod.priority

    def victims(self, there: Sequence[Victim]) -> list[Victim]:
        """Return the pods on a node, out of `there`, that may be evicted for the pod."""
        return [
            victim for victim in there if all(self._may_end(uid, victim) for uid in victim.uids)
        ]

    def _may_end(self, uid: str, victim: Victim) -> bool:
        if self._teams.name_of(uid) == self._queue:
            return victim.priority < self._pod.priority
        return uid in self._lent
