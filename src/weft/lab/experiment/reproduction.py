"""Runs the experiments of a folder and compares what came of them with what is expected.

FOLDER/experiment.yaml, …    what is run
FOLDER/expected.yaml         what it should show (`expected.py`)
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from weft.core.framework import Policy
from weft.lab.experiment.assumed import AssumedRow, assumed_rows
from weft.lab.experiment.comparison import ExperimentResults, compare
from weft.lab.experiment.execution import CellWork, run_missing
from weft.lab.experiment.expected import (
    AssumedHeadline,
    CheckResult,
    ExpectedResults,
    check_names,
    read_expected,
    results_of_checks,
)
from weft.lab.experiment.plan import PlannedCell, plan
from weft.lab.experiment.scenarios import ReadPods
from weft.lab.experiment.schedulers import sources_of
from weft.lab.experiment.simulated import runner_of
from weft.lab.experiment.spec import ExperimentSpec, absent_data, data_paths, read_spec
from weft.lab.experiment.spec_workloads import OpenbPods
from weft.lab.experiment.statistics import gpus_of
from weft.lab.experiment.store import CellRecord, RunStore, marks_of, stored_experiment
from weft.lab.simulate.results import PolicyRun


class ReproducedExperiment(msgspec.Struct, frozen=True):
    """One experiment of a folder; `store` and `results` are None where its data is `absent`."""

    file: str
    spec: ExperimentSpec
    folder: Path
    results: ExperimentResults | None
    store: RunStore | None = None
    absent: str = ""


class Reproduction(msgspec.Struct, frozen=True):
    """A folder's experiments and checks."""

    name: str
    expected: ExpectedResults
    experiments: tuple[ReproducedExperiment, ...]
    checks: tuple[CheckResult, ...]
    short: bool = False

    @property
    def absent(self) -> list[str]:
        """The data that was not there, so that cells were skipped."""
        return [each.absent for each in self.experiments if each.absent]

    def assumed(self) -> list[tuple[AssumedHeadline, list[AssumedRow]]]:
        """Each headline under other assumptions, as far as these were run."""
        run = {each.file: each for each in self.experiments}
        shown = []
        for headline in self.expected.headlines:
            each = run[headline.experiment]
            if each.results is not None:
                wanted = headline.measure, headline.scheduler
                shown.append((headline, assumed_rows(each.spec, each.results, *wanted)))
        return shown

    @property
    def wrong(self) -> list[CheckResult]:
        """Checks whose number is not where it is expected, or not there though all was run."""
        return [each for each in self.checks if each.as_expected is False or self._lacks(each)]

    def _lacks(self, check: CheckResult) -> bool:
        """True if the full form was run, and has no number for this check."""
        file = check.check.experiment or self.expected.experiments[0]
        run = {each.file: each.results for each in self.experiments}[file]
        return not self.short and run is not None and check.value is None


class HowToRun(msgspec.Struct, frozen=True):
    """The options of a reproduction: `short` runs the short forms, `out` gets the run
    folders; the rest is as in `runner_of` and `run_missing`."""

    out: Path
    short: bool
    jobs: int
    make_policy: Callable[[str], Policy]
    versions: dict[str, str]
    make_progress: Callable[[int], Callable[[str, int, int], None] | None]
    read_pods: ReadPods | None = None


def reproduce(folder: Path, how: HowToRun) -> Reproduction:
    """Run the folder's experiments, as far as cells are missing, and check what came of them."""
    expected = read_expected(folder)
    specs = {file: read_spec(folder / file) for file in expected.experiments}
    check_names(expected, specs, folder)
    experiments = tuple(_run(folder, file, expected, how) for file in expected.experiments)
    results = {each.file: each.results for each in experiments if each.results is not None}
    checks = tuple(results_of_checks(expected, results, short=how.short))
    return Reproduction(folder.resolve().name, expected, experiments, checks, how.short)


def _run(folder: Path, file: str, expected: ExpectedResults, how: HowToRun) -> ReproducedExperiment:
    spec = read_spec(folder / file, expected.short.get(file, {}) if how.short else {})
    data = data_paths(spec, folder)
    out = how.out / (f"{spec.name}-short" if how.short else spec.name)
    runner = runner_of(spec, data, how.make_policy, how.read_pods)
    cells = plan(spec)
    if absent := absent_data(data):
        what = f"{absent[0]}; all {len(cells)} cells are skipped"
        return ReproducedExperiment(file, spec, out, None, absent=what)
    sources = sources_of(spec, how.make_policy)
    store = RunStore(out, stored_experiment(spec, data, sources=sources))
    store.begin()
    work = CellWork(runner, store)
    run_missing(work, cells, how.jobs, how.versions, how.make_progress)
    return ReproducedExperiment(file, spec, out, stored_results(spec, store, cells), store)


def stored_results(
    spec: ExperimentSpec, store: RunStore, cells: Sequence[PlannedCell]
) -> ExperimentResults:
    """The comparison of the cells that are in the store, without those that are marked."""
    records = store.records(cells)
    marked = marks_of(records)
    measures = {
        cell.folder: record.measures
        for cell, record in records.items()
        if cell.folder not in marked
    }
    results = compare(spec, measures, marked, _gpus_of(spec, records.values()))
    skipped = [f"All {len(cells)} cells are skipped: {absent}." for absent in store.absent]
    return msgspec.structs.replace(results, notes=[*results.notes, *skipped])


def _gpus_of(spec: ExperimentSpec, records: Iterable[CellRecord]) -> float | None:
    """How many GPUs the cluster of a trace has, as the runs say."""
    if not isinstance(spec.workload, OpenbPods):
        return None
    return gpus_of([msgspec.convert(record.run, PolicyRun) for record in records])
