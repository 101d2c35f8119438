"""Numbers that cannot be true, by what the ledger knows: they count as MISSING, every use of them.

On top of `freshness.contradicted` (no memory used under running pods, or all of the card): used and
free memory that together are more than the card has, free memory as large as a card on which pods
run, and a share of time that stands at its maximum on many GPUs at once, empty ones among them.
"""

from typing import NamedTuple

import numpy as np

from weft.ledger.table import Bools, Ints
from weft.signals.freshness import contradicted
from weft.signals.telemetry.names import Floats

LEAST_STUCK = 3
"""So many GPUs at the maximum are no chance any more."""
SLACK, SLACK_MIB = 1.02, 1024
"""What rounding, and inventories that count in GiB, may leave out of a card's memory."""


class Residents(NamedTuple):
    """What the ledger knows of each GPU: pods that hold it, and those that have warmed up."""

    pods: Ints
    warm: Ints


def false_memory(
    used_mib: Floats, free_mib: Floats, total_mib: Ints, residents: Residents
) -> Bools:
    """Where the readings of memory contradict the ledger or each other. NaN contradicts nothing."""
    with np.errstate(invalid="ignore"):
        too_much = used_mib + free_mib > total_mib * SLACK + SLACK_MIB
        all_free = (free_mib >= total_mib) & (residents.warm > 0)
    return np.asarray(contradicted(used_mib, total_mib, residents.warm) | too_much | all_free)


def stuck_at_one(recent: Floats, residents: Residents) -> Bools:
    """GPUs whose share of time, [g, samples], is exactly 1 in each sample, where that is no load.

    That is where so are at least half of the GPUs that report, at least `LEAST_STUCK` of them, and
    one of them holds no pod: unrelated cards do not all work without pause, empty ones do not work.
    """
    known = ~np.isnan(recent)
    reporting = known.any(axis=1)
    full = reporting & ((recent == 1.0) | ~known).all(axis=1)
    many = full.sum() >= max(LEAST_STUCK, 0.5 * reporting.sum())
    if not many or not bool((full & (residents.pods == 0)).any()):
        return np.zeros(len(full), dtype=bool)
    return np.asarray(full)
