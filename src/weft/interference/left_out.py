"""Predicts samples left out of training, to weight committees and forests and calibrate bounds.

Models that were chosen by leaving families out look better on those families than on a new one. So
each family is predicted by the committee and with the weights that were chosen without that
family."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.interference import additive, kernel
from weft.interference.calibration import Calibration, by_group, factor_of, few_groups, scores_of
from weft.interference.committee import (
    Committees,
    SampleGroup,
    groups_of,
    labels_of,
    mean_of,
    without_pairs,
)
from weft.interference.features import Applications, Bools, Floats, Ints, PairSamples, pair_rows
from weft.interference.kernel import ApplicationSpace, LeftOutScores, inverse_of, left_out, parts
from weft.interference.records import CoLocatedRun
from weft.interference.trees import QUANTILES, QuantileForests

SHARES = (0.0, 0.5, 1.0)
"""Weights that a second model may get in a prediction."""
_FOLDS, _BUNDLES = 6, 8
_FROM_QUANTILES = 2 * 1.2816


class VoteShares(NamedTuple):
    """The forests' weight for known families (`near`) and new ones (`far`), and the additive
    model's weight for new families: in the speed only, since that model predicts no deviation."""

    near: float = 0.0
    far: float = 0.0
    additive: float = 0.0


class HeldOutSamples(NamedTuple):
    """Samples, and the groups by which they are left out: applications (`sizes`) and families."""

    applications: Applications
    samples: PairSamples
    sizes: list[SampleGroup]
    families: list[SampleGroup]

    def speeds(self, group: SampleGroup) -> Floats:
        """Return the measured speeds of the group's samples."""
        return self.samples.speed[group.samples]


class LeftOutPredictions(NamedTuple):
    """One model's predictions for each pair, application and family, made by fits without those
    samples."""

    pairs: LeftOutScores
    sizes: list[LeftOutScores]
    families: list[LeftOutScores]


def held_of(applications: Applications, samples: PairSamples) -> HeldOutSamples:
    """Group these samples by application and by family."""
    sizes = groups_of(samples, np.arange(len(applications.names)))
    families = groups_of(samples, labels_of(applications, samples))
    return HeldOutSamples(applications, samples, sizes, families)


def by_kernels(held: HeldOutSamples, chosen: Committees) -> LeftOutPredictions:
    """Predict by the committees; each family by the committee that was elected without it."""
    space = ApplicationSpace(held.applications, kernel.scales_of(held.applications))
    pairs, sizes = [], []
    for settings in chosen.near:
        fitted = inverse_of(settings, parts(space, settings), held.samples)
        pairs.append(without_pairs(fitted, held.samples))
        sizes.append(left_out(fitted, [group.samples for group in held.sizes]))
    speaks = [chosen.without(group.name) for group in held.families]
    families: list[list[LeftOutScores]] = [[] for _ in held.families]
    for settings in dict.fromkeys(candidate for committee in speaks for candidate in committee):
        fitted = inverse_of(settings, parts(space, settings), held.samples)
        asked = [number for number, committee in enumerate(speaks) if settings in committee]
        scores = left_out(fitted, [held.families[number].samples for number in asked])
        for number, score in zip(asked, scores, strict=True):
            families[number].append(score)
    by_size = [mean_of(votes) for votes in zip(*sizes, strict=True)]
    return LeftOutPredictions(mean_of(pairs), by_size, [mean_of(votes) for votes in families])


def by_additive(held: HeldOutSamples) -> list[Floats]:
    """Predict each family's speeds by an additive model fitted without that family."""
    speeds = []
    for group in held.families:
        inside = np.ones(len(held.samples), dtype=np.bool_)
        inside[group.samples] = False
        rest = held.samples.take(inside)
        if not len(rest):
            speeds.append(np.full(len(group.samples), float(held.samples.speed.mean())))
            continue
        fitted = additive.fit(rest, rest.speed, len(held.applications.names))
        speeds.append(fitted.predict(held.samples.take(group.samples)))
    return speeds


