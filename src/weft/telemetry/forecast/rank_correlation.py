"""Rank correlation of many pairs of series at once: whether their loads rise together."""

import numpy as np

from weft.telemetry.forecast.statistics import Floats


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
    """Centre the ranks and scale them to length 1: the product of two is their correlation, [s,
    n]."""
    gaps = np.asarray(np.isnan(values).any(axis=1))
    centred = ranks(np.where(gaps[:, None], 0.0, values)) - (values.shape[1] + 1) / 2.0
    size = np.sqrt((centred * centred).sum(axis=1))
    unit = centred / np.where(size > 0.0, size, 1.0)[:, None]
    return np.asarray(np.where(gaps[:, None], np.nan, unit))
