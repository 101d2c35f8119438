"""Follows teams' queues in timed runs: how much the pods of each queue hold and wait for.

A pod holds the amount that the scheduler charges its queue (`team_queues.charge_of`), and waits for
the amount that it requests; both are thousandths of a GPU. Times are ns."""

from collections.abc import Mapping, Sequence

import numpy as np

from weft.lab.simulate.preempted import LostWork
from weft.lab.simulate.results import QueueTimes
from weft.model.queue_rules import QueueRules

_SECOND_NS = 1_000_000_000


class _Sums:
    """Integrals over time of one queue: `held`, and `had`, the part of `held` during `wanted_ns`.

    `wanted_ns` is the time in which held and requested amounts reached the queue's guarantee."""

    __slots__ = ("had", "held", "wanted_ns")

    def __init__(self) -> None:
        self.held = self.wanted_ns = self.had = 0

    def copy(self) -> "_Sums":
        twin = _Sums()
        twin.held, twin.wanted_ns, twin.had = self.held, self.wanted_ns, self.had
        return twin


class _FollowedQueue:
    """One queue: the amounts held and waiting since `since_ns`, and the sums of the time before.

    `at_mark` are the sums at the latest mark (`QueueClock.mark`), at `marked_ns`."""

    def __init__(self, guarantee: int | None) -> None:
        self.guarantee = guarantee
        self.pods: list[int] = []
        self.waiting = self.held = self.since_ns = 0
        self.sums, self.at_mark, self.marked_ns = _Sums(), _Sums(), 0
        self.lost = LostWork()

    def until(self, now_ns: int, mark_ns: int) -> None:
        """Add the time up to `now_ns`, and store the sums at `mark_ns` if this mark is new."""
        if self.marked_ns < mark_ns:
            self._add(mark_ns)
            self.at_mark, self.marked_ns = self.sums.copy(), mark_ns
        self._add(now_ns)

    def _add(self, now_ns: int) -> None:
        for_ns, self.since_ns = now_ns - self.since_ns, now_ns
        self.sums.held += self.held * for_ns
        if self.guarantee and self.held + self.waiting >= self.guarantee:
            self.sums.wanted_ns += for_ns
            self.sums.had += self.held * for_ns


class QueueClock:
    """Follows all queues of a run; pods are identified by number. Use is measured up to the last
    mark: the last arrival or start of a pod."""

    def __init__(self, rules: QueueRules) -> None:
        self._guarantees = {terms.name: terms.guarantee.gpu_milli for terms in rules.queues}
        self._queues = {name: _FollowedQueue(most) for name, most in self._guarantees.items()}
        self._of: dict[int, _FollowedQueue] = {}
        self._asks: dict[int, int] = {}
        self._charged: dict[int, int] = {}
        self._mark_ns = 0

    def mark(self, now_ns: int) -> None:
        """Mark the time of an arrival or a start; use is measured up to the last mark."""
        self._mark_ns = now_ns

    def comes(self, number: int, name: str, milli: int, now_ns: int) -> None:
        """Record that a pod of the queue, which requests `milli` thousandths of GPUs, arrives
        for the first time."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _FollowedQueue(self._guarantees.get(name))
        queue.until(now_ns, self._mark_ns)
        queue.pods.append(number)
        queue.waiting += milli
        self._of[number], self._asks[number] = queue, milli

    def placed(self, number: int, charge: int, now_ns: int) -> None:
        """Record that the pod was placed, for which its queue is charged `charge`."""
        queue = self._at(number, now_ns)
        queue.waiting -= self._asks[number]
        queue.held += charge
        self._charged[number] = charge

    def ends(self, number: int, now_ns: int) -> None:
        """Record that the pod completed."""
        self._at(number, now_ns).held -= self._charged.pop(number)

    def loses_place(self, number: int, ran_ns: int, now_ns: int) -> None:
        """Record that the pod was evicted after running for `ran_ns`, and is pending again."""
        queue = self._at(number, now_ns)
        queue.held -= self._charged.pop(number)
        queue.waiting += self._asks[number]
        queue.lost.add(self._asks[number], ran_ns)

    def gives_up(self, number: int, now_ns: int) -> None:
        """Record that a pending pod was deleted."""
        self._at(number, now_ns).waiting -= self._asks[number]

    def _at(self, number: int, now_ns: int) -> _FollowedQueue:
        queue = self._of[number]
        queue.until(now_ns, self._mark_ns)
        return queue

    def result(
        self, waits_ns: Mapping[int, int], measured: tuple[int, int], capacity_milli: int
    ) -> list[QueueTimes]:
        """Return each queue's measures, by name.

        `waits_ns` are the waits of pods that started. `measured` is the time over which use is
        averaged, from the first arrival to the last mark."""
        begin_ns, end_ns = measured
        found = []
        for name, queue in sorted(self._queues.items()):
            queue.until(end_ns, end_ns)
            waits = [waits_ns[number] for number in queue.pods if number in waits_ns]
            span_ns = max(1, end_ns - begin_ns)
            found.append(_times(name, queue, waits, span_ns, max(1, capacity_milli)))
        return found


def _times(
    name: str, queue: _FollowedQueue, waits_ns: Sequence[int], span_ns: int, capacity_milli: int
) -> QueueTimes:
    waits_s = np.array(waits_ns or [0], dtype=np.float64) / _SECOND_NS
    sums, guarantee = queue.at_mark, queue.guarantee
    had = sums.had / (sums.wanted_ns * capacity_milli) if sums.wanted_ns else None
    return QueueTimes(
        queue=name,
        pods=len(queue.pods),
        never_started=len(queue.pods) - len(waits_ns),
        wait_mean_s=round(float(waits_s.mean()), 3),
        wait_p99_s=round(float(np.percentile(waits_s, 99)), 3),
        held_percent=round(100 * sums.held / (span_ns * capacity_milli), 3),
        guarantee_percent=None if guarantee is None else round(100 * guarantee / capacity_milli, 3),
        wanting_s=round(sums.wanted_ns / _SECOND_NS, 3),
        held_while_wanting_percent=None if had is None else round(100 * had, 3),
        preempted=queue.lost.times,
        preempted_gpu_s=queue.lost.gpu_s,
    )
