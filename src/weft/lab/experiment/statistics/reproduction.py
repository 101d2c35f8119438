"""Runs the experiments of a folder and compares their results with the expected ones.

    FOLDER/experiment.yaml, …    the experiments
    FOLDER/expected.yaml         their expected results

A check has a criterion from the paper's result and, if our result misses it, the range expected
instead, with the reason. A check fails if the result is outside the expected range, even if it then
meets a criterion that the file declares as missed."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from weft.core.framework import Policy
from weft.files.form import Section, place, read_document, read_form
from weft.files.reading import read_bytes
from weft.lab.experiment.run.execution import CellWork, run_missing
from weft.lab.experiment.run.runner import sources_of
from weft.lab.experiment.run.shared_gpus import ReadPods
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.store import RunStore, marks_of, stored_experiment
from weft.lab.experiment.spec.experiment import (
    ExperimentSpec,
    PlannedCell,
    absent_data,
    axes_of,
    data_paths,
    plan,
    read_spec,
)
from weft.lab.experiment.spec.measures import MEASURES, present_name
from weft.lab.experiment.spec.workloads import OpenbPods
from weft.lab.experiment.statistics.comparison import (
    AssumedRow,
    ExperimentResults,
    assumed_rows,
    compare,
)
from weft.lab.experiment.statistics.ranking import gpus_of
from weft.model import BadInputError
from weft.model.nearest import unknown

EXPECTED = "expected.yaml"
API_VERSION, KIND = "weft.dev/v1", "ExpectedResults"

TAKES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "highest": max,
    "lowest": min,
}
"""Functions that reduce the numbers of several levels to one."""

Range = Annotated[
    tuple[float, float], Meta(extra={"refused": "{} is not a range; write [low, high]"})
]
Several = Annotated[tuple[str, ...], Meta(min_length=1)]


class Check(Section, frozen=True, kw_only=True):
    """One number of an experiment's results, and the range that it should be in.

    It is the mean over seeds of `measure` of `scheduler`; with `against`, its difference to the
    mean of those schedulers, in percent of that mean; with `order`, the number of adjacent pairs
    in this list of schedulers whose second mean is not above the first. `take` reduces several
    levels to one number. `at` names levels by axis; axes that are not named have all levels.
    `published` is the paper's number. `expected` is the range if the `criterion` is missed,
    `why` the reason. For short forms, which have fewer seeds, both ranges are widened by
    `short_margin` at either end."""

    name: str
    experiment: str = ""
    measure: str
    scheduler: str = ""
    against: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    at: dict[str, tuple[str | float, ...]] = msgspec.field(default_factory=dict)
    take: Literal["mean", "median", "highest", "lowest"] = "mean"
    published: float | str | None = None
    criterion: Range
    expected: Range | None = None
    why: str = ""
    short_margin: Annotated[float, Meta(ge=0)] = 0.0


class AssumedHeadline(Section, frozen=True, kw_only=True):
    """A difference to show for each level of an experiment's axis "assumption".

    The difference is that of `measure` between `scheduler` and the experiment's baseline, in
    percent of the baseline."""

    name: str
    experiment: str
    measure: str
    scheduler: str


class ExpectedResults(Section, frozen=True, kw_only=True):
    """The expected results of a folder's experiments.

    `rests_on` describes their assumptions, `headlines` are shown under other assumptions too.
    `short` gives, by file, the fields that differ in an experiment's short form; `figure` is the
    measure shown as the folder's figure."""

    api_version: Literal["weft.dev/v1"]
    kind: Literal["ExpectedResults"]
    title: str
    paper: str = ""
    result: str = ""
    rests_on: str = ""
    headlines: tuple[AssumedHeadline, ...] = ()
    experiments: Several = ("experiment.yaml",)
    short: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    figure: str = "jct_mean_s"
    checks: Annotated[tuple[Check, ...], Meta(min_length=1)]


class CheckResult(msgspec.Struct, frozen=True):
    """A check and its number; `value` is None if cells for it are missing."""

    check: Check
    value: float | None

    @property
    def meets(self) -> bool | None:
        """True if the paper's criterion is met; None without a number."""
        return None if self.value is None else _within(self.value, self.check.criterion)

    @property
    def as_expected(self) -> bool | None:
        """True if the number is in the expected range; None without a number."""
        if self.value is None:
            return None
        return _within(self.value, self.check.expected or self.check.criterion)

    @property
    def misses_by(self) -> float:
        """Distance of the number from the criterion's range, 0 within it."""
        low, high = self.check.criterion
        value = self.value or 0.0
        return max(low - value, value - high, 0.0)


