"""Runs an experiment's cells that are not there yet, on several processes or machines; the answers
are the same for any number of them.

Processes of this machine write cells themselves, so that nothing is lost with the process that
started them. Workers of a Dask cluster need Weft, the policies and the data under the same paths;
they write nothing: what came of a cell is sent back, and written where the experiment was started.
"""

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
"""So often at most the manifest is written while cells run: a kill costs so many timings."""
BLOCK_BYTES = 4096
"""The block that a file's size on disk is rounded up to."""


class CellWork(msgspec.Struct, frozen=True):
    """The inputs that workers need for every cell."""

    runner: Runner
    store: RunStore


def run_missing(
    work: CellWork,
    cells: Sequence[PlannedCell],
    where: "int | str",
    versions: dict[str, str],
    make_progress: Callable[[int], Callable[[str, int, int], None] | None],
) -> int:
    """Run those of `cells` that the store lacks; how many these were.

    `where` is at most how many processes, or the address of a Dask scheduler.

    `make_progress(how_many)(scheduler, seed, done_cells)` after each; the former may be None.
    `versions` by name go into the manifest.
    """
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
    """(cell, (seconds that it took, host)) for each, once it is written."""
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
    """Run all cells on at most `jobs` processes, and keep nothing on disk.

    Results are in the order of `cells`, without rows of jobs and series: these are too many to
    keep. `progress(scheduler, seed, done_cells)` after each.
    """
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
    """Carry out one cell and write it; the seconds it took."""
    began_s = time.perf_counter()
    work.store.write(cell, work.runner.run(cell))
    return time.perf_counter() - began_s


class CellCost(msgspec.Struct, frozen=True):
    """The average cost of a cell, from those that were `tried`."""

    seconds: float
    disk_bytes: int
    tried: int


def cost_of_cells(work: CellWork, cells: Sequence[PlannedCell], within_s: float) -> CellCost:
    """Try cells, evenly spread, until `within_s` is over; they are written to a folder that is
    removed again."""
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
    """Bytes in whole blocks."""
    return -(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES


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


CONNECT_S = 30.0


class RemoteCell(msgspec.Struct, frozen=True):
    """The result of a cell, how long it took, and on which host."""

    result: CellResult
    wall_s: float
    host: str


def run_remotely(
    runner: Runner, cells: Sequence[PlannedCell], scheduler: str
) -> Iterator[tuple[PlannedCell, RemoteCell]]:
    """Run the cells on the workers of the Dask scheduler at this address, in the order in which
    they finish. `BadInputError` where Dask is not installed, or nobody answers there."""
    try:
        import distributed
    except ImportError:
        what = f"needs Dask, which is not installed; {install_extra('workers')}"
        raise BadInputError("--workers", what) from None
    try:
        client = distributed.Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        what = f"{scheduler!r} is no Dask scheduler that answers: {error}"
        raise BadInputError("--workers", what) from None
    with client, client.as_current():
        everywhere = client.scatter(runner, broadcast=True, hash=False)
        futures = {client.submit(run_one, everywhere, cell, pure=False): cell for cell in cells}
        for future in distributed.as_completed(futures):
            yield futures[future], future.result()
            future.release()


def run_one(runner: Runner, cell: PlannedCell) -> RemoteCell:
    """Carry out one cell on a worker."""
    began_s = time.perf_counter()
    result = runner.run(cell)
    return RemoteCell(result, time.perf_counter() - began_s, platform.node())
