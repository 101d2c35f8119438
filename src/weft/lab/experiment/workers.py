"""Cells of an experiment on several processes; the answers are the same for any number of them."""

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from weft.model import BadInputError

Shared = TypeVar("Shared")
Cell = TypeVar("Cell")
Result = TypeVar("Result")
PARENT_PERIOD_S = 0.5
"""So often a worker looks if the process that started it is still there."""


def run_cells(
    work: Callable[[Shared, Cell], Result], shared: Shared, cells: Sequence[Cell], jobs: int
) -> Generator[tuple[Cell, Result], None, None]:
    """`work(shared, cell)` for every cell, in the order in which they finish.

    Close it where you leave early: that ends the workers at once, whatever they are doing. Workers
    get `shared` once, not with every cell. `work` must be a function of a module.
    """
    if jobs <= 1:
        return ((cell, work(shared, cell)) for cell in cells)
    return _in_parallel(work, shared, cells, jobs)


_kept: list[Any] = []


def _adopt(shared: object, parent: int) -> None:
    """A worker process keeps what all cells share here: it has nowhere else."""
    import threading

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker has its parent's handler
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
) -> Generator[tuple[Cell, Result], None, None]:
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("fork" if _can_fork() else "spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(jobs, context, _adopt, (shared, os.getpid())) as pool:
        try:
            with _workers_hear_no_ctrl_c():
                futures = {pool.submit(_work, work, cell): cell for cell in cells}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException as error:
            for worker in multiprocessing.active_children():
                if worker not in others:
                    worker.kill()  # a cell may take minutes, and leaving the pool waits for it
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                why = "a process that ran a cell was killed, perhaps because memory ran out"
                raise BadInputError("--jobs", f"{why}; use fewer") from None
            raise


@contextmanager
def _workers_hear_no_ctrl_c() -> Iterator[None]:
    """Processes that start meanwhile leave Ctrl-C to this one, which a terminal tells as well."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _can_fork() -> bool:
    """Fork starts workers at once, but only where this process has one thread."""
    import sys
    import threading

    return sys.platform == "linux" and threading.active_count() == 1
