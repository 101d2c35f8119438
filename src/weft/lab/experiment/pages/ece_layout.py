"""Writes results in the file layout of Ferikoglou et al.'s experiments (ECE-Diploma).

    EXPERIMENT_<seed>_MIN_<a>_MAX_<b>_OVERPROV_<p>/   a and b: least and most seconds between jobs
        WORKLOAD_<MECHANISM>_<seed>.txt           a block per job, and the makespan
        WORKLOAD_<MECHANISM>_<seed>/<metric>/     <start>_<end>.csv, combined.csv, a PNG
        OVERALL/<metric>/                         combined_<MECHANISM>.csv, and PNGs:
                                                  <EXPERIMENT>-<metric>, <EXPERIMENT>-SEP-<metric>

The seed replaces the original's start time; a run's clock begins at 0. There is one value per
second; query percentiles only for jobs that answer queries. The scheduler's log is left out.

Jobs on a cluster have Kubernetes' timestamps. Simulated jobs only have times of binding and end. On
shared GPUs `START_NS` of `ece_like` passes before the container's run and `END_NS` after it;
otherwise the container runs from binding to end."""

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.lab.experiment.pages.document import write_files
from weft.lab.experiment.pages.figures import Chart, to_png
from weft.lab.experiment.pages.looks import Look, looks
from weft.lab.experiment.pages.usage_charts import LevelRows
from weft.lab.experiment.run.store import JOBS, CellRows, RunStore
from weft.lab.experiment.spec.cluster import ClusterJobs
from weft.lab.experiment.spec.experiment import (
    CellLevel,
    ExperimentSpec,
    PlannedCell,
    axes_of,
    plan,
)
from weft.lab.experiment.spec.workloads import (
    InferenceList,
    OverprovisionedJobs,
    UniformArrivals,
    Workload,
)
from weft.lab.simulate.sharing import ece_like
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.model import BadInputError

MECHANISMS = {"exclusive": "DEFAULT", "gpushare": "ALIBABA", "ferikoglou": "CUSTSCHED"}
"""The layout's names of schedulers; names of other schedulers are written in capitals."""
METRICS = {
    "dcgm_gpu_utilization": "gpu_util_percent",
    "dcgm_fb_used": "memory_used_mib",
    "dcgm_power_usage": "power_w",
}
"""Columns of our results by the original exporter's metric names."""
PART_S = 453
"""Seconds per CSV file, the range that the original queried Prometheus for."""
DIFFERENCES = {
    "Job_Start_Time - Job_Creation_Timestamp": ("job_started_s", "arrived_s"),
    "Pod_Creation_Timestamp - Job_Start_Time": ("pod_created_s", "job_started_s"),
    "Pod_Start_Time - Pod_Creation_Timestamp": ("pod_started_s", "pod_created_s"),
    "Container_Started_At - Pod_Start_Time": ("container_started_s", "pod_started_s"),
    "Container_Finished_At - Container_Started_At": ("container_finished_s", "container_started_s"),
    "Job_Completion_Time - Container_Finished_At": ("finished_s", "container_finished_s"),
}
"""Parts of a job's time, each the difference of two columns of a cluster's rows."""
PLAYED = "alone_s"
"""A column that only rows of jobs on shared simulated GPUs have."""
_BOM = "\ufeff"
Files = dict[str, bytes]
Floats = NDArray[np.float64]


