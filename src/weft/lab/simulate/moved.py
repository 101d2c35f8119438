"""Keeps what pods that are moved in timed runs have run, and lost by it."""

from weft.lab.simulate.preempted import MILLI_NS_PER_GPU_S
from weft.lab.simulate.results import MovedWork

_SECOND_NS = 1_000_000_000


class MovedPods:
    """Pods that were asked to move, by number; what each has done of its work, and for how long it
    ran in all, before it was moved last."""

    def __init__(self) -> None:
        self._asked: set[int] = set()
        self._done_ns: dict[int, int] = {}
        self._ran_ns: dict[int, int] = {}
        self._moves = self._lost_milli_ns = 0

    def asked(self, number: int) -> None:
        """Note that the pod is to move."""
        self._asked.add(number)

    def goes(self, number: int, milli: int, ran_ns: int, restart_s: int) -> bool:
        """Note that the pod lost its place after having run for so long; False if it was ended, and
        not moved. It loses the seconds that a restart costs, always all of them."""
        if number not in self._asked:
            return False
        self._asked.discard(number)
        lost_ns = restart_s * _SECOND_NS
        self._done_ns[number] = self.done_ns(number) + ran_ns - lost_ns
        self._ran_ns[number] = self.ran_ns(number) + ran_ns
        self._moves += 1
        self._lost_milli_ns += milli * lost_ns
        return True

    def ends(self, number: int) -> None:
        """Note that the pod ended before it could be moved."""
        self._asked.discard(number)

    def done_ns(self, number: int) -> int:
        """Return how much of its work the pod need not do again."""
        return self._done_ns.get(number, 0)

    def ran_ns(self, number: int) -> int:
        """Return for how long the pod ran before it was moved: no part of its wait."""
        return self._ran_ns.get(number, 0)

    def result(self, asked_milli_ns: float) -> MovedWork:
        """Return the measures; `asked_milli_ns` is the whole time that pods ran."""
        percent = 100 * self._lost_milli_ns / max(1.0, asked_milli_ns)
        lost_gpu_s = round(self._lost_milli_ns / MILLI_NS_PER_GPU_S, 3)
        return MovedWork(self._moves, lost_gpu_s, round(percent, 4))
