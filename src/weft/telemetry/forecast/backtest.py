"""Errors of a forecaster: forecasts from earlier points of the history, against what came."""

from collections.abc import Callable

import numpy as np

from weft.telemetry.forecast.statistics import Floats

Means = Callable[[Floats, int], Floats]

WITHIN = 1.645
"""Bounds lie this many root mean squared errors away: 90 % of samples, were errors normal."""


def rolling_errors(means: Means, history: Floats, horizon: int, origins: int) -> Floats:
    """Actual less forecast values, [s, origins, h], oldest origin first.

    The last origin is one sample before the end. Each forecast sees only what lies before its
    origin; steps beyond the history, and forecasts that were not made, are NaN.
    """
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
    """Over the origins, [s, h]; NaN where no error was measured."""
    known = ~np.isnan(errors)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, errors * errors, 0.0).sum(axis=1) / known.sum(axis=1))


def bounds(mean: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """(lower, upper) around `mean`, [s, h], from the errors of a backtest."""
    return around(mean, mean_squares(errors))


def around(mean: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """(lower, upper) for mean squared errors; −∞ and ∞ where these or the mean are unknown."""
    reach = WITHIN * np.sqrt(squares)
    lower, upper = mean - reach, mean + reach
    unknown = np.isnan(lower)
    return np.where(unknown, -np.inf, lower), np.where(unknown, np.inf, upper)
