"""Features of applications, for kernels and for trees.

Numbers are centred on the applications of the training set. An unknown number is NaN for trees and
the average for kernels."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from weft.interference.records import CoLocatedRun, SoloRun

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RATE, SAMPLES, BATCH = "log rate", "log samples per s", "log2 batch"
UTILISATION = (
    "sm_active_ratio",
    "dram_active_ratio",
    "graphics_active_ratio",
    "sm_occupancy_ratio",
    "tensor_active_ratio",
    "gpu_util_ratio",
    "memory_copy_ratio",
)
"""Ratios of a GPU unit's time that add up when two applications use the unit."""


class PairSamples(msgspec.Struct, frozen=True):
    """Ordered pairs with their speed, by application index, [n]."""

    target: Ints
    other: Ints
    speed: Floats

    def __len__(self) -> int:
        return len(self.target)

    @property
    def pair(self) -> Ints:
        """A number per sample that is the same for both orders of a pair, [n]."""
        low, high = np.minimum(self.target, self.other), np.maximum(self.target, self.other)
        return np.asarray(low * (int(high.max(initial=0)) + 1) + high)

    def take(self, chosen: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "PairSamples":
        """Return the chosen samples, by index or mask."""
        return PairSamples(self.target[chosen], self.other[chosen], self.speed[chosen])


class Applications:
    """Applications of one GPU model in a fixed order, with their features, [K, columns]."""

    def __init__(self, solos: Iterable[SoloRun], columns: Sequence[str] | None = None) -> None:
        self.solos = tuple(solos)
        self.names = tuple(solo.application for solo in self.solos)
        self.index = {name: at for at, name in enumerate(self.names)}
        self.families = tuple(solo.family for solo in self.solos)
        known = sorted(set(self.families))
        self.family: Ints = np.array([known.index(f) for f in self.families], dtype=np.int64)
        self.batch: Floats = np.array([solo.batch for solo in self.solos], dtype=np.float64)
        rows = [numbers_of(solo) for solo in self.solos]
        self.columns = tuple(columns if columns is not None else columns_of(rows))
        self.raw: Floats = np.array(
            [[row.get(name, np.nan) for name in self.columns] for row in rows], dtype=np.float64
        ).reshape(len(rows), len(self.columns))

    def samples(self, runs: Iterable[CoLocatedRun]) -> PairSamples:
        """Return runs with exactly one neighbour as index pairs; runs with several are left out."""
        pairs = [run for run in runs if len(run.others) == 1]
        target = np.array([self.index[run.target] for run in pairs], np.int64)
        other = np.array([self.index[run.others[0]] for run in pairs], np.int64)
        return PairSamples(target, other, np.array([run.speed for run in pairs], np.float64))


def numbers_of(run: SoloRun) -> dict[str, float]:
    """Return the known features of an application's solo run, by column name."""
    numbers = {name: value for name, value in run.features.items() if np.isfinite(value)}
    if run.rate_per_s > 0:
        numbers[RATE] = float(np.log(run.rate_per_s))
        if run.batch > 0:
            numbers[SAMPLES] = float(np.log(run.rate_per_s * run.batch))
    if run.batch > 0:
        numbers[BATCH] = float(np.log2(run.batch))
    return numbers


def columns_of(rows: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Return the columns that at least half of the applications have and whose values differ
    between applications."""
    names = sorted({name for row in rows for name in row})
    return tuple(
        name
        for name in names
        if 2 * sum(name in row for row in rows) >= len(rows)
        and len({row[name] for row in rows if name in row}) > 1
    )


def profile_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns with means of GPU metrics."""
    return tuple(name for name in columns if name.endswith(".mean"))


def utilisation(run: SoloRun) -> float:
    """Return the share of the GPU's time that an application uses alone; NaN if not measured."""
    return _first_mean(run, "gpu_util_ratio", "sm_active_ratio", "graphics_active_ratio")


def memory_activity(run: SoloRun) -> float:
    """Return the share of time in which the GPU's memory is busy while the application runs
    alone; NaN if not measured."""
    return _first_mean(run, "memory_copy_ratio", "dram_active_ratio")


def _first_mean(solo: SoloRun, *names: str) -> float:
    values = (solo.features.get(f"{name}.mean", np.nan) for name in names)
    return next((value for value in values if np.isfinite(value)), float("nan"))


def pair_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the column names of `pair_rows`."""
    shares = [name for name in columns if name.removesuffix(".mean") in UTILISATION]
    names = [f"target's {name}" for name in columns]
    names += [f"others' sum of {name}" for name in columns]
    names += [f"others' largest {name}" for name in columns]
    names += [f"all {name} above 1" for name in shares]
    return (*names, "largest sum of shares", "difference of shares", "residents")


def pair_rows(raw: Floats, columns: Sequence[str], targets: Ints, others: Ints) -> Floats:
    """Return one row per target with its neighbours (applications' indexes, [n] and [n, others]):
    the target's features, the sum and maximum of its neighbours' features, and overlaps."""
    shares = [at for at, name in enumerate(columns) if name.removesuffix(".mean") in UTILISATION]
    own, beside = raw[targets], raw[others]
    summed, largest = beside.sum(axis=1), beside.max(axis=1)
    total = own[:, shares] + summed[:, shares]
    fullest = apart = np.full((len(targets), 1), np.nan)
    if shares:
        fullest = np.fmax.reduce(total, axis=1, keepdims=True)
        apart = np.nansum(np.abs(own[:, shares] - summed[:, shares]), axis=1, keepdims=True)
    residents = np.full((len(targets), 1), 1.0 + others.shape[1])
    above = np.maximum(0.0, total - 1.0)
    return np.hstack([own, summed, largest, above, fullest, apart, residents])
