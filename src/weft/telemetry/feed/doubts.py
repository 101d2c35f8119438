"""Judges readings: how old they are, whether they can be true, and whether they are frozen.

As they age, values are FRESH, then STALE, then MISSING (`freshness_of`).

Readings that the ledger or other readings prove false count as MISSING wherever they are used: used
memory of 0, or of the whole card, while pods run; used and free memory that add up to more than the
card has, or far less; free memory as large as the card while pods run; a share of time at its
maximum on many GPUs at once, including empty ones; SMs that are always at work on a card that
reports no work, or the reverse; DRAM that is never idle, which is impossible; and a card that draws
no power.

Frozen readings: an exporter that hangs repeats its last page with new timestamps. A reading that
cannot stay the same is as old as its last change, and judged by that age (`freshness_of`): after
two scrapes STALE, after six scrapes (at least a minute) MISSING.

Readings that cannot stay the same, on a card that reports work:
  - shares of time that DCGM counts in cycles (SM_ACTIVE, GR_ENGINE_ACTIVE, SM_OCCUPANCY,
    DRAM_ACTIVE; six decimals), if high enough to close the card to other pods, and below 1;
  - all readings together, if power (milliwatts) is one of them, and any share is that high.

On any card: used or free memory, once a pod that came after the last change has warmed up.

Readings that may stay the same: 0 and 1, an idle card, whole percents (GPU_UTIL stays at 97 for
minutes), memory, power at rest. If one reading of a card has been frozen long enough to be MISSING,
the whole page is frozen: each other reading of the card, too, is as old as its last change."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from weft.core.framework.signals import FRESH, MISSING, STALE, Bytes
from weft.core.ledger.table import Bools, Ints
from weft.core.policies.gpu_readings import BUSY_DRAM, BUSY_OCCUPANCY, BUSY_SM
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import Floats

LEAST_STUCK = 3
"""Least number of GPUs that read the maximum at once for which this is no coincidence."""
TOLERANCE, TOLERANCE_MIB = 1.02, 1024
"""A card's used and free memory may add up to this factor of its size plus this many MiB, because
of rounding and inventories in GiB; more cannot be true."""
LEAST_TOLD = 0.85
"""A card's used, free and reserved memory must add up to at least this factor of its size minus
`TOLERANCE_MIB`; less cannot be true. ECC takes a sixteenth of a card with GDDR6, the driver some
hundred MiB, and inventories may have the size printed on the box."""
AT_WORK = 0.5
"""Mean share of time that is too large for a measuring error: a larger mean contradicts another
metric of the card that is always 0, and a smaller mean contradicts another that is always 1."""
CLOSES_FROM = {
    Metric.SM_ACTIVE_RATIO: BUSY_SM,
    Metric.GRAPHICS_ACTIVE_RATIO: BUSY_SM,
    Metric.GPU_UTIL_RATIO: BUSY_SM,
    Metric.SM_OCCUPANCY_RATIO: BUSY_OCCUPANCY,
    Metric.DRAM_ACTIVE_RATIO: BUSY_DRAM,
}
"""Readings from which on a card may be closed to further pods (the gate of `load-aware` and
`auto`)."""
WHOLE_PERCENTS = frozenset({Metric.GPU_UTIL_RATIO})
MEMORY = (Metric.MEMORY_USED_MIB, Metric.MEMORY_FREE_MIB, Metric.MEMORY_USED_RATIO)
SAME_PART = 2e-7
"""Readings whose relative difference is at most this count as equal: windows keep seven digits."""


# --- age ----------------------------------------------------------------------------------------


def missing_after_s(scrape_s: float) -> float:
    """Return the age in seconds beyond which a sample counts as MISSING."""
    return max(60.0, 6.0 * scrape_s)


def freshness_of(age_s: Floats, scrape_s: float) -> Bytes:
    """Return FRESH up to an age of 2 scrapes and a second, STALE up to 6 scrapes (at least a
    minute), else MISSING.

    A sample from the future is judged by its distance from now: the clocks disagree."""
    fresh, stale = 2.0 * scrape_s + 1.0, missing_after_s(scrape_s)
    distance = np.abs(age_s)
    states = np.full(age_s.shape, MISSING, dtype=np.int8)
    with np.errstate(invalid="ignore"):
        states[distance <= stale] = STALE
        states[distance <= fresh] = FRESH
    return states


def contradicted(used_mib: Floats, total_mib: Ints, warm_pods: Ints) -> Bools:
    """Return a mask of GPUs whose used memory cannot be true, and counts as MISSING.

    The reading is either 0 while warmed-up pods run, or at least the whole card. No card gives all
    its memory to pods, so this also finds a metric stuck at its maximum, on one card or on many."""
    with np.errstate(invalid="ignore"):
        nothing = (used_mib <= 0.0) & (warm_pods > 0)
        return np.asarray(nothing | (used_mib >= total_mib))


# --- what cannot be true -------------------------------------------------------------------------


class GpuPods(NamedTuple):
    """Number of pods that hold each GPU by the ledger, and of those that have warmed up, [G]
    each."""

    pods: Ints
    warm: Ints


class MemoryReadings(NamedTuple):
    """The newest readings of each GPU's memory, MiB, NaN where unknown.

    `reserved` is the driver's own part, 0 if unknown. `at_once`: used and free memory were read
    together, so they may be added up.
    """

    used: Floats
    free: Floats
    reserved: Floats
    at_once: Bools


def false_memory(readings: MemoryReadings, total_mib: Ints, residents: GpuPods) -> Bools:
    """Return a mask of GPUs whose memory readings contradict the ledger or each other. NaN
    contradicts nothing.

    If used or free memory is stuck at 0, the other reveals it. If only one of them is reported, the
    other is computed from it, and the ledger reveals a false one."""
    sum_mib = np.where(readings.at_once, readings.used + readings.free, np.nan)
    with np.errstate(invalid="ignore"):
        too_much = sum_mib > total_mib * TOLERANCE + TOLERANCE_MIB
        too_little = sum_mib + readings.reserved < total_mib * LEAST_TOLD - TOLERANCE_MIB
        all_free = (readings.free >= total_mib) & (residents.warm > 0)
    wrong = contradicted(readings.used, total_mib, residents.warm)
    return np.asarray(wrong | too_much | too_little | all_free)


def stuck_at_one(recent: Floats, residents: GpuPods) -> Bools:
    """Return a mask of GPUs whose share of time, [g, samples], is stuck at 1: in each sample,
    without a real load.

    This is assumed only if at least half of the reporting GPUs read 1 all the time, at least
    `LEAST_STUCK` do, and one of them holds no pod: unrelated cards do not all work without pause,
    and empty ones do not work."""
    if len(recent) < LEAST_STUCK:
        return np.zeros(len(recent), dtype=bool)
    reporting = (~np.isnan(recent)).any(axis=1)
    full = _always(recent, 1.0)
    many = full.sum() >= max(LEAST_STUCK, 0.5 * reporting.sum())
    if not many or not bool((full & (residents.pods == 0)).any()):
        return np.zeros(len(full), dtype=bool)
    return np.asarray(full)


def false_activity(sm: Floats, work: Floats) -> Bools:
    """Return a mask of GPUs whose SM and engine readings contradict each other, [g, samples] of one
    minute each.

    `sm` is the share of SMs at work, `work` the share of time with any kernel (GPU_UTIL, or the
    graphics engine's). SMs at work need a kernel, and a kernel needs an SM. So one that is 0 in
    every sample contradicts a mean of the other above `AT_WORK`, and SMs that are always 1
    contradict a mean of `work` below. Which of the two is false is unknown."""
    busy, idle = _always(sm, 1.0), _always(sm, 0.0)
    resting, working = _always(work, 0.0), _mean(work)
    with np.errstate(invalid="ignore"):
        no_work = busy & (working < AT_WORK)
        no_kernel = resting & (_mean(sm) > AT_WORK)
        no_sm = idle & (working > AT_WORK)
    return np.asarray(no_work | no_kernel | no_sm)


def never_idle(dram: Floats) -> Bools:
    """Return a mask of GPUs whose DRAM moves data in every cycle of a minute, [g, samples]: the
    real maximum is about 0.8."""
    return _always(dram, 1.0)


def _always(series: Floats, value: float) -> Bools:
    """Return a mask of rows that have samples, all exactly `value`, [g]."""
    known = ~np.isnan(series)
    return np.asarray(known.any(axis=1) & ((series == value) | ~known).all(axis=1))


def _mean(series: Floats) -> Floats:
    """Return the mean of each row's samples, NaN without any, [g]."""
    known = ~np.isnan(series)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, series, 0.0).sum(axis=1) / known.sum(axis=1))