class Forests:
    """Predictions of left-out samples by LightGBM, which must fit again for each part that is left
    out."""

    def __init__(self, held: HeldOutSamples) -> None:
        samples, applications = held.samples, held.applications
        self._held = held
        self._rows = pair_rows(
            applications.raw, applications.columns, samples.target, samples.other[:, None]
        )
        self._slower = -np.log(samples.speed)

    def _without(self, out: Bools) -> LeftOutScores:
        if out.all():  # nothing is left to fit: predict the quantiles of all samples
            usual = np.quantile(self._slower, QUANTILES)
            return spoken(np.repeat(usual[:, None], len(out), axis=1))
        fitted = QuantileForests.fitted(self._rows[~out], self._slower[~out])
        return spoken(fitted.predict(self._rows[out]))

    def pairs(self) -> LeftOutScores:
        """Predict each pair by forests that were fitted without it."""
        samples = self._held.samples
        speed, deviation = np.empty(len(samples)), np.empty(len(samples))
        fold = np.unique(samples.pair, return_inverse=True)[1] % _FOLDS
        for out in np.unique(fold):
            speed[fold == out], deviation[fold == out] = self._without(fold == out)
        return LeftOutScores(speed, deviation)

    def groups(self, groups: Sequence[SampleGroup]) -> list[LeftOutScores]:
        """Predict each group by forests fitted without that group. Several groups are left out at a
        time, as a fit for each group would take too long."""
        count = len(self._held.samples)
        by_group: dict[int, LeftOutScores] = {}
        for bundle in (groups[at::_BUNDLES] for at in range(min(_BUNDLES, len(groups)))):
            out = np.zeros(count, dtype=np.bool_)
            for group in bundle:
                out[group.samples] = True
            if out.all():
                out[np.setdiff1d(np.arange(count), bundle[0].samples)] = False
            answer, at = self._without(out), np.cumsum(out) - 1
            for group in bundle:
                rows = at[group.samples]
                by_group[group.name] = LeftOutScores(answer.speed[rows], answer.deviation[rows])
        return [by_group[group.name] for group in groups]


def spoken(quantiles: Floats) -> LeftOutScores:
    """Convert quantiles of log slowdown, [3, n], to speed and its standard deviation."""
    speed = np.exp(-quantiles[1])
    return LeftOutScores(speed, speed * (quantiles[2] - quantiles[0]) / _FROM_QUANTILES + 1e-3)


def blend(first: LeftOutScores, other: LeftOutScores, share: float) -> LeftOutScores:
    """Average speed and deviation, with weight `share` for `other`."""
    return LeftOutScores(*((1 - share) * a + share * b for a, b in zip(first, other, strict=True)))


def number_of(first: LeftOutScores, other: LeftOutScores, share: float) -> LeftOutScores:
    """Average the speed with weight `share` for `other`, but keep the deviation of `first`: that
    of forests (`other`) does not grow for applications unlike all those of the training set."""
    return LeftOutScores((1 - share) * first.speed + share * other.speed, first.deviation)


def calibrated(
    held: HeldOutSamples, kernels: LeftOutPredictions, forests: Forests | None
) -> tuple[VoteShares, Calibration]:
    """Choose the models' weights, and calibrate the bounds of the weighted prediction."""
    near, pairs, sizes = 0.0, kernels.pairs, kernels.sizes
    trees = kernels.families
    if forests is not None:
        voted, speed = forests.pairs(), held.samples.speed
        near = min(SHARES, key=lambda s: float(np.abs(blend(pairs, voted, s).speed - speed).mean()))
        if near > 0.0:
            pairs = blend(pairs, voted, near)
            by_trees = forests.groups(held.sizes)
            sizes = [blend(k, t, near) for k, t in zip(sizes, by_trees, strict=True)]
        trees = forests.groups(held.families)
    added = by_additive(held)
    errors = _errors(held, (kernels.families, trees), added)
    every = np.arange(len(held.families))
    families = []
    for number in every.tolist():
        far, _ = _shares(errors, every[every != number])
        families.append(number_of(kernels.families[number], trees[number], far))
    factors = _factors(held, LeftOutPredictions(pairs, sizes, families))
    return VoteShares(near, *_shares(errors, every)), factors


