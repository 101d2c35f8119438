"""`weft experiment reproduce`: folders of experiments, and what they are expected to show."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from weft.cli import options
from weft.cli.experiment_file import EXIT_ABSENT, library_versions
from weft.cli.output import print_table, print_warning, table_with
from weft.cli.progress import bar

if TYPE_CHECKING:
    from weft.lab.experiment.statistics.reproduction import Reproduction


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
    """Run published experiments, as far as cells are missing, and check what came of them.

    Exit code 1 where a result is not as expected, 3 where data is absent.
    """
    from weft.cli.experiment_pods import read_pods
    from weft.cli.policies import registry
    from weft.lab.experiment.pages.reproduction_page import write_index
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
    _print(done)
    _print_assumed(done)
    print(f"weft: wrote {written}", file=sys.stderr)
    if any(reproduction.wrong for reproduction in done):
        raise Exit(1)
    if any(reproduction.absent for reproduction in done):
        raise Exit(EXIT_ABSENT)


def _write_pages(reproduction: "Reproduction", versions: str) -> str:
    """Each experiment's own page; the figure that stands for all of them."""
    from weft.lab.experiment.pages.experiment_page import page_figure, write_experiment_report

    shown = ""
    for each in reproduction.experiments:
        if each.results is not None:
            target = each.folder / "report"
            write_experiment_report(target, each.spec, each.results, versions, each.store)
            shown = shown or page_figure(each.spec, each.results, reproduction.expected.figure)
    return shown


def _print(done: "list[Reproduction]") -> None:
    from weft.lab.experiment.pages.reproduction_page import verdict

    table = table_with("experiment|check|>result|criterion|")
    for reproduction in done:
        for each in reproduction.checks:
            low, high = each.check.criterion
            value = "" if each.value is None else f"{each.value:,.6g}"
            ends = f"{low:,.6g} to {high:,.6g}"
            table.add_row(reproduction.name, each.check.name, value, ends, verdict(each))
    print_table(table)


def _print_assumed(done: "list[Reproduction]") -> None:
    """Headlines under each assumption: what they rest on."""
    table = table_with("experiment|headline|assumed|>result")
    shown = [(reproduction.name, *each) for reproduction in done for each in reproduction.assumed()]
    for name, headline, rows in shown:
        for row in rows:
            table.add_row(name, headline.name, row.assumption, row.text)
    if shown:
        print_table(table)
