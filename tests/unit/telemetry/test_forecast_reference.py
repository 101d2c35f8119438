"""Our statistics and forecasts are those of a reference library, on fixed series.

The tolerance is 1e-8 of the largest value: least squares by normal equations (ours) and by QR
(theirs) differ in the last digits.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from kube_knots_slowly import decide

from weft.telemetry.forecast import Ar, Ewma, FourierAr, SeasonalNaive
from weft.telemetry.forecast import statistics as stats
from weft.telemetry.forecast.forecasters import Floats, stays_bounded
from weft.telemetry.forecast.statistics import autoregress, fit_shared, lag_line

STEPS = 6


@cache
def library() -> SimpleNamespace:
    """The reference, imported by who asks it: that takes as long as to collect all tests."""
    from statsmodels.tsa import ar_model, deterministic, holtwinters, stattools

    return SimpleNamespace(
        acf=stattools.acf,
        AutoReg=ar_model.AutoReg,
        DeterministicProcess=deterministic.DeterministicProcess,
        Fourier=deterministic.Fourier,
        SimpleExpSmoothing=holtwinters.SimpleExpSmoothing,
    )


def series(count: int = 12, samples: int = 90, seed: int = 5) -> Floats:
    """Waves of period 12 with autoregressive noise around different levels."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(count, samples))
    for at in range(2, samples):
        noise[:, at] += 0.5 * noise[:, at - 1] - 0.3 * noise[:, at - 2]
    waves = np.sin(2 * np.pi * np.arange(samples) / 12)
    return rng.uniform(10, 9000, (count, 1)) + 20 * rng.random((count, 1)) * waves + 5 * noise


def close(ours: Floats, theirs: Floats) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8 * np.abs(theirs).max())


@pytest.mark.parametrize("lag", [1, 2, 10, 40])
def test_autocorrelation(lag: int) -> None:
    history = series()
    expected = [library().acf(row, nlags=lag, fft=False)[lag] for row in history]
    close(stats.autocorrelation(stats.pack(history), lag), np.array(expected))


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_ar_coefficients_and_forecasts(order: int) -> None:
    history = series()
    fit = autoregress(history, order)
    forecast = Ar(order).means(history, STEPS)
    for row, ours in enumerate(history):
        reference = library().AutoReg(ours, lags=order, trend="c").fit()
        close(np.array([fit.intercept[row], *fit.slopes[row]]), reference.params)
        close(forecast[row], reference.forecast(STEPS))


@pytest.mark.parametrize("lag", [1, 10])
def test_lag_line_is_an_autoregression_on_that_lag_alone(lag: int) -> None:
    history = series()
    line = lag_line(stats.pack(history), lag)
    intercept, slope = line.intercept[:, None], line.slope[:, None]
    soon = intercept + slope * history[:, -lag:]
    forecast = np.concatenate([soon, intercept + slope * soon], axis=1)
    for row, ours in enumerate(history):
        reference = library().AutoReg(ours, lags=[lag], trend="c").fit()
        # The raw sums of the original lose digits against the squared level of the series.
        np.testing.assert_allclose(
            [line.intercept[row], line.slope[row]], reference.params, rtol=1e-6
        )
        np.testing.assert_allclose(forecast[row], reference.forecast(2 * lag), rtol=1e-6)


def test_lag_line_forecasts_what_the_kube_knots_rule_predicts() -> None:
    history = np.abs(series(samples=60)) + 1000.0
    line = lag_line(stats.pack(history), 10)
    forecast = line.intercept + line.slope * history[:, -1]
    for row, free in enumerate(history):
        verdict = decide(10**9, 0, list(free), list(free))
        if verdict.predicted_mib is not None:
            assert verdict.predicted_mib == int(forecast[row])


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.9])
def test_ewma(alpha: float) -> None:
    history = series()
    forecast = Ewma(alpha).means(history, STEPS)
    for row, ours in enumerate(history):
        model = library().SimpleExpSmoothing(
            ours, initialization_method="known", initial_level=ours[0]
        )
        close(forecast[row], model.fit(smoothing_level=alpha, optimized=False).forecast(STEPS))


@pytest.mark.parametrize(("period", "harmonics"), [(12, 1), (12, 3), (7.5, 2)])
def test_fourier_weights(period: float, harmonics: int) -> None:
    history = series()
    samples = history.shape[1]
    terms = (
        library()
        .DeterministicProcess(
            range(samples),
            constant=True,
            order=0,
            additional_terms=[library().Fourier(period, harmonics)],
        )
        .in_sample()
    )
    reference = np.linalg.lstsq(terms.to_numpy(), history.T, rcond=None)[0]
    smooth = (terms.to_numpy() @ reference).T
    design = FourierAr(period, harmonics)._waves(np.arange(samples, dtype=np.float64))
    close(fit_shared(design, history) @ design.T, smooth)


def test_fourier_ar_is_the_waves_plus_an_autoregression_of_the_rest() -> None:
    history = series()
    samples = history.shape[1]
    process = library().DeterministicProcess(
        range(samples), constant=True, order=0, additional_terms=[library().Fourier(12, 2)]
    )
    inside, beyond = process.in_sample().to_numpy(), process.out_of_sample(STEPS).to_numpy()
    forecast = FourierAr(12, harmonics=2, order=2).means(history, STEPS)
    for row, ours in enumerate(history):
        weights = np.linalg.lstsq(inside, ours, rcond=None)[0]
        rest = library().AutoReg(ours - inside @ weights, lags=2, trend="c").fit()
        close(forecast[row], beyond @ weights + rest.forecast(STEPS))


def test_seasonal_naive_repeats_the_last_period() -> None:
    history = series(samples=40)
    forecast = SeasonalNaive(12).means(history, 15)
    assert (forecast[:, :12] == history[:, -12:]).all()
    assert (forecast[:, 12:] == history[:, -12:-9]).all()


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.99])
def test_interpolated_quantile_is_numpys(share: float) -> None:
    history = series(samples=33)
    history[::2, 4:9] = np.nan
    expected = np.nanquantile(history, share, axis=1)
    close(stats.quantile_interpolated(stats.pack(history), share), expected)


def test_the_root_test_is_that_of_the_companion_matrix() -> None:
    rng = np.random.default_rng(11)
    for order in (1, 2, 3, 5):
        slopes = rng.normal(0, 0.6, (400, order))
        largest = np.empty(len(slopes))
        for row, phi in enumerate(slopes):
            companion = np.eye(order, k=-1)
            companion[0] = phi
            largest[row] = np.abs(np.linalg.eigvals(companion)).max()
        assert (stays_bounded(slopes) == (largest <= 1.05)).all()
        assert 20 < (largest <= 1.05).sum() < 400
