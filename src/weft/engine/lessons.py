"""What was learnt from pods that ran out of GPU memory (policies.md 7.1).

A pod's request cannot be changed in Kubernetes, so what is learnt is about its *workload* (whoever
made the pod makes the next one): what Weft charges for it from then on.

    first time    1.25 × the larger of what it asked and what it was seen to use, at most the card;
                  and never again on borrowed memory
    second time   a GPU of its own

Lessons only grow, and are plain values: a host keeps them where the next process finds them.
"""

from collections import Counter

import msgspec
from msgspec.structs import replace

from weft.ledger import FAR, Ledger
from weft.model import GpuClaim, Placement, PodRequest, Shape

_MORE, _OF = 5, 4  # 1.25 times
ALONE_AFTER = 2


class Lesson(msgspec.Struct, frozen=True, gc=False):
    """How often a workload ran out of memory, and the least that a GPU must give it, MiB."""

    times: int
    least_mib: int


class Lessons:
    """Every lesson learnt, by workload."""

    def __init__(self) -> None:
        self.known: dict[str, Lesson] = {}
        self._owed: Counter[str] = Counter()

    def learn(self, workload: str, placement: Placement, peak_mib: int, ledger: Ledger) -> Lesson:
        """One of its pods, that was placed so and seen to use so much, ran out of memory."""
        share = max(placement.shares, key=lambda one: one.memory_mib)
        row = ledger.table.row_of.get(placement.node, -1)
        device = ledger.table.device_row(row, share.gpu) if row >= 0 else -1
        card_mib = int(ledger.table.device_memory_total[device]) if device >= 0 else FAR
        least = min(card_mib, -(-max(share.memory_mib, peak_mib) * _MORE // _OF))
        before = self.known.get(workload, Lesson(0, 0))
        lesson = Lesson(before.times + 1, max(before.least_mib, least))
        self.known[workload] = lesson
        self._owed[workload] += 1
        return lesson

    def tell(self, lessons: dict[str, Lesson]) -> bool:
        """What other processes learnt; whether any of it is new."""
        new = False
        for workload, lesson in lessons.items():
            mine = self.known.get(workload, Lesson(0, 0))
            both = Lesson(max(mine.times, lesson.times), max(mine.least_mib, lesson.least_mib))
            new |= both != mine
            self.known[workload] = both
        return new

    def goes_first(self, pod: PodRequest) -> bool:
        """Whether the pod takes the place of one that ran out of memory: once for each."""
        workload = workload_of(pod)
        if not self._owed[workload]:
            return False
        self._owed[workload] -= 1
        return True

    def shape_of(self, pod: PodRequest) -> Shape:
        """What the pod is charged, as its workload's past demands."""
        lesson = self.known.get(workload_of(pod)) if self.known else None
        if lesson is None:
            return pod.shape
        claims = tuple(_raised(claim, lesson) for claim in pod.shape.claims)
        return replace(pod.shape, claims=claims)


def workload_of(pod: PodRequest) -> str:
    """Whose next pod is like this one; a pod that nobody made again is its own."""
    return pod.workload or pod.uid


def _raised(claim: GpuClaim, lesson: Lesson) -> GpuClaim:
    if claim.whole or claim.split:
        return claim
    if lesson.times >= ALONE_AFTER:
        return replace(claim, milli=1000, whole=True, least_mib=lesson.least_mib)
    return replace(claim, least_mib=lesson.least_mib)
