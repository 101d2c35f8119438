"""Remembers measured slowdowns of a target with exactly the same neighbours. With three
measurements or more, they take precedence over all predictions (`ladder.py`)."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.interference.records import CoLocatedRun

LEAST = 3
ALPHA = 0.3
NOISE = 0.02
"""Smallest difference in log slowdown to expect between repeats of a measurement (as between
duplicates in public datasets)."""
DEVIATIONS = 1.2816 * 1.4826
"""Turns a median absolute deviation into the deviation that one of ten values exceeds, for a normal
distribution."""


class RememberedSlowdown(NamedTuple):
    """Mean log slowdown and its upper bound, from `times` measurements."""

    mean: float
    upper: float
    times: int


class RecentMean(msgspec.Struct):
    """Moving mean and recent values of the log slowdown of one target with the same neighbours."""

    mean: float
    values: list[float]


class History:
    """Measured log slowdowns by (target, neighbours), for one GPU model and isolation."""

    MOST = 50

    def __init__(self, runs: Iterable[CoLocatedRun] = ()) -> None:
        self._kept: dict[tuple[str, tuple[str, ...]], RecentMean] = {}
        for run in runs:
            self.saw(run.target, run.others, -float(np.log(run.speed)), run.runs)

    def saw(self, target: str, others: Sequence[str], value: float, times: int = 1) -> None:
        """Add a measurement. A median of `times` runs counts as that many measurements, at most
        `MOST`."""
        recent = self._kept.setdefault((target, tuple(sorted(others))), RecentMean(value, []))
        for _ in range(min(times, self.MOST)):
            recent.mean += ALPHA * (value - recent.mean)
            recent.values.append(value)
        del recent.values[: -self.MOST]

    def memory(self, target: str, others: Sequence[str]) -> RecentMean | None:
        """Return what is stored for this target and these neighbours, or None."""
        return self._kept.get((target, tuple(sorted(others))))

    def put(self, target: str, others: Sequence[str], memory: RecentMean) -> None:
        """Store what another history recorded for this target and these neighbours."""
        self._kept[target, tuple(sorted(others))] = memory

    def forget(self, target: str, others: Sequence[str]) -> None:
        """Forget all measurements of this target with these neighbours."""
        self._kept.pop((target, tuple(sorted(others))), None)

    def of(self, target: str, others: Sequence[str]) -> RememberedSlowdown | None:
        """Return the mean log slowdown and its bound; None with fewer than three measurements."""
        recent = self._kept.get((target, tuple(sorted(others))))
        if recent is None or len(recent.values) < LEAST:
            return None
        middle = _median(recent.values)
        spread = _median([abs(value - middle) for value in recent.values])
        upper = recent.mean + max(NOISE, DEVIATIONS * spread)
        return RememberedSlowdown(recent.mean, upper, len(recent.values))


def _median(values: list[float]) -> float:
    """Return the median; for lists this short a hundred times as fast as NumPy's."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
