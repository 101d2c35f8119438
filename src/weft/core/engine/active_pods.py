"""Pods to be tried now, and which of them is next.

By its policy's order, as long as one event's work is enough for all of them. While it is not, they
take turns: the highest priority first, and of equals the namespace that had the least work so far;
within a namespace it stays the policy's order. So nobody's many pods keep another waiting.
"""

import heapq
from collections.abc import Iterator

from weft.core.engine.waiting_pods import Key, WaitingPod
from weft.model import Shape

Heap = list[tuple[Key, WaitingPod]]


class ActivePods:
    """Heaps by profile; while there are turns, by profile and rank, and by namespace in these.

    Entries of pods that are not active any more are skipped when they surface.
    """

    def __init__(self) -> None:
        self._heaps: dict[str, Heap] = {}
        self._turns: dict[str, dict[tuple[int, int], dict[str, Heap]]] | None = None
        self._work: dict[str, int] = {}

    def __bool__(self) -> bool:
        return any(_head(heap) is not None for heap in self._all())

    def push(self, waiting: WaitingPod, turn_of: str | None = None) -> None:
        """One more, on its own namespace's turn or on that of another (`turn_of`)."""
        waiting.turn_of = waiting.pod.namespace if turn_of is None else turn_of
        if self._turns is not None and not self._has_turn(waiting.turn_of):
            self._catch_up(waiting.turn_of)
        heapq.heappush(self._heap_of(waiting), (waiting.key, waiting))

    def pop(self) -> WaitingPod | None:
        """The next one, taken out; None when there is none."""
        if self._turns is not None:
            return self._pop_by_turns()
        best: Heap | None = None
        best_key: tuple[int, ...] | None = None
        for heap in self._heaps.values():
            if (head := _head(heap)) is not None:
                key = (-head.pod.priority, *_came(head))
                if best_key is None or key < best_key:
                    best, best_key = heap, key
        return None if best is None else heapq.heappop(best)[1]

    def worked(self, waiting: WaitingPod, looks: int) -> None:
        """So much work was done for the pod, on the turn of its namespace."""
        self._work[waiting.turn_of] = self._work.get(waiting.turn_of, 0) + looks

    def take_turns(self, *, by_turns: bool) -> None:
        """Have them take turns, as one event's work was not enough for all, or no more."""
        if not by_turns:
            self._turns = None
            self._work.clear()
        elif self._turns is None:
            active = [waiting for heap in self._heaps.values() for waiting in _active(heap)]
            self._heaps, self._turns = {}, {}
            for waiting in active:
                heapq.heappush(self._heap_of(waiting), (waiting.key, waiting))

    def elder(self, waiting: WaitingPod, shape: Shape) -> WaitingPod | None:
        """While there are turns: the first of those alike that came before it, and wait for the
        turn of another namespace."""
        if self._turns is None:
            return None
        ranks = self._turns.get(waiting.profile.name, {})
        alike = (
            other
            for heap in ranks.get(waiting.rank, {}).values()
            for other in _active(heap)
            if other.key < waiting.key
            and (other.shape == shape or other.pod.shape == waiting.pod.shape)
        )
        return min(alike, key=lambda other: other.key, default=None)

    def _heap_of(self, waiting: WaitingPod) -> Heap:
        name = waiting.profile.name
        if self._turns is None:
            return self._heaps.setdefault(name, [])
        ranks = self._turns.setdefault(name, {})
        return ranks.setdefault(waiting.rank, {}).setdefault(waiting.turn_of, [])

    def _has_turn(self, namespace: str) -> bool:
        return any(
            _head(heap) is not None
            for ranks in (self._turns or {}).values()
            for namespaces in ranks.values()
            if (heap := namespaces.get(namespace)) is not None
        )

    def _catch_up(self, namespace: str) -> None:
        """Count for a namespace that comes later the work that the others had before."""
        others = {
            other
            for ranks in (self._turns or {}).values()
            for namespaces in ranks.values()
            for other, heap in namespaces.items()
            if _head(heap) is not None
        }
        least = min((self._work.get(other, 0) for other in others), default=0)
        self._work[namespace] = max(self._work.get(namespace, 0), least)

    def _pop_by_turns(self) -> WaitingPod | None:
        best: Heap | None = None
        best_key: tuple[int, ...] | None = None
        for ranks in (self._turns or {}).values():
            if (rank := _highest(ranks)) is None:
                continue
            for namespace, heap in ranks[rank].items():
                key = (rank[1], self._work.get(namespace, 0), *_came(heap[0][1]))
                if best_key is None or key < best_key:
                    best, best_key = heap, key
        return None if best is None else heapq.heappop(best)[1]

    def _all(self) -> Iterator[Heap]:
        yield from self._heaps.values()
        for ranks in (self._turns or {}).values():
            for namespaces in ranks.values():
                yield from namespaces.values()


def _highest(ranks: dict[tuple[int, int], dict[str, Heap]]) -> tuple[int, int] | None:
    """The highest rank that anybody has; what is empty is dropped on the way."""
    while ranks:
        rank = min(ranks)
        namespaces = ranks[rank]
        for namespace in [one for one, heap in namespaces.items() if _head(heap) is None]:
            del namespaces[namespace]
        if namespaces:
            return rank
        del ranks[rank]
    return None


def _head(heap: Heap) -> WaitingPod | None:
    while heap and heap[0][1].state != "active":
        heapq.heappop(heap)
    return heap[0][1] if heap else None


def _active(heap: Heap) -> Iterator[WaitingPod]:
    return (waiting for _, waiting in heap if waiting.state == "active")


def _came(waiting: WaitingPod) -> tuple[int, int]:
    return waiting.pod.created_ns, waiting.key[-1]
