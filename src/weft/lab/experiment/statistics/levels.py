"""Results of jobs that share GPUs, level by level: of jobs that ask for more memory than they use,
and of jobs that slow each other down as measured pairs did.

Beside the former's policies runs `best-residency`: best fit where every pod asks for exactly the
most that it will use, which nobody can know beforehand. It bounds how many pods can share a card,
not how well they could be ordered.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.run.shared_gpus import BEST
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell
from weft.lab.experiment.statistics.comparison import Measures, MeasureSummary, compare
from weft.lab.experiment.statistics.differences import Difference
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
        _overprovision_level(
            place, [run.run for run in runs if (run.percent, run.run.policy) == place], *changes
        )
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


def _overprovision_level(
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


class PolicyDifference(msgspec.Struct, frozen=True):
    """Ours against another policy: the paired difference, and its p-value after Holm over loads
    (None below five seeds)."""

    difference: Difference
    p_value: float | None


class InterferenceLevel(msgspec.Struct, frozen=True):
    """A policy at one load: means over seeds, and how ours compares with it.

    `residents` is the mean number of pods on a GPU, `unfinished` must be 0.
    """

    load: float
    policy: str
    jct_mean_s: float
    jct_p99_s: float
    makespan_s: float
    residents: float
    unfinished: int
    jct_mean: PolicyDifference | None = None
    jct_p99: PolicyDifference | None = None


def interference_results(
    spec: ExperimentSpec, cells: Mapping[PlannedCell, CellResult]
) -> list[InterferenceLevel]:
    """The results of an experiment of `MeasuredPairs` whose one axis is the load.

    `spec.reference` is ours: it is compared with each of the others, in percent of theirs.
    """
    runs: dict[tuple[str, str], list[SharedRun]] = {}
    for cell, result in cells.items():
        place = cell.levels[0].text, cell.scheduler
        runs.setdefault(place, []).append(msgspec.convert(result.run, SharedRun))
    measures = {cell.folder: result.measures for cell, result in cells.items()}
    changes = {
        (row.levels["load"], name, row.measure): row
        for name in spec.schedulers
        for row in _against(spec, measures, name)
    }
    return [
        _interference_level(
            place, runs, [changes.get((*place, name)) for name in ("jct_mean_s", "jct_p99_s")]
        )
        for place, runs in runs.items()
    ]


def _against(
    spec: ExperimentSpec, measures: Mapping[str, Measures], name: str
) -> Iterable[MeasureSummary]:
    """Ours against the scheduler of this name, by measure and load."""
    compared = msgspec.structs.replace(spec, baseline=name, measures=("jct_mean_s", "jct_p99_s"))
    summary = compare(compared, measures).summary
    return (row for row in summary if row.scheduler == spec.reference)


def _interference_level(
    place: tuple[str, str], runs: Sequence[SharedRun], changes: Sequence[MeasureSummary | None]
) -> InterferenceLevel:
    def mean(field: str) -> float:
        return round(float(sum(getattr(run, field) for run in runs)) / len(runs), 3)

    load, policy = place
    times = mean("jct_mean_s"), mean("jct_p99_s"), mean("makespan_s")
    unfinished = sum(run.unfinished for run in runs)
    differences = map(_difference, changes)
    return InterferenceLevel(
        float(load), policy, *times, mean("residents"), unfinished, *differences
    )


def _difference(row: MeasureSummary | None) -> PolicyDifference | None:
    if row is None or row.difference is None:
        return None
    return PolicyDifference(row.difference, row.p_value)
