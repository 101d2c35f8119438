"""Turns runs into curves: each policy's mean over its seeds, with a band for their spread."""

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.interference.intervals import ENOUGH_FOR_INTERVAL, mean_interval
from weft.lab.experiment.pages.drawing import Look, looks
from weft.lab.experiment.pages.line_charts import CurveSeries
from weft.lab.experiment.statistics.ranking import is_timed
from weft.lab.simulate.results import PolicyRun, SimulationResults, Timeline


class TimeUnit(msgspec.Struct, frozen=True):
    """A unit of time axes, for runs shorter than `below_s`."""

    name: str
    seconds: float
    below_s: float


TIME_UNITS = (
    TimeUnit("Seconds", 1, 600),
    TimeUnit("Minutes", 60, 4 * 3600),
    TimeUnit("Hours", 3600, 5 * 86_400),
    TimeUnit("Days", 86_400, float("inf")),
)
MOST_POINTS = 400
"""Points per curve; more than a figure has pixels only add bytes."""


def allocation(results: SimulationResults) -> list[CurveSeries]:
    """Return GPUs requested by placed pods (%) by arrived demand (%), or by time in timed mode.

    One series per policy, in the results' order; its end value is the table's."""
    if is_timed(results):
        return _over_time(results, "asked_percent")
    return _series(results, "curve", "gpu_asked_percent")


def fragmentation(results: SimulationResults) -> list[CurveSeries]:
    """Return fragmented GPUs (%) by arrived demand (%), or by time in timed mode."""
    if is_timed(results):
        return _over_time(results, "fragmented_percent")
    return _series(results, "fragmentation_curve", "gpu_fragmentation_percent")


def waiting(results: SimulationResults) -> list[CurveSeries]:
    """Return pending pods by time; only in timed mode."""
    return _over_time(results, "waiting_pods")


def time_unit(results: SimulationResults) -> TimeUnit:
    """Return the unit in which the longest run has a readable length."""
    lines = [run.timeline for run in results.runs if run.timeline is not None]
    longest_s = max((_last_start_s(line) for line in lines), default=0.0)
    return next((unit for unit in TIME_UNITS if longest_s < unit.below_s), TIME_UNITS[-1])


def _last_start_s(line: Timeline) -> float:
    return line.step_s * line.steps_to_last_start


def _over_time(results: SimulationResults, field: str) -> list[CurveSeries]:
    """Return curves up to the last start of a policy's longest run; shorter runs stay at their last
    value.

    Values are at the middle of their steps; the end value is the mean up to each run's last
    start."""
    seconds, series, look_of = time_unit(results).seconds, [], _looks(results)
    for summary in results.summary:
        lines = [r.timeline for r in results.runs if r.policy == summary.policy and r.timeline]
        longest_s = max((_last_start_s(line) for line in lines), default=0.0)
        curves, means = [], []
        for line in lines:
            steps = [
                ((at + 0.5) * line.step_s, value) for at, value in enumerate(getattr(line, field))
            ]
            curves.append({at / seconds: value for at, value in steps if at < longest_s})
            busy = [value for _, value in steps[: line.steps_to_last_start]]
            means.append(sum(busy) / max(1, len(busy)))
        if curves and all(curves):
            value = sum(means) / len(means)
            look = look_of[summary.policy]
            series.append(_over_seeds(summary.policy, look, curves, value, max(map(max, curves))))
    return series


def _series(results: SimulationResults, field: str, end: str) -> list[CurveSeries]:
    series, look_of = [], _looks(results)
    for summary in results.summary:
        runs = [run for run in results.runs if run.policy == summary.policy]
        curves = [_curve(run, field) for run in runs]
        if curves and all(curves):
            value = float(getattr(summary, end))
            # Beyond the end of the shortest seed, the mean would be over fewer seeds.
            look, end_at = look_of[summary.policy], min(map(max, curves))
            series.append(_over_seeds(summary.policy, look, curves, value, end_at))
    return series


def _looks(results: SimulationResults) -> dict[str, Look]:
    return looks([summary.policy for summary in results.summary])


def _curve(run: PolicyRun, field: str) -> dict[float, float]:
    by_percent: Mapping[str, float] = getattr(run, field)
    return {float(percent): by_percent[percent] for percent in sorted(by_percent, key=int)}


def _over_seeds(
    name: str, look: Look, curves: list[dict[float, float]], value: float, end: float
) -> CurveSeries:
    """Return the mean and band over seeds, each interpolated between its own points.

    Seeds differ in their points, as a large pod skips whole percents; beyond its last point a seed
    stays constant."""
    grid = sorted({percent for curve in curves for percent in curve if percent <= end})
    if len(grid) > MOST_POINTS:
        picked = np.linspace(0, len(grid) - 1, MOST_POINTS).round().astype(int)
        grid = [grid[i] for i in picked]
    rows = np.array([np.interp(grid, list(curve), list(curve.values())) for curve in curves])

    mean = tuple(rows.mean(axis=0).tolist())
    return CurveSeries(name, look, tuple(grid), mean, *_band(rows), value)


def _band(rows: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return lower and upper edge at each point: the mean's 95 % interval, or the range for few
    seeds."""
    if len(rows) < ENOUGH_FOR_INTERVAL:
        return tuple(rows.min(axis=0).tolist()), tuple(rows.max(axis=0).tolist())
    ends = [mean_interval(column) or (column[0], column[0]) for column in rows.T.tolist()]
    # Measures are never negative, but a symmetric interval may be.
    return tuple(max(0.0, low) for low, _ in ends), tuple(high for _, high in ends)
