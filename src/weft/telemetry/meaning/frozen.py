"""Readings that stand still: an exporter that hangs repeats its last page, with the time of today.

A reading that has to move while it is true is as old as its last change, judged as any other age
(`telemetry/feed/freshness.py`): after two scrapes STALE, after six, at least a minute, MISSING.

What has to move, on a card that says it is at work:
  - shares of time that DCGM counts in cycles (SM_ACTIVE, GR_ENGINE_ACTIVE, SM_OCCUPANCY,
    DRAM_ACTIVE; six decimals), from where they could close the card to others, and below 1;
  - all readings together, where power (milliwatts) is one of them, and any of them is that high.
On any card: used or free memory, once a pod that came after its last change has warmed up.

What may stand still: 0 and 1, an idle card, whole percents (GPU_UTIL stays at 97 for minutes),
memory, power at rest. Where one reading of a card is known to be frozen for so long that it is
MISSING, the whole page is: each other reading of the card is as old as its own last change, too.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from weft.core.ledger.table import Bools, Ints
from weft.core.policies.gpu_readings import BUSY_DRAM, BUSY_OCCUPANCY, BUSY_SM
from weft.model.metric import Metric
from weft.telemetry.meaning.metric_values import Floats

CLOSES_FROM = {
    Metric.SM_ACTIVE_RATIO: BUSY_SM,
    Metric.GRAPHICS_ACTIVE_RATIO: BUSY_SM,
    Metric.GPU_UTIL_RATIO: BUSY_SM,
    Metric.SM_OCCUPANCY_RATIO: BUSY_OCCUPANCY,
    Metric.DRAM_ACTIVE_RATIO: BUSY_DRAM,
}
"""From here on a reading may close a card (the gate of `load-aware` and `auto`)."""
WHOLE_PERCENTS = frozenset({Metric.GPU_UTIL_RATIO})
MEMORY = (Metric.MEMORY_USED_MIB, Metric.MEMORY_FREE_MIB, Metric.MEMORY_USED_RATIO)
TOLERANCE = 2e-7
"""Relative: the windows keep seven digits."""


class Readings(NamedTuple):
    """A metric of G GPUs: samples [G, T] (NaN where none came), the newest, and its time, [G]."""

    history: Floats
    last: Floats
    last_at_s: Floats


class PodArrivals(NamedTuple):
    """Pods on GPUs (rows), and when they were bound, NaN where that is not known, [P].

    `warm_s` later they use memory.
    """

    gpu: Ints
    bound_s: Floats
    warm_s: float


def unmoved_since(readings: Readings, ends_s: Floats) -> Floats:
    """Time of the first sample of those that equal the newest without a break; −∞ without any.

    `ends_s` [T] are the samples' times, the oldest first. No further back than they reach.
    """
    history, last, last_at_s = readings
    if history.shape[1] == 0:
        return last_at_s.copy()
    known = ~np.isnan(history)
    with np.errstate(invalid="ignore"):
        other = known & (np.abs(history - last[:, None]) > TOLERANCE * np.abs(last[:, None]))
    slots = np.arange(history.shape[1])
    changed = np.where(other, slots, -1).max(axis=1)
    same = known & (slots > changed[:, None])
    first = same.argmax(axis=1)
    return np.where(same.any(axis=1), np.minimum(ends_s[first], last_at_s), last_at_s)


def frozen_since(
    readings: Mapping[Metric, Readings], ends_s: Floats, arrivals: PodArrivals, gone_s: float
) -> dict[Metric, Floats]:
    """Time that each metric's newest reading is of, [g], where it is frozen; ∞ where it is not.

    A reading from before `gone_s` is MISSING.
    """
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
    """GPUs whose memory did not move though a pod came, and has been there long enough."""
    gpu, bound_s, warm_s = arrivals
    with np.errstate(invalid="ignore"):
        unseen = (bound_s > since_s[gpu]) & (bound_s + warm_s <= last_at_s[gpu])
    ignores = np.zeros(len(since_s), dtype=np.bool_)
    ignores[gpu[unseen]] = True
    return ignores


def _page_stands_still(
    readings: Mapping[Metric, Readings], since: Mapping[Metric, Floats], gone_s: float
) -> Bools:
    """GPUs that say they are at work while nothing moves, power included, since before `gone_s`."""
    gpus = len(next(iter(since.values())))
    if Metric.POWER_W not in readings:
        return np.zeros(gpus, dtype=np.bool_)
    at_work = np.zeros(gpus, dtype=np.bool_)
    for metric in CLOSES_FROM.keys() & readings.keys():
        at_work |= readings[metric].last >= CLOSES_FROM[metric]
    draws = readings[Metric.POWER_W].last > 0.0
    newest = np.max([*since.values()], axis=0)
    return np.asarray(at_work & draws & (newest <= gone_s))
