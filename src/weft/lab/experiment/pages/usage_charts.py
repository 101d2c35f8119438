"""Charts of GPU use over time, and of the distribution of jobs' times, at one level of an
experiment.

GPU utilisation, memory, power and waiting pods, with all schedulers in one panel and each in its
own, and the share of jobs that started or ended within a time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.lab.experiment.pages.charts import TIME_UNITS, TimeUnit, describe
from weft.lab.experiment.pages.figures import Chart, Line, LineChart
from weft.lab.experiment.pages.looks import Look
from weft.lab.experiment.run.store import CellRows

Floats = NDArray[np.float64]
BINS = 160
"""Number of time bins per line."""


class UsageFigure(msgspec.Struct, frozen=True):
    """A column of `series.parquet`, its figure's title, and units with their sizes.

    The first unit in which all values are below 10,000 is used."""

    column: str
    title: str
    units: tuple[tuple[str, float], ...]

    def unit(self, lines: Sequence[Line]) -> tuple[str, float]:
        """Return the unit in which these lines are shown, and its size in the column's unit."""
        highest = max(max(line.mean) for line in lines)
        return next((unit for unit in self.units if highest / unit[1] < 10_000), self.units[-1])


USAGE = (
    UsageFigure("gpu_util_percent", "GPU utilisation", (("%", 1),)),
    UsageFigure("memory_used_mib", "GPU memory in use", (("GiB", 1024), ("TiB", 1024**2))),
    UsageFigure("power_w", "Power", (("W", 1), ("kW", 1e3), ("MW", 1e6))),
    UsageFigure("waiting", "Pods waiting", (("pods", 1),)),
)
JOB_TIMES: dict[str, tuple[str, str]] = {
    "jct": ("Jobs that ended within this time", "finished_s"),
    "queueing": ("Jobs that were placed within this time", "bound_s"),
}
"""Title by figure name, and the column from which `arrived_s` is subtracted."""


def names_of_level(number: int) -> list[str]:
    """Return the names of all figures that the level with this number may have."""
    over_time = [f"{usage.column}-{number}" for usage in USAGE]
    return [
        *over_time,
        *(f"{name}-each" for name in over_time),
        *(f"{n}-{number}" for n in JOB_TIMES),
    ]


class LevelRows(msgspec.Struct, frozen=True):
    """The rows of one level's cells: `rows` by scheduler, one entry per cell."""

    text: str
    rows: Mapping[str, Sequence[CellRows]]
    look_of: Mapping[str, Look]

    def charts(self, number: int) -> list[Chart]:
        """Return all charts of this level, with its number in their names; none if cells have no
        rows."""
        unit = self._unit()
        charts: list[Chart] = []
        for usage in USAGE:
            lines = self._lines(partial(_column_over_time, usage.column, unit))
            if not any(any(line.mean) for line in lines):
                continue
            name, title = f"{usage.column}-{number}", self._titled(f"{usage.title} over time")
            of_y, size = usage.unit(lines)
            lines = [_divided(line, size) for line in lines]
            x_title, y_title = f"{unit.name} since the start", f"{usage.title}, {of_y}"
            shown = _usage(name, title, lines, (x_title, y_title), "the mean over time")
            charts.append(shown)
            if len(lines) > 1:
                charts.append(msgspec.structs.replace(shown, name=f"{name}-each", apart=True))
        for name, (title, column) in JOB_TIMES.items():
            lines = self._lines(partial(_distribution, column))
            if lines:
                axes = "Seconds since the job arrived", "Jobs, %"
                titled = self._titled(title)
                charts.append(_usage(f"{name}-{number}", titled, lines, axes, "the median, s"))
        return charts

    def _titled(self, title: str) -> str:
        return f"{title}, {self.text}" if self.text else title

    def _lines(
        self, curve: Callable[[Sequence[CellRows]], tuple[Floats, Floats, float] | None]
    ) -> list[Line]:
        lines = []
        for scheduler, rows in self.rows.items():
            line = curve(rows)
            if line is not None:
                x, y, end = (*(tuple(each.tolist()) for each in line[:2]), line[2])
                lines.append(Line(scheduler, self.look_of[scheduler], x, y, y, y, end))
        return lines

    def _unit(self) -> TimeUnit:
        ends = [
            float(cell_rows.series["at_s"][-1])
            for rows in self.rows.values()
            for cell_rows in rows
            if cell_rows.series
        ]
        longest_s = max(ends, default=0.0)
        return next((unit for unit in TIME_UNITS if longest_s < unit.below_s), TIME_UNITS[-1])


def _divided(line: Line, size: float) -> Line:
    means = tuple(value / size for value in line.mean)
    ends = {"mean": means, "low": means, "high": means, "end": line.end / size}
    return msgspec.structs.replace(line, **ends)


def _column_over_time(
    column: str, unit: TimeUnit, rows: Sequence[CellRows]
) -> tuple[Floats, Floats, float] | None:
    """Return (times, means over seeds, overall mean) of a column; None if no cell has it.

    Times are the middles of the bins and the end, in `unit`. A run that has ended keeps its last
    value while other runs go on."""
    columns = [_known(cell_rows, column) for cell_rows in rows]
    all_series = [known for known in columns if known is not None]
    if not all_series:
        return None
    last_s = max(float(times_s[-1]) for times_s, _ in all_series)
    edges = np.linspace(0.0, max(last_s, 1e-9), BINS + 1)
    total = np.zeros(BINS)
    for times_s, values in all_series:
        at_s = np.append(times_s, last_s + 1.0)
        held = np.append(0.0, np.cumsum(values * np.diff(at_s)))
        total += np.diff(np.interp(edges, at_s, held)) / np.diff(edges)
    mean = total / len(all_series)
    middles_s = np.append((edges[:-1] + edges[1:]) / 2, last_s)
    ends = np.mean([values[-1] for _, values in all_series])
    return middles_s / unit.seconds, np.append(mean, ends), float(mean.mean())


def _known(rows: CellRows, column: str) -> tuple[Floats, Floats] | None:
    """Return (times, values) of the column, or None if it has no values.

    On a cluster there are no values before a GPU's first sample, so the first value is used from
    the start."""
    if column not in rows.series:
        return None
    at_s, values = (np.asarray(rows.series[name], float) for name in ("at_s", column))
    there = np.isfinite(values)
    if not there.any():
        return None
    return np.append(at_s[0], at_s[there][1:]), values[there]


def _distribution(column: str, rows: Sequence[CellRows]) -> tuple[Floats, Floats, float] | None:
    """Return (seconds, percent of jobs that took at most this long, median in seconds).

    Jobs that never started or ended count in the percentages' total. None without times."""
    columns = [cell_rows.jobs for cell_rows in rows if column in cell_rows.jobs]
    if not columns:
        return None
    times = np.concatenate(
        [np.asarray(jobs[column] - jobs["arrived_s"], float) for jobs in columns]
    )
    done = np.sort(times[np.isfinite(times)])
    if not len(done):
        return None
    shares = np.linspace(0.0, 1.0, BINS + 1)
    seconds = np.quantile(done, shares, method="inverted_cdf")
    return seconds, 100 * shares * len(done) / len(times), float(np.median(done))


def _usage(
    name: str, title: str, lines: Sequence[Line], axes: tuple[str, str], beside: str
) -> LineChart:
    x_title, y_title = axes
    return LineChart(
        name=name,
        title=title,
        under=f"{y_title}, mean over seeds; next to each name: {beside}",
        says=describe(lines, x_title, y_title, beside),
        lines=lines,
        x_title=x_title,
        y_title=y_title,
    )