def with_companies(
    pairs: Calibration, runs: Sequence[CoLocatedRun], rows: Floats, slower: Floats
) -> Calibration:
    """Calibrate bounds with several neighbours too, by forests fitted without a sixth of the larger
    sets.

    Returns `pairs` unchanged if no set of three or more was measured.
    """
    companies = [tuple(sorted((run.target, *run.others))) for run in runs]
    larger = np.array([len(members) > 2 for members in companies])
    if not larger.any():
        return pairs
    number = {members: at for at, members in enumerate(sorted(set(companies)))}
    co_residents = np.array([number[members] for members in companies])
    fold = np.unique(co_residents, return_inverse=True)[1] % _FOLDS
    scores, targets = [], []
    for at in range(_FOLDS):
        out = larger & (fold == at)
        if out.any() and not out.all():
            predicted = spoken(QuantileForests.fitted(rows[~out], slower[~out]).predict(rows[out]))
            scores.append(scores_of(np.exp(-slower[out]), predicted.speed, predicted.deviation))
            targets += [runs[row].target for row in np.flatnonzero(out).tolist()]
    names = {name: at for at, name in enumerate(sorted(set(targets)))}
    groups = by_group(np.concatenate(scores), np.array([names[name] for name in targets]))
    return msgspec.structs.replace(
        pairs, several=factor_of(groups), companies=len(np.unique(co_residents[larger]))
    )


class _Errors(NamedTuple):
    """Mean error over each family's targets, [forests' weight, additive weight, family], and the
    number of those targets."""

    mean: Floats
    samples: Floats


def _errors(
    held: HeldOutSamples,
    voices: tuple[list[LeftOutScores], list[LeftOutScores]],
    added: list[Floats],
) -> _Errors:
    kernels, trees = voices
    shares = SHARES if trees is not kernels else SHARES[:1]
    errors = np.zeros((len(shares), len(SHARES), len(held.families)))
    for at, group in enumerate(held.families):
        speed = held.speeds(group)
        for row, far in enumerate(shares):
            predicted = blend(kernels[at], trees[at], far).speed
            for column, part in enumerate(SHARES):
                wrong = np.abs((1 - part) * predicted + part * added[at] - speed)[group.targets]
                errors[row, column, at] = wrong.mean() if len(wrong) else 0.0
    return _Errors(errors, np.array([float(group.targets.sum()) for group in held.families]))


def _shares(errors: _Errors, rows: Ints) -> tuple[float, float]:
    """Return the forests' and the additive model's weights.

    The forests' weight has the least error over these families. The additive model gets a weight
    only if it is better by more than a standard error over families: with few families, the best of
    several weights may be best by chance."""
    mean, samples = errors.mean[:, :, rows], errors.samples[rows]
    if samples.sum() == 0:
        return 0.0, 0.0
    weight = samples / samples.sum()
    far = int(np.argmin(mean[:, 0] @ weight))
    best, ahead = 0, 0.0
    for column in range(1, len(SHARES)):
        gain = mean[far, 0] - mean[far, column]
        middle = float(gain @ weight)
        spread = np.sqrt((weight**2 @ (gain - middle) ** 2) * len(gain) / max(1, len(gain) - 1))
        if middle > max(float(spread), ahead):
            best, ahead = column, middle
    return SHARES[far], SHARES[best]


def _factors(held: HeldOutSamples, predicted: LeftOutPredictions) -> Calibration:
    family = held.applications.family
    sized, families = [], list(zip(held.families, predicted.families, strict=True))
    for group, scores in zip(held.sizes, predicted.sizes, strict=True):
        if (family == family[group.name]).sum() > 1:
            sized.append(scores_of(held.speeds(group), *scores))
    wider = few_groups(len(families))
    by_role = [  # the family's applications as targets, and as those beside them
        [scores_of(held.speeds(g), *scores)[g.targets == role] for g, scores in families]
        for role in (True, False)
    ]
    pair = factor_of(by_group(scores_of(held.samples.speed, *predicted.pairs), held.samples.target))
    size = few_groups(len(sized)) * factor_of(sized)
    target, other = (wider * factor_of(scores) for scores in by_role)
    return Calibration(pair, size, target, other, len(families), len(sized))
