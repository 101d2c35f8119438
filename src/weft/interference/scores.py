"""Scores of predictions: errors, coverage of the bound, and baselines to compare with."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np
from msgspec.structs import astuple, replace

from weft.interference import additive
from weft.interference.features import Applications, Bools, Floats, Ints, PairSamples, utilisation
from weft.interference.intervals import ENOUGH_FOR_INTERVAL, ratio_of_means

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
ONE_SAMPLE = 1.0
"""Resolution of the number of covered samples per family: 1, as it is a whole number."""
_AT_90 = NormalDist().inv_cdf(0.9)


class PredictionScore(msgspec.Struct, frozen=True):
    """Score of predicted against measured speeds.

    `coverage` is the share of speeds at or above their lower bound, `width` the mean distance of
    the bound from the prediction, `hindsight_width` the single width that would have covered 90 %
    of these samples. These three are NaN for baselines, which have no bound."""

    samples: int
    mae: float
    mape: float
    r2: float
    p95: float
    coverage: float = float("nan")
    width: float = float("nan")
    hindsight_width: float = float("nan")


class ScoredSamples(msgspec.Struct, frozen=True):
    """Measured speeds with their predictions and lower bounds, [n] each.

    `family` is the number of the target's family, `sure` whether the bound is reported as
    calibrated."""

    speed: Floats
    predicted: Floats
    lowest: Floats
    family: Ints
    sure: Bools

    @property
    def mean_error(self) -> float:
        """Mean absolute error of the predicted speed."""
        return float(np.abs(self.predicted - self.speed).mean())


def score(speed: Floats, predicted: Floats, lowest: Floats | None = None) -> PredictionScore:
    """Score one method's predictions; `lowest` are its lower bounds, if it has any."""
    error = np.abs(predicted - speed)
    total = float(((speed - speed.mean()) ** 2).sum())
    r2 = 1.0 - float((error**2).sum()) / total if total > 0 else float("nan")
    mape, p95 = float((error / speed).mean()), float(np.quantile(error, 0.95))
    errors = PredictionScore(len(speed), float(error.mean()), mape, r2, p95)
    if lowest is None:
        return errors
    coverage, width = float((speed >= lowest).mean()), float((predicted - lowest).mean())
    hindsight = float(np.quantile(predicted - speed, 0.9))
    return replace(errors, coverage=coverage, width=width, hindsight_width=hindsight)


def curve(samples: ScoredSamples) -> list[tuple[float, float]]:
    """Return (nominal, reached) coverage for several levels, if bounds are rescaled from 90 % to
    each level as quantiles of a normal distribution."""
    width = np.maximum(samples.predicted - samples.lowest, 1e-9)
    away = (samples.predicted - samples.speed) / width
    normal = NormalDist()
    return [(level, float((away <= normal.inv_cdf(level) / _AT_90).mean())) for level in LEVELS]


def family_interval(samples: ScoredSamples) -> tuple[float, float]:
    """Return the 95 % interval of coverage over families; NaN with fewer than five families."""
    names = np.unique(samples.family)
    if len(names) < ENOUGH_FOR_INTERVAL:
        return math.nan, math.nan
    within = samples.speed >= samples.lowest
    hits = np.array([within[samples.family == name].sum() for name in names], np.float64)
    sizes = np.array([(samples.family == name).sum() for name in names], np.float64)
    ends = ratio_of_means(hits, sizes, ONE_SAMPLE).interval()
    return (math.nan, math.nan) if ends is None else (max(0.0, ends[0]), min(1.0, ends[1]))


def sum_of_utilisation(applications: Applications, test: PairSamples) -> Floats | None:
    """Return the speed 1 / max(1, sum of both utilisations) for each sample; None if any
    utilisation is unknown."""
    share = np.array([utilisation(solo) for solo in applications.solos])
    total = share[test.target] + share[test.other]
    return None if np.isnan(total).any() else np.asarray(1.0 / np.maximum(1.0, total))


def baselines(
    applications: Applications, train: PairSamples, test: PairSamples
) -> dict[str, Floats]:
    """Return each baseline's predictions for the test samples, by name.

    Constant: the training set's mean speed. Ridge: the additive model of speeds, λ = 1. Sum of
    utilisation: only if all utilisations are known."""
    ridge = additive.fit(train, train.speed, len(applications.names)).predict(test)
    guesses = {"constant": np.full(len(test), float(train.speed.mean())), "ridge": ridge}
    summed = sum_of_utilisation(applications, test)
    return guesses if summed is None else {**guesses, "sum of utilisation": summed}


def joined(parts: Sequence[ScoredSamples]) -> ScoredSamples:
    """Concatenate several parts' samples."""
    columns = zip(*(astuple(part) for part in parts), strict=True)
    return ScoredSamples(*(np.concatenate(column) for column in columns))
