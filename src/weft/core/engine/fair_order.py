"""Implements the queue order `fair`: teams' queues take turns by what their pods hold.

The next pod comes from the queue that is furthest below its guarantee, or else from the queue with
the smallest dominant share by weight (`TeamQueues.turn`); within a queue, the highest priority goes
first, then the oldest pod. A queue whose first pod fits nowhere is passed over until something
changes.

While one event's work budget is not enough for all pods, a queue goes behind the others once it has
used a whole turn's work (`TURN_LOOKS`) more than they have: many pods that fit nowhere in one queue
do not keep other queues waiting."""

import heapq

from weft.core.engine.assessment import TURN_LOOKS
from weft.core.engine.queue import ActivePods, Heap, WaitingPod, came, first_of
from weft.core.engine.team_queues import TeamQueues
from weft.model import Shape


class FairPods(ActivePods):
    """Heaps by queue, and by profile within each: finding the next pod takes one look per queue.
    Entries of pods that are no longer active are skipped when they come up.
    """

    def __init__(self, teams: TeamQueues) -> None:
        self._teams = teams
        self._by_team: dict[str, dict[str, Heap]] = {}
        self._looks: dict[str, int] = {}
        self._by_turns = False

    def __bool__(self) -> bool:
        return any(_first(heaps) is not None for heaps in self._by_team.values())

    def push(self, waiting: WaitingPod, turn_of: str | None = None) -> None:
        """Add a pod, to be tried when its own queue is next; `turn_of` is ignored."""
        waiting.turn_of = team = waiting.team
        if self._by_turns and _first(self._by_team.get(team, {})) is None:
            others = (self._looks.get(each, 0) for each in self._by_team if each != team)
            self._looks[team] = max(self._looks.get(team, 0), min(others, default=0))
        heap = self._by_team.setdefault(team, {}).setdefault(waiting.profile.name, [])
        heapq.heappush(heap, (waiting.key, waiting))

    def pop(self) -> WaitingPod | None:
        """Remove and return the next pod; None if there is none."""
        best: Heap | None = None
        best_key: tuple[int, ...] | None = None
        for team, heaps in list(self._by_team.items()):
            heap = _first(heaps)
            if heap is None:
                del self._by_team[team]
                continue
            late = self._looks.get(team, 0) // TURN_LOOKS if self._by_turns else 0
            key = (late, *self._teams.turn(team), *came(heap[0][1]))
            if best_key is None or key < best_key:
                best, best_key = heap, key
        return None if best is None else heapq.heappop(best)[1]

    def more_important(self, waiting: WaitingPod) -> WaitingPod | None:
        """Return None: which queue is next decides, not the importance of pods."""
        return None

    def worked(self, waiting: WaitingPod, looks: int) -> None:
        """Charge the work done for the pod to its queue."""
        self._looks[waiting.turn_of] = self._looks.get(waiting.turn_of, 0) + looks

    def take_turns(self, *, by_turns: bool) -> None:
        """Start or stop taking turns by work: a queue goes behind the others when its pods have
        used a whole turn's work (`TURN_LOOKS`) more than theirs."""
        self._by_turns = by_turns
        if not by_turns:
            self._looks.clear()

    def elder(self, waiting: WaitingPod, shape: Shape) -> WaitingPod | None:
        """Return None: no equal pod that came earlier waits for another queue's turn, as equal
        pods are of one queue and are tried in its order."""
        return None


def _first(heaps: dict[str, Heap]) -> Heap | None:
    """Return the heap of the profile whose first pod is next (the highest priority, then the
    oldest); None if all heaps are empty."""
    best: Heap | None = None
    best_key: tuple[int, ...] | None = None
    for heap in heaps.values():
        if (head := first_of(heap)) is not None:
            key = (-head.pod.priority, *came(head))
            if best_key is None or key < best_key:
                best, best_key = heap, key
    return best
