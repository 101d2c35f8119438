"""`weft simulate --bound`: what was possible beside what policies reached."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typer import echo

from weft.cli.progress import on_terminal
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.lab.bound.of_runs import Watch
    from weft.lab.simulate.arrivals import Arrivals
    from weft.lab.simulate.results import PolicyRun, SimulationResults
    from weft.lab.simulate.scenario import Scenario


def check_bound_options(
    demand: float | None, limit_s: float | None, folder: Path | None, *, bound: bool, grows: bool
) -> None:
    """Refuse options that say nothing here; `grows`: pods come and never leave."""
    for option, value in (
        ("--bound-demand", demand),
        ("--bound-limit-s", limit_s),
        ("--bounds-in", folder),
    ):
        if value is not None and not bound:
            raise BadInputError(option, "only means something with --bound; add it")
        if isinstance(value, float) and not (math.isfinite(value) and value > 0):
            raise BadInputError(option, f"{value} is no number above 0")
    if bound and not grows:
        raise BadInputError(
            "--bound", "is of pods that come and never leave; leave --timed or --decisions-from out"
        )


def bounded(
    results: "SimulationResults",
    scenario: "Scenario",
    orders: "Sequence[Arrivals]",
    demand: float | None,
    limit_s: float | None,
    folder: Path | None,
) -> "SimulationResults":
    """The results with the bound of each run; bounds found are kept for the next time."""
    from weft.lab.bound.of_runs import LIMIT_S, BoundSettings, RunBounds, with_bounds
    from weft.lab.bound.saved import SavedBounds

    settings = BoundSettings(limit_s or LIMIT_S, demand)
    saved = SavedBounds(folder or _usual_folder(), scenario)
    progress = _Progress(len(results.runs), settings.limit_s)
    try:
        bounds = RunBounds(scenario, settings, saved, progress.watch)
        with_all = with_bounds(results, orders, bounds)
    finally:
        progress.end()
    if bounds.not_saved:
        echo(f"weft: warning: {saved.path} cannot be written: {bounds.not_saved}", err=True)
    return with_all


def _usual_folder() -> Path:
    """Where the user's programs keep what they can make again."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "weft" / "bounds"


class _Progress:
    """A bar over the searches: of each, how much of the gap it began with is closed."""

    def __init__(self, runs: int, limit_s: float) -> None:
        self.watch: Watch | None = None
        self._limit_s, self._done = limit_s, 0
        self._run: PolicyRun | None = None
        self._began = 0.0
        if not on_terminal():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description:<52}"), BarColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("bound", total=runs)
        self._bar.start()
        self.watch = self._show

    def _show(self, run: "PolicyRun", bound: float, reached: float) -> None:
        now = time.monotonic()
        if run is not self._run:
            self._done += self._run is not None
            self._run, self._began = run, now
        part = min(0.99, (now - self._began) / self._limit_s)
        text = f"{run.policy}, seed {run.seed}: {reached:.2f} to {bound:.2f} % possible"
        self._bar.update(self._task, completed=self._done + part, description=text)

    def end(self) -> None:
        """Take the bar away."""
        if self.watch is not None:
            self._bar.stop()
