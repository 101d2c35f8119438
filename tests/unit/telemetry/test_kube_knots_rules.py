"""The Kube-Knots rules on series small enough to check by hand."""

import math

import kube_knots_slowly as kube_knots
import numpy as np
import pytest
from kube_knots_slowly import PUBLISHED, KnotsRule, Rules, decide

from weft.telemetry.forecast.statistics import ranks, spearman

STEADY = [20_000.0] * 30
USED = [12_509.0] * 30


def by_hand(values: list[float], lag: int) -> tuple[float, float, float, float]:
    """(COV, autocorrelation, intercept, slope), one addition after the other."""
    n, total, squares = len(values), 0.0, 0.0
    for value in values:
        total += value
        squares += value * value
    mean = total / n
    cov = math.sqrt(squares / n - mean * mean) / mean
    upper = lower = 0.0
    for i in range(n - lag):
        upper += (values[i] - mean) * (values[i + lag] - mean)
    for value in values:
        lower += (value - mean) * (value - mean)
    x = y = xy = xx = 0.0
    for i in range(n - lag):
        x += values[i]
        y += values[i + lag]
        xy += values[i] * values[i + lag]
        xx += values[i] * values[i]
    pairs = float(n - lag)
    x, y = x / pairs, y / pairs
    slope = (xy - pairs * x * y) / (xx - pairs * x * x)
    return cov, upper / lower, y - slope * x, slope


def test_a_request_within_what_was_not_requested_looks_at_no_series() -> None:
    assert decide(100, 100, [], []) == kube_knots.KnotsDecision(KnotsRule.REQUESTS)
    assert decide(101, 100, [], []).why is KnotsRule.FEW_SAMPLES


@pytest.mark.parametrize("short", ["free", "used"])
def test_nineteen_samples_admit_nothing(short: str) -> None:
    free, used = STEADY[:20], USED[:20]
    assert decide(1, 0, free, used).admits
    if short == "free":
        free = free[:19]
    else:
        used = used[:19]
    assert decide(1, 0, free, used).why is KnotsRule.FEW_SAMPLES


def test_correlation_rule_takes_the_sorted_sample_at_eight_tenths() -> None:
    used = [float(1_000 + i) for i in range(30)]  # index int(30 · 0.8) = 24
    free = [32_509.0 - value for value in used]
    verdict = decide(32_510 - 1_024, 0, free, used)
    assert (verdict.index, verdict.percentile, verdict.harvested_mib) == (24, 1_024.0, 31_486)
    assert verdict.why is KnotsRule.CORRELATION
    assert not decide(32_510 - 1_023, 0, free, used).admits


def test_peak_rule_on_the_worked_example_of_a_trend() -> None:
    """Free memory climbs from 1 to 40 GiB: too uneven for CBP, and predicted to climb on."""
    rules = Rules(capacity_mib=80_000, steady_below=0.1, trend_above=0.2)
    free = [1_000.0 * (i + 1) for i in range(40)]
    cov, trend, intercept, slope = by_hand(free, 10)
    verdict = decide(50_000, 0, free, free, rules)
    assert verdict.why is KnotsRule.PEAK
    assert (verdict.cov, verdict.autocorrelation) == (cov, trend)
    assert (verdict.intercept, verdict.slope) == (intercept, slope)
    assert verdict.predicted_mib == 50_000
    assert verdict.percentile is None
    assert decide(50_001, 0, free, free, rules).why is KnotsRule.REFUSED


def test_every_number_is_the_loops_to_the_last_bit() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        steps = rng.normal(0, 700, size=rng.integers(21, 200)).cumsum()
        free = [float(value) for value in np.abs(steps) + rng.integers(1, 9000)]
        cov, trend, intercept, slope = by_hand(free, 10)
        verdict = decide(10**9, 0, free, free, Rules(trend_above=-1.0))
        assert verdict.cov == cov
        assert verdict.autocorrelation == trend
        assert (verdict.intercept, verdict.slope) == (intercept, slope)
        assert verdict.predicted_mib == int(intercept + slope * free[-1])


