"""Counts the work that evicted pods lose in timed runs."""

from weft.lab.simulate.results import PreemptedWork

MILLI_NS_PER_GPU_S = 1000 * 1_000_000_000


class LostWork:
    """Number of evictions, and the work that evicted pods lost, in thousandths of GPUs × ns."""

    def __init__(self) -> None:
        self.times = self._milli_ns = 0

    def add(self, milli: int, ran_ns: int) -> None:
        """Record that a pod which requests `milli` was evicted after running for `ran_ns`."""
        self.times += 1
        self._milli_ns += milli * ran_ns

    @property
    def gpu_s(self) -> float:
        """Lost work, in GPUs × seconds."""
        return round(self._milli_ns / MILLI_NS_PER_GPU_S, 3)

    def result(self) -> PreemptedWork:
        """Return both counts, for a run's results."""
        return PreemptedWork(self.times, self.gpu_s)
