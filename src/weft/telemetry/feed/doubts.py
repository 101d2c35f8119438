"""Numbers that cannot be true, by what the ledger knows: they count as MISSING, every use of them.

On top of `freshness.contradicted` (no memory used under running pods, or all of the card): used and
free memory that together are more than the card has, or far less; free memory as large as a card on
which pods run; a share of time that stands at its maximum on many GPUs at once, empty ones among
them; SMs that work without pause on a card that tells of no work, or the other way round; DRAM that
is never idle, which no card can do; and a card that draws no power.
"""

from typing import NamedTuple

import numpy as np

from weft.core.ledger.table import Bools, Ints
from weft.telemetry.feed.freshness import contradicted
from weft.telemetry.meaning.metric_values import Floats

LEAST_STUCK = 3
"""So many GPUs at the maximum are no chance any more."""
TOLERANCE, TOLERANCE_MIB = 1.02, 1024
"""The part of a card's memory that rounding, and inventories that count in GiB, may leave out."""
LEAST_TOLD = 0.85
"""So much of a card is told as used, free or reserved, less `TOLERANCE_MIB`. ECC takes a sixteenth
of a card with GDDR6, the driver some hundred MiB, and inventories go by what is printed on the box.
"""
AT_WORK = 0.5
"""A share of time that is no measuring error: another metric cannot say never, nor always."""


class GpuPods(NamedTuple):
    """Pods that hold each GPU, as the ledger says, and those of them that have warmed up."""

    pods: Ints
    warm: Ints


class MemoryReadings(NamedTuple):
    """The newest readings of each GPU's memory, MiB, NaN where unknown.

    `reserved` is the driver's own part, 0 where nobody tells it. `at_once` says whether used and
    free memory were read together: only then may they be added up.
    """

    used: Floats
    free: Floats
    reserved: Floats
    at_once: Bools


def false_memory(readings: MemoryReadings, total_mib: Ints, residents: GpuPods) -> Bools:
    """GPUs whose readings of memory contradict the ledger or each other. NaN contradicts nothing.

    A metric that is stuck at 0 is caught by the other one; where one of the two is all there is,
    the other is what it leaves of the card, and that is caught by the ledger.
    """
    sum_mib = np.where(readings.at_once, readings.used + readings.free, np.nan)
    with np.errstate(invalid="ignore"):
        too_much = sum_mib > total_mib * TOLERANCE + TOLERANCE_MIB
        too_little = sum_mib + readings.reserved < total_mib * LEAST_TOLD - TOLERANCE_MIB
        all_free = (readings.free >= total_mib) & (residents.warm > 0)
    wrong = contradicted(readings.used, total_mib, residents.warm)
    return np.asarray(wrong | too_much | too_little | all_free)


def stuck_at_one(recent: Floats, residents: GpuPods) -> Bools:
    """GPUs whose share of time, [g, samples], is exactly 1 in each sample, where that is no load.

    That is where so are at least half of the GPUs that report, at least `LEAST_STUCK` of them, and
    one of them holds no pod: unrelated cards do not all work without pause, empty ones do not work.
    """
    if len(recent) < LEAST_STUCK:
        return np.zeros(len(recent), dtype=bool)
    reporting = (~np.isnan(recent)).any(axis=1)
    full = _always(recent, 1.0)
    many = full.sum() >= max(LEAST_STUCK, 0.5 * reporting.sum())
    if not many or not bool((full & (residents.pods == 0)).any()):
        return np.zeros(len(full), dtype=bool)
    return np.asarray(full)


def false_activity(sm: Floats, work: Floats) -> Bools:
    """GPUs whose SMs and whose engine tell different stories, both [g, samples] of one minute.

    `sm` is the share of SMs at work, `work` that of time with any kernel (GPU_UTIL, or the graphics
    engine's). SMs all at work all the time need a kernel, and a kernel needs an SM: each in every
    sample, against more than `AT_WORK` in the mean. Which of the two is false nobody knows.
    """
    busy, idle = _always(sm, 1.0), _always(sm, 0.0)
    resting, working = _always(work, 0.0), _mean(work)
    with np.errstate(invalid="ignore"):
        no_work = busy & (working < AT_WORK)
        no_kernel = resting & (_mean(sm) > AT_WORK)
        no_sm = idle & (working > AT_WORK)
    return np.asarray(no_work | no_kernel | no_sm)


def never_idle(dram: Floats) -> Bools:
    """GPUs whose DRAM moves data in every cycle of a minute, [g, samples]: some 0.8 is the most."""
    return _always(dram, 1.0)


def _always(series: Floats, value: float) -> Bools:
    """True where there are samples and all of them are exactly this, [g]."""
    known = ~np.isnan(series)
    return np.asarray(known.any(axis=1) & ((series == value) | ~known).all(axis=1))


def _mean(series: Floats) -> Floats:
    """The mean of the samples that there are, NaN without any, [g]."""
    known = ~np.isnan(series)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, series, 0.0).sum(axis=1) / known.sum(axis=1))
