"""Student's intervals of means, with a floor where values tie. How often they hold the truth is
counted in lab/experiment/test_interval_coverage.py."""

import math

import numpy as np
import pytest
import scipy  # its `stats`, which takes a second, is imported when it is first used

from weft.interference.intervals import least_deviation, mean_interval, p_value, ratio_of_means
from weft.interference.scores import ScoredSamples, family_interval


@pytest.mark.parametrize("count", [5, 6, 10, 20, 40])
def test_they_are_students(count: int) -> None:
    values = np.random.default_rng(count).normal(1, 2, count).tolist()
    student = scipy.stats.ttest_1samp(values, 0)
    assert mean_interval(values) == pytest.approx(tuple(student.confidence_interval()))
    assert p_value(values) == pytest.approx(student.pvalue, rel=1e-3)


@pytest.mark.parametrize("values", [[5.0], [4.0, 6.0], [4.0, 5.0, 5.0, 6.0]])
def test_fewer_than_five_values_have_none(values: list[float]) -> None:
    assert mean_interval(values) is None
    assert p_value(values) is None


def test_values_that_tie_have_the_width_of_their_resolution() -> None:
    """As far apart as a difference of two values rounded to whole ones: 1/√6."""
    low, high = mean_interval([3.0] * 5, resolution=1.0) or (0.0, 0.0)
    assert high - 3 == pytest.approx(scipy.stats.t.ppf(0.975, 4) / math.sqrt(6) / math.sqrt(5))
    assert 3 - low == pytest.approx(high - 3)
    assert least_deviation(1.0) == pytest.approx(1 / math.sqrt(6))


def test_values_further_apart_than_their_resolution_do_not_feel_it() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert mean_interval(values, resolution=1.0) == mean_interval(values)


def test_equal_values_never_have_p_0() -> None:
    """One step of resolution in each of five is some evidence, a tenth of a step none."""
    one, tenth = p_value([1.0] * 5, 1.0) or 0.0, p_value([0.1] * 5, 1.0) or 0.0
    assert one == pytest.approx(2 * scipy.stats.t.sf(math.sqrt(30), 4), rel=1e-3)
    assert tenth > 0.5
    assert p_value([0.0] * 5, 1.0) == 1.0
    assert p_value([0.0] * 5) == 1.0
    assert 0 < (p_value([0.1 + 0.2 - 0.3 + 1] * 5) or 0.0) < 1e-6


def test_the_coverage_of_bounds_over_families_is_a_ratio_of_sums() -> None:
    """Fieller's interval of held ÷ samples over families, within 0 and 1."""
    held, sizes = np.array([9.0, 18, 28, 8, 20]), np.array([10.0, 20, 30, 10, 20])
    speed, family = np.ones(90), np.repeat(np.arange(5), sizes.astype(int))
    within = np.concatenate([np.arange(n) < k for k, n in zip(held, sizes, strict=True)])
    samples = ScoredSamples(speed, speed, np.where(within, 0.5, 1.5), family, speed > 0)
    low, high = ratio_of_means(held, sizes, 1.0).interval() or (0.0, 0.0)
    assert low < held.sum() / sizes.sum() < high
    assert family_interval(samples) == (low, min(1.0, high))


def test_families_that_all_hold_are_not_certain() -> None:
    speed, family = np.ones(25), np.repeat(np.arange(5), 5)
    low, high = family_interval(ScoredSamples(speed, speed, speed / 2, family, speed > 0))
    assert (round(low, 2), high) == (0.90, 1.0)
