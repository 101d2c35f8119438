"""Backtests, intervals, the choice per series, and what forecasters do with bad histories."""

import numpy as np
import pytest

from weft.telemetry.forecast import Ar, Ewma, FourierAr, Last, SeasonalNaive, Selector
from weft.telemetry.forecast import statistics as stats
from weft.telemetry.forecast.forecasters import (
    Floats,
    Forecaster,
    mean_squares,
    newest,
    rolling_errors,
)
from weft.telemetry.forecast.statistics import lag_line

EVERY = (Last(), Ewma(), Ar(1), Ar(3), SeasonalNaive(6), FourierAr(6, 2))
NAN = float("nan")


def autoregressive(phi: float, count: int, samples: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, samples))
    for at in range(1, samples):
        values[:, at] += phi * values[:, at - 1]
    return 50.0 + values


@pytest.mark.parametrize("forecaster", EVERY, ids=lambda f: f.name)
def test_a_row_is_forecast_as_if_it_were_alone(forecaster: Forecaster) -> None:
    history = autoregressive(0.7, 9, 40, 1)
    history[2, 11:14] = NAN
    history[5, -1] = NAN
    history[7] = NAN
    together = forecaster.means(history, 5)
    for row in range(len(history)):
        alone = forecaster.means(history[row : row + 1], 5)
        np.testing.assert_allclose(together[row], alone[0], rtol=1e-9)
    assert np.isnan(together[7]).all()


@pytest.mark.parametrize("forecaster", EVERY, ids=lambda f: f.name)
@pytest.mark.parametrize("samples", [0, 1, 2, 3, 5, 8])
def test_short_histories_never_raise_and_say_nothing_untrue(
    forecaster: Forecaster, samples: int
) -> None:
    history = np.full((3, samples), 7.0)
    forecast = forecaster.predict(history, 4)
    assert forecast.mean.shape == (3, 4)
    known = forecast.mean[~np.isnan(forecast.mean)]
    np.testing.assert_allclose(known, 7.0)
    unknown = np.isnan(forecast.mean)
    assert (forecast.lower[unknown] == -np.inf).all()
    assert (forecast.upper[unknown] == np.inf).all()


@pytest.mark.parametrize("forecaster", EVERY, ids=lambda f: f.name)
def test_a_constant_series_goes_on_or_is_not_spoken_about(forecaster: Forecaster) -> None:
    means = forecaster.means(np.full((2, 40), 6994.0), 3)
    assert np.isnan(means).all() or np.allclose(means, 6994.0, rtol=1e-12)
    if isinstance(forecaster, Ar):
        assert np.isnan(means).all(), "no variance, no regression"
    assert np.isnan(lag_line(stats.pack(np.full((2, 40), 6994.0)), 4).slope).all()


def test_too_few_samples_for_a_regression() -> None:
    ramp = np.arange(19.0)[None]
    assert np.isnan(lag_line(stats.pack(ramp), 19).slope).all()
    np.testing.assert_allclose(lag_line(stats.pack(ramp), 10).slope, [1.0])
    few = autoregressive(0.5, 1, 4, 2)
    assert np.isnan(Ar(2).means(few, 1)).all()


def test_a_series_that_hardly_varies_is_known_by_its_variance() -> None:
    jitter = stats.pack(1000.0 + 0.5 * np.where(np.arange(40) % 3 == 0, 1.0, -1.0)[None])
    assert 0.01 < stats.variance(jitter)[0] < 1.0
    assert np.isfinite(lag_line(jitter, 1).slope).all()


def test_a_fit_that_explodes_is_no_forecast() -> None:
    explosion = 1.2 ** np.arange(40.0)[None]
    assert np.isnan(Ar(1).means(explosion, 3)).all()
    np.testing.assert_allclose(lag_line(stats.pack(explosion), 1).slope, [1.2])
    ramp = np.arange(40.0)[None] * 10.0  # slope 1: goes on
    np.testing.assert_allclose(Ar(1).means(ramp, 2), [[400.0, 410.0]])


