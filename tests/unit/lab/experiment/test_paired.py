"""Paired differences: their intervals hold the truth as often as they say, and agree with p."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy  # its `stats` is imported when it is first used, which takes a second
from hypothesis import given
from hypothesis import strategies as st
from long_form import few_or_many
from numpy.typing import NDArray

from weft.lab.experiment.paired import holm, paired_difference, paired_p_value

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Floats, Floats, float]]
"""Values and baseline of so many seeds, and the true ratio of their means."""

REPEATS = few_or_many(200, 10_000)
LEAST_COVERAGE = 0.93
CHANCE = few_or_many(1, 0) * 3 * math.sqrt(LEAST_COVERAGE * (1 - LEAST_COVERAGE) / REPEATS)
"""How far below its truth the share of few repeats may fall; that of many shall not."""


def _normal(ratio: float) -> Draw:
    def draw(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats, float]:
        workload = rng.normal(100, 15, seeds)
        mine = workload + rng.normal(0, 5, seeds)
        return ratio * mine, workload + rng.normal(0, 5, seeds), ratio

    return draw


def _skewed(ratio: float, sigma: float, mine: float, theirs: float | None = None) -> Draw:
    """Lognormal workloads, and each policy's own lognormal noise, of mean 1."""
    noise = mine, mine if theirs is None else theirs

    def draw(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats, float]:
        workload = np.exp(rng.normal(0, sigma, seeds))
        ours, others = (workload * np.exp(rng.normal(-(s**2) / 2, s, seeds)) for s in noise)
        return ratio * ours, others, ratio

    return draw


def _one_sided(sigma: float, effect: float) -> Draw:
    """A steady baseline, and an effect of so much a seed that is lognormal by itself."""

    def draw(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats, float]:
        workload = rng.normal(100, 5, seeds)
        factor = np.exp(rng.normal(-(sigma**2) / 2, sigma, seeds))
        return workload * (1 + effect * (factor - 1) + effect), workload, 1 + effect

    return draw


def _heavy(ratio: float) -> Draw:
    """Noise with heavy tails: Student's t with three degrees of freedom."""

    def draw(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats, float]:
        workload = rng.normal(100, 5, seeds)
        mine, theirs = (workload + 3 * rng.standard_t(3, seeds) for _ in range(2))
        return ratio * mine, theirs, ratio

    return draw


def _skewed_effect(rng: np.random.Generator, seeds: int) -> tuple[Floats, Floats, float]:
    """An exponential saving on steady workloads: most seeds save little, a few much."""
    workload = rng.normal(100, 5, seeds)
    return workload - rng.exponential(10, seeds), workload, 0.9


DRAWS: dict[str, Draw] = {
    "normal with effect": _normal(0.8),
    "a lognormal saving": _one_sided(1.0, -0.1),
    "skewed without effect": _skewed(1.0, 0.3, 0.2),
    "a skewed effect": _skewed_effect,
    "normal without effect": _normal(1.0),
    "skewed with effect": _skewed(1.3, 0.3, 0.2),
    "very skewed without effect": _skewed(1.0, 0.5, 0.5),
    "very skewed with effect": _skewed(0.6, 0.5, 0.3),
    "a lognormal loss": _one_sided(1.0, 0.5),
    "lognormal against steady": _skewed(1.0, 0.0, 1.0, 0.0),
    "heavy tails without effect": _heavy(1.0),
    "heavy tails with effect": _heavy(1.2),
}


