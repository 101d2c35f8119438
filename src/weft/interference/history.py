"""The first rung: what the very same neighbours were measured to do, at least three times."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.interference.records import CoLocatedRun

LEAST = 3
ALPHA = 0.3
NOISE = 0.02
"""Log slowdown by which repeats of a measurement differ at least (twins in public sets do)."""
DEVIATIONS = 1.2816 * 1.4826
"""From the median absolute deviation to what one of ten exceeds, for a bell curve."""


class RememberedSlowdown(NamedTuple):
    """Log slowdown and its bound, out of so many measurements."""

    mean: float
    upper: float
    times: int


class RecentMean(msgspec.Struct):
    """Newest mean and all values of one victim beside the same others."""

    mean: float
    values: list[float]


class History:
    """Measured log slowdowns by (victim, others); of one GPU model and way of sharing."""

    MOST = 50

    def __init__(self, runs: Iterable[CoLocatedRun] = ()) -> None:
        self._kept: dict[tuple[str, tuple[str, ...]], RecentMean] = {}
        for run in runs:
            self.saw(run.target, run.others, -float(np.log(run.speed)), run.runs)

    def saw(self, target: str, others: Sequence[str], value: float, times: int = 1) -> None:
        """Add a measurement, or the median of several: it counts as often, up to 50."""
        recent = self._kept.setdefault((target, tuple(sorted(others))), RecentMean(value, []))
        for _ in range(min(times, self.MOST)):
            recent.mean += ALPHA * (value - recent.mean)
            recent.values.append(value)
        del recent.values[: -self.MOST]

    def memory(self, target: str, others: Sequence[str]) -> RecentMean | None:
        """All that is remembered of it, however often it was measured."""
        return self._kept.get((target, tuple(sorted(others))))

    def put(self, target: str, others: Sequence[str], memory: RecentMean) -> None:
        """Remember what another history did."""
        self._kept[target, tuple(sorted(others))] = memory

    def forget(self, target: str, others: Sequence[str]) -> None:
        """Forget all measurements of it."""
        self._kept.pop((target, tuple(sorted(others))), None)

    def of(self, target: str, others: Sequence[str]) -> RememberedSlowdown | None:
        """The mean and its error; None below three measurements."""
        recent = self._kept.get((target, tuple(sorted(others))))
        if recent is None or len(recent.values) < LEAST:
            return None
        middle = _median(recent.values)
        spread = _median([abs(value - middle) for value in recent.values])
        upper = recent.mean + max(NOISE, DEVIATIONS * spread)
        return RememberedSlowdown(recent.mean, upper, len(recent.values))


def _median(values: list[float]) -> float:
    """As NumPy's, in a hundredth of the time for so few."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
