"""Statistics of many series at once, with the same bits as a loop over one series.

Every sum adds the samples one by one from the oldest to the newest (`numpy.add.accumulate`, never
the pairwise `sum`): a threshold compared with such a number then decides as Ferikoglou's Go code
does. Missing samples (NaN) are left out, as that code never sees them: lags then count samples, not
seconds. Undefined results (no samples, a constant series) are NaN.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class PackedSeries(NamedTuple):
    """Series with their samples moved to the left, in order: `values[s, :counts[s]]`; then NaN."""

    values: Floats
    counts: Counts


def pack(values: Floats) -> PackedSeries:
    """Move the samples of each series to the left, closing its gaps."""
    present = ~np.isnan(values)
    counts = np.asarray(present.sum(axis=1), dtype=np.int64)
    if bool(present.all()):
        return PackedSeries(values, counts)
    order = np.argsort(~present, axis=1, kind="stable")
    return PackedSeries(np.take_along_axis(values, order, axis=1), counts)


def running_sum(terms: Floats) -> Floats:
    """Sum each row from left to right; NaN counts as 0, [s]."""
    if terms.shape[1] == 0:
        return np.zeros(terms.shape[0])
    return np.asarray(np.add.accumulate(np.where(np.isnan(terms), 0.0, terms), axis=1)[:, -1])


def mean(series: PackedSeries) -> Floats:
    """Return each series' mean, [s]; NaN without samples."""
    with np.errstate(all="ignore"):
        return running_sum(series.values) / series.counts


def variance(series: PackedSeries) -> Floats:
    """Return the population variance, mean of squares minus squared mean, [s]; rounding may make it
    negative."""
    with np.errstate(all="ignore"):
        middle = mean(series)
        return running_sum(series.values * series.values) / series.counts - middle * middle


def coefficient_of_variation(series: PackedSeries) -> Floats:
    """Return standard deviation over mean, [s]; NaN where the mean is 0 or the variance
    negative."""
    with np.errstate(all="ignore"):
        return np.sqrt(variance(series)) / mean(series)


def autocorrelation(series: PackedSeries, lag: int) -> Floats:
    """Compute r_lag = Σ(y_i − ȳ)(y_{i+lag} − ȳ) / Σ(y_i − ȳ)², [s]; NaN for a constant series.

    With no more samples than `lag` the upper sum is empty and the result 0.
    """
    away = series.values - mean(series)[:, None]
    with np.errstate(all="ignore"):
        together = running_sum(away[:, : max(0, away.shape[1] - lag)] * away[:, lag:])
        return together / running_sum(away * away)


def quantile_at_index(series: PackedSeries, share: float) -> Floats:
    """Return the sorted sample at index int(n · share), [s]: Kube-Knots' percentile. NaN if there
    is none."""
    place = (series.counts * share).astype(np.int64)
    return _sorted_at(series, np.minimum(place, series.counts - 1))


def quantile_interpolated(series: PackedSeries, share: float) -> Floats:
    """Return the usual quantile, interpolated around position (n − 1) · share, [s]."""
    place = np.maximum(series.counts - 1, 0) * share
    below = np.floor(place).astype(np.int64)
    low = _sorted_at(series, below)
    high = _sorted_at(series, np.minimum(below + 1, series.counts - 1))
    return low + (high - low) * (place - below)


def _sorted_at(series: PackedSeries, place: Counts) -> Floats:
    if series.values.shape[1] == 0:
        return np.full(len(place), np.nan)
    ranked = np.sort(series.values, axis=1)  # NaN goes last
    taken = np.take_along_axis(ranked, np.maximum(place, 0)[:, None], axis=1)[:, 0]
    return np.where(series.counts > 0, taken, np.nan)
