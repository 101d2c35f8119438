"""Readings that stand still: what must move is as old as its last change, what may rest is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.framework.signals import FRESH, MISSING, STALE
from weft.model.metric import Metric
from weft.telemetry.feed.doubts import (
    PodArrivals,
    Readings,
    freshness_of,
    frozen_since,
    unmoved_since,
)

NOW_S, STEP_S, SAMPLES = 1_000.0, 5.0, 60
ENDS_S = NOW_S - STEP_S * np.arange(SAMPLES - 1, -1, -1)
NOBODY = PodArrivals(np.zeros(0, dtype=np.int64), np.zeros(0), 60.0)
SM, DRAM, UTIL = Metric.SM_ACTIVE_RATIO, Metric.DRAM_ACTIVE_RATIO, Metric.GPU_UTIL_RATIO
USED, POWER = Metric.MEMORY_USED_MIB, Metric.POWER_W


def series(*values: float) -> Readings:
    """One GPU's samples, the last of them the newest; the first value fills the window."""
    history = np.full(SAMPLES, values[0])
    history[SAMPLES - len(values) :] = values
    stored = history.astype(np.float32).astype(np.float64)[None, :]
    return Readings(stored, history[-1:], np.array([NOW_S]))


def ages(
    readings: dict[Metric, Readings], arrivals: PodArrivals = NOBODY
) -> dict[Metric, float | None]:
    """Age in seconds of the readings that are frozen, None of the others."""
    found = frozen_since(readings, ENDS_S, arrivals, NOW_S - 60.0)
    return {
        metric: None if np.isinf(at_s[0]) else float(NOW_S - at_s[0])
        for metric, at_s in found.items()
    }


WINDOW_S = STEP_S * (SAMPLES - 1)


@pytest.mark.parametrize("metric", [SM, DRAM, Metric.SM_OCCUPANCY_RATIO])
def test_a_busy_share_that_never_moves_is_as_old_as_the_window(metric: Metric) -> None:
    assert ages({metric: series(0.931742)}) == {metric: WINDOW_S}


@pytest.mark.parametrize(
    ("metric", "value"),
    [(SM, 0.0), (SM, 1.0), (SM, 0.15), (DRAM, 0.0), (UTIL, 1.0), (UTIL, 0.97), (USED, 20_000.0)],
)
def test_what_may_rest_is_never_frozen_by_itself(metric: Metric, value: float) -> None:
    assert ages({metric: series(value)}) == {metric: None}


def test_a_change_in_the_sixth_decimal_is_one() -> None:
    assert ages({SM: series(0.931742, 0.931743)}) == {SM: 0.0}
    assert ages({SM: series(0.931742, 0.931743, 0.931743, 0.931743)}) == {SM: 10.0}


def test_lost_samples_say_nothing() -> None:
    gaps = series(0.931742)
    gaps.history[0, -30:-2] = np.nan
    assert ages({SM: gaps}) == {SM: WINDOW_S}


def test_a_page_is_frozen_where_one_of_its_readings_is() -> None:
    """SM_ACTIVE proves it; then also whole percents, memory and power are as old as they are."""
    page = {SM: series(0.93), UTIL: series(1.0), USED: series(9_000.0), POWER: series(99.0, 240.0)}
    assert ages(page) == {SM: WINDOW_S, UTIL: WINDOW_S, USED: WINDOW_S, POWER: 0.0}


def test_a_reading_that_rests_for_less_than_a_minute_says_nothing_of_the_page() -> None:
    page = {SM: series(0.5, *[0.93] * 10), UTIL: series(0.97)}
    assert ages(page) == {SM: 45.0, UTIL: None}


def test_without_profiling_metrics_power_tells() -> None:
    """GPU_UTIL alone may rest; not while power, told in milliwatts, does too."""
    assert ages({UTIL: series(0.97), POWER: series(241.337)}) == {UTIL: WINDOW_S, POWER: WINDOW_S}
    assert ages({UTIL: series(0.97), POWER: series(241.337, 241.338)}) == {UTIL: None, POWER: None}
    assert ages({UTIL: series(0.0), POWER: series(27.1)}) == {UTIL: None, POWER: None}


def test_memory_that_ignores_a_pod_is_frozen_once_the_pod_is_warm() -> None:
    at_rest = {USED: series(4_000.0)}

    def bound(age_s: float) -> PodArrivals:
        return PodArrivals(np.array([0]), np.array([NOW_S - age_s]), 60.0)

    assert ages(at_rest, bound(59.0)) == {USED: None}
    assert ages(at_rest, bound(61.0)) == {USED: WINDOW_S}
    assert ages(at_rest, bound(400.0)) == {USED: None}  # before the window: nothing is known
    assert ages(at_rest, PodArrivals(np.array([0]), np.array([np.nan]), 60.0)) == {USED: None}
    came = {USED: series(4_000.0, *[5_000.0] * 5)}
    assert ages(came, bound(61.0)) == {USED: None}


def test_ages_are_judged_as_any_other() -> None:
    states = freshness_of(np.array([5.0, 30.0, 61.0]), STEP_S)
    assert states.tolist() == [FRESH, STALE, MISSING]


@given(st.lists(st.sampled_from([0.2, 0.85, 0.9, float("nan")]), min_size=1, max_size=12))
def test_the_last_change_is_found(values: list[float]) -> None:
    """Against one look at a time, newest to oldest."""
    known = [value for value in values if not np.isnan(value)]
    if not known:
        return
    ends_s = np.arange(len(values), dtype=np.float64)
    readings = Readings(np.array([values]), np.array(known[-1:]), ends_s[-1:])
    since = float(ends_s[-1])
    for at_s, value in reversed([*zip(ends_s.tolist(), values, strict=True)]):
        if not np.isnan(value) and value != known[-1]:
            break
        since = since if np.isnan(value) else at_s
    assert unmoved_since(readings, ends_s).tolist() == [since]
