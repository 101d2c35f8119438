"""Records use and pending pods over a run's time, in a few hundred steps of equal length.

The run's length is not known beforehand: when there are too many steps, their length doubles and
pairs are merged. So runs of different lengths share boundaries of steps. The time after the last
start must not make steps coarse: it is cut off after as many steps again."""

from weft.lab.simulate.results import Timeline

MOST_STEPS = 400
_SECOND_NS = 1_000_000_000


class TimelineRecorder:
    """Integrates piecewise constant amounts. Times are nanoseconds."""

    def __init__(self, first_ns: int, capacity_milli: int) -> None:
        self._first_ns, self._step_ns = first_ns, _SECOND_NS
        self._percent = 100 / max(1, capacity_milli)
        self._steps: list[list[float]] = []
        self._fragments: list[float] = []

    def record(
        self,
        begin_ns: int,
        end_ns: int,
        amounts: tuple[int, int, int],
        fragments_milli: float,
        *,
        after_all: bool = False,
    ) -> None:
        """Add amounts that held from `begin_ns` to `end_ns`.

        `amounts` are the GPU requests of placed pods and what they hold, both in thousandths of a
        GPU, and the number of pending pods; `fragments_milli` is FGD's measure. `after_all`: no
        further pod starts."""
        if after_all:
            end_ns = min(end_ns, self._first_ns + 2 * MOST_STEPS * self._step_ns)
        while not after_all and end_ns > self._first_ns + MOST_STEPS * self._step_ns:
            self._join_pairs()
        at_ns = begin_ns - self._first_ns
        until_ns = end_ns - self._first_ns
        while at_ns < until_ns:
            step = at_ns // self._step_ns
            stop_ns = min(until_ns, (step + 1) * self._step_ns)
            while len(self._steps) <= step:
                self._steps.append([0.0, 0.0, 0.0])
                self._fragments.append(0.0)
            sums = self._steps[step]
            for i, amount in enumerate(amounts):
                sums[i] += amount * (stop_ns - at_ns)
            self._fragments[step] = fragments_milli
            at_ns = stop_ns

    def end(self, now_ns: int, amounts: tuple[int, int, int], fragments_milli: float) -> None:
        """Add a last step with the final amounts."""
        whole_steps = -(-(now_ns - self._first_ns) // self._step_ns)
        until_ns = self._first_ns + (whole_steps + 1) * self._step_ns
        self.record(now_ns, until_ns, amounts, fragments_milli, after_all=True)

    def step_of(self, at_ns: int) -> int:
        """Return the step of this moment; fragmentation is measured once per step."""
        return (at_ns - self._first_ns) // self._step_ns

    def _join_pairs(self) -> None:
        before, ends = self._steps, self._fragments
        self._steps = [
            [sum(sums) for sums in zip(*before[i : i + 2], strict=True)]
            for i in range(0, len(before), 2)
        ]
        self._fragments = [ends[min(i + 1, len(ends) - 1)] for i in range(0, len(ends), 2)]
        self._step_ns *= 2

    def timeline(self, until_ns: int) -> Timeline:
        """Return means over each step; `until_ns` is the last start."""
        steps, step_ns = self._steps, self._step_ns

        def percents(column: int) -> list[float]:
            return [round(sums[column] * self._percent / step_ns, 2) for sums in steps]

        return Timeline(
            step_s=step_ns / _SECOND_NS,
            steps_to_last_start=-(-max(0, until_ns - self._first_ns) // step_ns),
            asked_percent=percents(0),
            held_percent=percents(1),
            waiting_pods=[round(sums[2] / step_ns, 2) for sums in steps],
            fragmented_percent=[round(milli * self._percent, 2) for milli in self._fragments],
        )