def read_expected(folder: Path) -> ExpectedResults:
    """Read the folder's `expected.yaml`; `BadInputError` names the field of a fault."""
    path = folder / EXPECTED
    text = read_bytes(path)
    document = read_document(
        text, str(path), API_VERSION, KIND, empty=f"is empty; write kind: {KIND}"
    )
    try:
        expected = _with_present_measures(read_form(document, ExpectedResults))
        for file in expected.short:
            if file not in expected.experiments:
                raise BadInputError("short", unknown(file, expected.experiments))
        for at, headline in enumerate(expected.headlines):
            if headline.experiment not in expected.experiments:
                what = unknown(headline.experiment, expected.experiments)
                raise BadInputError(f"headlines[{at}].experiment", what)
        for at, check in enumerate(expected.checks):
            _check(check, expected, f"checks[{at}]")
    except BadInputError as error:
        raise BadInputError(place(str(path), error.where), error.problem) from error
    return expected


def _with_present_measures(expected: ExpectedResults) -> ExpectedResults:
    checks, headlines = (
        tuple(msgspec.structs.replace(each, measure=present_name(each.measure)) for each in several)
        for several in (expected.checks, expected.headlines)
    )
    return msgspec.structs.replace(expected, checks=checks, headlines=headlines)


def check_names(
    expected: ExpectedResults, specs: Mapping[str, ExperimentSpec], folder: Path
) -> None:
    """Raise `BadInputError` at the first check or headline that names something its experiment
    lacks.

    `specs` are the experiments' full forms by file name."""
    first = expected.experiments[0]
    for number, check in enumerate(expected.checks):
        spec, at = specs[check.experiment or first], f"checks[{number}]"
        for name in (*check.order, check.scheduler, *check.against):
            _named(name, ["", *spec.schedulers], f"{at}, a scheduler", folder)
        _named(check.measure, MEASURES, f"{at}.measure", folder)
        axes = axes_of(spec)
        for axis, levels in check.at.items():
            _named(axis, axes, f"{at}.at", folder)
            for level in levels:
                _named(_text(level), axes[axis], f"{at}.at.{axis}", folder)
    for number, headline in enumerate(expected.headlines):
        at = f"headlines[{number}]"
        _named(headline.scheduler, specs[headline.experiment].schedulers, f"{at}.scheduler", folder)
        _named(headline.measure, MEASURES, f"{at}.measure", folder)


def _named(name: str, known: Iterable[str], field: str, folder: Path) -> None:
    names = list(known)
    if name not in names:
        raise BadInputError(
            place(str(folder / EXPECTED), field), unknown(name, filter(None, names))
        )


def results_of_checks(
    expected: ExpectedResults, results: Mapping[str, ExperimentResults], *, short: bool = False
) -> list[CheckResult]:
    """Return the result of every check; `results` are the experiments' by file name."""
    first = expected.experiments[0]
    return [
        CheckResult(
            _widened(check) if short else check,
            _number(check, results.get(check.experiment or first)),
        )
        for check in expected.checks
    ]


def _widened(check: Check) -> Check:
    margin = check.short_margin
    ends = {
        name: None if (own := getattr(check, name)) is None else (own[0] - margin, own[1] + margin)
        for name in ("criterion", "expected")
    }
    return msgspec.structs.replace(check, **ends)


def _number(check: Check, results: ExperimentResults | None) -> float | None:
    if results is None:
        return None
    means: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for row in results.summary:
        if row.measure == check.measure and _chosen(row.levels, check.at):
            means.setdefault(row.scheduler, {})[tuple(row.levels.items())] = row.mean
    wanted = check.order or (check.scheduler, *check.against)
    levels = {level for name in wanted for level in means.get(name, {})}
    if not levels or not _all_there(check, levels):
        return None
    if any(level not in means.get(name, {}) for name in wanted for level in levels):
        return None
    each = [_at_level(check, {name: means[name][level] for name in wanted}) for level in levels]
    return round(TAKES[check.take](each), 3)


def _at_level(check: Check, means: Mapping[str, float]) -> float:
    if check.order:
        values = [means[name] for name in check.order]
        return float(sum(b <= a for a, b in itertools.pairwise(values)))
    own = means[check.scheduler]
    if not check.against:
        return own
    base = fmean(means[name] for name in check.against)
    return 100 * (own / base - 1) if base else (0.0 if own == base else float("inf"))


