"""The forecasters: each predicts the next samples of every series.

A history is [s, n], NaN where a sample is missing, the newest in the last column. A forecaster that
cannot forecast a series (too short, constant, no season yet, a fit that diverges) returns NaN for
that series only. Forecasts are not clipped: callers know which values are possible.
"""

from typing import ClassVar

import numpy as np

from weft.telemetry.forecast.backtest import bounds, rolling_errors
from weft.telemetry.forecast.result import Forecast
from weft.telemetry.forecast.statistics import (
    Autoregression,
    Bools,
    Floats,
    autoregress,
    fit_shared,
)

LARGEST_ROOT = 1.05
"""An autoregression that grows faster than this per sample has diverged."""


class Forecaster:
    """Base: implement `means`; `predict` adds an interval from the forecaster's own backtest."""

    name: ClassVar[str] = ""

    def means(self, history: Floats, horizon: int) -> Floats:
        """Return the expected next `horizon` samples, [s, h]; NaN where no forecast is possible."""
        raise NotImplementedError

    def predict(self, history: Floats, horizon: int, origins: int = 8) -> Forecast:
        """Add bounds to `means`, from the errors at the last `origins` points of the history."""
        mean = self.means(history, horizon)
        lower, upper = bounds(mean, rolling_errors(self.means, history, horizon, origins))
        return Forecast(mean, lower, upper)


class Last(Forecaster):
    """Repeats the newest sample. Forecasts any series that has a sample."""

    name = "last"

    def means(self, history: Floats, horizon: int) -> Floats:
        """Return the newest sample at every step, [s, h]."""
        return _level(newest(history), horizon)


class Ewma(Forecaster):
    """Exponentially weighted mean: level ← α · sample + (1 − α) · level, from the first sample."""

    name = "ewma"

    def __init__(self, alpha: float = 0.3) -> None:
        self.alpha = alpha

    def means(self, history: Floats, horizon: int) -> Floats:
        """Return the level at every step, [s, h]. A missing sample leaves the level unchanged."""
        level = np.full(len(history), np.nan)
        for sample in history.T:
            moved = self.alpha * sample + (1.0 - self.alpha) * level
            level = np.where(np.isnan(moved), np.where(np.isnan(level), sample, level), moved)
        return _level(level, horizon)


class SeasonalNaive(Forecaster):
    """Repeats the value of one period ago; where that is missing, of two periods ago, and so on."""

    name = "seasonal-naive"

    def __init__(self, period: int) -> None:
        self.period = period

    def means(self, history: Floats, horizon: int) -> Floats:
        """Return values of earlier periods, [s, h]; NaN until one whole period was seen."""
        answer = np.full((len(history), horizon), np.nan)
        for step in range(horizon):
            at = history.shape[1] + step
            while (at := at - self.period) >= 0:
                if at < history.shape[1]:
                    answer[:, step] = np.where(
                        np.isnan(answer[:, step]), history[:, at], answer[:, step]
                    )
        return answer


class Ar(Forecaster):
    """Autoregression of the given order with a constant, fitted by least squares."""

    name = "ar"

    def __init__(self, order: int = 1) -> None:
        self.order = order

    def means(self, history: Floats, horizon: int) -> Floats:
        """Return the forecast, [s, h]; NaN if one of the newest `order` samples is missing or the
        fit diverges."""
        if history.shape[1] < 2 * self.order + 2:
            return np.full((len(history), horizon), np.nan)
        fit = autoregress(history, self.order)
        answer = roll_forward(fit, history[:, -self.order :], horizon)
        answer[~residencies_bounded(fit.slopes)] = np.nan
        return answer


class FourierAr(Forecaster):
    """A constant and `harmonics` sine waves of a known period, plus an autoregression of the
    residuals.

    Where the residuals cannot be fitted (none left, or too few), the waves alone.
    """

    name = "fourier-ar"

    def __init__(self, period: float, harmonics: int = 1, order: int = 1) -> None:
        self.period, self.harmonics, self.order = period, harmonics, order

    def means(self, history: Floats, horizon: int) -> Floats:
        """Return the forecast, [s, h]; NaN until one whole period was seen."""
        samples = history.shape[1]
        if samples < max(self.period, 2 * self.harmonics + 2):
            return np.full((len(history), horizon), np.nan)
        waves = self._waves(np.arange(samples + horizon, dtype=np.float64))
        weights = fit_shared(waves[:samples], history)
        smooth = weights @ waves.T
        rest = Ar(self.order).means(history - smooth[:, :samples], horizon)
        return np.asarray(smooth[:, samples:] + np.where(np.isnan(rest), 0.0, rest))

    def _waves(self, at: Floats) -> Floats:
        angles = 2.0 * np.pi / self.period * at[:, None] * np.arange(1, self.harmonics + 1)
        return np.concatenate([np.ones((len(at), 1)), np.cos(angles), np.sin(angles)], axis=1)


def newest(history: Floats) -> Floats:
    """Return the newest sample that is not missing, [s]; NaN if there is none."""
    if history.shape[1] == 0:
        return np.full(len(history), np.nan)
    present = ~np.isnan(history)
    back = np.argmax(present[:, ::-1], axis=1)
    return np.asarray(history[np.arange(len(history)), history.shape[1] - 1 - back])


def roll_forward(fit: Autoregression, recent: Floats, horizon: int) -> Floats:
    """Apply the fit repeatedly to its own output, [s, h]; `recent` are the newest samples, [s,
    order]."""
    order = fit.slopes.shape[1]
    path = np.concatenate([recent, np.empty((len(recent), horizon))], axis=1)
    for step in range(horizon):
        behind = path[:, step : step + order][:, ::-1]
        path[:, order + step] = fit.intercept + np.einsum("sj,sj->s", fit.slopes, behind)
    return path[:, order:]


def residencies_bounded(slopes: Floats, largest_root: float = LARGEST_ROOT) -> Bools:
    """Return True if no root of the autoregression is larger than `largest_root`, [s]."""
    order = slopes.shape[1]
    left = slopes / largest_root ** np.arange(1, order + 1)
    bounded = np.ones(len(slopes), dtype=bool)
    with np.errstate(all="ignore"):
        for size in range(order, 0, -1):
            reflection = left[:, size - 1]
            bounded &= np.abs(reflection) <= 1.0
            rest = left[:, : size - 1]
            scale = (1.0 - reflection * reflection)[:, None]
            left = (rest + reflection[:, None] * rest[:, ::-1]) / scale
    return bounded


def _level(values: Floats, horizon: int) -> Floats:
    return np.repeat(values[:, None], horizon, axis=1)
