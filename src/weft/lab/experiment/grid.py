"""A grid of runs, policies × seeds, in parallel processes; the same results for any `jobs`."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from weft.core.engine import Engine
from weft.core.record import DecisionsWriter
from weft.files.writing import replacing
from weft.lab.experiment.notes import REPLAYED, RESAMPLED, notes_on
from weft.lab.experiment.schedulers import MakeScheduler
from weft.lab.experiment.statistics import summarise
from weft.lab.experiment.workers import run_cells, with_progress
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.holdings import ClusterHoldings, NodeHoldings, holdings_now
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.lacking import lacking
from weft.lab.simulate.results import PolicyRun, SimulationResults
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import run_timed
from weft.model import BadInputError


class RunGrid(msgspec.Struct, frozen=True):
    """The experiment's runs: every policy on every arrival order.

    `compress` is for timed mode; `decisions` is where the one run's decisions file goes; with
    `keeps_holdings` each policy's first run also tells who held what; `once` is why there is
    one order of arrivals, in words, where that is so.
    """

    scenario: Scenario
    policies: tuple[str, ...]
    arrivals: tuple[Arrivals, ...]
    make: MakeScheduler
    mode: Literal["inflation", "timed"] = "inflation"
    compress: float = 1.0
    timing: bool = True
    decisions: Path | None = None
    keeps_holdings: bool = False
    once: str = ""

    def lacks(self) -> dict[str, list[str]]:
        """Inputs that each policy is not given, by its name as it was asked for."""
        return {name: lacking(self.make(name), self.scenario) for name in self.policies}

    def notes(self) -> list[str]:
        """Notes on these arrivals."""
        if self.mode != "timed":
            return []
        own = list(range(len(self.scenario.pods)))
        return [REPLAYED if all(o.pod_rows == own for o in self.arrivals) else RESAMPLED]

    def cells(self) -> list[tuple[str, int]]:
        """(policy, index of the arrival order), in the order of the results."""
        return [(policy, i) for policy in self.policies for i in range(len(self.arrivals))]


class CellOutcome(msgspec.Struct, frozen=True):
    """A run, and who held what in it where that was wanted."""

    run: PolicyRun
    holdings: ClusterHoldings | None = None


def run_grid(
    grid: RunGrid, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> SimulationResults:
    """Run all cells on `jobs` processes; `progress(policy, seed, done_cells)` after each."""
    return run_grid_with_holdings(grid, jobs, progress)[0]


def run_grid_with_holdings(
    grid: RunGrid, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> tuple[SimulationResults, list[ClusterHoldings]]:
    """The same, and who held what in the first run of each policy, if the grid keeps it."""
    cells = grid.cells()
    finished = run_cells(run_cell, grid, cells, jobs)
    outcomes = dict(
        with_progress(finished, progress, lambda cell: (cell[0], grid.arrivals[cell[1]].seed))
    )
    ordered = [outcomes[cell].run for cell in cells]
    holdings = [held for cell in cells if (held := outcomes[cell].holdings) is not None]
    summary = [
        msgspec.structs.replace(row, lacks=grid.lacks()[row.policy]) for row in summarise(ordered)
    ]
    notes = [*grid.notes(), *notes_on(ordered, summary, once=grid.once)]
    return SimulationResults(ordered, summary, notes), holdings


def run_cell(grid: RunGrid, cell: tuple[str, int]) -> CellOutcome:
    """One policy on one arrival order."""
    if grid.decisions is None:
        return run_recorded(grid, cell, None)
    try:
        return _recorded(grid, cell, grid.decisions)
    except OSError as error:
        raise BadInputError(str(grid.decisions), f"cannot be written: {error.strerror}") from None


def _recorded(grid: RunGrid, cell: tuple[str, int], path: Path) -> CellOutcome:
    """A run with its decisions file, which is there whole or not at all."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with replacing(path) as part, part.open("wb") as file:
        decisions = DecisionsWriter(file)
        run = run_recorded(grid, cell, decisions)
        decisions.close()
    return run


def run_recorded(
    grid: RunGrid, cell: tuple[str, int], decisions: DecisionsWriter | None
) -> CellOutcome:
    """One policy on one arrival order; what it decides goes to `decisions`, if wanted."""
    name, index = cell
    scenario, arrivals, timed = grid.scenario, grid.arrivals[index], grid.mode == "timed"
    nodes: list[NodeHoldings] = []

    def keep(engine: Engine, pod_name: Callable[[str], str]) -> None:
        nodes.extend(holdings_now(engine, scenario.typical(), pod_name))

    work = scenario, grid.make(name), arrivals
    on_holdings = keep if grid.keeps_holdings and index == 0 else None
    if timed:
        run = run_timed(
            *work,
            compress=grid.compress,
            timing=grid.timing,
            decisions=decisions,
            on_holdings=on_holdings,
        )
    else:
        run = run_inflation(*work, timing=grid.timing, decisions=decisions, on_holdings=on_holdings)
    run = msgspec.structs.replace(run, policy=name)  # as it was asked for, with its options
    if on_holdings is None:
        return CellOutcome(run)
    moment = "when the last pod had come" if timed else "at the end"
    return CellOutcome(run, ClusterHoldings(name, arrivals.seed, moment, tuple(nodes)))
