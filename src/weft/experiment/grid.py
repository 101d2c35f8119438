"""A grid of runs, policies × seeds, in parallel processes; the same results for any `jobs`."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from weft.experiment.statistics import summarise
from weft.framework import Policy
from weft.model import BadInputError
from weft.simulate.arrivals import Arrivals
from weft.simulate.inflation import run_inflation
from weft.simulate.results import Results, Run
from weft.simulate.scenario import Scenario
from weft.simulate.timed import run_timed

MakePolicy = Callable[[str], Policy]


class Grid(msgspec.Struct, frozen=True):
    """What to run: every policy on every arrival order.

    `compress` is for timed mode; `decisions` is where the one run's decisions file goes.
    """

    scenario: Scenario
    policies: tuple[str, ...]
    arrivals: tuple[Arrivals, ...]
    make_policy: MakePolicy
    mode: Literal["inflation", "timed"] = "inflation"
    compress: float = 1.0
    timing: bool = True
    decisions: Path | None = None

    def cells(self) -> list[tuple[str, int]]:
        """(policy, index of the arrival order), in the order of the results."""
        return [(policy, i) for policy in self.policies for i in range(len(self.arrivals))]


def run_grid(
    grid: Grid, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> Results:
    """Run all cells on `jobs` processes; `progress(policy, seed, done_cells)` after each."""
    cells = grid.cells()
    runs: dict[tuple[str, int], Run] = {}
    finished = _one_by_one(grid, cells) if jobs <= 1 else _in_parallel(grid, cells, jobs)
    for cell, run in finished:
        runs[cell] = run
        if progress is not None:
            progress(run.policy, run.seed, len(runs))
    ordered = [runs[cell] for cell in cells]
    return Results(ordered, summarise(ordered))


def run_cell(grid: Grid, cell: tuple[str, int]) -> Run:
    """One policy on one arrival order."""
    if grid.decisions is None:
        return _run(grid, cell, None)
    try:
        return _recorded(grid, cell, grid.decisions)
    except OSError as error:
        raise BadInputError(str(grid.decisions), f"cannot be written: {error.strerror}") from None


def _recorded(grid: Grid, cell: tuple[str, int], path: Path) -> Run:
    """A run with its decisions file, which is there whole or not at all."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as decisions:
            run = _run(grid, cell, decisions)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return run


def _run(grid: Grid, cell: tuple[str, int], decisions: BinaryIO | None) -> Run:
    name, index = cell
    policy, arrivals = grid.make_policy(name), grid.arrivals[index]
    if grid.mode == "timed":
        run = run_timed(
            grid.scenario, policy, arrivals,
            compress=grid.compress, timing=grid.timing, decisions=decisions,
        )  # fmt: skip
    else:
        run = run_inflation(
            grid.scenario, policy, arrivals, timing=grid.timing, decisions=decisions
        )
    return msgspec.structs.replace(run, policy=name)  # as it was asked for, with its options


Finished = Iterator[tuple[tuple[str, int], Run]]


def _one_by_one(grid: Grid, cells: list[tuple[str, int]]) -> Finished:
    for cell in cells:
        yield cell, run_cell(grid, cell)


_grid: Grid | None = None


def _adopt(grid: Grid) -> None:
    """Each worker gets the grid once, not with every cell."""
    global _grid  # noqa: PLW0603 - a worker process has nowhere else to keep it
    _grid = grid


def _work(cell: tuple[str, int]) -> Run:
    assert _grid is not None
    return run_cell(_grid, cell)


def _in_parallel(grid: Grid, cells: list[tuple[str, int]], jobs: int) -> Finished:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    context = multiprocessing.get_context("fork" if _can_fork() else "spawn")
    with ProcessPoolExecutor(jobs, context, _adopt, (grid,)) as pool:
        futures = {pool.submit(_work, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _can_fork() -> bool:
    """Fork starts workers at once, but only where this process has one thread."""
    import sys
    import threading

    return sys.platform == "linux" and threading.active_count() == 1
