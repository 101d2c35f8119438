"""Samples fall into their slots, whenever they come; GPUs and clocks may change meanwhile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_world import NOW_S

from weft.model.metric import Metric
from weft.telemetry.feed.window import MetricWindow

M = Metric.MEMORY_USED_MIB


def window(gpus: int = 1, samples: int = 4) -> MetricWindow:
    return MetricWindow([M], gpus, samples, 10.0, NOW_S)


def put(
    to: MetricWindow, *samples: tuple[float, float], row: int = 0, now: float | None = None
) -> None:
    """(seconds after the start, value)."""
    at = np.array([NOW_S + when for when, _ in samples])
    now_s = NOW_S + now if now is not None else float(at.max())
    to.advance(now_s)
    to.put(M, np.full(len(at), row), at, np.array([value for _, value in samples]), now_s)


def history(of: MetricWindow, row: int = 0) -> list[float | None]:
    return [None if np.isnan(value) else value for value in of.history(M)[row].tolist()]


def test_the_newest_sample_of_a_slot_counts() -> None:
    found = window()
    put(found, (1, 1), (5, 5), (3, 3), (12, 12), now=20)
    assert history(found) == [None, None, 5, 12]


def test_the_slot_that_time_is_in_is_not_complete_but_its_sample_is_the_newest() -> None:
    found = window()
    put(found, (5, 5), (14, 14))
    assert history(found)[-1] == 5
    assert (found.newest(M)[0][0], found.newest(M)[1][0]) == (14, NOW_S + 14)
    found.advance(NOW_S + 20)
    assert history(found)[-2:] == [5, 14]


def test_late_samples_fill_the_slot_they_are_of_and_too_late_ones_are_dropped() -> None:
    found = window()
    put(found, (35, 35), now=40)
    put(found, (15, 15), (-25, 1), now=40)
    assert history(found) == [None, 15, None, 35]
    assert found.newest(M)[0][0] == 35
    assert found.dropped == {"old": 1, "ahead": 0}


def test_a_window_passes_away_without_samples() -> None:
    found = window()
    put(found, (5, 5))
    for later in (10, 20, 30, 40, 50, 60):
        found.advance(NOW_S + later)
    assert history(found) == [None] * 4
    assert found.newest(M)[0][0] == 5
    put(found, (95, 9), now=100)
    assert history(found) == [None, None, None, 9]


def test_a_jump_of_hours_leaves_nothing_of_the_rings_but_the_newest_and_its_age() -> None:
    found = window()
    put(found, (5, 5), (15, 6))
    found.advance(NOW_S + 7200)
    assert history(found) == [None] * 4
    assert found.newest(M)[1][0] == NOW_S + 15


def test_a_clock_put_back_begins_anew() -> None:
    found = window()
    put(found, (35, 35))
    found.advance(NOW_S - 3600)
    assert np.isnan(found.newest(M)[0][0])
    put(found, (-3595, 1), now=-3590)
    assert history(found)[-1] == 1


def test_samples_of_a_clock_a_little_ahead_are_kept_of_one_far_ahead_are_not() -> None:
    found = window()
    put(found, (15, 1), (25, 2), now=10)
    put(found, (300, 9), now=10)
    assert found.dropped["ahead"] == 1
    assert found.newest(M)[0][0] == 2
    found.advance(NOW_S + 20)
    assert history(found)[-1] == 2


def test_gpus_come_and_go() -> None:
    found = window(gpus=2)
    put(found, (5, 1), row=0, now=10)
    put(found, (5, 2), row=1, now=10)
    found.realign(np.array([1, -1]))
    assert (history(found, 0)[-1], history(found, 1)[-1]) == (2, None)
    assert found.newest(M)[1].tolist() == [NOW_S + 5, -np.inf]
    found.realign(np.array([], dtype=np.int64))
    found.realign(np.array([-1]))
    put(found, (8, 3), now=10)
    assert history(found)[-1] == 3


@given(
    st.lists(
        st.tuples(st.integers(0, 79), st.integers(1, 1000)), max_size=30, unique_by=lambda s: s[0]
    ),
    st.randoms(use_true_random=False),
)
def test_order_and_repetition_do_not_matter(samples: list[tuple[int, int]], chance: object) -> None:
    """Against the rule itself: a slot holds the newest sample of its ten seconds."""
    found = window(samples=8)
    shuffled = samples * 2
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    found.advance(NOW_S + 80)
    for when, value in shuffled:
        put(found, (when + 0.5, value), now=80)
    expected = []
    for slot in range(8):
        mine = [s for s in samples if 10 * slot <= s[0] < 10 * slot + 10]
        expected.append(float(max(mine)[1]) if mine else None)
    assert history(found) == expected


def test_values_are_kept_as_float32_and_memory_in_mib_is_exact() -> None:
    found = window()
    put(found, (5, 16_777_215.0), now=10)
    assert history(found)[-1] == 16_777_215.0
    assert pytest.approx(found.newest(M)[0][0]) == 16_777_215.0


@pytest.mark.parametrize("ahead_s", [0.0, -15.0, -100.0, 5.0, 100.0])
def test_a_look_at_all_gpus_is_as_good_as_sample_by_sample(ahead_s: float) -> None:
    """Looks of a sound clock, of late ones and of ones ahead; some samples lost, some repeated."""
    metrics, chance = [M, Metric.SM_ACTIVE_RATIO], np.random.default_rng(0)
    one, other = (MetricWindow(metrics, 3, 4, 10.0, NOW_S) for _ in range(2))
    for now_s in NOW_S + 4.0 * np.arange(20):
        at_s = float(now_s + ahead_s * (chance.random() < 0.5))
        values = np.where(chance.random((2, 3)) < 0.3, np.nan, chance.random((2, 3)))
        for to in (one, other):
            to.advance(now_s)
        one.put_scrape(at_s, values, now_s)
        for row, metric in enumerate(metrics):
            known = np.flatnonzero(~np.isnan(values[row]))
            other.put(metric, known, np.full(len(known), at_s), values[row, known], now_s)
        for metric in metrics:
            np.testing.assert_array_equal(one.history(metric), other.history(metric))
            np.testing.assert_array_equal(one.newest(metric), other.newest(metric))
    assert one.dropped == other.dropped
