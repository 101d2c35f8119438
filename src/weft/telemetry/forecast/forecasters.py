"""The forecasters: each predicts the next samples of every series.

A history is [s, n], NaN where a sample is missing, the newest in the last column. A forecaster that
cannot forecast a series (too short, constant, no season yet, a fit that diverges) returns NaN for
that series only. Forecasts are not clipped: callers know which values are possible.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.telemetry.forecast.statistics import (
    Autoregression,
    Bools,
    Counts,
    Floats,
    autoregress,
    fit_shared,
)


class Forecast(NamedTuple):
    """The next samples of many series, [s, h]: expected values and the bounds they should stay
    within.

    `mean` is NaN where no forecast is possible. Bounds are −∞ and ∞ where no error was ever
    measured: a policy that compares with a bound then never admits a pod."""

    mean: Floats
    lower: Floats
    upper: Floats


# --- errors of a forecaster -----------------------------------------------------------------------
# Errors of a forecaster: forecasts from earlier points of the history, compared with later
# samples.


Means = Callable[[Floats, int], Floats]

WITHIN = 1.645
"""Bounds lie this many root mean squared errors from the mean: 90 % of samples are within them if
errors are normal."""


def rolling_errors(means: Means, history: Floats, horizon: int, origins: int) -> Floats:
    """Return actual minus forecast values of forecasts that start at each of the last `origins`
    samples, [s, origins, h], oldest first; NaN where either value is missing."""
    samples = history.shape[1]
    errors = np.full((len(history), origins, horizon), np.nan)
    for nth in range(origins):
        origin = samples - origins + nth
        if origin < 1:
            continue
        steps = min(horizon, samples - origin)
        forecast = means(history[:, :origin], steps)
        errors[:, nth, :steps] = history[:, origin : origin + steps] - forecast
    return errors


def mean_squares(errors: Floats) -> Floats:
    """Average the squared errors over the origins, [s, h]; NaN where no error was measured."""
    known = ~np.isnan(errors)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, errors * errors, 0.0).sum(axis=1) / known.sum(axis=1))


def bounds(mean: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return (lower, upper) bounds around `mean`, [s, h], from the errors of a backtest."""
    return around(mean, mean_squares(errors))