# --- what stands still ---------------------------------------------------------------------------


class Readings(NamedTuple):
    """A metric of G GPUs: samples [G, T] (NaN where none arrived), the newest sample, and its time,
    [G]."""

    history: Floats
    last: Floats
    last_at_s: Floats


class PodArrivals(NamedTuple):
    """Pods on GPUs (rows), and when they were bound, NaN if unknown, [P].

    From `warm_s` seconds after that on, they use memory."""

    gpu: Ints
    bound_s: Floats
    warm_s: float


def unmoved_since(readings: Readings, ends_s: Floats) -> Floats:
    """Return since when each reading is unchanged: the time of the first sample in the unbroken run
    of samples equal to the newest; −∞ without samples.

    `ends_s` [T] are the samples' times, oldest first; the run cannot begin before the first of
    them."""
    history, last, last_at_s = readings
    if history.shape[1] == 0:
        return last_at_s.copy()
    known = ~np.isnan(history)
    with np.errstate(invalid="ignore"):
        other = known & (np.abs(history - last[:, None]) > SAME_PART * np.abs(last[:, None]))
    slots = np.arange(history.shape[1])
    changed = np.where(other, slots, -1).max(axis=1)
    same = known & (slots > changed[:, None])
    first = same.argmax(axis=1)
    return np.where(same.any(axis=1), np.minimum(ends_s[first], last_at_s), last_at_s)


