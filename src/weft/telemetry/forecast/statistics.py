"""Statistics of many series at once; the results are equal, to the bit, to a loop over each series.

Every sum adds the samples one by one from the oldest to the newest (`numpy.add.accumulate`, never
the pairwise `sum`): a threshold compared with such a number then decides as Ferikoglou's Go code
does. Missing samples (NaN) are left out, as that code never sees them: lags then count samples, not
seconds. Undefined results (no samples, a constant series) are NaN.

Least squares too: `lag_line` is Ferikoglou's regression of a sample on the one `lag` before it,
adding in the same order as his code. `autoregress` is AR(p) with a constant, by the normal
equations of centred samples: AR(1) with lag 1 equals `lag_line` up to rounding.
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
    """Return the standard deviation divided by the mean, [s]; NaN where the mean is 0 or the
    variance negative."""
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
    """Return the sorted sample at index int(n · share), [s], which is Kube-Knots' percentile; NaN
    without samples."""
    place = (series.counts * share).astype(np.int64)
    return _sorted_at(series, np.minimum(place, series.counts - 1))


def quantile_interpolated(series: PackedSeries, share: float) -> Floats:
    """Return the usual quantile, interpolated around position (n − 1) · share, [s]; NaN without
    samples."""
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


# --- least squares -------------------------------------------------------------------------------


class RegressionLine(NamedTuple):
    """y = intercept + slope · x, one line per series; NaN or infinite where x never varies."""

    intercept: Floats
    slope: Floats


def lag_line(series: PackedSeries, lag: int) -> RegressionLine:
    """Fit the least-squares line that predicts each sample from the one `lag` before it."""
    early, late = series.values[:, : max(0, series.values.shape[1] - lag)], series.values[:, lag:]
    early = np.where(np.isnan(late), np.nan, early)
    pairs = np.maximum(series.counts - lag, 0).astype(np.float64)
    with np.errstate(all="ignore"):
        mean_x, mean_y = running_sum(early) / pairs, running_sum(late) / pairs
        covariance = running_sum(early * late) - pairs * mean_x * mean_y
        spread = running_sum(early * early) - pairs * mean_x * mean_x
        slope = covariance / spread
        return RegressionLine(mean_y - slope * mean_x, slope)


class Autoregression(NamedTuple):
    """y_t = intercept + Σ slopes[:, j] · y_{t−1−j}; NaN rows could not be fitted."""

    intercept: Floats
    slopes: Floats
    pairs: Counts


def autoregress(values: Floats, order: int) -> Autoregression:
    """Fit AR(`order`) to each row of [s, n] by least squares.

    A sample counts only if all `order` samples before it are present: nothing is learnt across a
    gap. A row is NaN where the equations have no unique solution (constant, or too few samples).
    """
    lags = [values[:, order - j - 1 : values.shape[1] - j - 1] for j in range(order)]
    columns = [values[:, order:], *lags]
    known = ~np.isnan(columns[0])
    for column in lags:
        known &= ~np.isnan(column)
    pairs = np.asarray(known.sum(axis=1), dtype=np.int64)
    with np.errstate(all="ignore"):
        means = [np.where(known, column, 0.0).sum(axis=1) / pairs for column in columns]
        centred = [
            np.where(known, column - middle[:, None], 0.0)
            for column, middle in zip(columns, means, strict=True)
        ]
    gram = np.empty((len(values), order, order))
    right = np.empty((len(values), order))
    for j in range(order):
        right[:, j] = np.einsum("sn,sn->s", centred[j + 1], centred[0])
        for k in range(j + 1):
            gram[:, j, k] = gram[:, k, j] = np.einsum("sn,sn->s", centred[j + 1], centred[k + 1])
    slopes = _solve(gram, right, pairs)
    intercept = means[0] - sum((slopes[:, j] * means[j + 1] for j in range(order)), start=0.0)
    return Autoregression(np.asarray(intercept), slopes, pairs)


def _solve(gram: Floats, right: Floats, pairs: Counts) -> Floats:
    """Solve all systems at once by Gauss–Jordan without pivoting: they are small and symmetric.

    A system whose pivot falls below 1e-10 of its diagonal entry counts as singular: NaN.
    """
    order = right.shape[1]
    left, answer = gram.copy(), right.copy()
    scale = np.einsum("sjj->sj", gram).copy()
    solvable = pairs > order + 1
    with np.errstate(all="ignore"):
        for j in range(order):
            solvable &= left[:, j, j] > 1e-10 * scale[:, j]
            factor = left[:, :, j] / left[:, j, j][:, None]
            factor[:, j] = 0.0
            answer -= factor * answer[:, j][:, None]
            left -= factor[:, :, None] * left[:, j][:, None, :]
        answer /= np.einsum("sjj->sj", left)
    answer[~solvable] = np.nan
    return answer


def fit_shared(design: Floats, values: Floats) -> Floats:
    """Fit least-squares weights of the columns of `design` [n, m] to each row of `values`, [s, m].

    Rows without gaps share one factorisation; each other row is solved by itself. NaN where fewer
    samples are present than there are weights."""
    present = ~np.isnan(values)
    weights = np.asarray(np.where(present, values, 0.0) @ np.linalg.pinv(design).T)
    holed = np.flatnonzero(~present.all(axis=1))
    if len(holed):
        seen = present[holed].astype(np.float64)
        gram = np.einsum("nj,nk,sn->sjk", design, design, seen, optimize=True)
        right = np.where(present[holed], values[holed], 0.0) @ design
        solution = np.einsum("sjk,sk->sj", np.linalg.pinv(gram, hermitian=True), right)
        solution[seen.sum(axis=1) < design.shape[1]] = np.nan
        weights[holed] = solution
    return weights


# --- rank correlation -----------------------------------------------------------------------------


def ranks(values: Floats) -> Floats:
    """Rank the samples in each row, 1 the smallest; equal samples share their mean rank, [s, n]."""
    order = np.argsort(values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    new = np.ones(values.shape, dtype=bool)
    new[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    first = np.maximum.accumulate(np.where(new, columns, 0), axis=1)
    ends = np.ones(values.shape, dtype=bool)
    ends[:, :-1] = new[:, 1:]
    last = np.where(ends, columns, values.shape[1])
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    shared = (first + last) / 2.0 + 1.0
    result = np.empty(values.shape)
    np.put_along_axis(result, order, shared, axis=1)
    return result


def spearman(left: Floats, right: Floats) -> Floats:
    """Compute Spearman's correlation of each row of `left` [a, n] with each of `right` [b, n], [a,
    b].

    A constant series has correlation 0 with any. NaN where either has a sample missing.
    """
    return np.asarray(_standard(left) @ _standard(right).T)


def _standard(values: Floats) -> Floats:
    """Centre the ranks and scale them to length 1, so that the product of two rows is their
    correlation, [s, n]."""
    gaps = np.asarray(np.isnan(values).any(axis=1))
    centred = ranks(np.where(gaps[:, None], 0.0, values)) - (values.shape[1] + 1) / 2.0
    size = np.sqrt((centred * centred).sum(axis=1))
    unit = centred / np.where(size > 0.0, size, 1.0)[:, None]
    return np.asarray(np.where(gaps[:, None], np.nan, unit))
