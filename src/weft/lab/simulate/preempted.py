"""Counts the work that evicted pods lose in timed runs."""

from weft.lab.simulate.results import MovedWork, PreemptedWork

MILLI_NS_PER_GPU_S = 1000 * 1_000_000_000


class LostWork:
    """Number of evictions, and the work that evicted pods lost, in thousandths of GPUs × ns."""

    def __init__(self) -> None:
        self.times = self._milli_ns = 0

    def add(self, milli: int, ran_ns: int) -> None:
        """Record that a pod which requests `milli` thousandths of GPUs was evicted after running
        for `ran_ns`."""
        self.times += 1
        self._milli_ns += milli * ran_ns

    @property
    def gpu_s(self) -> float:
        """Lost work, in GPUs × seconds."""
        return round(self._milli_ns / MILLI_NS_PER_GPU_S, 3)

    def result(self) -> PreemptedWork:
        """Return the number of evictions and the lost work, for a run's results."""
        return PreemptedWork(self.times, self.gpu_s)


_SECOND_NS = 1_000_000_000


class MovedPods:
    """Moved pods by number: the work that each need not repeat, and its run time before its last
    move."""

    def __init__(self) -> None:
        self._asked: set[int] = set()
        self._done_ns: dict[int, int] = {}
        self._ran_ns: dict[int, int] = {}
        self._moves = self._lost_milli_ns = 0

    def asked(self, number: int) -> None:
        """Record that the pod will be moved."""
        self._asked.add(number)

    def goes(self, number: int, milli: int, ran_ns: int, restart_s: int) -> bool:
        """Record that the pod was evicted after `ran_ns`; return False if it was not to be moved.

        A moved pod loses `restart_s` seconds of its work, even if it ran for less."""
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
        """Record that the pod ended before it could be moved."""
        self._asked.discard(number)

    def done_ns(self, number: int) -> int:
        """Return the ns of the pod's work that are kept after its moves."""
        return self._done_ns.get(number, 0)

    def ran_ns(self, number: int) -> int:
        """Return the ns that the pod ran before its last move, which do not count as waiting."""
        return self._ran_ns.get(number, 0)

    def result(self, asked_milli_ns: float) -> MovedWork:
        """Return the measures; `asked_milli_ns` is the request × run time of all pods."""
        percent = 100 * self._lost_milli_ns / max(1.0, asked_milli_ns)
        lost_gpu_s = round(self._lost_milli_ns / MILLI_NS_PER_GPU_S, 3)
        return MovedWork(self._moves, lost_gpu_s, round(percent, 4))
