"""Runs an experiment's missing cells, in several processes or on several machines.

Results do not depend on the number of processes. Processes on this machine write cells themselves,
so that nothing is lost if their parent dies. Workers of a Dask cluster need Weft, the policies and
the data under the same paths; they write nothing: results are sent back, and written on the machine
that started the experiment."""

import datetime
import platform
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from weft.lab.experiment.run.runner import CellResult, Runner
from weft.lab.experiment.run.store import CellTiming, RunManifest, RunStore
from weft.lab.experiment.spec.experiment import PlannedCell
from weft.lab.stopping import interrupted_by_sigterm
from weft.model import BadInputError
from weft.model.errors import install_extra

MANIFEST_PERIOD_S = 10.0
"""Least seconds between two writes of the manifest while cells run; a kill loses newer timings."""
BLOCK_BYTES = 4096
"""Block size that files are rounded up to on disk."""


class CellWork(msgspec.Struct, frozen=True):
    """The runner and the store that workers need for every cell."""

    runner: Runner
    store: RunStore


def run_missing(
    work: CellWork,
    cells: Sequence[PlannedCell],
    where: "int | str",
    versions: dict[str, str],
    make_progress: Callable[[int], Callable[[str, int, int], None] | None],
) -> int:
    """Run those of `cells` that the store lacks, and return their number.

    `where` is the largest number of processes, or the address of a Dask scheduler. `make_progress`
    is called with the number of missing cells, and returns a function to call with (scheduler,
    seed, cells done) after each cell, or None. `versions` by name are written into the manifest."""
    store = work.store
    done = store.done(cells)
    missing = [cell for cell in cells if cell not in done]
    progress = make_progress(len(missing))
    earlier = store.manifest()
    timings = dict(earlier.cells) if earlier else {}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    written_s = time.monotonic()
    try:
        with interrupted_by_sigterm(), closing(_runs(work, missing, where)) as runs:
            for number, (cell, (wall_s, host)) in enumerate(runs, 1):
                ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                weft = versions.get("weft", "")
                timings[cell.folder] = CellTiming(ended, round(wall_s, 3), host, weft)
                if progress is not None:
                    progress(cell.scheduler, cell.seed, number)
                if time.monotonic() - written_s >= MANIFEST_PERIOD_S:
                    store.write_manifest(RunManifest(text, timings))
                    written_s = time.monotonic()
    finally:
        if missing:
            store.write_manifest(RunManifest(text, dict(sorted(timings.items()))))
        store.close()
    return len(missing)


def _runs(
    work: CellWork, cells: Sequence[PlannedCell], where: int | str
) -> Generator[tuple[PlannedCell, tuple[float, str]], None, None]:
    """Yield (cell, (seconds that it took, host)) for each cell once it is written."""
    if isinstance(where, str):
        for cell, remote in run_remotely(work.runner, cells, where) if cells else ():
            work.store.write(cell, remote.result)
            yield cell, (remote.wall_s, remote.host)
        return
    with closing(run_cells(run_and_write, work, cells, min(where, len(cells)))) as runs:
        for cell, wall_s in runs:
            yield cell, (wall_s, platform.node())


