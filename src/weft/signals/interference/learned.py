"""The second rung: what is learnt from measured pairs of one GPU model, with calibrated bounds.

Committees of kernels speak for every set; where applications have profiles and LightGBM is
installed, its quantiles have a say too, as much as leaving pairs and families out shows to be best.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.signals.interference import trees as forests
from weft.signals.interference.calibration import (
    Calibration,
    by_group,
    factor_of,
    few_groups,
    scores_of,
)
from weft.signals.interference.committee import (
    USUAL,
    Bools,
    Committee,
    Committees,
    Effort,
    Group,
    elect,
    groups_of,
    labels_of,
    mean_of,
    without_pairs,
)  # fmt: skip
from weft.signals.interference.features import (
    Applications,
    Floats,
    Ints,
    Samples,
    pair_rows,
    profile_columns,
)  # fmt: skip
from weft.signals.interference.kernel import (
    LeftOut,
    Scales,
    Settings,
    Space,
    inverse_of,
    left_out,
    parts,
    scales_of,
)  # fmt: skip
from weft.signals.interference.records import SLOWEST, Run, Solo
from weft.signals.interference.trees import Trees

MOST_CALIBRATED = 700
"""Samples that bounds are calibrated on."""
LEAST_SAMPLES, LEAST_APPLICATIONS = 24, 4
"""Fewer say nothing that the additive rung would not."""
SHARES = (0.0, 0.5, 1.0)
"""What the trees' part of a prediction may be."""
_FOLDS, _BUNDLES = 6, 8
_FROM_QUANTILES = 2 * 1.2816


class Learned(msgspec.Struct, frozen=True):
    """All that a fitted rung is, as plain data; the samples are kept by whoever fitted it."""

    scales: Scales
    near: tuple[Settings, ...]
    far: tuple[Settings, ...]
    calibration: Calibration
    trees: tuple[str, ...] = ()
    near_share: float = 0.0
    far_share: float = 0.0
    many: bool = False
    """Whether the trees saw runs with several others, and may be asked about such."""


class LeftOutAll(NamedTuple):
    """What each kind of leaving out says, beside the samples it is about."""

    pairs: LeftOut
    sizes: list[LeftOut]
    size_groups: list[Group]
    families: list[LeftOut]
    family_groups: list[Group]


def learn(solos: Sequence[Solo], runs: Sequence[Run], effort: Effort = USUAL) -> Learned | None:
    """None where too little was measured."""
    applications = Applications(solos)
    samples = applications.samples(runs)
    used = np.unique(np.r_[samples.victim, samples.other])
    if len(samples) < LEAST_SAMPLES or len(used) < LEAST_APPLICATIONS:
        return None
    chosen = elect(applications, samples, effort)
    judged = _some(samples)
    kernels = _by_kernels(applications, judged, chosen)
    scales = scales_of(applications)
    if not (forests.available() and len(profile_columns(applications.columns)) >= 2):
        found = _calibrated(kernels, judged, applications)
        return Learned(scales, chosen.near, chosen.far, found)
    return _with_trees(applications, runs, chosen, (judged, kernels))


def _with_trees(
    applications: Applications, runs: Sequence[Run], chosen: Committees,
    judged: tuple[Samples, LeftOutAll],
) -> Learned:  # fmt: skip
    samples, kernels = judged
    trees = _by_trees(applications, samples, kernels)
    near = _best_share(kernels.pairs, trees.pairs, samples.speed)
    speeds = [samples.speed[group.samples] for group in kernels.family_groups]
    far = _best_share(_joined(kernels.families), _joined(trees.families), np.concatenate(speeds))
    blended = LeftOutAll(
        _blend(kernels.pairs, trees.pairs, near),
        [_blend(k, t, near) for k, t in zip(kernels.sizes, trees.sizes, strict=True)],
        kernels.size_groups,
        [_blend(k, t, far) for k, t in zip(kernels.families, trees.families, strict=True)],
        kernels.family_groups,
    )
    index = applications.index
    pairs = [(index[run.victim], [index[name] for name in run.others]) for run in runs]
    slower = -np.log(np.array([run.speed for run in runs]))
    fitted = Trees.fitted(pair_rows(applications.raw, applications.columns, pairs), slower)
    return Learned(
        scales_of(applications), chosen.near, chosen.far,
        _calibrated(blended, samples, applications), fitted.texts, near, far,
        any(len(run.others) > 1 for run in runs),
    )  # fmt: skip


