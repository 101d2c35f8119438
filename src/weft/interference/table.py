"""Builds the `InterferenceTable` that policies read, from predictors or from a user's table."""

from collections.abc import Callable, Sequence

import numpy as np

from weft.interference import utilisation
from weft.interference.ladder import Predictor, SlowdownPrediction
from weft.interference.public_datasets import StaticTable
from weft.model.interference_table import (
    ANY_MODEL,
    Floats,
    InterferenceTable,
    PredictionTier,
    Tiers,
    interference,
)

_TIER = {
    "measured": PredictionTier.MEASURED,
    "learned": PredictionTier.LEARNED,
    "additive": PredictionTier.ADDITIVE,
    "hinge": PredictionTier.HINGE,
    "unknown": PredictionTier.UNKNOWN,
}
_WORST = 0.9


def from_predictors(
    version: int,
    predictors: Sequence[Predictor],
    classes: Sequence[str],
    sources: Sequence[str] = (),
    ticks: Callable[[int, int], None] | None = None,
) -> InterferenceTable:
    """Predict each application of `classes` next to each of them, on every predictor's GPU model.

    `ticks` is called with (predictors done, predictors) after each."""
    cards = []
    for number, predictor in enumerate(predictors, start=1):
        cards.append(_card(predictor.pairs(classes)))
        if ticks is not None:
            ticks(number, len(predictors))
    mean, upper, tier = (np.array(arrays) for arrays in zip(*cards, strict=True))
    models = [predictor.cell.gpu_model for predictor in predictors]
    return interference(version, models, classes, (mean, upper, tier), sources)


def _card(pairs: list[list[SlowdownPrediction]]) -> tuple[Floats, Floats, Tiers]:
    size = len(pairs)
    mean, upper = np.zeros((size, size)), np.zeros((size, size))
    tier = np.zeros((size, size), dtype=np.int8)
    for row, predictions in enumerate(pairs):
        for column, prediction in enumerate(predictions):
            mean[row, column] = prediction.mean
            upper[row, column] = max(prediction.upper, prediction.mean)
            tier[row, column] = _TIER[prediction.rung] * (1 if prediction.calibrated else -1)
    return _with_unknown(mean, upper, tier)


def _with_unknown(mean: Floats, upper: Floats, tier: Tiers) -> tuple[Floats, Floats, Tiers]:
    """Append a last row and column for unknown applications.

    They are assumed to be like the known ones: with their mean, and the bound that 90 % of their
    bounds stay below; at least the prediction for the case that nothing is known."""
    least = utilisation.unknown()
    rows = [_edge(mean[at], upper[at], least) for at in range(len(mean))]
    columns = [_edge(mean[:, at], upper[:, at], least) for at in range(len(mean))]
    whole = _edge(mean.ravel(), upper.ravel(), least)
    size = len(mean)
    means, uppers = np.pad(mean, ((0, 1), (0, 1))), np.pad(upper, ((0, 1), (0, 1)))
    tiers = np.pad(tier, ((0, 1), (0, 1)), constant_values=-PredictionTier.UNKNOWN)
    for at in range(size):
        means[at, size], uppers[at, size] = rows[at]
        means[size, at], uppers[size, at] = columns[at]
    means[size, size], uppers[size, size] = whole
    return means, uppers, tiers.astype(np.int8)


def _edge(mean: Floats, upper: Floats, least: tuple[float, float]) -> tuple[float, float]:
    finite = upper[np.isfinite(upper)]
    if not finite.size:
        return least
    middle = max(float(mean.mean()), least[0])
    return middle, max(float(np.quantile(finite, _WORST)), least[1], middle)


def from_static(version: int, table: StaticTable, gpu_model: str = ANY_MODEL) -> InterferenceTable:
    """Build the table from a user's numbers; each bound equals its mean.

    Missing pairs and unknown applications are UNKNOWN: like the worst known pair, and at least the
    prediction for the case that nothing is known."""
    slowdown = np.pad(np.array(table.slowdown), ((0, 1), (0, 1)), constant_values=np.nan)
    finite, never = np.isfinite(slowdown), np.isinf(slowdown)
    worst = float(np.log(slowdown[finite].max(initial=1.0)))
    least = utilisation.unknown()
    mean = np.where(finite, np.log(np.where(finite, slowdown, 1.0)), max(worst, least[0]))
    upper = np.where(never, np.inf, np.where(finite, mean, max(worst, least[1])))
    tier = np.where(finite | never, PredictionTier.TABLE, -PredictionTier.UNKNOWN).astype(np.int8)
    arrays = (mean[None], upper[None], tier[None])
    return interference(version, [gpu_model], table.applications, arrays, [table.source])
