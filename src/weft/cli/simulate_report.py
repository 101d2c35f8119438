"""The report of `weft simulate`: what the command knows of it beside the results."""

import platform
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from typer import echo

if TYPE_CHECKING:
    from weft.lab.experiment.pages.report import HowMade
    from weft.lab.simulate.holdings import ClusterHoldings
    from weft.lab.simulate.results import SimulationResults
    from weft.lab.simulate.scenario import Scenario


def write_simulation_report(
    results: "SimulationResults",
    holdings: "Sequence[ClusterHoldings]",
    directory: Path,
    scenario: "Scenario",
    *,
    workload: str,
    png: bool,
    timing: bool,
) -> None:
    """Write the page and its figures, and say where it is."""
    from weft.lab.experiment.pages.report import ReportTexts, write_report

    models = Counter(gpu.model for node in scenario.nodes for gpu in node.gpus)
    cluster = f"{len(scenario.nodes):,} nodes, {models.total():,} GPUs"
    subtitle = f"{workload}: {len(scenario.pods):,} pods on {cluster}"
    texts = ReportTexts("Weft: policies compared", subtitle, how_made(sys.argv, timing=timing))
    page = write_report(
        results, directory, texts, png=png, models_gpus=dict(models), holdings=holdings
    )
    echo(f"report: {page}", err=True)


def how_made(arguments: Sequence[str], *, timing: bool) -> "HowMade":
    """The command line, versions, host and date; the latter two differ from run to run, so that
    they are left out with the timings."""
    import numpy
    import scipy

    import weft
    from weft.lab.experiment.pages.report import HowMade

    command = shlex.join(["weft", *arguments[1:]])
    python = f"Python {platform.python_version()}"
    versions = f"Weft {weft.__version__}, {python}, NumPy {numpy.__version__}, "
    versions += f"SciPy {scipy.__version__}"
    if not timing:
        return HowMade(command, versions)
    host = f"{platform.node()}: {platform.system()} {platform.release()}, {platform.machine()}"
    return HowMade(command, versions, host, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
