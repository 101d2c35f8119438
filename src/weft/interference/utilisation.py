"""The last rungs: what summed utilisation says, and what is said where nothing is known.

    speed = 1 − 0.32·max(0, SU − 0.88) − 0.16·max(0, SM − 0.90)

SU and SM are the sums over everybody on the card of utilisation and of memory activity alone
(fitted elsewhere to 2,776 pairs on another card; its 10 % bound is 0.20 lower).
"""

from collections.abc import Sequence

import numpy as np

from weft.interference.features import memory_activity, utilisation
from weft.interference.records import SoloRun

LOWER = 0.20
UNKNOWN_SUM = 1.0


def speed_of(utilisation_sum: float, memory_sum: float = 0.0) -> float:
    """The rule."""
    speed = 1.0 - 0.32 * max(0.0, utilisation_sum - 0.88) - 0.16 * max(0.0, memory_sum - 0.90)
    return max(0.05, speed)


def slowdown_of(speed: float) -> tuple[float, float]:
    """Log slowdown and its bound for a speed by this rule."""
    return -float(np.log(speed)), -float(np.log(max(0.02, speed - LOWER)))


def by_utilisation(target: SoloRun, others: Sequence[SoloRun]) -> tuple[float, float] | None:
    """Log slowdown and bound; None where somebody's utilisation is not known.

    Whose memory activity is not known has none: that of the others counts.
    """
    shares = [utilisation(run) for run in (target, *others)]
    if np.isnan(shares).any():
        return None
    memory = float(np.nansum([memory_activity(run) for run in (target, *others)]))
    return slowdown_of(speed_of(sum(shares), memory))


def unknown() -> tuple[float, float]:
    """Predict as if everybody together just filled the card."""
    return slowdown_of(speed_of(UNKNOWN_SUM))
