"""`weft experiment compare`: two results, cell by cell."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit

from weft.cli import options
from weft.cli.experiment_file import EXIT_ABSENT, SHOWN, warn_of_marks
from weft.cli.output import (
    SimulateOutput,
    json_text,
    print_csv,
    print_table,
    print_warning,
    table_with,
)

if TYPE_CHECKING:
    from weft.lab.experiment.statistics.two_results import TwoResults

_Folder = Annotated[Path, Argument(help="The folder of an experiment's runs.")]


def compare(
    first: _Folder, second: _Folder, output: options.ResultsOutput = SimulateOutput.table
) -> None:
    """Compare two results cell by cell: differences of SECOND to FIRST on the same seeds.

    Cells that one of them marks are left out, and told on stderr. Exit code 3 where no cell is in
    both.
    """
    from weft.lab.experiment.run.store import read_store
    from weft.lab.experiment.statistics.two_results import compare_two

    results = compare_two(read_store(first), read_store(second))
    if output is SimulateOutput.json:
        print(json_text(results))
    elif output is SimulateOutput.csv:
        _print_csv(results)
    else:
        _print(results)
    if results.differs:
        print_warning(f"the experiments differ in {results.differs}")
    for folder, cells in ((first, results.only_first), (second, results.only_second)):
        if cells:
            few = ", ".join(cells[:3]) + (", …" if cells[3:] else "")
            print_warning(f"{len(cells)} cells are in {folder} alone: {few}")
    warn_of_marks(results.marked)
    if not results.pairs:
        raise Exit(EXIT_ABSENT)


def _print(results: "TwoResults") -> None:
    from weft.lab.experiment.statistics.comparison import why_none

    table = table_with("level|scheduler|measure|>seeds|>second|difference")
    for summary in results.summary:
        if summary.measure in SHOWN:
            level = ", ".join(f"{axis} {text}" for axis, text in summary.levels.items()) or "all"
            change = "" if summary.difference is None else summary.difference.text()
            row = (
                level,
                summary.scheduler,
                summary.measure,
                str(summary.seeds),
                f"{summary.mean:,.6g}",
                change,
            )
            table.add_row(*row)
    print_table(table)
    for finding in results.findings:
        print(finding)
    if not results.findings:
        print(why_none(results.summary))


def _print_csv(results: "TwoResults") -> None:
    axes = list(dict.fromkeys(axis for pair in results.pairs for axis in pair.levels))
    rows = (
        (*(pair.levels.get(axis) for axis in axes), *(getattr(pair, name) for name in _COLUMNS))
        for pair in results.pairs
    )
    print_csv((*axes, *_COLUMNS), rows)


_COLUMNS = ("scheduler", "seed", "repeat", "measure", "first", "second")
