"""Paired differences: Student's intervals and p-values that agree, in any unit."""

import math

import numpy as np
import pytest
import scipy  # its `stats` is imported when it is first used, which takes a second
from hypothesis import given
from hypothesis import strategies as st

from weft.lab.experiment.statistics.differences import holm, paired_difference, paired_p_value

FGD = [94.99, 95.06, 92.5, 94.36, 93.7, 93.64, 93.6, 95.14, 94.88, 93.54]
BEST_FIT = [93.44, 92.95, 93.6, 93.34, 93.04, 93.07, 92.63, 93.55, 93.13, 92.74]
"""GPUs allocated at 100 % demand in the first ten seeds of `make demo`, 800 GPUs."""
_STUDENT_4 = 2.7764451


def test_the_demos_ten_differences_are_a_difference() -> None:
    """Nine of ten are above 0; Student's interval is 0.35 to 1.63 points."""
    found = paired_difference(FGD, BEST_FIT, 100 / 800, "points")
    assert (found.mean, found.low, found.high) == pytest.approx((0.992, 0.3523, 1.6317), abs=1e-4)
    student = scipy.stats.ttest_rel(FGD, BEST_FIT).pvalue
    assert paired_p_value(FGD, BEST_FIT, 100 / 800) == pytest.approx(student, rel=1e-3)
    assert found.text() == "+0.99 points [+0.35, +1.63]"


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_below_five_seeds_there_is_no_interval_and_no_p_value(seeds: int) -> None:
    mine, theirs = [110.0, 120.0, 130.0, 140.0][:seeds], [100.0] * seeds
    found = paired_difference(mine, theirs)
    assert found.percent == pytest.approx(sum(mine) / seeds - 100)
    assert (found.low_percent, found.high_percent, found.low, found.high) == (None,) * 4
    assert paired_p_value(mine, theirs) is None


def test_against_a_steady_baseline_it_is_students_interval_of_the_mean() -> None:
    """110 ± 2.7764 · 3.1623 / √5."""
    mine, theirs = [106.0, 108.0, 110.0, 112.0, 114.0], [100.0] * 5
    found = paired_difference(mine, theirs)
    assert (found.percent, found.low_percent, found.high_percent) == (10.0, 6.07, 13.93)
    student = scipy.stats.ttest_rel(mine, theirs).pvalue
    assert paired_p_value(mine, theirs) == pytest.approx(student, rel=1e-3)


def test_a_constant_factor_has_the_width_of_the_resolution() -> None:
    """In percent nothing differs between seeds; the baseline's mean is 100."""
    mine, theirs = [80.0, 160.0, 72.0, 40.0, 48.0], [100.0, 200.0, 90.0, 50.0, 60.0]
    found = paired_difference(mine, theirs, resolution=1.0)
    half = 100 * _STUDENT_4 / math.sqrt(6) / math.sqrt(5) / 100
    ends = (-20 - half, -20 + half)
    assert (found.low_percent, found.high_percent) == pytest.approx(ends, abs=0.01)


def test_pairs_are_kept_together() -> None:
    """The seeds differ by a factor of 10, the policies by 1 %: unpaired this could not be seen."""
    base = [300.0, 1000.0, 310.0, 500.0, 600.0]
    found = paired_difference([1.01 * value for value in base], base)
    assert (found.low_percent, found.high_percent) == (1.0, 1.0)


def test_a_baseline_that_is_0_has_no_percent() -> None:
    mine, theirs = [28.0, 31.0, 30.0, 29.0, 32.0], [0.0] * 5
    found = paired_difference(mine, theirs, 1.0)
    assert (found.percent, found.low_percent, found.high_percent) == (None, None, None)
    assert found.text() == (
        "+30 [+28.04, +31.96] (in percent not defined: baseline is 0 in 5 of 5 seeds)"
    )
    assert (paired_p_value(mine, theirs, 1.0) or 1.0) < 0.001


def test_two_that_are_0_in_all_seeds_are_equal() -> None:
    found = paired_difference([0.0] * 5, [0.0] * 5, 1.0)
    assert found.equal
    assert found.text() == "equal in all seeds"
    assert paired_p_value([0.0] * 5, [0.0] * 5, 1.0) == 1.0


def test_a_baseline_that_may_be_0_has_no_interval_in_percent_but_one_of_its_own() -> None:
    found = paired_difference([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 0.0, 0.0, 50.0], 1.0)
    assert (found.percent, found.low_percent, found.high_percent) == (-70.0, None, None)
    assert found.low is not None
    assert found.text() == (
        "-70.0 % (-7 [-33.41, +19.41]; no interval in percent: baseline is 0 in 4 of 5 seeds)"
    )


_amounts = st.lists(st.floats(1, 1000), min_size=5, max_size=12)


@given(_amounts, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 50.0]))
def test_0_is_left_out_exactly_where_p_is_below_5_percent(mine, random, resolution) -> None:
    theirs = [value * random.uniform(0.8, 1.4) for value in mine]
    found = paired_difference(mine, theirs, resolution)
    p = paired_p_value(mine, theirs, resolution)
    assert p is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    if abs(p - 0.05) < 1e-4:
        return
    assert (p < 0.05) == (found.low > 0 or found.high < 0)
    if found.low_percent is None or found.high_percent is None:
        return
    assert found.percent is not None
    assert found.low_percent <= found.percent <= found.high_percent
    if found.low_percent > 0.01 or found.high_percent < -0.01:
        assert p < 0.05
    elif found.low_percent < -0.01 and found.high_percent > 0.01:
        assert p > 0.05


@given(st.lists(st.integers(-3, 3), min_size=5, max_size=20), st.integers(0, 2))
def test_whole_numbers_with_many_zeros_always_have_words(apart, base) -> None:
    theirs = [float(base * (at % 3)) for at in range(len(apart))]
    mine = [value + other for value, other in zip(apart, theirs, strict=True)]
    found = paired_difference(mine, theirs, 1.0)
    assert found.text()
    assert found.short_text()
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low > 0
    assert 0 < (paired_p_value(mine, theirs, 1.0) or 0.0) <= 1
    assert found.equal == (mine == theirs)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="the same number of values, at least one"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="the same number of values, at least one"):
        paired_difference([], [])


def test_differences_that_are_equal_have_a_p_value_above_0() -> None:
    assert 0 < (paired_p_value([1.0] * 5, [2.0] * 5, 1.0) or 0.0) < 0.01
    assert (paired_p_value([1.1] * 5, [1.0] * 5, 1.0) or 0.0) > 0.5
    assert paired_p_value([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]) == 1.0


def test_the_best_of_many_equal_policies_is_rarely_called_better_than_the_next() -> None:
    """The same seeds choose it; the more policies, the nearer are the two at the top."""
    rng = np.random.default_rng(27)
    for policies in (2, 6):
        claims = 0
        for _ in range(400):
            values = rng.normal(0, 1, (policies, 10))
            best, second = sorted(values.tolist(), key=sum, reverse=True)[:2]
            claims += (paired_p_value(best, second) or 1.0) < 0.05
        assert claims / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_holms_adjustment() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([None, 0.03, None, 0.01]) == [None, 0.03, None, 0.02]
    assert holm([]) == []