def _all_there(check: Check, levels: set[tuple[tuple[str, str], ...]]) -> bool:
    """Return True if every level that the check names was measured."""
    return all(
        any(dict(level).get(axis) == _text(wanted) for level in levels)
        for axis, several in check.at.items()
        for wanted in several
    )


def _chosen(levels: Mapping[str, str], at: Mapping[str, Sequence[str | float]]) -> bool:
    return all(levels.get(axis, "") in map(_text, several) for axis, several in at.items())


def _text(level: str | float) -> str:
    return level if isinstance(level, str) else f"{level:g}"


def _within(value: float, ends: Range) -> bool:
    return ends[0] <= value <= ends[1]


def _check(check: Check, expected: ExpectedResults, at: str) -> None:
    """Check rules that types cannot express; `BadInputError` names the field."""
    if bool(check.order) == bool(check.scheduler):
        raise BadInputError(at, "must have either `scheduler` or `order`, not both")
    if check.experiment and check.experiment not in expected.experiments:
        raise BadInputError(f"{at}.experiment", unknown(check.experiment, expected.experiments))
    for field, ends in (("criterion", check.criterion), ("expected", check.expected)):
        if ends is not None and not ends[0] <= ends[1]:
            raise BadInputError(f"{at}.{field}", f"{list(ends)} has its ends in the wrong order")
    if (check.expected is None) != (not check.why):
        raise BadInputError(at, "needs `expected` and `why` together: why a criterion is missed")


class ReproducedExperiment(msgspec.Struct, frozen=True):
    """One experiment of a folder; `store` and `results` are None if its data is `absent`."""

    file: str
    spec: ExperimentSpec
    folder: Path
    results: ExperimentResults | None
    store: RunStore | None = None
    absent: str = ""


class Reproduction(msgspec.Struct, frozen=True):
    """The experiments and checks of a folder."""

    name: str
    expected: ExpectedResults
    experiments: tuple[ReproducedExperiment, ...]
    checks: tuple[CheckResult, ...]
    short: bool = False

    @property
    def absent(self) -> list[str]:
        """Descriptions of missing data, because of which cells were skipped."""
        return [each.absent for each in self.experiments if each.absent]

    def assumed(self) -> list[tuple[AssumedHeadline, list[AssumedRow]]]:
        """Return each headline of the experiments that were run, with a row per assumption."""
        run = {each.file: each for each in self.experiments}
        shown = []
        for headline in self.expected.headlines:
            each = run[headline.experiment]
            if each.results is not None:
                measure, scheduler = headline.measure, headline.scheduler
                rows = assumed_rows(each.spec, each.results, measure, scheduler)
                shown.append((headline, rows))
        return shown

    @property
    def wrong(self) -> list[CheckResult]:
        """Checks whose number is outside the expected range, or missing although everything was
        run."""
        return [each for each in self.checks if each.as_expected is False or self._lacks(each)]

    def _lacks(self, check: CheckResult) -> bool:
        """Return True if the full form was run but has no number for this check."""
        file = check.check.experiment or self.expected.experiments[0]
        run = {each.file: each.results for each in self.experiments}[file]
        return not self.short and run is not None and check.value is None


class HowToRun(msgspec.Struct, frozen=True):
    """The options of a reproduction: `short` runs the short forms, `out` is the parent of run
    folders.

    The other fields are arguments of `runner_of` and `run_missing`."""

    out: Path
    short: bool
    jobs: int
    make_policy: Callable[[str], Policy]
    versions: dict[str, str]
    make_progress: Callable[[int], Callable[[str, int, int], None] | None]
    read_pods: ReadPods | None = None


def reproduce(folder: Path, how: HowToRun) -> Reproduction:
    """Run the missing cells of the folder's experiments, and check the results."""
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
    """Compare schedulers by the cells in the store, leaving out marked cells."""
    records = store.records(cells)
    marked = marks_of(records)
    measures = {
        cell.folder: record.measures
        for cell, record in records.items()
        if cell.folder not in marked
    }
    results = compare(spec, measures, marked, _gpus_of(spec, store, records))
    skipped = [f"All {len(cells)} cells are skipped: {absent}." for absent in store.absent]
    return msgspec.structs.replace(results, notes=[*results.notes, *skipped])


def _gpus_of(spec: ExperimentSpec, store: RunStore, cells: Iterable[PlannedCell]) -> float | None:
    """Return the number of GPUs of a trace's cluster, from its runs; None for other workloads,
    or if unknown."""
    if not isinstance(spec.workload, OpenbPods):
        return None
    return gpus_of(store.trace_runs(cells))
