"""A Gaussian process over ordered pairs of applications, with exact leave-group-out predictions.

A target's loss with a neighbour is the sum of a base, the target's sensitivity, what the neighbour
inflicts, and the interaction of the two. Each part is alike for similar applications: the same one,
one of the same family at a similar batch size, or one with similar features.

    k((v, a), (v', a')) = base + s·V(v, v') + i·A(a, a') + p·V(v, v')·A(a, a')

With K⁻¹ computed, the prediction for a group B of samples by a model without B is y_B − (K⁻¹_BB)⁻¹
(K⁻¹y)_B: cross-validation costs one inverse, however the groups are chosen."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from scipy.linalg import lapack

from weft.interference.features import Applications, Floats, Ints, PairSamples
from weft.interference.records import SLOWEST

_JITTER = 1e-8
_CHUNK = 2000
_GRID = 4_000_000

Link = Literal["speed", "log"]


class KernelSide(msgspec.Struct, frozen=True):
    """How similar two applications are as targets, or as neighbours: weights and length scales."""

    lengths: tuple[float, ...]
    numbers: float = 1.0
    line: float = 0.0
    same: float = 0.1
    family: float = 0.0
    near_batch: float = 0.0
    batch_length: float = 2.0


class KernelSettings(msgspec.Struct, frozen=True):
    """Settings of a kernel: its columns, both sides, the weights of its parts, and the noise."""

    columns: tuple[str, ...]
    target: KernelSide
    other: KernelSide
    link: Link = "speed"
    suffers: float = 1.0
    inflicts: float = 0.4
    fits: float = 0.3
    noise: float = 0.03


class Scales(msgspec.Struct, frozen=True):
    """Mean and standard deviation of each column over the training set's applications."""

    columns: tuple[str, ...]
    centre: tuple[float, ...]
    spread: tuple[float, ...]


