"""The additive model of slowdown: what a target suffers plus what its neighbours inflict.

It is the third choice of `ladder.py`, a baseline of the evaluation, and the form of the correction
by observed progress. Ridge regression with λ = 1 for s and i, and a free μ:

    ln(slowdown of target v next to a) = μ + s_v + i_a"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from weft.interference.features import Floats, PairSamples

RIDGE = 1.0


class AdditiveModel(msgspec.Struct, frozen=True):
    """Fitted coefficients: the mean log slowdown (or speed), and for each application what it
    suffers and what it inflicts."""

    middle: float
    suffers: tuple[float, ...]
    inflicts: tuple[float, ...]
    spread: float = 0.0
    """90th percentile of measured minus predicted log slowdown over left-out pairs, at least 0."""

    def predict(self, samples: PairSamples) -> Floats:
        """Predict the fitted quantity for each pair, given by application index.

        Applications that were not in the training set have coefficients of 0."""
        most = 1 + max(samples.target.max(initial=0), samples.other.max(initial=0))
        later = np.zeros(max(0, int(most) - len(self.suffers)))
        suffers, inflicts = np.r_[self.suffers, later], np.r_[self.inflicts, later]
        return np.asarray(self.middle + suffers[samples.target] + inflicts[samples.other])


def fit(samples: PairSamples, values: Floats, count: int, ridge: float = RIDGE) -> AdditiveModel:
    """Fit `values` (log slowdowns, or speeds) of the sampled pairs over `count` applications."""
    known = np.zeros((len(samples), 2 * count))
    rows = np.arange(len(samples))
    known[rows, samples.target] += 1.0
    known[rows, count + samples.other] += 1.0
    centre, middle = known.mean(axis=0), float(values.mean())
    moved = known - centre
    weights = np.linalg.solve(
        moved.T @ moved + ridge * np.eye(2 * count), moved.T @ (values - middle)
    )
    middle -= float(centre @ weights)
    return AdditiveModel(middle, tuple(weights[:count].tolist()), tuple(weights[count:].tolist()))


def with_spread(samples: PairSamples, count: int, folds: int = 5) -> AdditiveModel:
    """Fit to the samples' log slowdowns; `spread` is estimated from the errors on left-out
    pairs."""
    slower = -np.log(samples.speed)
    known = np.unique(samples.pair, return_inverse=True)[1]
    fold = np.random.default_rng(19).permutation(int(known.max(initial=-1)) + 1)[known] % folds
    errors = []
    for out in np.unique(fold):
        inside, outside = samples.take(fold != out), samples.take(fold == out)
        if len(inside):
            errors.append(
                slower[fold == out] - fit(inside, slower[fold != out], count).predict(outside)
            )
    spread = float(np.quantile(np.concatenate(errors), 0.9)) if errors else 0.0
    return msgspec.structs.replace(fit(samples, slower, count), spread=max(0.0, spread))


class Residuals(msgspec.Struct, frozen=True):
    """One observation of a target with its neighbours: measured log slowdown minus the predicted
    one."""

    target: str
    others: tuple[str, ...]
    residual: float


class Correction:
    """Corrections to predicted log slowdowns, fitted to the observed progress of targets and their
    neighbours."""

    def __init__(self, seen: Iterable[Residuals] = ()) -> None:
        observed = tuple(seen)
        self.names = sorted({name for entry in observed for name in (entry.target, *entry.others)})
        self._at = {name: at for at, name in enumerate(self.names)}
        count = len(self.names)
        self._weights: Floats = np.zeros(2 * count)
        if observed:
            known = np.zeros((len(observed), 2 * count))
            for row, entry in enumerate(observed):
                known[row, self._at[entry.target]] += 1.0
                for other in entry.others:
                    known[row, count + self._at[other]] += 1.0
            values = np.array([entry.residual for entry in observed])
            self._weights = np.linalg.solve(
                known.T @ known + RIDGE * np.eye(2 * count), known.T @ values
            )

    def of(self, target: str, others: Sequence[str]) -> float:
        """Return the term to add to the log slowdown; applications without observations add 0."""
        count = len(self.names)
        term = self._weights[self._at[target]] if target in self._at else 0.0
        for other in others:
            if other in self._at:
                term += self._weights[count + self._at[other]]
        return float(term)