def test_autoregression_never_learns_across_a_gap() -> None:
    """Two ramps with a missing sample between: every pair inside them says y + 1."""
    history = np.concatenate([np.arange(10.0), [NAN], np.arange(500.0, 510.0)])[None]
    np.testing.assert_allclose(Ar(1).means(history, 1), [[510.0]], rtol=1e-9)


def test_a_gap_at_the_end_silences_what_needs_the_newest_sample() -> None:
    history = autoregressive(0.6, 1, 40, 3)
    history[0, -1] = NAN
    assert np.isnan(Ar(1).means(history, 2)).all()
    assert Last().means(history, 2).tolist() == [[history[0, -2]] * 2]
    assert newest(np.full((1, 3), NAN))[0] != newest(np.full((1, 3), NAN))[0]


def test_seasonal_naive_looks_a_period_further_back_over_a_gap() -> None:
    history = np.array([[1.0, 2.0, 3.0, 4.0, NAN, 6.0]])
    assert SeasonalNaive(3).means(history, 3).tolist() == [[4.0, 2.0, 6.0]]


def test_ewma_keeps_its_level_over_a_gap() -> None:
    with_gap = np.array([[NAN, 1.0, NAN, 3.0, NAN]])
    assert Ewma(0.5).means(with_gap, 1).tolist() == [[2.0]]


def test_percentile_by_index_and_interpolated_differ_as_documented() -> None:
    history = stats.pack(np.arange(10.0)[None])
    assert stats.quantile_at_index(history, 0.8).tolist() == [8.0]
    assert stats.quantile_interpolated(history, 0.8).tolist() == [pytest.approx(7.2)]
    assert stats.quantile_at_index(history, 1.0).tolist() == [9.0]


def test_rolling_errors_see_only_what_lies_before_their_origin() -> None:
    history = np.array([[1.0, 2.0, 4.0, 8.0, 16.0]])
    errors = rolling_errors(Last().means, history, 2, 3)
    expected = [[[2.0, 6.0], [4.0, 12.0], [8.0, NAN]]]
    np.testing.assert_array_equal(errors, expected)
    np.testing.assert_allclose(mean_squares(errors), [[84 / 3, 90.0]])


def test_nothing_measured_bounds_nothing() -> None:
    forecast = Last().predict(np.array([[5.0]]), 2)
    assert forecast.mean.tolist() == [[5.0, 5.0]]
    assert (forecast.lower == -np.inf).all()
    assert (forecast.upper == np.inf).all()


@pytest.mark.parametrize(("forecaster", "phi"), [(Ar(1), 0.8), (Last(), 0.95), (Ewma(0.3), 0.0)])
def test_intervals_hold_about_nine_of_ten_samples(forecaster: Forecaster, phi: float) -> None:
    values = autoregressive(phi, 2000, 123, 4)
    forecast = forecaster.predict(values[:, :120], 3, origins=40)
    inside = (forecast.lower <= values[:, 120:]) & (values[:, 120:] <= forecast.upper)
    assert 0.85 < inside.mean() < 0.94


def test_each_series_gets_the_forecaster_that_errs_least_on_it() -> None:
    rng = np.random.default_rng(8)
    samples = 120
    waves = (
        100 + 50 * np.sin(2 * np.pi * np.arange(samples) / 6)[None] + rng.normal(size=(20, samples))
    )
    walks = rng.normal(size=(20, samples)).cumsum(axis=1)
    noise = 100 + rng.normal(size=(20, samples))
    values = np.concatenate([waves, walks, noise])
    selector = Selector([Last(), Ewma(0.1), SeasonalNaive(6)], len(values), horizon=1)
    for end in range(60, samples + 1):
        selector.tick(values[:, end - 40 : end])
    assert (selector.chosen[:20] == 2).mean() > 0.9
    assert (selector.chosen[20:40] == 0).mean() > 0.7
    assert (selector.chosen[40:] == 1).mean() > 0.9


