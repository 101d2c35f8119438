"""`weft experiment`: runs experiments described by files."""

import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Exit, Option, Typer

from weft.cli import options
from weft.cli.output import (
    SimulateOutput,
    duration_text,
    json_text,
    print_csv,
    print_note,
    print_table,
    print_warning,
    table_with,
)
from weft.cli.progress import bar, status_line
from weft.lab.experiment.spec.templates import TEMPLATES, Wishes, line_of, usual_seeds, written
from weft.model.errors import BadInputError
from weft.model.nearest import unknown

if TYPE_CHECKING:
    from weft.lab.experiment.run.cluster_jobs import PlannedJob
    from weft.lab.experiment.run.execution import CellWork
    from weft.lab.experiment.run.runner import Runner
    from weft.lab.experiment.run.store import RunStore
    from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell
    from weft.lab.experiment.statistics.comparison import ExperimentResults, TwoResults
    from weft.lab.experiment.statistics.reproduction import Reproduction

experiment_app = Typer(help="Experiments that a file describes.", no_args_is_help=True)
EXIT_ABSENT = 3
"""Exit code if data is absent, or cells are missing or marked as unreliable, but no result is
wrong."""
SHOWN = (
    "jct_mean_s",
    "jct_p99_s",
    "makespan_s",
    "gpu_allocated_at_100_percent",
    "gpu_allocated_percent",
    "failed_pods",
    "ooms",
)
"""Measures in the printed table; JSON and CSV have all measures."""
JOB_BYTES, SECOND_BYTES, CELL_BYTES = 90, 40, 16_384
"""Upper limits of a cell's disk use, in bytes: per Job, per second of GPU samples, and fixed."""

_File = Annotated[
    Path,
    Argument(metavar="FILE", help="An experiment, or a folder with experiment.yaml; `-` is stdin."),
]
_Simulated = Annotated[
    bool, Option("--simulated", help="Simulate an experiment that is described for a cluster.")
]
_Out = Annotated[
    Path | None, Option(help="The folder of its runs. [default: build/experiments/NAME]")
]


class ReportLayout(StrEnum):
    """Layouts in which results can be written instead of the page."""

    ECE = "ece"


class OpenedExperiment(NamedTuple):
    """An experiment's file, its cells, and the runner with the store (`work`; None if data is
    absent).

    `live`: it runs on a cluster, where cells run one after another."""

    live: bool
    spec: "ExperimentSpec"
    cells: "list[PlannedCell]"
    store: "RunStore"
    work: "CellWork | None"


@experiment_app.command()
def init(
    workload: Annotated[
        str,
        Option(
            show_default=False,
            help="overprovisioned: jobs that ask for more than they use; pairs: measured "
            "slowdowns; openb: pods of a trace; gangs: jobs of many pods; kube-knots-cluster, "
            "kube-knots-dl: Kube-Knots' mixes and training; job-list: your jobs; mlperf-list: "
            "programs, queries, replicas; pods: manifests; cluster-jobs: Jobs on a cluster.  "
            "[default: asked for at a "
            "terminal, else overprovisioned]",
        ),
    ] = "",
    name: Annotated[str, Option(help="The experiment's name.", show_default=False)] = "",
    scheduler: Annotated[
        list[str] | None,
        Option(help="A policy to compare; repeat for several. The first is the baseline."),
    ] = None,
    seeds: Annotated[
        int | None, Option(min=1, max=options.MOST_SEEDS, help="How many workloads are drawn.")
    ] = None,
) -> None:
    """Print an experiment file to edit: every field with its default, and its meaning.

    At a terminal it asks for options that are not given.
    """
    wishes = Wishes(name, tuple(scheduler or ()), "", seeds)
    if not workload and sys.stdin.isatty():
        workload, wishes = _asked(wishes)
    workload = workload or "overprovisioned"
    if workload not in TEMPLATES:
        raise BadInputError("--workload", unknown(workload, TEMPLATES))
    print(written(workload, wishes), end="")