def test_a_constant_series_has_no_trend_and_is_refused_if_it_does_not_fit() -> None:
    verdict = decide(30_000, 0, STEADY, USED)
    assert verdict.why is KnotsRule.REFUSED
    assert verdict.cov == 0.0
    assert math.isnan(verdict.autocorrelation or 0.0)
    assert verdict.slope is None


def test_where_rounding_makes_the_variance_negative_cov_admits_nothing() -> None:
    """The original takes the root of a negative number there: NaN is below no threshold."""
    value = next(
        v for v in (10_000.1 + i / 7 for i in range(1000)) if 30 * v * v and _negative([v] * 30)
    )
    verdict = decide(1, 0, [value] * 30, USED)
    assert math.isnan(verdict.cov or 0.0)
    assert verdict.why is KnotsRule.REFUSED


def _negative(values: list[float]) -> bool:
    total = squares = 0.0
    for value in values:
        total, squares = total + value, squares + value * value
    mean = total / len(values)
    return squares / len(values) - mean * mean < 0.0


def test_a_free_series_of_zeros_divides_by_zero_and_admits_nothing() -> None:
    assert decide(1, 0, [0.0] * 30, USED).why is KnotsRule.REFUSED


def test_truncation_is_towards_zero_and_of_the_impossible_the_least_integer() -> None:
    assert [kube_knots.truncate(v) for v in (2.9, -2.9, 0.0)] == [2, -2, 0]
    for value in (math.nan, math.inf, -math.inf, 1e19):
        assert kube_knots.truncate(value) == -(2**63)


def test_a_regression_on_equal_samples_predicts_nothing() -> None:
    """The first n − 10 samples equal: no slope. The original's int(NaN) refuses every request."""
    free = [5_000.0] * 12 + [9_000.0] * 10
    verdict = decide(0, -1, free, free, Rules(steady_below=0.0, trend_above=-1.0))
    assert verdict.predicted_mib == -(2**63)
    assert verdict.why is KnotsRule.REFUSED


def test_window_reaches_to_the_last_bind_but_at_least_twenty_seconds() -> None:
    assert kube_knots.window_start(1_000, 900) == 900
    assert kube_knots.window_start(1_000, 995) == 980
    assert PUBLISHED.least_window_s == 20


def test_ranks_share_the_mean_where_samples_are_equal() -> None:
    values = np.array([[3.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [1.0, 2.0, 2.0, 2.0]])
    expected = [[3.5, 1.0, 3.5, 2.0], [2.5, 2.5, 2.5, 2.5], [1.0, 3.0, 3.0, 3.0]]
    assert ranks(values).tolist() == expected


def test_spearman_is_scipys_with_and_without_ties() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(3)
    left, right = rng.integers(0, 9, (20, 25)).astype(float), rng.normal(size=(12, 25))
    right += left[:12]
    expected = [[spearmanr(a, b).statistic for b in right] for a in left]
    np.testing.assert_allclose(spearman(left, right), expected, rtol=0, atol=1e-12)


def test_spearman_is_unknown_where_a_sample_is_missing() -> None:
    rng = np.random.default_rng(4)
    left, right = rng.normal(size=(3, 25)), rng.normal(size=(4, 25))
    whole = spearman(left, right)
    left[1, 3] = right[2, 24] = np.nan
    found = spearman(left, right)
    assert np.isnan(found[1]).all()
    assert np.isnan(found[:, 2]).all()
    kept = np.ix_([0, 2], [0, 1, 3])
    assert (found[kept] == whole[kept]).all()


def test_a_constant_series_correlates_with_nothing() -> None:
    assert spearman(np.arange(20.0)[None], np.full((1, 20), 7.0)).tolist() == [[0.0]]
