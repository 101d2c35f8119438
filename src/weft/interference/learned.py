"""Predicts slowdowns by models learnt from measured pairs of one GPU model, with calibrated bounds:
the second choice of `ladder.py`.

Committees of kernels predict for every training set. Two kinds of models are averaged in, with
the weights that predict left-out pairs and families best: quantile forests, where applications
have profiles and LightGBM is installed, and for new families the additive model."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.interference import additive, features, left_out
from weft.interference import trees as forests
from weft.interference.additive import AdditiveModel
from weft.interference.calibration import Calibration
from weft.interference.committee import USUAL, Committee, Effort, elect
from weft.interference.features import Applications, Bools, Floats, Ints, PairSamples, pair_rows
from weft.interference.kernel import ApplicationSpace, KernelSettings, Scales, scales_of
from weft.interference.records import SLOWEST, CoLocatedRun, SoloRun
from weft.interference.trees import QuantileForests

MOST_CALIBRATED = 700
"""Maximum number of samples that bounds are calibrated on."""
LEAST_SAMPLES, LEAST_APPLICATIONS = 24, 4
"""With fewer, learned models predict no better than the additive model, and `learn` returns
None."""


class LearnedModel(msgspec.Struct, frozen=True):
    """Fitted models as plain data, without their training samples. The shares are the weights of
    forests and additive model."""

    scales: Scales
    near: tuple[KernelSettings, ...]
    far: tuple[KernelSettings, ...]
    calibration: Calibration
    trees: tuple[str, ...] = ()
    near_share: float = 0.0
    far_share: float = 0.0
    many: bool = False
    """True if the trees were trained on runs with several neighbours, and can predict such runs."""
    additive: AdditiveModel | None = None
    """The additive model of speeds; None where it has no weight for new families."""
    additive_share: float = 0.0


def learn(
    solos: Sequence[SoloRun], runs: Sequence[CoLocatedRun], effort: Effort = USUAL
) -> LearnedModel | None:
    """Fit the models to measurements; None if there are too few."""
    applications = Applications(solos)
    samples = applications.samples(runs)
    used = np.unique(np.r_[samples.target, samples.other])
    if len(samples) < LEAST_SAMPLES or len(used) < LEAST_APPLICATIONS:
        return None
    chosen = elect(applications, samples, effort)
    held = left_out.held_of(applications, _some(samples))
    planted = forests.available() and len(features.profile_columns(applications.columns)) >= 2
    planted_forests = left_out.Forests(held) if planted else None
    by_kernels = left_out.by_kernels(held, chosen)
    shares, calibration = left_out.calibrated(held, by_kernels, planted_forests)
    texts: tuple[str, ...] = ()
    if planted:
        rows, slower = _rows_of(applications, runs), -np.log([run.speed for run in runs])
        texts = QuantileForests.fitted(rows, slower).texts
        calibration = left_out.with_companies(calibration, runs, rows, slower)
    added = additive.fit(samples, samples.speed, len(applications.names))
    many = planted and any(len(run.others) > 1 for run in runs)
    return LearnedModel(
        scales_of(applications),
        chosen.near,
        chosen.far,
        calibration,
        trees=texts,
        near_share=shares.near,
        far_share=shares.far,
        many=many,
        additive=added if shares.additive else None,
        additive_share=shares.additive,
    )


def _rows_of(applications: Applications, runs: Sequence[CoLocatedRun]) -> Floats:
    index, columns = applications.index, applications.columns
    rows = np.empty((len(runs), len(features.pair_columns(columns))))
    beside = np.array([len(run.others) for run in runs])
    for size in np.unique(beside):
        at = np.flatnonzero(beside == size).tolist()
        targets = np.array([index[runs[row].target] for row in at])
        others = np.array([[index[name] for name in runs[row].others] for row in at])
        rows[at] = pair_rows(applications.raw, columns, targets, others)
    return rows


def _some(samples: PairSamples) -> PairSamples:
    """Return samples of some whole pairs, few enough that predictions of left-out samples stay
    fast."""
    if len(samples) <= MOST_CALIBRATED:
        return samples
    pairs = np.random.default_rng(21).permutation(np.unique(samples.pair))
    return samples.take(np.isin(samples.pair, pairs[: MOST_CALIBRATED // 2]))


class SpeedPrediction(NamedTuple):
    """Predicted speeds, their lower bounds, and whether each bound is calibrated, [n] each."""

    speed: Floats
    lowest: Floats
    calibrated: Bools


class LearnedPredictor:
    """Fitted models with their training samples, ready to predict known and other applications."""

    def __init__(
        self, learned: LearnedModel, solos: Sequence[SoloRun], runs: Sequence[CoLocatedRun]
    ) -> None:
        self.learned = learned
        self.columns = learned.scales.columns
        self.known = Applications(solos, self.columns)
        self.samples = self.known.samples(runs)
        self._most = max((len(run.others) for run in runs), default=0)
        self._measured = set(np.unique(np.r_[self.samples.target, self.samples.other]).tolist())
        self._families = {self.known.families[at] for at in self._measured}
        space = ApplicationSpace(self.known, learned.scales)
        self.near = Committee(learned.near, space, self.samples)
        self.far = Committee(learned.far, space, self.samples)
        self.trees = (
            QuantileForests.read(learned.trees) if learned.trees and forests.available() else None
        )

    def asked(self, extra: Sequence[SoloRun]) -> Applications:
        """Return the training set's applications, followed by `extra` ones to predict."""
        return Applications((*self.known.solos, *extra), self.columns)

    def kind_of(self, applications: Applications) -> Ints:
        """Return for each application: 0 measured, 1 new but of a known family, 2 of a new
        family."""
        kinds = [
            0 if at in self._measured else 1 if family in self._families else 2
            for at, family in enumerate(applications.families)
        ]
        return np.array(kinds, dtype=np.int64)

    def predict(self, applications: Applications, pairs: PairSamples) -> SpeedPrediction:
        """Predict pairs, given by index into `applications` (as `asked` returns them); the pairs'
        `speed` is ignored."""
        space = ApplicationSpace(applications, self.learned.scales)
        kind = self.kind_of(applications)
        target, other = kind[pairs.target], kind[pairs.other]
        away = (target == 2) | (other == 2)
        speed, width = np.empty(len(pairs)), np.empty(len(pairs))
        for committee, rows, share, mixed in (
            (self.near, ~away, self.learned.near_share, left_out.blend),
            (self.far, away, self.learned.far_share, left_out.number_of),
        ):
            if rows.any():
                asked = pairs.take(rows)
                scores = committee.predict(space, asked)
                if self.trees is not None and share:
                    beside = asked.other[:, None]
                    seen = pair_rows(applications.raw, self.columns, asked.target, beside)
                    scores = mixed(scores, left_out.spoken(self.trees.predict(seen)), share)
                speed[rows], width[rows] = scores
        by, resized = self.learned.calibration, (target == 1) | (other == 1)
        factor = np.select([target == 2, away, resized], [by.target, by.other, by.size], by.pair)
        sure = np.select([away, resized], [by.new_families, by.new_sizes], True)
        if self.trees is None and self.learned.trees:
            sure = np.zeros(len(pairs), dtype=np.bool_)  # bounds were calibrated with their say
        lowest = np.maximum(speed - factor * width, SLOWEST)
        speed[away] = self._with_additive(speed[away], pairs.take(away))
        lowest = np.minimum(speed, lowest)
        return SpeedPrediction(speed, lowest, sure.astype(np.bool_))

    def together(
        self, applications: Applications, target: int, others: Sequence[int]
    ) -> SpeedPrediction | None:
        """Predict one target with several neighbours at once; None without forests that were
        trained on runs with at least as many neighbours."""
        if self.trees is None or not self.learned.many or len(others) > self._most:
            return None
        targets, beside = np.array([target]), np.array([list(others)])
        row = pair_rows(applications.raw, self.columns, targets, beside)
        tree, by = left_out.spoken(self.trees.predict(row)), self.learned.calibration
        known = not self.kind_of(applications)[[target, *others]].any()
        factor = by.several if known else max(by.several, by.target, by.other, by.size)
        lowest = np.minimum(tree.speed, np.maximum(tree.speed - factor * tree.deviation, SLOWEST))
        return SpeedPrediction(tree.speed, lowest, np.array([known and by.new_companies]))

    def _with_additive(self, speed: Floats, pairs: PairSamples) -> Floats:
        added, share = self.learned.additive, self.learned.additive_share
        if added is None or not share:
            return speed
        return (1 - share) * speed + share * added.predict(pairs)
