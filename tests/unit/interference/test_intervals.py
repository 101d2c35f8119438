"""Intervals of means hold the truth as often as they say, and are no longer than they need."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from long_form import few_or_many
from numpy.typing import NDArray
from scipy import stats

from weft.interference.intervals import mean_interval, skewness
from weft.interference.scores import ScoredSamples, family_interval

Floats = NDArray[np.float64]
REPEATS = few_or_many(300, 10_000)
LEAST = 0.93
CHANCE = few_or_many(1, 0) * 3 * math.sqrt(LEAST * (1 - LEAST) / REPEATS)
"""How far below its truth the share of few repeats may fall; that of many shall not."""
DRAWS: dict[str, tuple[Callable[[np.random.Generator, int], Floats], float]] = {
    "normal": (lambda rng, n: rng.normal(5, 1, n), 5),
    "uniform": (lambda rng, n: rng.uniform(0, 2, n), 1),
    "lognormal": (lambda rng, n: np.exp(rng.normal(-0.5, 1, n)), 1),
    "lognormal losses": (lambda rng, n: -np.exp(rng.normal(-0.5, 1, n)), -1),
    "noisy lognormal": (lambda rng, n: rng.normal(0, 0.5, n) + np.exp(rng.normal(-0.5, 1, n)), 1),
    "exponential": (lambda rng, n: rng.exponential(1, n), 1),
    "heavy tails, alike": (lambda rng, n: rng.standard_t(3, n), 0),
}
"""Values and their true mean."""


@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("name", DRAWS)
def test_intervals_of_means_cover_the_truth(name: str, seeds: int) -> None:
    rng = np.random.default_rng([14, seeds, list(DRAWS).index(name)])
    draw, truth = DRAWS[name]
    held = 0
    for _ in range(REPEATS):
        low, high = mean_interval(draw(rng, seeds).tolist()) or (math.nan, math.nan)
        held += low <= truth <= high
    assert held / REPEATS >= LEAST - CHANCE


@pytest.mark.parametrize(("seeds", "most"), [(5, 2.4), (10, 1.4), (20, 1.1), (30, 1.05)])
def test_for_normal_values_they_are_not_much_longer_than_students(seeds: int, most: float) -> None:
    rng, longer = np.random.default_rng(14), []
    for _ in range(300):
        values = rng.normal(0, 1, seeds)
        low, high = mean_interval(values.tolist()) or (math.nan, math.nan)
        student = 2 * stats.t.ppf(0.975, seeds - 1) * stats.sem(values)
        longer.append((high - low) / student)
    assert 1 <= np.median(longer) <= most


@pytest.mark.parametrize("families", [6, 12])
def test_the_coverage_of_bounds_over_families_has_such_an_interval(families: int) -> None:
    """Families of 5 to 40 samples, each held by its own chance: 90 % in the mean."""
    rng, held = np.random.default_rng([14, families]), 0
    for _ in range(few_or_many(200, 5_000)):
        sizes = rng.integers(5, 40, families)
        within = [rng.random(size) < rng.beta(4.5, 0.5) for size in sizes]
        speed, family = np.ones(sizes.sum()), np.repeat(np.arange(families), sizes)
        lowest = np.where(np.concatenate(within), 0.5, 1.5)
        low, high = family_interval(ScoredSamples(speed, speed, lowest, family, speed > 0))
        held += low <= 0.9 <= high
    assert held / few_or_many(200, 5_000) >= LEAST - CHANCE


def test_skewness_is_the_unbiased_one() -> None:
    values = [1.0, 2.0, 3.0, 10.0, 4.0, 2.5]
    assert skewness(values) == pytest.approx(stats.skew(values, bias=False))
    assert skewness([3.0] * 5) == 0.0


def test_skewed_values_have_a_longer_half() -> None:
    """Hall's transformation, solved by hand: T + γT²/(3√n) + γ²T³/(27n) + γ/(6√n) = ∓t."""
    values = [1.0, 1.5, 2.0, 2.5, 3.3]
    low, high = mean_interval(values) or (0.0, 0.0)
    n, mean, error = 5, 2.06, stats.sem(values)
    skew, student = stats.skew(values, bias=False), stats.t.ppf(1 - 0.05 / 3 / 2, n - 1)

    def bent(end: float) -> float:
        t = (mean - end) / error
        root = n**0.5
        return t + skew * t**2 / (3 * root) + skew**2 * t**3 / (27 * n) + skew / (6 * root)

    assert bent(high) == pytest.approx(-student)
    assert (mean - low) / error == pytest.approx(student)


def test_one_outlier_does_not_make_an_interval_boundless() -> None:
    values = [*[10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0, 10.1, 9.9] * 3, 50.0]
    _, high = mean_interval(values) or (0.0, 0.0)
    most = 2.5 * stats.t.ppf(0.975, 27) * stats.sem(values)
    assert high - sum(values) / 28 == pytest.approx(most)
