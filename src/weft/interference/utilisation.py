"""Predicts slowdowns from summed utilisation, or with nothing known: the last choices of
`ladder.py`.

    speed = 1 − 0.32·max(0, SU − 0.88) − 0.16·max(0, SM − 0.90)

SU and SM are the sums of GPU utilisation and memory activity, each measured alone, over all
applications on the GPU (fitted to 2,776 pairs on another GPU model; 10 % of speeds are more than
0.20 lower).
"""

from collections.abc import Sequence

import numpy as np

from weft.interference.features import memory_activity, utilisation
from weft.interference.records import SoloRun

LOWER = 0.20
UNKNOWN_SUM = 1.0


def speed_of(utilisation_sum: float, memory_sum: float = 0.0) -> float:
    """Return the predicted speed for these sums, as a share of the speed alone, at least 0.05."""
    speed = 1.0 - 0.32 * max(0.0, utilisation_sum - 0.88) - 0.16 * max(0.0, memory_sum - 0.90)
    return max(0.05, speed)


def slowdown_of(speed: float) -> tuple[float, float]:
    """Return the log slowdown for a speed from `speed_of`, and the bound that it should not
    exceed."""
    return -float(np.log(speed)), -float(np.log(max(0.02, speed - LOWER)))


def by_utilisation(target: SoloRun, others: Sequence[SoloRun]) -> tuple[float, float] | None:
    """Return the target's log slowdown and its bound; None if any utilisation is unknown.

    An unknown memory activity counts as 0."""
    shares = [utilisation(run) for run in (target, *others)]
    if np.isnan(shares).any():
        return None
    memory = float(np.nansum([memory_activity(run) for run in (target, *others)]))
    return slowdown_of(speed_of(sum(shares), memory))


def unknown() -> tuple[float, float]:
    """Return the log slowdown and its bound that are assumed if nothing is known: as if all
    applications together just filled the GPU."""
    return slowdown_of(speed_of(UNKNOWN_SUM))
