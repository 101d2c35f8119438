"""Results of jobs that ask for more memory than they use, level by level.

Beside the policies runs `best-residency`: best fit where every pod asks for exactly the most that
it will use, which nobody can know beforehand. It bounds how many pods can share a card, not how
well they could be ordered.
"""

from collections.abc import Mapping, Sequence

import msgspec

from weft.lab.experiment.comparison import compare
from weft.lab.experiment.paired import Difference
from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.runner import CellResult
from weft.lab.experiment.scenarios import BEST
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.simulate.sharing.outcome import SharedRun


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


class OverprovisionResults(msgspec.Struct, frozen=True):
    """Everything that was measured, and the summary by level and policy."""

    baseline: str
    levels: list[OverprovisionLevel]
    runs: list[LevelRun]


def overprovision_results(
    spec: ExperimentSpec, cells: Mapping[PlannedCell, CellResult]
) -> OverprovisionResults:
    """The results of an experiment of `OverprovisionedJobs` with the scheduler `best-residency`."""
    changes = _Changes(spec, cells, spec.reference), _Changes(spec, cells, BEST)
    runs = [
        LevelRun(int(cell.levels[0].text), msgspec.convert(result.run, SharedRun))
        for cell, result in cells.items()
    ]
    places = dict.fromkeys((run.percent, run.run.policy) for run in runs)
    levels = [
        _level(place, [run.run for run in runs if (run.percent, run.run.policy) == place], *changes)
        for place in places
    ]
    return OverprovisionResults(spec.reference, levels, runs)


class _Changes:
    """Differences to a scheduler, by measure, level and scheduler."""

    def __init__(
        self, spec: ExperimentSpec, cells: Mapping[PlannedCell, CellResult], baseline: str
    ) -> None:
        spec = msgspec.structs.replace(
            spec, baseline=baseline, measures=("jct_mean_s", "jct_p99_s")
        )
        measures = {cell.folder: result.measures for cell, result in cells.items()}
        self._of = {
            (row.measure, int(row.levels["percent"]), row.scheduler): row.difference
            for row in compare(spec, measures).summary
        }

    def of(self, measure: str, place: tuple[int, str]) -> Difference | None:
        return self._of.get((measure, *place))


def _level(
    place: tuple[int, str], runs: Sequence[SharedRun], changes: _Changes, gaps: _Changes
) -> OverprovisionLevel:
    def mean(field: str) -> float:
        return round(float(sum(getattr(run, field) for run in runs)) / len(runs), 3)

    return OverprovisionLevel(
        *place,
        seeds=len(runs),
        jct_mean_s=mean("jct_mean_s"),
        jct_p99_s=mean("jct_p99_s"),
        makespan_s=mean("makespan_s"),
        ooms=mean("ooms"),
        worst_ooms=max(run.ooms for run in runs),
        evictions=mean("evictions"),
        lost_s=mean("lost_s"),
        residents=mean("residents"),
        gpu_util_percent=mean("gpu_util_percent"),
        energy_kj=mean("energy_kj"),
        idle_energy_kj=mean("idle_energy_kj"),
        unfinished=sum(run.unfinished for run in runs),
        jct_p99_change=changes.of("jct_p99_s", place),
        jct_mean_change=changes.of("jct_mean_s", place),
        gap_to_best=gaps.of("jct_p99_s", place),
    )
