"""Which loads rise together: rank correlation of many pairs of series at once."""

import numpy as np

from weft.signals.forecast.statistics import Bools, Floats


def ranks(values: Floats) -> Floats:
    """Ranks in each row, 1 the smallest; equal samples share their mean rank, [s, n]."""
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
    """Spearman's correlation of each row of `left` with that of `right`, [s], both [s, n].

    Samples missing (NaN) on either side are left out of both. A series that does not vary, or has
    fewer than two common samples, correlates with nothing: 0.
    """
    missing = np.isnan(left) | np.isnan(right)
    if not missing.any():
        return _of_ranks(ranks(left), ranks(right), np.zeros(left.shape, dtype=bool))
    # Missing samples are sorted behind all others: the ranks of the rest stay 1 to their count.
    beyond = np.where(missing, np.inf, 0.0)
    return _of_ranks(
        ranks(np.where(missing, beyond, left)), ranks(np.where(missing, beyond, right)), missing
    )


def _of_ranks(left: Floats, right: Floats, missing: Bools) -> Floats:
    counts = (~missing).sum(axis=1)
    middle = ((counts + 1) / 2.0)[:, None]  # ranks, ties or not, always average this
    one = np.where(missing, 0.0, left - middle)
    two = np.where(missing, 0.0, right - middle)
    scale = np.sqrt((one * one).sum(axis=1) * (two * two).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(scale > 0.0, (one * two).sum(axis=1) / scale, 0.0))
