"""Forecasts of many time series at once: arrays [series, samples] in, [series, steps] out.

Contents: exact statistics and regressions (`statistics`), and the forecasters, their backtest, and
the choice of a forecaster for each series (`forecasters`). Not here: what the series mean, where
they come from, and which decisions are made with them.

A missing sample is NaN. Samples are equally spaced; the newest is the last column."""

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