def around(mean: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Return (lower, upper) bounds around `mean` from mean squared errors; −∞ and ∞ where the error
    or the mean is unknown."""
    reach = WITHIN * np.sqrt(squares)
    lower, upper = mean - reach, mean + reach
    unknown = np.isnan(lower)
    return np.where(unknown, -np.inf, lower), np.where(unknown, np.inf, upper)


LARGEST_ROOT = 1.05
"""An autoregression that grows faster than this per sample has diverged."""


class Forecaster:
    """Base class: subclasses implement `means`; `predict` adds an interval from the forecaster's
    own backtest."""

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
    """Repeats the value of one period ago; where that is missing, the value of two periods ago, and
    so on."""

    name = "seasonal-naive"

    def __init__(self, period: int) -> None:
        self.period = period

    def means(self, history: Floats, horizon: int) -> Floats:
        """Return values of earlier periods, [s, h]; NaN where there is none."""
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
        answer[~stays_bounded(fit.slopes)] = np.nan
        return answer


class FourierAr(Forecaster):
    """A constant and `harmonics` sine waves of a known period, plus an autoregression of the
    residuals.

    Where the residuals cannot be fitted (none left, or too few), the forecast is the waves
    alone."""

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
    """Apply the autoregression repeatedly to its own output, [s, h]; `recent` are the newest
    samples, [s, order]."""
    order = fit.slopes.shape[1]
    path = np.concatenate([recent, np.empty((len(recent), horizon))], axis=1)
    for step in range(horizon):
        behind = path[:, step : step + order][:, ::-1]
        path[:, order + step] = fit.intercept + np.einsum("sj,sj->s", fit.slopes, behind)
    return path[:, order:]


def stays_bounded(slopes: Floats, largest_root: float = LARGEST_ROOT) -> Bools:
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


# --- selection ------------------------------------------------------------------------------------
# Selects a forecaster for each series: the one with the least recent error.
#
# At each sample, the forecasts made one to `horizon` samples ago are compared with it, so that the
# rolling-origin backtest costs one subtraction a step and no refit. Squared errors decay by the
# factor `keep` per sample. Forecasts are made in blocks of series that fit the processor's cache.


BLOCK = 4096
Singles = npt.NDArray[np.float32]


class Selector:
    """Chooses a forecaster for each series by the recent errors of every forecaster, which it
    records.

    The first forecaster is the fallback: it is used while no error is known, where the best one
    returns NaN, and in a tie. `chosen` is the index of the forecaster used last, [s]."""

    def __init__(
        self, forecasters: Sequence[Forecaster], series: int, horizon: int, keep: float = 0.9
    ) -> None:
        self.forecasters = tuple(forecasters)
        self.horizon, self.keep = horizon, keep
        shape = (len(self.forecasters), series, horizon)
        self._squares: Singles = np.zeros(shape, dtype=np.float32)
        self._weights: Singles = np.zeros(shape, dtype=np.float32)
        self._made: list[Singles] = []
        self.chosen: Counts = np.zeros(series, dtype=np.int64)

    def tick(self, history: Floats) -> Forecast:
        """Learn from one more sample and forecast again. `history` is [s, n], the newest sample
        last."""
        if history.shape[1]:
            self._learn(history[:, -1])
        self._made = self._made[-self.horizon + 1 :] if self.horizon > 1 else []
        made: Singles = np.empty(self._squares.shape, dtype=np.float32)
        mean, squares = np.empty((2, len(history), self.horizon))
        for begin in range(0, len(history), BLOCK):
            block = slice(begin, begin + BLOCK)
            means = np.stack([f.means(history[block], self.horizon) for f in self.forecasters])
            made[:, block] = means
            mean[block], squares[block] = self._choose(means, block)
        self._made.append(made)
        return Forecast(mean, *around(mean, squares))

    def warm(self, history: Floats, ticks: int) -> None:
        """Learn from the last `ticks` samples of a history, as if they had arrived one by one."""
        for end in range(max(1, history.shape[1] - ticks), history.shape[1]):
            self.tick(history[:, :end])

    def errors(self) -> Floats:
        """Return the root mean squared error by forecaster and series over all steps, [f, s]; NaN
        where unknown."""
        with np.errstate(invalid="ignore"):
            squares = self._squares.sum(axis=2) / self._weights.sum(axis=2)
        return np.asarray(np.sqrt(squares), dtype=np.float64)

    def realign(self, rows: Counts) -> None:
        """Reorder the series: new series i is old series `rows[i]`, or starts empty where that is
        −1."""
        if len(self.chosen) == 0:
            self._pad()
        fresh = rows < 0
        self._squares, self._weights = self._squares[:, rows], self._weights[:, rows]
        self._squares[:, fresh] = 0.0
        self._weights[:, fresh] = 0.0
        self._made = [made[:, rows] for made in self._made]
        for made in self._made:
            made[:, fresh] = np.nan
        self.chosen = np.where(fresh, 0, self.chosen[rows])

    def _pad(self) -> None:
        """Add one empty series, so that row −1 exists."""
        shape = (len(self.forecasters), 1, self.horizon)
        self._squares = np.zeros(shape, dtype=np.float32)
        self._weights = np.zeros(shape, dtype=np.float32)
        self._made = [np.full(shape, np.nan, dtype=np.float32) for _ in self._made]
        self.chosen = np.zeros(1, dtype=np.int64)

    def _learn(self, came: Floats) -> None:
        """Compare the samples `came` with earlier forecasts of them: with step k of the forecast
        made k samples ago."""
        actual = came.astype(np.float32)
        for step, made in enumerate(reversed(self._made)):
            error = actual - made[:, :, step]
            known = ~np.isnan(error)
            squares, weights = self._squares[:, :, step], self._weights[:, :, step]
            fading = np.where(known, np.float32(self.keep), np.float32(1.0))
            squares *= fading
            squares += np.where(known, (1.0 - self.keep) * error * error, np.float32(0.0))
            weights *= fading
            weights += np.where(known, np.float32(1.0 - self.keep), np.float32(0.0))

    def _choose(self, means: Floats, block: slice) -> tuple[Floats, Floats]:
        """Return (means, mean squared errors) of the best forecaster of each series, [s, h]
        each."""
        squares, weights = self._squares[:, block], self._weights[:, block]
        with np.errstate(invalid="ignore"):
            per_step = squares / weights
            overall = squares.sum(axis=2) / weights.sum(axis=2)
        usable = ~np.isnan(overall) & ~np.isnan(means).any(axis=2)
        chosen = np.argmin(np.where(usable, overall, np.inf), axis=0)
        self.chosen[block] = chosen
        rows = np.arange(means.shape[1])
        return means[chosen, rows], per_step[chosen, rows].astype(np.float64)
