"""Policies on jobs that slow each other down as measured pairs did, load by load.

Truth is a table of measured pairs; policies see what a predictor learnt from half of them, all the
same. `oracle` is the policy `interference` that is told the truth. Cells are policies × loads ×
seeds, arrivals and training pairs of a seed the same for all policies.
"""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from weft.core.framework import Policy
from weft.lab.experiment import pair_predictor
from weft.lab.experiment.paired import Difference, holm, paired_difference, paired_p_value
from weft.lab.experiment.poor_predictions import SpoiltPredictions, told
from weft.lab.experiment.scenarios import GANDIVA, run_with
from weft.lab.experiment.workers import run_cells, with_progress
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.feedback import Feedback
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.run import SharedScenario
from weft.model.interference_table import INTERFERENCE, MYSTIC, to_input

ORACLE, OURS = "oracle", "interference"
BASELINES = ("binpack", GANDIVA, "coscheml")
PROGRESS = Feedback(noise=0.05, evict=False)
"""Progress corrects what policies were told; nobody is evicted."""


class InterferenceStudy(msgspec.Struct, frozen=True):
    """The study's runs: `predictor` names it ("trained" or "ridge") of policies, or
    "truth" where the table itself is what everybody knows.

    All others are compared with `reference`; `mystic` are distances for Co-scheML's baseline.
    `spoilt` is what is wrong with the predictions. Where jobs report their progress, as `feedback`
    says, it is the same for all but `oracle`, which needs no correction, and gandiva, which looks
    for itself.
    """

    table: pairs.PairTable
    gpu_model: str
    policies: tuple[str, ...]
    loads: tuple[pairs.OfferedLoad, ...]
    seeds: tuple[int, ...]
    make_policy: Callable[[str], Policy]
    reference: str = OURS
    predictor: str = "trained"
    mystic: dict[str, dict[str, float]] = {}
    feedback: Feedback | None = None
    spoilt: SpoiltPredictions = SpoiltPredictions()

    def cells(self) -> list["InterferenceRun"]:
        """Every run, in the order of the results."""
        grid = itertools.product(range(len(self.loads)), self.policies, self.seeds)
        return [InterferenceRun(*cell) for cell in grid]


class InterferenceRun(msgspec.Struct, frozen=True):
    """One run: `load` is the index of the study's load."""

    load: int
    policy: str
    seed: int


class PolicyDifference(msgspec.Struct, frozen=True):
    """Ours against another policy: the paired difference, and its p-value after Holm over loads
    (None below five seeds)."""

    difference: Difference
    p_value: float | None


class InterferenceLevel(msgspec.Struct, frozen=True):
    """A policy at one load: means over seeds, and how ours compares with it.

    `residents` is the mean number of pods on a GPU, `unfinished` must be 0.
    """

    load: pairs.OfferedLoad
    policy: str
    jct_mean_s: float
    jct_p99_s: float
    makespan_s: float
    residents: float
    unfinished: int
    jct_mean: PolicyDifference | None = None
    jct_p99: PolicyDifference | None = None


def run_study(
    study: InterferenceStudy, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> list[InterferenceLevel]:
    """Run all cells on `jobs` processes; `progress(policy, seed, done_cells)` after each."""
    runs = run_cells(run_cell, study, study.cells(), jobs)
    done = dict(with_progress(runs, progress, lambda cell: (cell.policy, cell.seed)))
    levels = []
    for name in study.policies:
        own_runs = [_runs(study, done, at, study.reference) for at in range(len(study.loads))]
        baselines = [_runs(study, done, at, name) for at in range(len(study.loads))]
        means = _changes("jct_mean_s", own_runs, baselines) if name != study.reference else None
        tails = _changes("jct_p99_s", own_runs, baselines) if name != study.reference else None
        for at, load in enumerate(study.loads):
            level = _level(load, name, baselines[at])
            if means is not None and tails is not None:
                level = msgspec.structs.replace(level, jct_mean=means[at], jct_p99=tails[at])
            levels.append(level)
    return sorted(levels, key=lambda level: study.loads.index(level.load))


def run_cell(study: InterferenceStudy, cell: InterferenceRun) -> SharedRun:
    """The same as `run_whole`, without each job's outcome: they are too many to keep."""
    return run_whole(study, cell).bare()


def run_whole(study: InterferenceStudy, cell: InterferenceRun) -> SharedRun:
    """One policy on one seed's jobs at one load."""
    return run_scenario(study, cell, scenario_of(study, cell))


def scenario_of(study: InterferenceStudy, cell: InterferenceRun) -> SharedScenario:
    """One seed's jobs at one load, and what the cell's policy is told of them."""
    if cell.policy == ORACLE:
        table = pair_predictor.truth(study.table, study.gpu_model)
    else:
        known = study.table, study.gpu_model, cell.seed
        table = told(*known, study.predictor, study.spoilt)
    inputs = {INTERFERENCE: to_input(table)}
    if study.mystic:
        inputs[MYSTIC] = study.mystic
    load = study.loads[cell.load]
    return SharedScenario(
        pairs.cluster(load.gpus, study.gpu_model),
        pairs.jobs(study.table, load, cell.seed),
        study.table.truth(),
        seed=cell.seed,
        inputs=inputs,
        measured=False,
        feedback=None if cell.policy in {ORACLE, GANDIVA} else study.feedback,
    )


def run_scenario(
    study: InterferenceStudy, cell: InterferenceRun, scenario: SharedScenario
) -> SharedRun:
    """The cell's policy on this scenario."""
    name = study.reference if cell.policy == ORACLE else cell.policy
    run = run_with(scenario, name, study.make_policy)
    return msgspec.structs.replace(run, policy=cell.policy)


def _runs(
    study: InterferenceStudy, done: dict[InterferenceRun, SharedRun], at: int, name: str
) -> list[SharedRun]:
    return [done[InterferenceRun(at, name, seed)] for seed in study.seeds]


def _changes(
    field: str, runs: Sequence[Sequence[SharedRun]], baselines: Sequence[Sequence[SharedRun]]
) -> list[PolicyDifference]:
    values = [
        ([getattr(run, field) for run in own], [getattr(run, field) for run in baseline])
        for own, baseline in zip(runs, baselines, strict=True)
    ]
    p_values = holm([paired_p_value(*pair) for pair in values])
    differences = [paired_difference(*pair) for pair in values]
    return list(map(PolicyDifference, differences, p_values))


def _level(load: pairs.OfferedLoad, name: str, runs: Sequence[SharedRun]) -> InterferenceLevel:
    def mean(field: str) -> float:
        return round(float(sum(getattr(run, field) for run in runs)) / len(runs), 3)

    times = mean("jct_mean_s"), mean("jct_p99_s"), mean("makespan_s")
    unfinished = sum(run.unfinished for run in runs)
    return InterferenceLevel(load, name, *times, mean("residents"), unfinished)
