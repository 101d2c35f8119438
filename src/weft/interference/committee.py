"""Chooses Gaussian-process kernels: many are drawn at random and judged by their errors on left-out
samples; the predictions of the best few are averaged.

There are two committees (sets of such kernels), for two questions. `near`: both applications are
known and only their pair is new; kernels are judged by leaving pairs out. `far`: one application is
of a family that was not measured; kernels are judged by leaving families out. A kernel that is good
at one question is often poor at the other."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from weft.interference import features, kernel
from weft.interference.features import RATE, Applications, Bools, Floats, Ints, PairSamples
from weft.interference.kernel import ApplicationSpace, KernelSettings, KernelSide, LeftOutScores

MEMBERS, FAR_MEMBERS = 5, 10
"""Kernels in the `near` and in the `far` committee. There are few families to judge `far` kernels
by, so more kernels vote there, and only randomly drawn ones."""
DRAWN, BRED = 60, 40
MOST_JUDGED = 500
"""Maximum number of samples that kernels are judged on: the time grows with the cube of this
number."""

Ticks = Callable[[int, int], None]


def no_ticks(_done: int, _of: int) -> None:
    """Ignore progress: the default when no caller asks for it."""


class Effort(NamedTuple):
    """Effort of a training: the number of kernels drawn at random, the number bred from the
    best, and a progress callback."""

    drawn: int = DRAWN
    bred: int = BRED
    ticks: Ticks = no_ticks


class SampleGroup(NamedTuple):
    """Samples that involve one family (or application), and a mask of those in which it is the
    target."""

    name: int
    samples: Ints
    targets: Bools


class JudgedKernel(NamedTuple):
    """A kernel and its errors: with pairs left out (`near`), and for each family with that family
    left out (`far`)."""

    settings: KernelSettings
    near: float
    far: Floats


class Committees(NamedTuple):
    """Kernels that predict known applications (`near`) and new ones (`far`).

    `apart`: by family number, the `far` committee as elected without that family's errors."""

    near: tuple[KernelSettings, ...]
    far: tuple[KernelSettings, ...]
    apart: Mapping[int, tuple[KernelSettings, ...]] = MappingProxyType({})

    def without(self, family: int) -> tuple[KernelSettings, ...]:
        """Return the `far` committee elected without this family's errors, to be judged on this
        family; for a family that took no part in the election, `far` itself."""
        return self.apart.get(family, self.far)


def groups_of(samples: PairSamples, label: Ints) -> list[SampleGroup]:
    """Group samples by the labels (such as families) of their applications; a sample is in the
    group of its target and in that of its neighbour."""
    groups = []
    for name in np.unique(label[np.r_[samples.target, samples.other]]):
        targets = label[samples.target] == name
        inside = np.flatnonzero(targets | (label[samples.other] == name))
        groups.append(SampleGroup(int(name), inside, targets[inside]))
    return groups


def labels_of(applications: Applications, samples: PairSamples) -> Ints:
    """Return each application's family number; the application's own number instead if the samples
    span fewer than three families."""
    used = np.unique(np.r_[samples.target, samples.other])
    if len(np.unique(applications.family[used])) >= 3:
        return applications.family
    return np.arange(len(applications.names))


def without_pairs(fitted: kernel.Inverse, samples: PairSamples) -> LeftOutScores:
    """Predict each sample as if its pair had been left out of the fit, in the samples' order."""
    order = np.argsort(samples.pair, kind="stable")
    _, begins, sizes = np.unique(samples.pair[order], return_index=True, return_counts=True)
    speed, deviation = np.empty(len(samples)), np.empty(len(samples))
    for size in np.unique(sizes):
        at = order[begins[sizes == size][:, None] + np.arange(size)]
        speed[at.ravel()], deviation[at.ravel()] = kernel.small_left_out(fitted, at)
    return LeftOutScores(speed, deviation)


USUAL = Effort()