def run_in_memory(
    runner: Runner,
    cells: Sequence[PlannedCell],
    jobs: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[PlannedCell, CellResult]:
    """Run all cells in at most `jobs` processes, without writing to disk.

    Results are in the order of `cells`, without rows of jobs and of use over time, which would take
    too much memory. `progress(scheduler, seed, cells done)` is called after each."""
    done: dict[PlannedCell, CellResult] = {}
    of_cells = run_cells(_run_without_rows, runner, cells, min(jobs, len(cells)))
    with interrupted_by_sigterm(), closing(of_cells) as runs:
        for cell, result in runs:
            done[cell] = result
            if progress is not None:
                progress(cell.scheduler, cell.seed, len(done))
    return {cell: done[cell] for cell in cells}


def _run_without_rows(runner: Runner, cell: PlannedCell) -> CellResult:
    return msgspec.structs.replace(runner.run(cell), jobs=(), usage=())


def run_and_write(work: CellWork, cell: PlannedCell) -> float:
    """Run and write one cell; return the seconds that it took."""
    began_s = time.perf_counter()
    work.store.write(cell, work.runner.run(cell))
    return time.perf_counter() - began_s


class CellCost(msgspec.Struct, frozen=True):
    """The average seconds and bytes on disk of a cell, over the number of cells `tried`."""

    seconds: float
    disk_bytes: int
    tried: int


def cost_of_cells(work: CellWork, cells: Sequence[PlannedCell], within_s: float) -> CellCost:
    """Return the average cost of a few evenly spread cells, run in a temporary folder: at least one
    cell, and more until `within_s` seconds are over."""
    tried, began_s, size = 0, time.perf_counter(), 0
    step = max(1, len(cells) // 8)
    with tempfile.TemporaryDirectory(prefix="weft-experiment-") as folder:
        store = work.store.in_folder(Path(folder))
        store.begin()
        took_s = 0.0
        for cell in dict.fromkeys([*cells[::step], *cells[1::step]]):
            took_s += run_and_write(CellWork(work.runner, store), cell)
            size += sum(_on_disk(path) for path in store.place(cell).iterdir())
            tried += 1
            if time.perf_counter() - began_s >= within_s:
                break
        store.close()
    return CellCost(took_s / max(1, tried), size // max(1, tried), tried)


def _on_disk(path: Path) -> int:
    """Return the bytes that a file takes on disk: its size, rounded up to whole blocks."""
    return -(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES


Shared = TypeVar("Shared")
Cell = TypeVar("Cell")
Result = TypeVar("Result")
PARENT_PERIOD_S = 0.5
"""Seconds between a worker's checks that its parent process still exists."""


def run_cells(
    work: Callable[[Shared, Cell], Result], shared: Shared, cells: Sequence[Cell], jobs: int
) -> Generator[tuple[Cell, Result], None, None]:
    """Yield `work(shared, cell)` for every cell, in the order in which they finish.

    Closing the generator early ends the workers immediately. Workers get `shared` once, not with
    every cell. `work` must be a module-level function."""
    if jobs <= 1:
        return ((cell, work(shared, cell)) for cell in cells)
    return _in_parallel(work, shared, cells, jobs)


_kept: list[Any] = []


def _adopt(shared: object, parent: int) -> None:
    """Initialise a worker: keep the data that all cells share in a global, as a pool has no other
    place for it."""
    import threading

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker inherits its parent's handler
    _kept[:] = [shared]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker when its parent process is gone, since killing the parent does not end it."""
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
                    worker.kill()  # else leaving the pool waits for cells, which may take minutes
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                why = "a process that ran a cell was killed, perhaps because memory ran out"
                raise BadInputError("--jobs", f"{why}; use fewer") from None
            raise


@contextmanager
def _workers_hear_no_ctrl_c() -> Iterator[None]:
    """Make processes started within this context ignore Ctrl-C, which a terminal sends to them
    too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _can_fork() -> bool:
    """Return True if workers can be forked, which is fast but safe only in a single-threaded
    process."""
    import sys
    import threading

    return sys.platform == "linux" and threading.active_count() == 1


CONNECT_S = 30.0


class RemoteCell(msgspec.Struct, frozen=True):
    """A cell's result, the seconds that it took, and the host that ran it."""

    result: CellResult
    wall_s: float
    host: str


def run_remotely(
    runner: Runner, cells: Sequence[PlannedCell], scheduler: str
) -> Iterator[tuple[PlannedCell, RemoteCell]]:
    """Run the cells on the workers of this Dask scheduler, and yield them in the order they finish.

    `BadInputError` if Dask is not installed, or the scheduler does not answer."""
    try:
        import distributed
    except ImportError:
        what = f"needs Dask, which is not installed; {install_extra('workers')}"
        raise BadInputError("--workers", what) from None
    try:
        client = distributed.Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        what = f"{scheduler!r} is not the address of a Dask scheduler that answers: {error}"
        raise BadInputError("--workers", what) from None
    with client, client.as_current():
        everywhere = client.scatter(runner, broadcast=True, hash=False)
        futures = {client.submit(run_one, everywhere, cell, pure=False): cell for cell in cells}
        for future in distributed.as_completed(futures):
            yield futures[future], future.result()
            future.release()


def run_one(runner: Runner, cell: PlannedCell) -> RemoteCell:
    """Run one cell on a worker."""
    began_s = time.perf_counter()
    result = runner.run(cell)
    return RemoteCell(result, time.perf_counter() - began_s, platform.node())
