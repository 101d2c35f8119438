"""Counts work that pods lose with their places in timed runs."""

from weft.lab.simulate.results import PreemptedWork

MILLI_NS_PER_GPU_S = 1000 * 1_000_000_000


class LostWork:
    """How often pods lost their places, and thousandths of GPUs × ns that they had run by then."""

    def __init__(self) -> None:
        self.times = self._milli_ns = 0

    def add(self, milli: int, ran_ns: int) -> None:
        """Note that a pod which asks for so much lost its place after having run for so long."""
        self.times += 1
        self._milli_ns += milli * ran_ns

    @property
    def gpu_s(self) -> float:
        """Lost work, in GPUs × seconds."""
        return round(self._milli_ns / MILLI_NS_PER_GPU_S, 3)

    def result(self) -> PreemptedWork:
        """Return the measures."""
        return PreemptedWork(self.times, self.gpu_s)
