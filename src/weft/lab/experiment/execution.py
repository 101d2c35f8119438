"""Runs an experiment's cells that are not there yet, on several processes.

Workers write cells themselves, so that nothing is lost with the process that started them.
"""

import datetime
import platform
import time
from collections.abc import Callable, Sequence

import msgspec

from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.runner import Runner
from weft.lab.experiment.store import CellTiming, RunManifest, RunStore
from weft.lab.experiment.workers import run_cells

MANIFEST_PERIOD_S = 10.0
"""So often at most the manifest is written while cells run: a kill costs so many timings."""


class CellWork(msgspec.Struct, frozen=True):
    """What workers need for every cell."""

    runner: Runner
    store: RunStore


def run_missing(
    work: CellWork,
    cells: Sequence[PlannedCell],
    jobs: int,
    versions: dict[str, str],
    make_progress: Callable[[int], Callable[[str, int, int], None] | None],
) -> int:
    """Run those of `cells` that the store lacks, on at most `jobs` processes; how many these were.

    `make_progress(how_many)(scheduler, seed, done_cells)` after each; the former may be None.
    `versions` by name go into the manifest.
    """
    store = work.store
    done = store.done(cells)
    missing = [cell for cell in cells if cell not in done]
    progress = make_progress(len(missing))
    found = store.manifest()
    timings = dict(found.cells) if found else {}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    written_s = time.monotonic()
    try:
        runs = run_cells(run_and_write, work, missing, min(jobs, len(missing)))
        for number, (cell, wall_s) in enumerate(runs, 1):
            ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            host, weft = platform.node(), versions.get("weft", "")
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


def run_and_write(work: CellWork, cell: PlannedCell) -> float:
    """Carry out one cell and write it; the seconds it took."""
    began_s = time.perf_counter()
    work.store.write(cell, work.runner.run(cell))
    return time.perf_counter() - began_s


def seconds_a_cell(
    work: CellWork, cells: Sequence[PlannedCell], within_s: float
) -> tuple[float, int]:
    """(mean seconds a cell, how many were tried): cells evenly spread, until `within_s` is over."""
    tried, began_s = 0, time.perf_counter()
    step = max(1, len(cells) // 8)
    for cell in [*cells[::step], *cells[1::step]]:
        work.runner.run(cell)
        tried += 1
        if time.perf_counter() - began_s >= within_s:
            break
    return (time.perf_counter() - began_s) / max(1, tried), tried
