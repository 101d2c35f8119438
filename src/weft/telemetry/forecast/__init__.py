"""Forecasts of many time series at once: arrays [series, samples] in, [series, steps] out.

In: exact statistics and regressions (`statistics`), the forecasters, their backtest, and the
choice of one for each series (`forecasters`). Out: what the series mean, where they come from, and
the decisions made with them.

A missing sample is NaN. Samples are equally spaced; the newest is the last column.
"""

from weft.telemetry.forecast.forecasters import (
    Ar,
    Ewma,
    Forecast,
    Forecaster,
    FourierAr,
    Last,
    SeasonalNaive,
    Selector,
)

__all__ = ["Ar", "Ewma", "Forecast", "Forecaster", "FourierAr", "Last", "SeasonalNaive", "Selector"]
