"""Results of jobs that slow each other down as measured pairs did, load by load."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from weft.lab.experiment.comparison import Measures, MeasureSummary, compare
from weft.lab.experiment.paired import Difference
from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.runner import CellResult
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.simulate.sharing.outcome import SharedRun


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
    """The results of an experiment of `MeasuredPairs` whose one axis is `loads`.

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
        _level(place, runs, [changes.get((*place, name)) for name in ("jct_mean_s", "jct_p99_s")])
        for place, runs in runs.items()
    ]


def _against(
    spec: ExperimentSpec, measures: Mapping[str, Measures], name: str
) -> Iterable[MeasureSummary]:
    """Ours against the scheduler of this name, by measure and load."""
    compared = msgspec.structs.replace(spec, baseline=name, measures=("jct_mean_s", "jct_p99_s"))
    summary = compare(compared, measures).summary
    return (row for row in summary if row.scheduler == spec.reference)


def _level(
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
