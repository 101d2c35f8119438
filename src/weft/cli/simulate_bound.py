"""`weft simulate --bound`: an upper bound next to what policies achieved."""

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.cli.output import print_warning
from weft.cli.progress import on_terminal
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.lab.bound.of_runs import Watch
    from weft.lab.experiment.run.trace_runs import RunGrid
    from weft.lab.simulate.results import PolicyRun, SimulationResults


class BoundOptions(NamedTuple):
    """The options of `weft simulate --bound`."""

    bound: bool
    demand: float | None
    limit_s: float | None
    folder: Path | None

    def check(self, *, grows: bool) -> None:
        """Refuse options without effect; `grows`: pods arrive and never leave."""
        for option, value in (
            ("--bound-demand", self.demand),
            ("--bound-limit-s", self.limit_s),
            ("--bounds-in", self.folder),
        ):
            if value is not None and not self.bound:
                raise BadInputError(option, "has an effect only with --bound; add it")
            if isinstance(value, float) and not (math.isfinite(value) and value > 0):
                raise BadInputError(option, f"{value} is not a number above 0")
        if self.bound and not grows:
            raise BadInputError(
                "--bound",
                "applies to pods that arrive and never end; remove --timed, --decisions-from and "
                "--snapshot",
            )

    def bounded(self, results: "SimulationResults", grid: "RunGrid") -> "SimulationResults":
        """Return the results, with the bound of each run if requested; computed bounds are
        cached."""
        if not self.bound:
            return results
        from weft.lab.bound.of_runs import (
            LIMIT_S,
            BoundSettings,
            RunBounds,
            SavedBounds,
            with_bounds,
        )

        settings = BoundSettings(self.limit_s or LIMIT_S, self.demand)
        saved = SavedBounds(self.folder or _usual_folder(), grid.scenario)
        progress = _Progress(len(results.runs), settings.limit_s)
        try:
            bounds = RunBounds(grid.scenario, settings, saved, progress.watch)
            with_all = with_bounds(results, grid.arrivals, bounds)
        finally:
            progress.end()
        if bounds.not_saved:
            print_warning(f"{saved.path} cannot be written: {bounds.not_saved}")
        return with_all


def _usual_folder() -> Path:
    """Return the default folder for bounds, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "weft" / "bounds"


class _Progress:
    """A progress bar over the searches, which shows the range in which each bound lies."""

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
        """Remove the progress bar."""
        if self.watch is not None:
            self._bar.stop()
