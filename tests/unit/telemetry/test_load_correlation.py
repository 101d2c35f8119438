"""Correlation of applications with GPUs, against Spearman's coefficient pair by pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.telemetry.feed.feed import (
    MOST_APPLICATIONS,
    SAMPLES,
    LoadCorrelation,
    SoleTenants,
)
from weft.telemetry.forecast.statistics import spearman

METRICS = ("memory", "sm", "bandwidth")


def series(seed: int, gpus: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 6, (gpus, SAMPLES + 4)).astype(float) for name in METRICS}


@given(st.integers(0, 10_000))
def test_it_is_the_largest_of_the_metrics_pair_by_pair(seed: int):
    correlation, before, now = LoadCorrelation(), series(seed, 3), series(seed + 1, 5)
    now["memory"][1] = 7.0  # a series that does not vary
    correlation.observe(before, {0: "a", 2: "b"})
    found = correlation.observe(now, {})
    for name, row in (("a", 0), ("b", 2)):
        slow = [
            max(spearman(before[m][[row], 4:], now[m][[gpu], 4:])[0, 0] for m in METRICS)
            for gpu in range(5)
        ]
        assert found[name] == pytest.approx(slow, abs=1e-12)


def test_gaps_and_short_windows_say_nothing():
    correlation, before, now = LoadCorrelation(), series(1, 2), series(2, 2)
    now["sm"][0, 4] = np.nan
    assert list(correlation.observe(before, {0: "a"})) == ["a"]
    assert list(correlation.observe(now, {0: "gap"})) == ["a"]
    assert np.isnan(correlation.observe(now, {})["a"]).tolist() == [True, False]
    short = {name: one[:, : SAMPLES - 1] for name, one in now.items()}
    assert correlation.observe(short, {1: "b"}) == {}
    assert list(correlation.observe(before, {})) == ["a"]


def test_what_was_learnt_of_other_metrics_is_forgotten():
    correlation, now = LoadCorrelation(), series(1, 2)
    correlation.observe(now, {0: "a"})
    assert correlation.observe({"memory": now["memory"]}, {}) == {}


def test_whoever_was_not_alone_for_longest_is_forgotten():
    correlation, one = LoadCorrelation(), series(1, 1)
    names = [f"application-{number}" for number in range(MOST_APPLICATIONS)]
    for name in [*names, names[0], "newest"]:
        found = correlation.observe(one, {0: name})
    assert list(found) == [*names[2:], names[0], "newest"]


def test_a_pod_is_alone_once_it_has_been_so_for_the_whole_window():
    alone, one, two = SoleTenants(), ("n", 3), ("n", 4)
    assert alone.observe({one: "a", two: "b"}, 100.0, 60.0) == {}
    assert alone.observe({one: "a", two: "c"}, 160.0, 60.0) == {one: "a"}
    assert alone.observe({two: "c"}, 220.0, 60.0) == {two: "c"}
    assert alone.observe({one: "a", two: "c"}, 280.0, 60.0) == {two: "c"}
