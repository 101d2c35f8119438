"""From runs to curves: each policy's mean over its seeds, with a band for how much they differ."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from weft.lab.experiment.axes import CurveSeries
from weft.lab.experiment.ranking import is_timed
from weft.lab.experiment.statistics import ENOUGH_FOR_INTERVAL, mean_interval
from weft.lab.simulate.results import PolicyRun, SimulationResults

MOST_POINTS = 400
"""More points than a figure has pixels to spare add bytes, not shape."""


def allocation(results: SimulationResults) -> list[CurveSeries]:
    """Allocated GPUs (%) by arrived demand (%), one series a policy, in the results' order."""
    return _series(results, "curve", "gpu_allocation_percent")


def fragmentation(results: SimulationResults) -> list[CurveSeries]:
    """Fragmented GPUs (%) by arrived demand (%)."""
    return _series(results, "fragmentation_curve", "gpu_fragmentation_percent")


def _series(results: SimulationResults, field: str, end: str) -> list[CurveSeries]:
    timed = is_timed(results)
    series = []
    for index, summary in enumerate(results.summary):
        runs = [run for run in results.runs if run.policy == summary.policy]
        curves = [_curve(run, field) for run in runs]
        if timed:
            # The last point is of the empty cluster, long after the last arrival.
            curves = [dict(list(curve.items())[:-1]) for curve in curves]
        if curves and all(curves):
            value = None if timed else float(getattr(summary, end))
            series.append(_over_seeds(summary.policy, index, curves, value))
    return series


def _curve(run: PolicyRun, field: str) -> dict[int, float]:
    by_percent: Mapping[str, float] = getattr(run, field)
    return {int(percent): by_percent[percent] for percent in sorted(by_percent, key=int)}


def _over_seeds(
    name: str, index: int, curves: list[dict[int, float]], value: float | None
) -> CurveSeries:
    """A large pod jumps over whole percents, so each seed is read between its own points."""
    # Past the end of the shortest seed a mean would be of other seeds than before.
    end = min(max(curve) for curve in curves)
    grid = sorted({percent for curve in curves for percent in curve if percent <= end})
    if len(grid) > MOST_POINTS:
        picked = np.linspace(0, len(grid) - 1, MOST_POINTS).round().astype(int)
        grid = [grid[i] for i in picked]
    rows = np.array([np.interp(grid, list(curve), list(curve.values())) for curve in curves])

    mean = tuple(rows.mean(axis=0).tolist())
    percents, end_value = tuple(map(float, grid)), mean[-1] if value is None else value
    return CurveSeries(name, index, percents, mean, *_band(rows), end_value)


def _band(rows: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Lower and upper edge at each point: the mean's 95 % interval, or the range of few seeds."""
    if len(rows) < ENOUGH_FOR_INTERVAL:
        return tuple(rows.min(axis=0).tolist()), tuple(rows.max(axis=0).tolist())
    ends = [mean_interval(column) or (column[0], column[0]) for column in rows.T.tolist()]
    return tuple(low for low, _ in ends), tuple(high for _, high in ends)
