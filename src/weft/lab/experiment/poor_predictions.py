"""The cost of poor predictions of interference, against going without them.

Two things spoil what policies are told. *Missing*: so many of the applications were never
measured, so that nothing is learnt from their pairs and nothing is said of them. *Noise*: every
predicted slowdown, with its bound, is multiplied by a lognormal factor that nobody knows of; its
sigma is that of the logarithm. Both are drawn by seed, alike for all policies; more is missing
where less was, too, and the same draws are scaled for more noise. The baseline is told nothing.
"""

import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from weft.core.framework import Policy
from weft.lab.experiment import pair_predictor
from weft.lab.experiment.paired import Difference, paired_difference
from weft.lab.experiment.workers import run_cells, with_progress
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.run import SharedScenario, run_shared
from weft.model.interference_table import INTERFERENCE, InterferenceTable, interference, to_input

BASELINE = "auto"
MISSING = (0.0, 0.25, 0.5, 0.75, 1.0)
NOISE = (0.0, 0.05, 0.10, 0.20, 0.40)


class SpoiltPredictions(msgspec.Struct, frozen=True):
    """The predictions' faults: the share of applications nobody knows, and sigma of the noise."""

    missing: float = 0.0
    noise: float = 0.0


class RobustnessStudy(msgspec.Struct, frozen=True):
    """The study's runs: `policies` are told spoilt predictions, `BASELINE` none.

    `told` says by which predictor, "trained" or "ridge".
    """

    table: pairs.PairTable
    gpu_model: str
    policies: tuple[str, ...]
    loads: tuple[pairs.OfferedLoad, ...]
    seeds: tuple[int, ...]
    make_policy: Callable[[str], Policy]
    missing: tuple[float, ...] = MISSING
    noise: tuple[float, ...] = NOISE
    predictor: str = "trained"

    def spoilt(self) -> list[SpoiltPredictions]:
        """Every combination; where all are missing there is nothing to be noisy about."""
        return [
            SpoiltPredictions(share, sigma)
            for share in self.missing
            for sigma in self.noise
            if share < 1.0 or sigma == self.noise[0]
        ]

    def cells(self) -> list["RobustnessRun"]:
        """Every run; those that share a predictor lie together."""
        runs = []
        for seed in self.seeds:
            runs += [RobustnessRun(at, "", seed) for at in range(len(self.loads))]
            runs += [
                RobustnessRun(at, name, seed, spoilt)
                for spoilt in self.spoilt()
                for at in range(len(self.loads))
                for name in self.policies
            ]
        return runs


class RobustnessRun(msgspec.Struct, frozen=True):
    """One run: `load` is the index of the study's load, the policy "" is the baseline."""

    load: int
    policy: str
    seed: int
    spoilt: SpoiltPredictions = SpoiltPredictions()


class RobustnessLevel(msgspec.Struct, frozen=True):
    """A policy with spoilt predictions at one load against the baseline on the same seeds.

    `jct_mean` is the paired difference of mean completion times, `worst_percent` that of the worst
    seed, `worst_seed`. `unfinished` must be 0.
    """

    load: pairs.OfferedLoad
    policy: str
    spoilt: SpoiltPredictions
    jct_mean_s: float
    jct_mean: Difference
    worst_percent: float
    worst_seed: int
    unfinished: int


def run_study(
    study: RobustnessStudy, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> list[RobustnessLevel]:
    """Run all cells on `jobs` processes; `progress(policy, seed, done_cells)` after each."""
    runs = run_cells(run_cell, study, study.cells(), jobs)
    done = dict(with_progress(runs, progress, lambda cell: (cell.policy or BASELINE, cell.seed)))
    return [
        _level(study, done, (at, name, spoilt))
        for at in range(len(study.loads))
        for name in study.policies
        for spoilt in study.spoilt()
    ]


def run_cell(study: RobustnessStudy, cell: RobustnessRun) -> SharedRun:
    """One policy on one seed's jobs at one load."""
    inputs = (
        {INTERFERENCE: to_input(predictions(study, cell.seed, cell.spoilt))} if cell.policy else {}
    )
    load = study.loads[cell.load]
    scenario = SharedScenario(
        pairs.cluster(load.gpus, study.gpu_model),
        pairs.jobs(study.table, load, cell.seed),
        study.table.truth(),
        seed=cell.seed,
        inputs=inputs,
        measured=False,
    )
    run = run_shared(scenario, study.make_policy(cell.policy or BASELINE))
    return run.bare()


def predictions(study: RobustnessStudy, seed: int, spoilt: SpoiltPredictions) -> InterferenceTable:
    """The table that policies are told."""
    table = only(study.table, known_kinds(study.table, seed, spoilt.missing))
    if not table.kinds:
        return InterferenceTable(0)
    learnt = pair_predictor.ridge if study.predictor == "ridge" else pair_predictor.trained
    return noisy(learnt(table, study.gpu_model, seed), seed, spoilt.noise)


def known_kinds(table: pairs.PairTable, seed: int, missing: float) -> tuple[str, ...]:
    """The kinds that are left where this share of them was never measured."""
    drawn = list(table.kinds)
    random.Random(f"weft-missing-{seed}").shuffle(drawn)
    left = set(drawn[round(missing * len(drawn)) :])
    return tuple(kind for kind in table.kinds if kind in left)


def only(table: pairs.PairTable, kinds: Sequence[str]) -> pairs.PairTable:
    """The pairs of these kinds with each other."""
    indexes = [table.kinds.index(kind) for kind in kinds]
    return pairs.PairTable(
        tuple(kinds),
        tuple(tuple(table.speed[row][column] for column in indexes) for row in indexes),
        tuple(table.asks_mib[row] for row in indexes),
        tuple(table.rate_per_s[row] for row in indexes) if table.rate_per_s else (),
    )


def noisy(source: InterferenceTable, seed: int, sigma: float) -> InterferenceTable:
    """Every slowdown and its bound times a factor e^(sigma · z), z drawn by seed.

    What is forbidden stays so.
    """
    if not sigma:
        return source
    size = len(source.classes) + 1
    shape = (len(source.gpu_models), size, size)
    drawn = np.random.default_rng([20_201_117, seed]).standard_normal(shape)
    mean, upper = (
        np.frombuffer(values, np.float64).reshape(shape) + sigma * drawn
        for values in (source.mean, source.upper)
    )
    tier = np.frombuffer(source.tier, np.int8).reshape(shape)
    axes, arrays = (source.gpu_models, source.classes), (mean, upper, tier)
    return interference(source.version, *axes, arrays, source.sources)


def _level(
    study: RobustnessStudy,
    done: dict[RobustnessRun, SharedRun],
    cell: tuple[int, str, SpoiltPredictions],
) -> RobustnessLevel:
    at, name, spoilt = cell
    runs = [done[RobustnessRun(at, name, seed, spoilt)] for seed in study.seeds]
    plain = [done[RobustnessRun(at, "", seed)].jct_mean_s for seed in study.seeds]
    means = [run.jct_mean_s for run in runs]
    percent = [100 * (mean / unspoilt - 1) for mean, unspoilt in zip(means, plain, strict=True)]
    worst = max(percent)
    return RobustnessLevel(
        study.loads[at],
        name,
        spoilt,
        round(sum(means) / len(means), 3),
        paired_difference(means, plain),
        round(worst, 2),
        study.seeds[percent.index(worst)],
        sum(run.unfinished for run in runs),
    )