def elect(applications: Applications, samples: PairSamples, effort: Effort = USUAL) -> Committees:
    """Elect both committees for a training set. The same training set elects the same kernels."""
    space = ApplicationSpace(applications, kernel.scales_of(applications))
    rng = np.random.default_rng(20)
    if len(samples) > MOST_JUDGED:
        pairs = rng.permutation(np.unique(samples.pair))
        judged_pairs = pairs[: max(2, round(len(pairs) * MOST_JUDGED / len(samples)))]
        samples = samples.take(np.isin(samples.pair, judged_pairs))
    groups = groups_of(samples, labels_of(applications, samples))
    choices = _column_choices(applications.columns)
    judged: list[JudgedKernel] = []
    drawn: list[JudgedKernel] = []
    for number in range(effort.drawn + effort.bred):
        if number < effort.drawn or not judged:
            fresh = _judge(space, _draw(rng, choices[number % len(choices)]), samples, groups)
            drawn += [fresh] if fresh is not None else []
        else:
            best = sorted(judged, key=lambda kernel: kernel.near)[:MEMBERS]
            parent = best[int(rng.integers(len(best)))].settings
            fresh = _judge(space, _breed(rng, parent), samples, [])
        judged += [fresh] if fresh is not None else []
        effort.ticks(number + 1, effort.drawn + effort.bred)
    near = sorted(judged, key=lambda kernel: kernel.near)[:MEMBERS]
    errors = np.array([judgement.far for judgement in drawn]).reshape(len(drawn), len(groups))

    def least(sums: Floats) -> tuple[KernelSettings, ...]:
        chosen = np.argsort(sums, kind="stable")[:FAR_MEMBERS]
        return tuple(drawn[at].settings for at in chosen.tolist())

    apart = {
        group.name: least(np.delete(errors, at, axis=1).sum(axis=1))
        for at, group in enumerate(groups)
    }
    return Committees(tuple(j.settings for j in near), least(errors.sum(axis=1)), apart)


def _judge(
    space: ApplicationSpace,
    settings: KernelSettings,
    samples: PairSamples,
    groups: Sequence[SampleGroup],
) -> JudgedKernel | None:
    try:
        fitted = kernel.inverse_of(settings, kernel.parts(space, settings), samples)
        pairs = np.abs(without_pairs(fitted, samples).speed - samples.speed)
        left = kernel.speeds_left_out(fitted, [group.samples for group in groups])
    except np.linalg.LinAlgError:
        return None
    near = pairs.mean() / samples.speed.mean() + (pairs / np.maximum(samples.speed, 0.02)).mean()
    wrong = [
        np.abs(speed - samples.speed[group.samples])[group.targets].sum()
        for speed, group in zip(left, groups, strict=True)
    ]
    far = np.array(wrong)
    return JudgedKernel(settings, float(near), far) if np.isfinite(near + far.sum()) else None


def _column_choices(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets of feature columns worth trying; one empty set if no column is known."""
    looked = features.profile_columns(columns)
    choices = [
        tuple(name for name in wanted if name in columns)
        for wanted in ((RATE,), (RATE, features.SAMPLES), looked, (RATE, *looked))
    ]
    return sorted({choice for choice in choices if choice}) or [()]


def _draw(rng: np.random.Generator, columns: tuple[str, ...]) -> KernelSettings:
    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def side() -> KernelSide:
        lengths = tuple(between(0.5, 8.0) for _ in columns)
        line, same = float(rng.choice([0.0, 0.1, 0.3])), between(0.005, 0.3)
        family, near_batch = (float(rng.choice([0.0, 0.1, most])) for most in (0.3, 0.4))
        return KernelSide(lengths, 1.0, line, same, family, near_batch, between(1.0, 4.0))

    link: kernel.Link = "log" if rng.random() < 0.4 else "speed"
    relative, product = between(0.1, 1.0), between(0.03, 1.0)
    return KernelSettings(
        columns, side(), side(), link, 1.0, relative, product, noise=between(0.002, 0.3)
    )


def _breed(rng: np.random.Generator, parent: KernelSettings) -> KernelSettings:
    """Return a copy of the parent with each number changed slightly at random."""

    def moved(value: float) -> float:
        return value * float(np.exp(rng.normal(0, 0.35)))

    def side(old: KernelSide) -> KernelSide:
        numbers = (old.numbers, old.line, old.same, old.family, old.near_batch, old.batch_length)
        return KernelSide(tuple(moved(length) for length in old.lengths), *map(moved, numbers))

    target, other = side(parent.target), side(parent.other)
    weights = map(moved, (parent.suffers, parent.inflicts, parent.fits, parent.noise))
    return KernelSettings(parent.columns, target, other, parent.link, *weights)


class Committee:
    """Kernels fitted to all samples; a prediction is the mean of the kernels' predictions."""

    def __init__(
        self, kernels: Sequence[KernelSettings], space: ApplicationSpace, samples: PairSamples
    ) -> None:
        self.members = tuple(
            kernel.GaussianProcess(member, kernel.parts(space, member), samples)
            for member in kernels
        )

    def predict(self, space: ApplicationSpace, asked: PairSamples) -> LeftOutScores:
        """Predict pairs, given by indexes into `space`. The first applications there must be those
        of the training set."""
        votes = (vote.predict(kernel.parts(space, vote.settings), asked) for vote in self.members)
        return mean_of(list(votes))


def mean_of(votes: Sequence[LeftOutScores]) -> LeftOutScores:
    """Average several predictions."""
    return LeftOutScores(*(np.mean(numbers, axis=0) for numbers in zip(*votes, strict=True)))
