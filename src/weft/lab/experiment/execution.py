"""Runs an experiment's cells that are not there yet, on several processes or machines.

Processes of this machine write cells themselves, so that nothing is lost with the process that
started them; what workers elsewhere send back is written here.
"""

import datetime
import platform
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.remote_workers import run_remotely
from weft.lab.experiment.runner import CellResult, Runner
from weft.lab.experiment.store import CellTiming, RunManifest, RunStore
from weft.lab.experiment.workers import run_cells
from weft.lab.stopping import interrupted_by_sigterm

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