def frozen_since(
    readings: Mapping[Metric, Readings], ends_s: Floats, arrivals: PodArrivals, gone_s: float
) -> dict[Metric, Floats]:
    """Return, for each metric, the time of its last change where its newest reading is frozen, [g];
    ∞ where it is not.

    A frozen reading that last changed before `gone_s` is MISSING, and shows that the GPU's whole
    page is frozen."""
    if not readings:
        return {}
    since = {metric: unmoved_since(samples, ends_s) for metric, samples in readings.items()}
    frozen = {metric: np.full(len(at_s), np.inf) for metric, at_s in since.items()}
    for metric, at_s in since.items():
        if metric in CLOSES_FROM and metric not in WHOLE_PERCENTS:
            last = readings[metric].last
            moves = (last >= CLOSES_FROM[metric]) & (last < 1.0)
            frozen[metric][moves] = at_s[moves]
        if metric in MEMORY:
            ignores = _ignores_arrivals(at_s, readings[metric].last_at_s, arrivals)
            frozen[metric][ignores] = at_s[ignores]
    hangs = _page_stands_still(readings, since, gone_s)
    for at_s in frozen.values():
        hangs |= at_s <= gone_s
    return {metric: np.where(hangs, since[metric], at_s) for metric, at_s in frozen.items()}


def _ignores_arrivals(since_s: Floats, last_at_s: Floats, arrivals: PodArrivals) -> Bools:
    """Return a mask of GPUs whose memory did not change although a pod was bound and has had time
    to warm up."""
    gpu, bound_s, warm_s = arrivals
    with np.errstate(invalid="ignore"):
        unseen = (bound_s > since_s[gpu]) & (bound_s + warm_s <= last_at_s[gpu])
    ignores = np.zeros(len(since_s), dtype=np.bool_)
    ignores[gpu[unseen]] = True
    return ignores


def _page_stands_still(
    readings: Mapping[Metric, Readings], since: Mapping[Metric, Floats], gone_s: float
) -> Bools:
    """Return a mask of GPUs that report work while no reading, power included, has changed since
    before `gone_s`."""
    gpus = len(next(iter(since.values())))
    if Metric.POWER_W not in readings:
        return np.zeros(gpus, dtype=np.bool_)
    at_work = np.zeros(gpus, dtype=np.bool_)
    for metric in CLOSES_FROM.keys() & readings.keys():
        at_work |= readings[metric].last >= CLOSES_FROM[metric]
    draws = readings[Metric.POWER_W].last > 0.0
    newest = np.max([*since.values()], axis=0)
    return np.asarray(at_work & draws & (newest <= gone_s))