def test_errors_kept_tick_by_tick_are_those_of_a_backtest_from_scratch() -> None:
    values = autoregressive(0.5, 7, 40, 9)
    values[3, 30] = NAN
    horizon, keep = 3, 0.8
    selector = Selector([Last(), Ewma()], len(values), horizon, keep)
    for end in range(20, 41):
        selector.tick(values[:, :end])
    for nth, forecaster in enumerate((Last(), Ewma())):
        squares, weights = np.zeros((7, horizon)), np.zeros((7, horizon))
        for end in range(21, 41):
            for step in range(horizon):
                if end - 1 - step < 20:
                    continue
                made = forecaster.means(values[:, : end - 1 - step], horizon)[:, step]
                error = values[:, end - 1] - made
                known = ~np.isnan(error)
                squares[known, step] *= keep
                squares[known, step] += (1 - keep) * error[known] ** 2
                weights[known, step] *= keep
                weights[known, step] += 1 - keep
        expected = np.sqrt(squares.sum(axis=1) / weights.sum(axis=1))
        np.testing.assert_allclose(selector.errors()[nth], expected, rtol=1e-4)


def test_where_the_best_cannot_speak_the_next_best_does() -> None:
    values = np.tile([0.0, 10.0, 5.0], 20)[None] + np.zeros((2, 1))
    selector = Selector([Last(), SeasonalNaive(3)], 2, horizon=1)
    selector.warm(values, ticks=10)
    assert selector.tick(values).mean.tolist() == [[0.0], [0.0]]
    assert selector.chosen.tolist() == [1, 1]
    only_two = values[:, -2:]
    assert selector.tick(only_two).mean.tolist() == [[5.0], [5.0]]
    assert selector.chosen.tolist() == [0, 0]


def test_before_any_error_is_known_the_first_forecaster_speaks_without_bounds() -> None:
    selector = Selector([Last(), Ewma()], 1, horizon=2)
    forecast = selector.tick(np.array([[3.0, 9.0]]))
    assert forecast.mean.tolist() == [[9.0, 9.0]]
    assert forecast.upper.tolist() == [[np.inf, np.inf]]
    assert np.isnan(selector.errors()).all()


def test_a_tick_without_any_sample_knows_nothing() -> None:
    selector = Selector([Last(), Ewma()], 2, horizon=1)
    assert np.isnan(selector.tick(np.empty((2, 0))).mean).all()
    assert selector.tick(np.array([[1.0], [2.0]])).mean.tolist() == [[1.0], [2.0]]


def test_series_that_move_keep_their_errors_and_new_ones_start_without() -> None:
    values = autoregressive(0.5, 3, 40, 10)
    selector = Selector([Last(), Ewma()], 3, horizon=2)
    selector.warm(values, ticks=15)
    before = selector.errors()
    selector.realign(np.array([2, -1, 0]))
    after = selector.errors()
    np.testing.assert_array_equal(after[:, [0, 2]], before[:, [2, 0]])
    assert np.isnan(after[:, 1]).all()
    selector.tick(values[[2, 1, 0]])
    assert np.isnan(selector.errors()[:, 1]).all(), "old forecasts say nothing about a new series"


def test_series_may_all_go_and_come_back() -> None:
    values = autoregressive(0.5, 2, 20, 11)
    selector = Selector([Last(), Ewma()], 2, horizon=2)
    selector.warm(values, ticks=5)
    selector.realign(np.array([], dtype=np.int64))
    selector.tick(np.empty((0, 20)))
    selector.realign(np.array([-1, -1]))
    assert np.isnan(selector.errors()).all()
    assert selector.tick(values).mean.shape == (2, 2)
    assert selector.chosen.tolist() == [0, 0]