def write_ece_layout(
    folder: Path,
    spec: ExperimentSpec,
    store: RunStore,
    warn: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Write every level, seed and repeat that was run, and return their folders.

    Cells without rows of jobs are left out, and reported to `warn`. If no cell has rows of jobs,
    nothing is written and `BadInputError` is raised."""
    together: dict[tuple[tuple[CellLevel, ...], int, int], list[PlannedCell]] = {}
    for cell in _with_jobs(spec, store, warn):
        together.setdefault((cell.levels, cell.seed, cell.repeat), []).append(cell)
    look_of, written = looks(spec.schedulers), []
    for (levels, seed, repeat), cells in together.items():
        name = experiment_name(spec, levels, seed) + (f"_REPEAT_{repeat}" if repeat else "")
        rows = {cell.scheduler: store.rows(cell) for cell in cells}
        files = {**layout_texts(seed, rows), **_pictures(name, seed, rows, look_of)}
        for place in sorted({Path(path).parent for path in files}):
            here = {Path(path).name: files[path] for path in files if Path(path).parent == place}
            write_files(folder / name / place, here, [])
        written.append(folder / name)
    return written


def _with_jobs(
    spec: ExperimentSpec, store: RunStore, warn: Callable[[str], None]
) -> list[PlannedCell]:
    """Return the valid cells that have rows of jobs; `BadInputError` if there are valid cells, but
    none with rows."""
    records = store.records(plan(spec))
    counting = [cell for cell, record in records.items() if not record.marks]
    keeping = [cell for cell in counting if (store.place(cell) / JOBS).is_file()]
    if counting and not keeping:
        what = (
            f"ece is a table of jobs, but no cell of {store.folder} has rows of jobs ({JOBS}); "
            "leave out --layout for the page"
        )
        raise BadInputError("--layout", what)
    for cell in counting:
        if cell not in keeping:
            warn(f"{cell.folder} has no rows of jobs ({JOBS}), and is left out of the layout")
    return keeping


def experiment_name(spec: ExperimentSpec, levels: Sequence[CellLevel], seed: int) -> str:
    """Return the folder name of a level and seed; axes that the original layout lacks are added if
    they have several levels.

    MIN and MAX are `gap_bounds`; without bounds they are left out."""
    several = {axis for axis, texts in axes_of(spec).items() if len(texts) > 1}
    parts = [f"EXPERIMENT_{seed}"]
    if (bounds := gap_bounds(spec.workload)) is not None:
        parts.append("MIN_{:.15g}_MAX_{:.15g}".format(*bounds))
    for level in levels:
        if level.axis == "percent":
            parts.append(f"OVERPROV_{level.text}")
        elif level.axis in several:
            parts.append(f"{level.axis.upper()}_{level.text}")
    return "_".join(parts)


def gap_bounds(workload: Workload) -> tuple[float, float] | None:
    """Return the least and most seconds between two jobs, before loads scale them.

    The bounds are `delaySeconds`, those of uniform `arrivals`, or the original's. None if gaps have
    no bounds: with another distribution, or if jobs have arrival times of their own."""
    if isinstance(workload, ClusterJobs):
        told = workload.jobs and all(job.arrival_seconds for job in workload.jobs)
        return None if told else workload.delay_seconds
    arrivals = getattr(workload, "arrivals", None)
    if isinstance(arrivals, UniformArrivals):
        return arrivals.least_seconds, arrivals.most_seconds
    if arrivals is None and isinstance(workload, OverprovisionedJobs | InferenceList):
        return ece_like.ARRIVAL_LEAST_S, ece_like.ARRIVAL_MOST_S
    return None


def layout_texts(seed: int, rows: Mapping[str, CellRows]) -> Files:
    """Return job tables and per-second values of one level and seed, by path; `rows` is by
    scheduler."""
    files: Files = {}
    for who, cell_rows in rows.items():
        workload = f"WORKLOAD_{mechanism(who)}_{seed}"
        files[f"{workload}.txt"] = _jobs(cell_rows)
        for metric, column in METRICS.items():
            if not np.isfinite(cell_rows.series.get(column, np.nan)).any():
                continue
            values = each_second(cell_rows, column)
            for first in range(0, len(values), PART_S):
                part = values[first : first + PART_S]
                name = f"{first}_{first + len(part) - 1}.csv"
                files[f"{workload}/{metric}/{name}"] = _csv(first, part)
            files[f"{workload}/{metric}/combined.csv"] = _csv(0, values, _BOM)
            files[f"OVERALL/{metric}/combined_{mechanism(who)}.csv"] = _csv(0, values, _BOM)
    return files


def _pictures(
    name: str, seed: int, rows: Mapping[str, CellRows], look_of: Mapping[str, Look]
) -> Files:
    """Return the PNGs of each metric: one per scheduler, one with all schedulers in one panel,
    and one with a panel for each."""
    files: Files = {}
    for who, cell_rows in rows.items():
        workload = f"WORKLOAD_{mechanism(who)}_{seed}"
        for metric, chart in _charts({who: cell_rows}, look_of, "-0"):
            files[f"{workload}/{metric}/{workload}-{metric}.png"] = to_png(chart)
    for kind, end in (("", "-0"), ("SEP-", "-0-each")):
        for metric, chart in _charts(rows, look_of, end):
            files[f"OVERALL/{metric}/{name}-{kind}{metric}.png"] = to_png(chart)
    return files


def _charts(
    rows: Mapping[str, CellRows], look_of: Mapping[str, Look], end: str
) -> Iterator[tuple[str, Chart]]:
    level = LevelRows("", {who: [cell_rows] for who, cell_rows in rows.items()}, look_of)
    drawn = {chart.name: chart for chart in level.charts(0)}
    for metric, column in METRICS.items():
        if f"{column}{end}" in drawn:
            yield metric, drawn[f"{column}{end}"]


def mechanism(scheduler: str) -> str:
    """Return a scheduler's name for file names: the original layout's, or its own in capitals."""
    return MECHANISMS.get(scheduler) or re.sub("[^A-Z0-9]+", "_", scheduler.upper()).strip("_")


def each_second(rows: CellRows, column: str) -> list[float]:
    """Return the column's value at each whole second, up to the last change."""
    at_s = np.asarray(rows.series["at_s"])
    seconds = np.arange(int(at_s[-1]) + 1)
    before = np.searchsorted(at_s, seconds, side="right") - 1
    return [float(value) for value in np.asarray(rows.series[column])[before.clip(0)]]


def _csv(first_s: int, values: Sequence[float], mark: str = "") -> bytes:
    """Return a CSV line per second, without the seconds before a cluster's first sample."""
    known = ((first_s + at, value) for at, value in enumerate(values) if np.isfinite(value))
    lines = (f"{second},{value:f}\n" for second, value in known)
    return (mark + "".join(lines)).encode()


def _jobs(rows: CellRows) -> bytes:
    """Return the text of the job table: a block per completed job, ordered by end, and the
    makespan."""
    finished = np.asarray(rows.jobs["finished_s"], float)
    order = [int(at) for at in np.argsort(finished, kind="stable") if np.isfinite(finished[at])]
    columns = {
        name: np.asarray(column, float) for name, column in rows.jobs.items() if name.endswith("_s")
    }
    parts_of = _measured_parts if "container_started_s" in columns else _played_parts
    parts = parts_of(columns)
    blocks = []
    for at in order:
        said = {
            "Job Name": str(rows.jobs["uid"][at]),
            "Container Restart Count": str(int(rows.jobs["restarts"][at])),
        }
        said |= {what: _clock(part[at]) for what, part in parts.items() if np.isfinite(part[at])}
        said["Job Execution Time"] = _clock(finished[at] - columns["arrived_s"][at])
        for percent in (90, 99):
            column = columns.get(f"query_p{percent}_s", columns.get(f"p{percent}_s"))
            if column is not None and np.isfinite(column[at]):
                said[f"Container {percent}%-ile"] = f"{1000 * column[at]:.4f} msec"
        blocks.append("".join(f"{what:<44} = {value}\n" for what, value in said.items()))
    makespan_s = max((finished[at] for at in order), default=0.0)
    blocks.append(f"{'Overall Duration':<44} = {makespan_s:.0f} sec\n")
    return "\n".join(blocks).encode()


def _measured_parts(columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the parts in `DIFFERENCES` from a cluster's rows, NaN if either time is missing.

    Parts are at least 0: machines' clocks may differ by a second (cells with larger differences are
    marked)."""
    return {
        what: np.maximum(columns[later] - columns[earlier], 0.0)
        for what, (later, earlier) in DIFFERENCES.items()
    }


def _played_parts(columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the parts in `DIFFERENCES` for simulated jobs; steps that are not simulated take no
    time."""
    came, bound, ended = (columns[name] for name in ("arrived_s", "bound_s", "finished_s"))
    start_s, end_s = (
        part / SECOND_NS if PLAYED in columns else 0.0
        for part in (ece_like.START_NS, ece_like.END_NS)
    )
    nothing = np.zeros(len(came))
    parts = (
        *(nothing, nothing, bound - came, nothing + start_s),
        *(np.maximum(0.0, ended - bound - start_s - end_s), nothing + end_s),
    )
    return dict(zip(DIFFERENCES, parts, strict=True))


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
