"""Cells of an experiment on several processes; the answers are the same for any number of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Shared = TypeVar("Shared")
Cell = TypeVar("Cell")
Result = TypeVar("Result")
PARENT_PERIOD_S = 0.5
"""So often a worker looks if the process that started it is still there."""


def run_cells(
    work: Callable[[Shared, Cell], Result], shared: Shared, cells: Sequence[Cell], jobs: int
) -> Iterator[tuple[Cell, Result]]:
    """`work(shared, cell)` for every cell, in the order in which they finish.

    Workers get `shared` once, not with every cell. `work` must be a function of a module.
    """
    if jobs <= 1:
        return ((cell, work(shared, cell)) for cell in cells)
    return _in_parallel(work, shared, cells, jobs)


def with_progress(
    runs: Iterator[tuple[Cell, Result]],
    progress: Callable[[str, int, int], None] | None,
    name_of: Callable[[Cell], tuple[str, int]],
) -> Iterator[tuple[Cell, Result]]:
    """The same; `progress(policy, seed, done_cells)` at each, the first two as `who(cell)` says."""
    for number, (cell, run) in enumerate(runs, 1):
        if progress is not None:
            progress(*name_of(cell), number)
        yield cell, run


_kept: list[Any] = []


def _adopt(shared: object, parent: int) -> None:
    """A worker process keeps what all cells share here: it has nowhere else."""
    import threading

    _kept[:] = [shared]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker once the process that it works for was killed: nobody else would tell it."""
    import os
    import time

    while os.getppid() == parent:
        time.sleep(PARENT_PERIOD_S)
    os._exit(1)


def _work(work: Callable[[Any, Cell], Result], cell: Cell) -> Result:
    return work(_kept[0], cell)


def _in_parallel(
    work: Callable[[Shared, Cell], Result], shared: Shared, cells: Sequence[Cell], jobs: int
) -> Iterator[tuple[Cell, Result]]:
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor, as_completed

    context = multiprocessing.get_context("fork" if _can_fork() else "spawn")
    with ProcessPoolExecutor(jobs, context, _adopt, (shared, os.getpid())) as pool:
        futures = {pool.submit(_work, work, cell): cell for cell in cells}
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
