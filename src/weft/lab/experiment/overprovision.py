"""Policies on jobs that ask for more memory than they use, level by level.

A grid of policies × levels of over-provisioning × seeds. All policies meet the same jobs of a
seed. Beside them runs `best-residency`: best fit where every pod asks for exactly the most that it
will use, which nobody can know beforehand. It bounds how many pods can share a card, not how well
they could be ordered.
"""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from weft.core.framework import Policy
from weft.lab.experiment.paired import Difference, paired_difference
from weft.lab.experiment.plan import CellLevel, PlannedCell
from weft.lab.experiment.scenarios import BEST, ScenarioMaker, run_with
from weft.lab.experiment.spec_workloads import OverprovisionedJobs
from weft.lab.experiment.workers import run_cells, with_progress
from weft.lab.simulate.sharing import ece_like
from weft.lab.simulate.sharing.exporter import SOUND, ExporterFaults
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.pipeline import ScrapeOptions

LEVELS = (0, 50, 100, 150, 200, 250)


class OverprovisionStudy(msgspec.Struct, frozen=True):
    """The study's runs. `percents` are the levels, `gpus` how many cards get thirty jobs each.

    Differences are against `baseline`, which must be among the policies.
    """

    policies: tuple[str, ...]
    percents: tuple[int, ...]
    seeds: tuple[int, ...]
    make_policy: Callable[[str], Policy]
    baseline: str = "gpushare"
    gpus: int = 1
    mix: ece_like.JobMix = ece_like.JobMix.SSD
    watching: ScrapeOptions = ScrapeOptions()
    faults: ExporterFaults = SOUND
    harvest_permille: int = 4000

    def cells(self) -> list["OverprovisionRun"]:
        """Every run, in the order of the results."""
        grid = itertools.product(self.percents, [*self.policies, BEST], self.seeds)
        return [OverprovisionRun(*cell) for cell in grid]


class OverprovisionRun(msgspec.Struct, frozen=True):
    """One run of a study."""

    percent: int
    policy: str
    seed: int


class OverprovisionLevel(msgspec.Struct, frozen=True):
    """A policy at one level: means over seeds, and differences to the baseline where it is another.

    `worst_ooms` is the most of any seed, `gap_to_best` the p99's difference to `best-residency`.
    `idle_energy_kj` is what the cards had drawn in that time with nobody on them.
    """

    percent: int
    policy: str
    seeds: int
    jct_mean_s: float
    jct_p99_s: float
    makespan_s: float
    ooms: float
    worst_ooms: int
    evictions: float
    lost_s: float
    residents: float
    gpu_util_percent: float
    energy_kj: float
    idle_energy_kj: float
    unfinished: int
    jct_p99_change: Difference | None
    jct_mean_change: Difference | None
    gap_to_best: Difference | None


class LevelRun(msgspec.Struct, frozen=True):
    """A run and its level."""

    percent: int
    run: SharedRun


class StudyResults(msgspec.Struct, frozen=True):
    """Everything that was measured, and the summary by level and policy."""

    baseline: str
    levels: list[OverprovisionLevel]
    runs: list[LevelRun]


def run_study(
    study: OverprovisionStudy, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> StudyResults:
    """Run all cells on `jobs` processes; `progress(policy, seed, done_cells)` after each."""
    cells = study.cells()
    runs = run_cells(run_cell, study, cells, jobs)
    done = dict(with_progress(runs, progress, lambda cell: (cell.policy, cell.seed)))
    grid = itertools.product(study.percents, (*study.policies, BEST))
    levels = [_level(study, done, percent, name) for percent, name in grid]
    level_runs = [LevelRun(cell.percent, done[cell]) for cell in cells]
    return StudyResults(study.baseline, levels, level_runs)


def run_cell(study: OverprovisionStudy, cell: OverprovisionRun) -> SharedRun:
    """The same as `run_whole`, without each job's outcome: they are too many to keep."""
    return run_whole(study, cell).bare()


def run_whole(study: OverprovisionStudy, cell: OverprovisionRun) -> SharedRun:
    """One policy on one seed's jobs at one level, as an experiment's file would run it."""
    workload = OverprovisionedJobs(percents=(cell.percent,), mix=study.mix.value, cards=study.gpus)
    planned = PlannedCell((CellLevel("percent", 0, str(cell.percent)),), cell.policy, cell.seed)
    scenario = msgspec.structs.replace(
        ScenarioMaker(workload, {}).scenario(planned),
        watching=study.watching,
        faults=study.faults,
        harvest_permille=study.harvest_permille,
    )
    return run_with(scenario, cell.policy, study.make_policy)


def _level(
    study: OverprovisionStudy, done: dict[OverprovisionRun, SharedRun], percent: int, name: str
) -> OverprovisionLevel:
    runs, base, best = (
        [done[OverprovisionRun(percent, policy, seed)] for seed in study.seeds]
        for policy in (name, study.baseline, BEST)
    )
    compared = name != study.baseline
    return OverprovisionLevel(
        percent=percent,
        policy=name,
        seeds=len(runs),
        jct_mean_s=_mean([run.jct_mean_s for run in runs]),
        jct_p99_s=_mean([run.jct_p99_s for run in runs]),
        makespan_s=_mean([run.makespan_s for run in runs]),
        ooms=_mean([run.ooms for run in runs]),
        worst_ooms=max(run.ooms for run in runs),
        evictions=_mean([run.evictions for run in runs]),
        lost_s=_mean([run.lost_s for run in runs]),
        residents=_mean([run.residents for run in runs]),
        gpu_util_percent=_mean([run.gpu_util_percent for run in runs]),
        energy_kj=_mean([run.energy_kj for run in runs]),
        idle_energy_kj=_mean([run.idle_energy_kj for run in runs]),
        unfinished=sum(run.unfinished for run in runs),
        jct_p99_change=_change("jct_p99_s", runs, base) if compared else None,
        jct_mean_change=_change("jct_mean_s", runs, base) if compared else None,
        gap_to_best=_change("jct_p99_s", runs, best) if name != BEST else None,
    )


def _change(field: str, runs: Sequence[SharedRun], base: Sequence[SharedRun]) -> Difference:
    return paired_difference(
        [getattr(run, field) for run in runs], [getattr(run, field) for run in base]
    )


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)
