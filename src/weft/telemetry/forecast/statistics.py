"""Statistics of many series at once, bit for bit as a loop over one series computes them.

Every sum runs over the samples from the oldest to the newest, one addition after the other
(`numpy.add.accumulate`, never the pairwise `sum`): a threshold compared with such a number decides
as Ferikoglou's Go code does. Missing samples (NaN) are left out, as that code never sees them: lags
then count samples, not seconds. What is undefined (no samples, a constant series) is NaN.
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
    """The same series without gaps."""
    present = ~np.isnan(values)
    counts = np.asarray(present.sum(axis=1), dtype=np.int64)
    if bool(present.all()):
        return PackedSeries(values, counts)
    order = np.argsort(~present, axis=1, kind="stable")
    return PackedSeries(np.take_along_axis(values, order, axis=1), counts)


def running_sum(terms: Floats) -> Floats:
    """Each row's sum, added from left to right; NaN counts as nothing, [s]."""
    if terms.shape[1] == 0:
        return np.zeros(terms.shape[0])
    return np.asarray(np.add.accumulate(np.where(np.isnan(terms), 0.0, terms), axis=1)[:, -1])


def mean(series: PackedSeries) -> Floats:
    """[s]; NaN without samples."""
    with np.errstate(all="ignore"):
        return running_sum(series.values) / series.counts


def variance(series: PackedSeries) -> Floats:
    """Population variance, as mean of squares less squared mean: rounding may make it negative."""
    with np.errstate(all="ignore"):
        middle = mean(series)
        return running_sum(series.values * series.values) / series.counts - middle * middle


def coefficient_of_variation(series: PackedSeries) -> Floats:
    """Standard deviation over mean, [s]; NaN where the mean is 0 or rounding hid the variance."""
    with np.errstate(all="ignore"):
        return np.sqrt(variance(series)) / mean(series)


def autocorrelation(series: PackedSeries, lag: int) -> Floats:
    """r_lag = Σ(y_i − ȳ)(y_{i+lag} − ȳ) / Σ(y_i − ȳ)², [s]; NaN for a constant series.

    With no more samples than `lag` the upper sum is empty and the result 0.
    """
    away = series.values - mean(series)[:, None]
    with np.errstate(all="ignore"):
        together = running_sum(away[:, : max(0, away.shape[1] - lag)] * away[:, lag:])
        return together / running_sum(away * away)


def quantile_at_index(series: PackedSeries, share: float) -> Floats:
    """The sorted sample at index int(n · share), [s]: Kube-Knots' percentile. NaN without any."""
    place = (series.counts * share).astype(np.int64)
    return _sorted_at(series, np.minimum(place, series.counts - 1))


def quantile_interpolated(series: PackedSeries, share: float) -> Floats:
    """The usual quantile, linear between the two samples beside (n − 1) · share, [s]."""
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