def _some(samples: Samples) -> Samples:
    """Whole pairs, few enough that leaving them out stays quick."""
    if len(samples) <= MOST_CALIBRATED:
        return samples
    pairs = np.random.default_rng(21).permutation(np.unique(samples.pair))
    return samples.take(np.isin(samples.pair, pairs[: MOST_CALIBRATED // 2]))


def _by_kernels(applications: Applications, samples: Samples, chosen: Committees) -> LeftOutAll:
    space = Space(applications, scales_of(applications))
    own = np.arange(len(applications.names))
    size_groups = groups_of(samples, own)
    family_groups = groups_of(samples, labels_of(applications, samples))
    pairs, sizes, families = [], [], []
    for settings in chosen.near:
        fitted = inverse_of(settings, parts(space, settings), samples)
        pairs.append(without_pairs(fitted, samples))
        sizes.append(left_out(fitted, [group.samples for group in size_groups]))
    for settings in chosen.far:
        fitted = inverse_of(settings, parts(space, settings), samples)
        families.append(left_out(fitted, [group.samples for group in family_groups]))
    return LeftOutAll(
        mean_of(pairs),
        [mean_of(said) for said in zip(*sizes, strict=True)], size_groups,
        [mean_of(said) for said in zip(*families, strict=True)], family_groups,
    )  # fmt: skip


def _by_trees(applications: Applications, samples: Samples, like: LeftOutAll) -> LeftOutAll:
    rows = pair_rows(
        applications.raw, applications.columns,
        [(v, [a]) for v, a in zip(samples.victim.tolist(), samples.other.tolist(), strict=True)],
    )  # fmt: skip
    slower = -np.log(samples.speed)

    def without(out: Bools) -> LeftOut:
        return _said(Trees.fitted(rows[~out], slower[~out]).predict(rows[out]))

    def groups(found: Sequence[Group]) -> list[LeftOut]:
        """Bundles of groups are left out together: a forest costs too much for each alone."""
        said: dict[int, LeftOut] = {}
        for bundle in (found[at::_BUNDLES] for at in range(min(_BUNDLES, len(found)))):
            out = np.zeros(len(samples), dtype=np.bool_)
            for group in bundle:
                out[group.samples] = True
            if out.all():
                out[np.setdiff1d(np.arange(len(samples)), bundle[0].samples)] = False
            answer, at = without(out), np.cumsum(out) - 1
            for group in bundle:
                rows = at[group.samples]
                said[group.name] = LeftOut(answer.speed[rows], answer.deviation[rows])
        return [said[group.name] for group in found]

    speed, deviation = np.empty(len(samples)), np.empty(len(samples))
    fold = np.unique(samples.pair, return_inverse=True)[1] % _FOLDS
    for out in np.unique(fold):
        found = without(fold == out)
        speed[fold == out], deviation[fold == out] = found.speed, found.deviation
    return LeftOutAll(
        LeftOut(speed, deviation), groups(like.size_groups), like.size_groups,
        groups(like.family_groups), like.family_groups,
    )  # fmt: skip


def _said(quantiles: Floats) -> LeftOut:
    """Quantiles of log slowdown as speed and deviation."""
    speed = np.exp(-quantiles[1])
    return LeftOut(speed, speed * (quantiles[2] - quantiles[0]) / _FROM_QUANTILES + 1e-3)


def _joined(found: Sequence[LeftOut]) -> LeftOut:
    return LeftOut(
        np.concatenate([one.speed for one in found]),
        np.concatenate([one.deviation for one in found]),
    )


def _blend(kernels: LeftOut, trees: LeftOut, share: float) -> LeftOut:
    return LeftOut(
        (1 - share) * kernels.speed + share * trees.speed,
        (1 - share) * kernels.deviation + share * trees.deviation,
    )


def _best_share(kernels: LeftOut, trees: LeftOut, speed: Floats) -> float:
    errors = [np.abs(_blend(kernels, trees, share).speed - speed).mean() for share in SHARES]
    return SHARES[int(np.argmin(errors))]


def _calibrated(found: LeftOutAll, samples: Samples, applications: Applications) -> Calibration:
    family = applications.family

    def scores(groups: list[Group], said: list[LeftOut], victims: bool | None) -> list[Floats]:
        kept = []
        for group, one in zip(groups, said, strict=True):
            score = scores_of(samples.speed[group.samples], one.speed, one.deviation)
            chosen = np.ones(len(score), bool) if victims is None else group.victims == victims
            kept.append(score[chosen])
        return kept

    siblings = [
        at for at, group in enumerate(found.size_groups)
        if (family == family[group.name]).sum() > 1
    ]  # fmt: skip
    sized = [found.size_groups[at] for at in siblings]
    said = [found.sizes[at] for at in siblings]
    wider = few_groups(len(found.family_groups))
    pair_scores = scores_of(samples.speed, found.pairs.speed, found.pairs.deviation)
    return Calibration(
        factor_of(by_group(pair_scores, samples.victim)),
        few_groups(len(sized)) * factor_of(scores(sized, said, None)),
        wider * factor_of(scores(found.family_groups, found.families, True)),
        wider * factor_of(scores(found.family_groups, found.families, False)),
        len(found.family_groups), len(sized),
    )  # fmt: skip


class Guess(NamedTuple):
    """Predicted speed and its lower bound, [n], and whether that bound is calibrated, [n]."""

    speed: Floats
    lowest: Floats
    calibrated: Bools


class Speaker:
    """A fitted rung with its samples, ready to be asked about known applications and others."""

    def __init__(self, learned: Learned, solos: Sequence[Solo], runs: Sequence[Run]) -> None:
        self.learned = learned
        self.columns = learned.scales.columns
        self.known = Applications(solos, self.columns)
        self.samples = self.known.samples(runs)
        self._measured = set(np.unique(np.r_[self.samples.victim, self.samples.other]).tolist())
        self._families = {self.known.families[at] for at in self._measured}
        space = Space(self.known, learned.scales)
        self.near = Committee(learned.near, space, self.samples)
        self.far = Committee(learned.far, space, self.samples)
        self.trees = Trees(learned.trees) if learned.trees and forests.available() else None

    def asked(self, extra: Sequence[Solo]) -> Applications:
        """The training set's applications, and behind them others that are asked about."""
        return Applications((*self.known.solos, *extra), self.columns)

    def kind_of(self, applications: Applications) -> Ints:
        """0 measured, 1 new but of a known family, 2 new: for each application."""
        return np.array([
            0 if at in self._measured else 1 if family in self._families else 2
            for at, family in enumerate(applications.families)
        ], dtype=np.int64)  # fmt: skip

    def predict(self, applications: Applications, pairs: Samples) -> Guess:
        """Of pairs by index into `asked(…)`; their `speed` is not looked at."""
        space, kind = Space(applications, self.learned.scales), self.kind_of(applications)
        victim, other = kind[pairs.victim], kind[pairs.other]
        away = (victim == 2) | (other == 2)
        speed, width = np.empty(len(pairs)), np.empty(len(pairs))
        for committee, rows, share in (
            (self.near, ~away, self.learned.near_share), (self.far, away, self.learned.far_share),
        ):  # fmt: skip
            if rows.any():
                said = committee.predict(space, pairs.take(rows))
                said = self._with_trees(said, applications, pairs.take(rows), share)
                speed[rows], width[rows] = said
        told = self.learned.calibration
        factor = np.select(
            [victim == 2, away, (victim == 1) | (other == 1)],
            [told.victim, told.other, told.size], told.pair,
        )  # fmt: skip
        sure = np.select([away, (victim == 1) | (other == 1)],
                         [told.new_families, told.new_sizes], True)  # fmt: skip
        if self.trees is None and self.learned.trees:
            sure = np.zeros(len(pairs), dtype=np.bool_)  # bounds were calibrated with their say
        lowest = np.minimum(speed, np.maximum(speed - factor * width, SLOWEST))
        return Guess(speed, lowest, sure.astype(np.bool_))

    def together(
        self, applications: Applications, victim: int, others: Sequence[int]
    ) -> Guess | None:
        """Of one beside several at once; None where no runs of that kind were learnt from."""
        if self.trees is None or not self.learned.many:
            return None
        row = pair_rows(applications.raw, self.columns, [(victim, others)])
        said = _said(self.trees.predict(row))
        kind = self.kind_of(applications)[[victim, *others]].max()
        told = self.learned.calibration
        factor = (told.pair, told.size, max(told.victim, told.other))[int(kind)]
        lowest = np.maximum(said.speed - factor * said.deviation, SLOWEST)
        sure = (True, told.new_sizes, told.new_families)[int(kind)]
        return Guess(said.speed, lowest, np.array([sure]))

    def _with_trees(
        self, said: LeftOut, applications: Applications, pairs: Samples, share: float
    ) -> LeftOut:
        if self.trees is None or share == 0.0:
            return said
        asked = zip(pairs.victim.tolist(), pairs.other.tolist(), strict=True)
        rows = pair_rows(applications.raw, self.columns, [(v, [a]) for v, a in asked])
        return _blend(said, _said(self.trees.predict(rows)), share)