def scales_of(applications: Applications) -> Scales:
    """Return mean and standard deviation of each column over these applications, each counted
    once."""
    raw = applications.raw
    if raw.shape[1] == 0 or raw.shape[0] == 0:
        return Scales(applications.columns, (), ())
    centre, spread = np.nanmean(raw, axis=0), np.nanstd(raw, axis=0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    return Scales(applications.columns, tuple(centre.tolist()), tuple(spread.tolist()))


class ApplicationSpace:
    """Applications as kernels compare them: standardised features; an unknown feature is at the
    average."""

    def __init__(self, applications: Applications, scales: Scales) -> None:
        raw = applications.raw
        if raw.shape[1]:
            raw = (raw - np.array(scales.centre)) / np.array(scales.spread)
        self.numbers: Floats = np.clip(np.nan_to_num(raw, nan=0.0), -4.0, 4.0)
        self.columns = {name: at for at, name in enumerate(applications.columns)}
        self.count = len(applications.names)
        self.same_family = (applications.family[:, None] == applications.family).astype(float)
        batch = np.log2(np.where(applications.batch > 0, applications.batch, 1.0))
        self.batch_gap = (batch[:, None] - batch) ** 2

    def alike(self, side: KernelSide, columns: Sequence[str]) -> Floats:
        """Return the similarity of all pairs of applications for one side, [K, K]."""
        at = [self.columns[name] for name in columns]
        numbers = self.numbers[:, at]
        scaled = numbers / np.array(side.lengths)
        gap = ((scaled[:, None, :] - scaled[None, :, :]) ** 2).sum(axis=2)
        likeness = side.numbers * np.exp(-0.5 * gap) + side.same * np.eye(self.count)
        if side.line and at:
            likeness += side.line / len(at) * (numbers @ numbers.T)
        if side.family:
            likeness += side.family * self.same_family
        if side.near_batch:
            near = np.exp(-0.5 * self.batch_gap / side.batch_length**2)
            likeness += side.near_batch * self.same_family * near
        return np.asarray(likeness)


class KernelParts(NamedTuple):
    """Similarity of all pairs of applications, as targets and as neighbours, [K, K] each."""

    target: Floats
    other: Floats


def parts(space: ApplicationSpace, settings: KernelSettings) -> KernelParts:
    """Return both similarity matrices of one kernel."""
    sides = (settings.target, settings.other)
    return KernelParts(*(space.alike(side, settings.columns) for side in sides))


BASE = 0.5


def between(
    settings: KernelSettings, likeness: KernelParts, left: PairSamples, right: PairSamples
) -> Floats:
    """Return the kernel between two lists of samples, [len(left), len(right)]."""
    v = likeness.target[:, right.target].take(left.target, axis=0)
    kernel: Floats = likeness.other[:, right.other].take(left.other, axis=0)
    # BASE + s·v + (i + p·v)·a, in place: the arrays are large, and memory is what this costs.
    kernel *= settings.inflicts + settings.fits * v
    v *= settings.suffers
    v += BASE
    kernel += v
    return kernel


def itself(settings: KernelSettings, likeness: KernelParts, of: PairSamples) -> Floats:
    """Return the kernel of each sample with itself (the kernel matrix' diagonal), [n]."""
    v, a = likeness.target[of.target, of.target], likeness.other[of.other, of.other]
    return np.asarray(BASE + settings.suffers * v + settings.inflicts * a + settings.fits * v * a)


class LinkedTarget(NamedTuple):
    """Transforms speeds for the Gaussian process: link function, then centre and spread."""

    link: Link
    centre: float
    spread: float
    fastest: float

    def seen(self, speed: Floats) -> Floats:
        """Transform speeds to the process' scale."""
        linked = np.log(np.maximum(speed, SLOWEST)) if self.link == "log" else speed
        return np.asarray((linked - self.centre) / self.spread)

    def speed(self, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
        """Transform means and deviations of the Gaussian process back to speeds and their
        standard deviations."""
        linked, width = mean * self.spread + self.centre, deviation * self.spread
        if self.link == "log":
            linked = np.exp(np.minimum(linked, np.log(self.fastest)))
            width = width * linked
        return np.clip(linked, SLOWEST, self.fastest), width


def target_of(link: Link, speed: Floats) -> LinkedTarget:
    """Return the transformation for the speeds of a training set."""
    linked = np.log(np.maximum(speed, SLOWEST)) if link == "log" else speed
    spread = float(linked.std()) or 1.0
    return LinkedTarget(link, float(linked.mean()), spread, max(1.0, float(speed.max())))


class LeftOutScores(NamedTuple):
    """Predictions for samples that were left out of training: speed and its standard deviation, [n]
    each."""

    speed: Floats
    deviation: Floats


class Inverse(NamedTuple):
    """K⁻¹ over the training samples, K⁻¹y, the transformed speeds y, and their transformation."""

    inverse: Floats
    weights: Floats
    seen: Floats
    target: LinkedTarget


def inverse_of(settings: KernelSettings, likeness: KernelParts, samples: PairSamples) -> Inverse:
    """Fit a kernel by Cholesky. Raises `LinAlgError` if the kernel matrix is not positive
    definite."""
    target = target_of(settings.link, samples.speed)
    kernel = between(settings, likeness, samples, samples)
    kernel[np.diag_indices_from(kernel)] += settings.noise + _JITTER
    inverse = _inverted(kernel)
    seen = target.seen(samples.speed)
    return Inverse(inverse, inverse @ seen, seen, target)


def _inverted(matrix: Floats) -> Floats:
    """Invert a positive definite matrix, at half the cost of a general inverse; `LinAlgError` if
    it is not positive definite."""
    if not len(matrix):
        return matrix.copy()
    half, failed = lapack.dpotrf(matrix, lower=1, clean=1)
    if not failed:
        half, failed = lapack.dpotri(half, lower=1, overwrite_c=1)
    if failed:
        raise np.linalg.LinAlgError("not positive")
    inverse: Floats = half + half.T
    inverse[np.diag_indices_from(inverse)] *= 0.5
    return inverse


def speeds_left_out(fitted: Inverse, groups: Sequence[Ints]) -> list[Floats]:
    """Return the speeds that `left_out` predicts, without deviations, at a third of its cost."""
    speeds = []
    for group in groups:
        _, moved, failed = lapack.dposv(
            fitted.inverse[np.ix_(group, group)], fitted.weights[group], lower=1
        )
        if failed:
            raise np.linalg.LinAlgError("not positive")
        mean = fitted.seen[group] - moved
        speeds.append(fitted.target.speed(mean, np.zeros(len(mean)))[0])
    return speeds


def left_out(fitted: Inverse, groups: Sequence[Ints]) -> list[LeftOutScores]:
    """Predict each group with its samples left out. Groups may overlap."""
    scores = []
    for group in groups:
        block = _inverted(fitted.inverse[np.ix_(group, group)])
        mean = fitted.seen[group] - block @ fitted.weights[group]
        width = np.sqrt(np.maximum(np.diag(block), 0))
        scores.append(LeftOutScores(*fitted.target.speed(mean, width)))
    return scores


def small_left_out(fitted: Inverse, groups: Floats) -> LeftOutScores:
    """Predict many groups of one size, [g, size] indices, each with its samples left out, all at
    once."""
    at = groups.astype(np.int64)
    block = np.linalg.inv(fitted.inverse[at[:, :, None], at[:, None, :]])
    mean = fitted.seen[at] - np.einsum("gij,gj->gi", block, fitted.weights[at])
    width = np.sqrt(np.maximum(np.einsum("gii->gi", block), 0.0))
    return LeftOutScores(*fitted.target.speed(mean.ravel(), width.ravel()))


class GaussianProcess:
    """A fitted kernel. At most `most` of the samples form its basis; the remaining samples are
    projected onto the basis."""

    def __init__(
        self,
        settings: KernelSettings,
        likeness: KernelParts,
        samples: PairSamples,
        most: int = 1200,
    ) -> None:
        self.settings = settings
        self.target = target_of(settings.link, samples.speed)
        seen = self.target.seen(samples.speed)
        step = max(1, -(-len(samples) // most))
        self.basis = samples if step == 1 else samples.take(np.arange(0, len(samples), step))
        own = between(settings, likeness, self.basis, self.basis)
        noise = settings.noise + _JITTER
        if step == 1:
            self._inverse = _inverted(own + noise * np.eye(len(own)))
            self.weights: Floats = self._inverse @ seen
            return
        own += 1e-6 * np.eye(len(own))
        gathered, projected = noise * own, np.zeros(len(own))
        for begin in range(0, len(samples), _CHUNK):
            part = samples.take(np.arange(begin, min(begin + _CHUNK, len(samples))))
            across = between(settings, likeness, self.basis, part)
            gathered += across @ across.T
            projected += across @ seen[begin : begin + _CHUNK]
        middle = np.linalg.inv(gathered)
        self.weights = middle @ projected
        self._inverse = np.linalg.inv(own) - noise * middle

    def predict(self, likeness: KernelParts, asked: PairSamples) -> LeftOutScores:
        """Return speed and standard deviation (of one measurement) for each pair of `asked`."""
        targets, row = np.unique(asked.target, return_inverse=True)
        others, column = np.unique(asked.other, return_inverse=True)
        size, kinds = len(self.basis), len(np.unique(self.basis.other))
        if len(targets) * (size**2 + len(others) * kinds**2) < 0.5 * len(asked) * size**2:
            mean, known = self._every(likeness, targets, others)
            mean, known = mean[row, column], known[row, column]
        else:
            mean, known = self._each(likeness, asked)
        left = np.maximum(itself(self.settings, likeness, asked) - known, 0.0)
        return LeftOutScores(*self.target.speed(mean, np.sqrt(left + self.settings.noise)))

    def _each(self, likeness: KernelParts, asked: PairSamples) -> tuple[Floats, Floats]:
        """Return the mean, and how much of the variance is explained, computed pair by pair."""
        mean, known = np.empty(len(asked)), np.empty(len(asked))
        for begin in range(0, len(asked), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            some = PairSamples(asked.target[part], asked.other[part], asked.speed[part])
            across = between(self.settings, likeness, some, self.basis)
            mean[part] = across @ self.weights
            known[part] = np.einsum("ij,ij->i", across @ self._inverse, across)
        return mean, known

    def _every(self, likeness: KernelParts, targets: Ints, others: Ints) -> tuple[Floats, Floats]:
        """Return the mean and how much of the variance is explained for all targets × neighbours,
        [V, A].

        The covariance of a pair with a basis sample is u + w·A, where u and w depend on the target
        alone. So sums over the basis are computed once per target and basis neighbour, not once per
        pair."""
        order = np.argsort(self.basis.other, kind="stable")
        kinds, begins = np.unique(self.basis.other[order], return_index=True)
        weights, inverse = self.weights[order], self._inverse[np.ix_(order, order)]
        beside = likeness.other[np.ix_(others, kinds)]
        mean, known = np.empty((2, len(targets), len(others)))
        most = max(1, _GRID // len(kinds) ** 2)
        for begin in range(0, len(targets), most):
            rows = slice(begin, begin + most)
            own = likeness.target[np.ix_(targets[rows], self.basis.target[order])]
            u = BASE + self.settings.suffers * own
            w = self.settings.inflicts + self.settings.fits * own
            pulled = u @ inverse
            mean[rows] = (u @ weights)[:, None] + np.add.reduceat(w * weights, begins, 1) @ beside.T
            known[rows] = np.einsum("vm,vm->v", pulled, u)[:, None]
            known[rows] += 2 * np.add.reduceat(pulled * w, begins, 1) @ beside.T
            both = np.empty((len(own), len(kinds), len(kinds)))
            for kind, (low, high) in enumerate(zip(begins, [*begins[1:], len(order)], strict=True)):
                both[:, kind] = np.add.reduceat((w[:, low:high] @ inverse[low:high]) * w, begins, 1)
            for at, sums in enumerate(both, start=begin):
                known[at] += np.einsum("ag,ag->a", beside @ sums, beside)
        return mean, known