def _asked(wishes: Wishes) -> tuple[str, Wishes]:
    """Ask the user on stderr for the workload and other choices; stdout is for the file."""
    from typer import prompt

    kinds = ", ".join(TEMPLATES)
    workload: str = prompt(f"Workload ({kinds})", default="overprovisioned", err=True)
    if workload not in TEMPLATES:
        raise BadInputError("Workload", unknown(workload, TEMPLATES))
    template = TEMPLATES[workload]
    name = wishes.name or prompt("Name", default=line_of(template, "name"), err=True)
    schedulers = wishes.schedulers
    if not schedulers:
        usual = line_of(template, "schedulers").strip("[]")
        typed = prompt("Schedulers, the baseline first", default=usual, err=True)
        schedulers = tuple(filter(None, (each.strip() for each in typed.split(","))))
    seeds = wishes.seeds or prompt("Seeds", default=usual_seeds(workload), type=int, err=True)
    return workload, Wishes(name, schedulers, "", seeds)


@experiment_app.command()
def check(
    file: _File,
    out: _Out = None,
    try_s: Annotated[
        float, Option(min=0, help="Seconds to try some cells, to estimate the time of all.")
    ] = 10.0,
    jobs: options.Jobs = None,
    simulated: _Simulated = False,
) -> None:
    """Check an experiment, and estimate its number of cells, time and disk space.

    Exit code 3 if its data is absent. For a cluster it reads the kubeconfig but runs nothing.
    """
    from weft.lab.experiment.run.execution import cost_of_cells
    from weft.lab.experiment.spec.experiment import axes_of

    opened = _open(file, out, simulated=simulated)
    spec, cells, work = opened.spec, opened.cells, opened.work
    axes = [f"{len(texts)} × {axis}" for axis, texts in axes_of(spec).items()]
    axes += [f"{len(spec.schedulers)} × scheduler", f"{spec.seeds.count} × seed"]
    axes += [f"{spec.repeats} × repeat"] if spec.repeats > 1 else []
    print(f"{spec.name}: {len(cells)} cells ({', '.join(axes)})")
    if work is None:
        raise Exit(EXIT_ABSENT)
    there = len(opened.store.done(cells))
    left = len(cells) - there
    print(f"in {opened.store.folder}: {there} have run, {left} to run")
    if left and opened.live:
        print(_how_long(spec, work, cells))
    elif left and try_s:
        processes = min(jobs or os.cpu_count() or 1, left)
        cost = cost_of_cells(work, cells, try_s)
        disk_mib = max(1, -(-left * cost.disk_bytes // 2**20))
        print(
            f"about {duration_text(cost.seconds * left / processes)} on {processes} processes "
            f"({cost.seconds:.2f} s a cell, {cost.tried} tried), and {disk_mib:,} MiB of disk"
        )


@experiment_app.command()
def run(
    file: _File,
    out: _Out = None,
    jobs: options.Jobs = None,
    workers: Annotated[
        str,
        Option(
            metavar="ADDRESS",
            help="A Dask scheduler (tcp://HOST:8786) whose workers run the cells instead of "
            "processes here. They need Weft and the data under the same paths.",
        ),
    ] = "",
    simulated: _Simulated = False,
) -> None:
    """Run the missing cells of an experiment; on a cluster, one after another.

    You can stop it (Ctrl-C) at any time: the same command continues with the missing cells. Exit
    code 3 if its data is absent, or cells are marked as unreliable.
    """
    from weft.lab.experiment.run.execution import run_missing
    from weft.lab.experiment.run.store import marks_of

    opened = _open(file, out, simulated=simulated)
    if opened.work is None:
        opened.store.note_absent()
        raise Exit(EXIT_ABSENT)
    if opened.live and workers:
        raise BadInputError("--workers", "applies to simulated cells; add --simulated or remove it")
    store, cells = opened.store, opened.cells
    store.begin()
    where = 1 if opened.live else workers or jobs or os.cpu_count() or 1
    try:
        ran = run_missing(opened.work, cells, where, library_versions(), bar)
    except KeyboardInterrupt:
        there = f"{len(store.done(cells))} of {len(cells)} cells are in {store.folder}"
        print(
            f"weft: {there}; the same command continues with the remaining cells", file=sys.stderr
        )
        raise
    print(f"{ran} cells run, {len(cells) - ran} already done: {opened.store.folder}")
    marked = marks_of(store.records(cells))
    if marked:
        warn_of_marks(marked)
        raise Exit(EXIT_ABSENT)


@experiment_app.command()
def report(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The folder of an experiment's runs.")],
    page: Annotated[
        Path | None, Option(help="Write report.html and SVG figures into this folder.")
    ] = None,
    pdf: Annotated[bool, Option("--pdf", help="With --page: report.pdf too.")] = False,
    layout: Annotated[
        ReportLayout | None,
        Option(help="With --page: ece writes the tree of Ferikoglou et al. instead of the page."),
    ] = None,
    output: options.ResultsOutput = SimulateOutput.table,
) -> None:
    """Compare an experiment's schedulers, using the cells that have run.

    Exit code 3 if cells are missing, or marked as unreliable and left out.
    """
    from weft.lab.experiment.run.store import read_store
    from weft.lab.experiment.spec.experiment import plan
    from weft.lab.experiment.statistics.reproduction import stored_results

    spec, store = read_store(folder)
    results = stored_results(spec, store, plan(spec))
    for option in ["--pdf"] * pdf + ["--layout"] * (layout is not None):
        if page is None:
            raise BadInputError(option, "is written into the folder of --page; specify --page")
    if page is not None:
        _write(page, spec, results, store, pdf=pdf, layout=layout)
    if output is SimulateOutput.json:
        print(json_text(results))
    elif output is SimulateOutput.csv:
        _print_csv(results)
    else:
        _print_results(spec, results)
    warn_of_marks(results.marked)
    if results.missing:
        few = ", ".join(results.missing[:3]) + (", …" if results.missing[3:] else "")
        print_warning(f"{len(results.missing)} of {results.planned} cells are missing: {few}")
    if results.missing or results.marked:
        raise Exit(EXIT_ABSENT)


def _write(
    page: Path,
    spec: "ExperimentSpec",
    results: "ExperimentResults",
    store: "RunStore",
    *,
    pdf: bool,
    layout: ReportLayout | None,
) -> None:
    from weft.lab.experiment.pages.ece_layout import write_ece_layout
    from weft.lab.experiment.pages.experiment_report import write_experiment_report

    if layout is not None:
        for folder in write_ece_layout(page, spec, store, print_warning):
            print(f"weft: wrote {folder}", file=sys.stderr)
        return
    manifest = store.manifest()
    versions = manifest.versions if manifest else ""
    written = write_experiment_report(page, spec, results, versions, store, pdf=pdf)
    print(f"weft: wrote {written}", file=sys.stderr)


def warn_of_marks(marked: Mapping[str, tuple[str, ...]]) -> None:
    """Print warnings with the reasons why these cells are left out of comparisons."""
    for folder, marks in marked.items():
        for mark in marks:
            print_warning(f"{folder} is marked as unreliable, and left out of comparisons: {mark}")


def _open(file: Path, out: Path | None, *, simulated: bool) -> OpenedExperiment:
    from weft.cli.policies import registry
    from weft.cluster.state.manifests import read_pods
    from weft.lab.experiment.run.execution import CellWork
    from weft.lab.experiment.run.runner import sources_of
    from weft.lab.experiment.run.simulated import runner_of
    from weft.lab.experiment.run.store import RunStore, StoredExperiment, stored_experiment
    from weft.lab.experiment.spec.experiment import absent_data, data_paths, plan, read_spec
    from weft.lab.trial.runner import endpoint_of

    if file.is_dir():
        file = file / "experiment.yaml"
    spec = read_spec(file)
    data = data_paths(spec, file.parent.absolute())  # workers may have another working directory
    live, make_policy = spec.cluster is not None and not simulated, registry().from_spec
    try:
        runner: Runner = (
            runner_on_cluster(spec, data) if live else runner_of(spec, data, make_policy, read_pods)
        )
    except BadInputError as error:
        raise BadInputError(f"{file}: {error.where}", error.problem) from error
    suffix = "-simulated" if simulated else ""
    folder = out or Path("build") / "experiments" / f"{spec.name}{suffix}"
    if absent := absent_data(data):
        store = RunStore(folder, StoredExperiment(spec, {}, not live, absent=absent))
        print_warning(f"{file}: {absent[0]}; cells that are to run are skipped")
        return OpenedExperiment(live, spec, plan(spec), store, None)
    if live:
        assert spec.cluster is not None
        endpoint_of(
            spec.cluster
        )  # raises if the kubeconfig or context is missing; connects to nothing
    sources = {} if live else sources_of(spec, make_policy)
    stored = stored_experiment(spec, data, simulated=not live, sources=sources)
    store = RunStore(folder, stored)
    return OpenedExperiment(live, spec, plan(spec), store, CellWork(runner, store))


def library_versions() -> dict[str, str]:
    """Return the versions of Weft, libraries and Python, for a run's manifest."""
    import platform
    from importlib.metadata import version

    names = {"weft": "weft-gpu", "numpy": "numpy", "scipy": "scipy", "pyarrow": "pyarrow"}
    versions = {name: version(package) for name, package in names.items()}
    return {**versions, "Python": platform.python_version()}


def _print_csv(results: "ExperimentResults") -> None:
    axes = list(dict.fromkeys(axis for summary in results.summary for axis in summary.levels))
    columns = (*axes, *_SUMMARY_COLUMNS, *_DIFFERENCE_COLUMNS, "p_value")
    print_csv(
        columns,
        (
            (
                *(summary.levels[axis] for axis in axes),
                *(getattr(summary, name) for name in _SUMMARY_COLUMNS),
                *(
                    None if summary.difference is None else getattr(summary.difference, field)
                    for field in _DIFFERENCE_COLUMNS.values()
                ),
                summary.p_value,
            )
            for summary in results.summary
        ),
    )


_SUMMARY_COLUMNS = ("scheduler", "measure", "seeds", "mean", "ci95")
_DIFFERENCE_COLUMNS = {
    "change_percent": "percent",
    "change": "mean",
    "change_low": "low",
    "change_high": "high",
}
"""Columns of the CSV, and the field of a `Difference` that each shows."""


def _print_results(spec: "ExperimentSpec", results: "ExperimentResults") -> None:
    from weft.lab.experiment.statistics.comparison import level_text, model_of_time

    if results.question:
        print(results.question)
    wanted = spec.measures or SHOWN
    shown = [name for name in wanted if any(summary.measure == name for summary in results.summary)]
    table = table_with("|".join(["level", "scheduler", *(f">{name}" for name in shown)]))
    summaries = {
        (*summary.levels.values(), summary.scheduler, summary.measure): summary
        for summary in results.summary
    }
    for levels in results.levels:
        for scheduler in spec.schedulers:
            row = [summaries.get((*levels.values(), scheduler, measure)) for measure in shown]
            means = ("" if summary is None else f"{summary.mean:,.6g}" for summary in row)
            table.add_row(level_text(spec, levels) or "all", scheduler, *means)
    print_table(table)
    for text in [*results.in_words, *results.notes]:
        print_note(text)
    if model := model_of_time(spec):
        print_note(f"The simulation assumes: {model[:1].lower()}{model[1:]}")


# --- cells on a cluster ---------------------------------------------------------------------------


def runner_on_cluster(spec: "ExperimentSpec", data: Mapping[str, Path]) -> "Runner":
    """Return the runner of a live experiment, which runs each cell on the cluster."""
    from weft.lab.experiment.spec.cluster import ClusterJobs
    from weft.lab.trial.runner import ClusterRunner

    assert spec.cluster is not None
    assert isinstance(spec.workload, ClusterJobs)  # ensured by `read_spec`
    return ClusterRunner(spec.name, spec.workload, spec.cluster, data.get("models"), status_line())


def _how_long(spec: "ExperimentSpec", work: "CellWork", cells: Sequence["PlannedCell"]) -> str:
    """Estimate time and disk space of the cells that still have to run on the cluster, in words.

    The time is the mean of cells that ran; if none did, a lower limit from arrivals and
    `runSeconds`."""
    from weft.lab.trial.runner import ClusterRunner

    assert spec.cluster is not None
    assert isinstance(work.runner, ClusterRunner)
    done = work.store.done(cells)
    left = [cell for cell in cells if cell not in done]
    jobs = {seed: work.runner.jobs(seed) for seed in {cell.seed for cell in left}}
    ran_s = _ran_s(work.store, cells)
    least_s = {seed: min(_least_s(jobs[seed]), spec.cluster.turn_seconds) for seed in jobs}
    turns_s = [sum(ran_s) / len(ran_s) if ran_s else least_s[cell.seed] for cell in left]
    first = jobs[left[0].seed]
    took = duration_text(sum(turns_s))
    if ran_s:
        time = f"; about {took}, the mean of {len(ran_s)} that ran"
    elif all(job.run_s is not None for job in first):
        time = f"; at least {took}, by arrivals and `runSeconds`"
    else:
        time = ", and the cell lasts until the last Job ends"
    seconds_bytes = SECOND_BYTES if spec.cluster.prometheus is not None else 0
    size = sum(
        CELL_BYTES + JOB_BYTES * len(jobs[cell.seed]) + seconds_bytes * turn_s
        for cell, turn_s in zip(left, turns_s, strict=True)
    )
    return (
        f"{len(left)} cells to run on the cluster, one after another; in each {len(first)} Jobs "
        f"arrive within {first[-1].arrival_s:,.0f} s{time}\n"
        f"{'about' if ran_s else 'at least'} {max(1, round(size / 2**20)):,} MiB of disk"
    )


def _ran_s(store: "RunStore", cells: Sequence["PlannedCell"]) -> list[float]:
    """Return the seconds that cells took, for those that are in the folder's manifest."""
    manifest = store.manifest()
    timings = manifest.cells if manifest is not None else {}
    return [timings[cell.folder].wall_s for cell in cells if cell.folder in timings]


def _least_s(jobs: Sequence["PlannedJob"]) -> float:
    """Return the least seconds that a cell takes on a cluster: if every Job gets its GPUs at once.

    If Jobs have no run time, this is the time of the last arrival."""
    return max(job.arrival_s + (job.run_s or 0.0) for job in jobs)


# --- two results ----------------------------------------------------------------------------------

_Folder = Annotated[Path, Argument(help="The folder of an experiment's runs.")]


@experiment_app.command()
def compare(
    first: _Folder, second: _Folder, output: options.ResultsOutput = SimulateOutput.table
) -> None:
    """Compare two results cell by cell: differences of SECOND from FIRST on the same seeds.

    Cells that either result marks as unreliable are left out, with a warning. Exit code 3 if the
    results have no cell in common.
    """
    from weft.lab.experiment.run.store import read_store
    from weft.lab.experiment.statistics.comparison import compare_two

    results = compare_two(read_store(first), read_store(second))
    if output is SimulateOutput.json:
        print(json_text(results))
    elif output is SimulateOutput.csv:
        _print_pairs(results)
    else:
        _print_differences(results)
    if results.differs:
        print_warning(f"the experiments differ in {results.differs}")
    for folder, cells in ((first, results.only_first), (second, results.only_second)):
        if cells:
            few = ", ".join(cells[:3]) + (", …" if cells[3:] else "")
            print_warning(f"{len(cells)} cells are only in {folder}: {few}")
    warn_of_marks(results.marked)
    if not results.pairs:
        raise Exit(EXIT_ABSENT)


def _print_differences(results: "TwoResults") -> None:
    from weft.lab.experiment.statistics.comparison import why_none

    table = table_with("level|scheduler|measure|>seeds|>second|difference")
    for summary in results.summary:
        if summary.measure in SHOWN:
            level = ", ".join(f"{axis} {text}" for axis, text in summary.levels.items()) or "all"
            change = "" if summary.difference is None else summary.difference.text()
            table.add_row(
                level,
                summary.scheduler,
                summary.measure,
                str(summary.seeds),
                f"{summary.mean:,.6g}",
                change,
            )
    print_table(table)
    for finding in results.findings:
        print(finding)
    if not results.findings:
        print(why_none(results.summary))


def _print_pairs(results: "TwoResults") -> None:
    axes = list(dict.fromkeys(axis for pair in results.pairs for axis in pair.levels))
    rows = (
        (
            *(pair.levels.get(axis) for axis in axes),
            *(getattr(pair, name) for name in _PAIR_COLUMNS),
        )
        for pair in results.pairs
    )
    print_csv((*axes, *_PAIR_COLUMNS), rows)


_PAIR_COLUMNS = ("scheduler", "seed", "repeat", "measure", "first", "second")


# --- published experiments ------------------------------------------------------------------------


@experiment_app.command()
def reproduce(
    folders: Annotated[
        list[Path],
        Argument(metavar="FOLDER...", help="Folders with experiments and expected.yaml."),
    ],
    short: Annotated[
        bool, Option("--short", help="Run the short forms: fewer seeds or levels.")
    ] = False,
    out: Annotated[Path, Option(help="The folder of runs, pages and index.html.")] = Path(
        "build/experiments"
    ),
    jobs: options.Jobs = None,
) -> None:
    """Run the missing cells of published experiments, and check the results.

    Exit code 1 if a result is not as expected, 3 if data is absent.
    """
    from weft.cli.policies import registry
    from weft.cluster.state.manifests import read_pods
    from weft.lab.experiment.pages.experiment_report import write_index
    from weft.lab.experiment.statistics.reproduction import HowToRun
    from weft.lab.experiment.statistics.reproduction import reproduce as run

    processes, make = jobs or os.cpu_count() or 1, registry().from_spec
    how = HowToRun(out, short, processes, make, library_versions(), bar, read_pods)
    done, figures = [], {}
    for folder in folders:
        reproduction = run(folder, how)
        done.append(reproduction)
        for absent in reproduction.absent:
            print_warning(f"{reproduction.name}: {absent}")
        figures[reproduction.name] = _write_pages(
            reproduction, ", ".join(map(" ".join, how.versions.items()))
        )
    written = write_index(out, done, figures, short=short)
    _print_checks(done)
    _print_assumed(done)
    print(f"weft: wrote {written}", file=sys.stderr)
    if any(reproduction.wrong for reproduction in done):
        raise Exit(1)
    if any(reproduction.absent for reproduction in done):
        raise Exit(EXIT_ABSENT)


def _write_pages(reproduction: "Reproduction", versions: str) -> str:
    """Write a page for each experiment; return the figure that represents the whole
    reproduction."""
    from weft.lab.experiment.pages.experiment_report import page_figure, write_experiment_report

    shown = ""
    for each in reproduction.experiments:
        if each.results is not None:
            target = each.folder / "report"
            write_experiment_report(target, each.spec, each.results, versions, each.store)
            shown = shown or page_figure(each.spec, each.results, reproduction.expected.figure)
    return shown


def _print_checks(done: "list[Reproduction]") -> None:
    from weft.lab.experiment.pages.experiment_report import verdict

    table = table_with("experiment|check|>result|criterion|")
    for reproduction in done:
        for each in reproduction.checks:
            low, high = each.check.criterion
            value = "" if each.value is None else f"{each.value:,.6g}"
            ends = f"{low:,.6g} to {high:,.6g}"
            table.add_row(reproduction.name, each.check.name, value, ends, verdict(each))
    print_table(table)


def _print_assumed(done: "list[Reproduction]") -> None:
    """Print experiments' headline results under each alternative assumption."""
    table = table_with("experiment|headline|assumed|>result")
    shown = [(reproduction.name, *each) for reproduction in done for each in reproduction.assumed()]
    for name, headline, rows in shown:
        for row in rows:
            table.add_row(name, headline.name, row.assumption, row.text)
    if shown:
        print_table(table)
