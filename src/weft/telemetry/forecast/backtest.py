"""Errors of a forecaster: forecasts from earlier points of the history, compared with later
samples."""

from collections.abc import Callable

import numpy as np

from weft.telemetry.forecast.statistics import Floats

Means = Callable[[Floats, int], Floats]

WITHIN = 1.645
"""Bounds lie this many root mean squared errors away: they hold 90 % of samples if errors are
normal."""


def rolling_errors(means: Means, history: Floats, horizon: int, origins: int) -> Floats:
    """Return actual minus forecast values, [s, origins, h], oldest origin first."""
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
    """Return (lower, upper) around `mean`, [s, h], from the errors of a backtest."""
    return around(mean, mean_squares(errors))


def around(mean: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Return (lower, upper) from mean squared errors; −∞ and ∞ where these or the mean are
    unknown."""
    reach = WITHIN * np.sqrt(squares)
    lower, upper = mean - reach, mean + reach
    unknown = np.isnan(lower)
    return np.where(unknown, -np.inf, lower), np.where(unknown, np.inf, upper)
