"""From runs to curves: each policy's mean over its seeds, with the smallest and the largest."""

from collections.abc import Mapping

import numpy as np

from weft.experiment.axes import Series
from weft.simulate.results import Results, Run

MOST_POINTS = 400
"""More points than a figure has pixels to spare add bytes, not shape."""


def allocation(results: Results) -> list[Series]:
    """Allocated GPUs (%) by arrived demand (%), one series a policy, in the results' order."""
    return _series(results, "curve")


def fragmentation(results: Results) -> list[Series]:
    """Fragmented GPUs (%) by arrived demand (%)."""
    return _series(results, "fragmentation_curve")


def _series(results: Results, field: str) -> list[Series]:
    series = []
    for index, summary in enumerate(results.summary):
        runs = [run for run in results.runs if run.policy == summary.policy]
        curves = [_curve(run, field) for run in runs]
        if curves and all(curves):
            series.append(_over_seeds(summary.policy, index, curves))
    return series


def _curve(run: Run, field: str) -> dict[int, float]:
    by_percent: Mapping[str, float] = getattr(run, field)
    return {int(percent): by_percent[percent] for percent in sorted(by_percent, key=int)}


def _over_seeds(name: str, index: int, curves: list[dict[int, float]]) -> Series:
    """A large pod jumps over whole percents, so each seed is read between its own points."""
    # Past the end of the shortest seed a mean would be of other seeds than before.
    end = min(max(curve) for curve in curves)
    grid = sorted({percent for curve in curves for percent in curve if percent <= end})
    if len(grid) > MOST_POINTS:
        picked = np.linspace(0, len(grid) - 1, MOST_POINTS).round().astype(int)
        grid = [grid[i] for i in picked]
    rows = np.array([np.interp(grid, list(curve), list(curve.values())) for curve in curves])

    def values(row: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, ...]:
        return tuple(float(value) for value in row)

    return Series(
        name, index, tuple(float(percent) for percent in grid),
        values(rows.mean(axis=0)), values(rows.min(axis=0)), values(rows.max(axis=0)),
    )  # fmt: skip
