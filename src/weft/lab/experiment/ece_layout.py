"""Writes results as the first experiments of this kind kept them (Ferikoglou et al., ECE-Diploma).

    EXPERIMENT_<seed>_MIN_<a>_MAX_<b>_OVERPROV_<p>/
        WORKLOAD_<MECHANISM>_<seed>.txt           a block a job, and the makespan
        WORKLOAD_<MECHANISM>_<seed>/<metric>/     <start>_<end>.csv, combined.csv, a PNG
        OVERALL/<metric>/                         combined_<MECHANISM>.csv, and PNGs:
                                                  <EXPERIMENT>-<metric>, <EXPERIMENT>-SEP-<metric>

Where they had the time of the start there is the seed; a run's clock begins at 0. Values are one a
second, percentiles of queries of jobs that answer some. The scheduler's log is left out.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.lab.experiment import png
from weft.lab.experiment.drawing import Drawing
from weft.lab.experiment.layouts import WIDE
from weft.lab.experiment.looks import Look, looks
from weft.lab.experiment.plan import CellLevel, PlannedCell, axes_of, plan
from weft.lab.experiment.report import write_files
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.experiment.store import CellRows, RunStore
from weft.lab.experiment.usage_figures import LevelRows
from weft.lab.simulate.sharing import ece_like
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.model.errors import install_extra

MECHANISMS = {"exclusive": "DEFAULT", "gpushare": "ALIBABA", "ferikoglou": "CUSTSCHED"}
"""Names of schedulers there; others are written in capitals."""
METRICS = {
    "dcgm_gpu_utilization": "gpu_util_percent",
    "dcgm_fb_used": "memory_used_mib",
    "dcgm_power_usage": "power_w",
}
"""The old exporter's names, and ours."""
PART_S = 453
"""So many seconds a CSV file holds, as the original asked Prometheus for."""
_BOM = "\ufeff"
Files = dict[str, bytes]


def write_ece_layout(folder: Path, spec: ExperimentSpec, store: RunStore) -> list[Path]:
    """Write every level, seed and repeat that was run; their folders. `BadInputError` without
    matplotlib."""
    png.check("--layout", install_extra("experiments"))
    together: dict[tuple[tuple[CellLevel, ...], int, int], list[PlannedCell]] = {}
    for cell in plan(spec):
        record = store.record(cell)
        if record is not None and not record.marks:
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


def experiment_name(spec: ExperimentSpec, levels: Sequence[CellLevel], seed: int) -> str:
    """The folder of a level and seed; axes that the original had not, only if they have levels."""
    least, most = ece_like.ARRIVAL_LEAST_S, ece_like.ARRIVAL_MOST_S
    several = {axis for axis, texts in axes_of(spec).items() if len(texts) > 1}
    parts = [f"EXPERIMENT_{seed}"]
    for level in levels:
        if level.axis == "percent":
            parts.append(f"MIN_{least}_MAX_{most}_OVERPROV_{level.text}")
        elif level.axis in several:
            parts.append(f"{level.axis.upper()}_{level.text}")
    return "_".join(parts)


def layout_texts(seed: int, rows: Mapping[str, CellRows]) -> Files:
    """Job tables and values by second of one level and seed, by path; `rows` by scheduler."""
    files: Files = {}
    for who, cell_rows in rows.items():
        workload = f"WORKLOAD_{mechanism(who)}_{seed}"
        files[f"{workload}.txt"] = _jobs(cell_rows)
        for metric, column in METRICS.items():
            if column not in cell_rows.series:
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
    """PNGs: each scheduler's own, all in one, and all one by one."""
    files: Files = {}
    for who, cell_rows in rows.items():
        workload = f"WORKLOAD_{mechanism(who)}_{seed}"
        for metric, drawing in _drawings({who: cell_rows}, look_of, "-0"):
            files[f"{workload}/{metric}/{workload}-{metric}.png"] = png.to_png(drawing)
    for kind, end in (("", "-0"), ("SEP-", "-0-each")):
        for metric, drawing in _drawings(rows, look_of, end):
            files[f"OVERALL/{metric}/{name}-{kind}{metric}.png"] = png.to_png(drawing)
    return files


def _drawings(
    rows: Mapping[str, CellRows], look_of: Mapping[str, Look], end: str
) -> Iterator[tuple[str, Drawing]]:
    level = LevelRows("", {who: [cell_rows] for who, cell_rows in rows.items()}, look_of)
    drawn = {drawing.name: drawing for drawing in level.drawings(WIDE, 0)}
    for metric, column in METRICS.items():
        if f"{column}{end}" in drawn:
            yield metric, drawn[f"{column}{end}"]


def mechanism(scheduler: str) -> str:
    """A scheduler's name in names of files."""
    return MECHANISMS.get(scheduler) or re.sub("[^A-Z0-9]+", "_", scheduler.upper()).strip("_")


def each_second(rows: CellRows, column: str) -> list[float]:
    """The column's value at each whole second until the last change."""
    at_s = np.asarray(rows.series["at_s"])
    seconds = np.arange(int(at_s[-1]) + 1)
    before = np.searchsorted(at_s, seconds, side="right") - 1
    return [float(value) for value in np.asarray(rows.series[column])[before.clip(0)]]


def _csv(first_s: int, values: Sequence[float], mark: str = "") -> bytes:
    lines = (f"{first_s + number},{value:f}\n" for number, value in enumerate(values))
    return (mark + "".join(lines)).encode()


def _jobs(rows: CellRows) -> bytes:
    """A block a job that ended, in the order of their ends, and the makespan."""
    jobs = rows.jobs
    if "finished_s" not in jobs:
        return b""
    finished = np.asarray(jobs["finished_s"], float)
    order = [int(at) for at in np.argsort(finished, kind="stable") if np.isfinite(finished[at])]
    start_s, end_s = (part / SECOND_NS for part in (ece_like.START_NS, ece_like.END_NS))
    blocks = []
    for at in order:
        came, bound, ended = (float(jobs[n][at]) for n in ("arrived_s", "bound_s", "finished_s"))
        said = {
            "Job Name": str(jobs["uid"][at]),
            "Container Restart Count": str(int(jobs["restarts"][at])),
            "Job_Start_Time - Job_Creation_Timestamp": _clock(0),
            "Pod_Creation_Timestamp - Job_Start_Time": _clock(0),
            "Pod_Start_Time - Pod_Creation_Timestamp": _clock(bound - came),
            "Container_Started_At - Pod_Start_Time": _clock(start_s),
            "Container_Finished_At - Container_Started_At": _clock(
                max(0.0, ended - bound - start_s - end_s)
            ),
            "Job_Completion_Time - Container_Finished_At": _clock(end_s),
            "Job Execution Time": _clock(ended - came),
        }
        for percent in (90, 99):
            query_s = jobs.get(f"query_p{percent}_s", {at: np.nan})[at]
            if query_s is not None and np.isfinite(query_s):
                said[f"Container {percent}%-ile"] = f"{1000 * query_s:.4f} msec"
        blocks.append("".join(f"{what:<44} = {value}\n" for what, value in said.items()))
    makespan_s = max((finished[at] for at in order), default=0.0)
    blocks.append(f"{'Overall Duration':<44} = {makespan_s:.0f} sec\n")
    return "\n".join(blocks).encode()


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