@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("name", list(DRAWS)[: few_or_many(3, len(DRAWS))])
def test_intervals_cover_the_truth(name: str, seeds: int) -> None:
    rng = np.random.default_rng([14, seeds, list(DRAWS).index(name)])
    held = rejected = bounded = 0
    for _ in range(REPEATS):
        mine, theirs, ratio = DRAWS[name](rng, seeds)
        found, truth = paired_difference(mine.tolist(), theirs.tolist()), 100 * (ratio - 1)
        if found.low_percent is None or found.high_percent is None:
            continue
        bounded += 1
        held += found.low_percent - 0.005 <= truth <= found.high_percent + 0.005
        rejected += found.low_percent > 0 or found.high_percent < 0
    assert bounded > 0.7 * REPEATS
    assert held / bounded >= LEAST_COVERAGE - CHANCE
    if ratio == 1.0:
        assert rejected / bounded <= 1 - LEAST_COVERAGE + CHANCE


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_below_five_seeds_there_is_no_interval_and_no_p_value(seeds: int) -> None:
    mine, theirs = [110.0, 120.0, 130.0, 140.0][:seeds], [100.0] * seeds
    found = paired_difference(mine, theirs)
    assert found.percent == pytest.approx(sum(mine) / seeds - 100)
    assert (found.low_percent, found.high_percent) == (None, None)
    assert paired_p_value(mine, theirs) is None


def test_without_skew_it_is_fiellers_interval_and_students_p() -> None:
    """With a steady baseline that is Student's interval of the mean, at five seeds for a third of
    5 %: 110 ± 3.9608 · 3.1623 / √5."""
    mine, theirs = [106.0, 108.0, 110.0, 112.0, 114.0], [100.0] * 5
    found = paired_difference(mine, theirs)
    assert (found.percent, found.low_percent, found.high_percent) == (10.0, 4.40, 15.60)
    student = scipy.stats.ttest_rel(mine, theirs).pvalue
    assert paired_p_value(mine, theirs) == pytest.approx(3 * student)


def test_a_constant_factor_has_no_width() -> None:
    found = paired_difference([80.0, 160.0, 40.0, 8.0, 24.0], [100.0, 200.0, 50.0, 10.0, 30.0])
    assert (found.percent, found.low_percent, found.high_percent) == (-20.0, -20.0, -20.0)


def test_pairs_are_kept_together() -> None:
    """The seeds differ by a factor of 10, the policies by 1 %: unpaired this could not be seen."""
    base = [300.0, 1000.0, 310.0, 500.0, 600.0]
    found = paired_difference([1.01 * value for value in base], base)
    assert (found.low_percent, found.high_percent) == (1.0, 1.0)


def test_a_baseline_that_may_be_nothing_has_no_interval() -> None:
    found = paired_difference([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 0.0, 0.0, 50.0])
    assert (found.percent, found.low_percent, found.high_percent) == (-70.0, None, None)


def test_skewed_seeds_move_the_far_end_out() -> None:
    mine = [100.0, 101.0, 102.0, 103.0, 140.0]
    found = paired_difference(mine, [100.0] * 5)
    assert found.low_percent is not None
    assert found.high_percent is not None
    student = scipy.stats.ttest_1samp(mine, 0).confidence_interval(1 - 0.05 / 3)
    assert found.low_percent == pytest.approx(student.low - 100, abs=0.01)
    assert found.high_percent > student.high - 100 + 5


_amounts = st.lists(st.floats(1, 1000), min_size=5, max_size=12)


@given(_amounts, st.randoms(use_true_random=False))
def test_zero_percent_is_left_out_exactly_where_p_is_below_5_percent(mine, random) -> None:
    theirs = [value * random.uniform(0.8, 1.4) for value in mine]
    found, p = paired_difference(mine, theirs), paired_p_value(mine, theirs)
    if found.low_percent is None or found.high_percent is None or p is None:
        return
    assert found.low_percent <= found.percent <= found.high_percent
    if found.low_percent > 0.01 or found.high_percent < -0.01:
        assert p < 0.05
    elif found.low_percent < -0.01 and found.high_percent > 0.01:
        assert p >= 0.05


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="paired"):
        paired_difference([], [])


def test_p_values_without_spread() -> None:
    assert paired_p_value([1.0] * 5, [2.0] * 5) == 0.0
    assert paired_p_value([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]) == 1.0


def test_holms_adjustment() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([None, 0.03, None, 0.01]) == [None, 0.03, None, 0.02]
    assert holm([]) == []
