"""Selects a forecaster for each series: the one with the least recent error.

At each sample, the forecasts made one to `horizon` samples ago are compared with it, so that the
rolling-origin backtest costs one subtraction a step and no refit. Squared errors decay by the
factor `keep` per sample. Forecasts are made in blocks of series that fit the processor's cache.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weft.telemetry.forecast.backtest import around
from weft.telemetry.forecast.forecasters import Forecaster
from weft.telemetry.forecast.result import Forecast
from weft.telemetry.forecast.statistics import Counts, Floats

BLOCK = 4096
Singles = npt.NDArray[np.float32]


class Selector:
    """Keeps every forecaster's recent errors for every series.

    The first forecaster is the fallback: it is used while no error is known, where the best one
    returns NaN, and in a tie. `chosen` is the index of the one used last, [s].
    """

    def __init__(
        self, forecasters: Sequence[Forecaster], series: int, horizon: int, keep: float = 0.9
    ) -> None:
        self.forecasters = tuple(forecasters)
        self.horizon, self.keep = horizon, keep
        shape = (len(self.forecasters), series, horizon)
        self._squares: Singles = np.zeros(shape, dtype=np.float32)
        self._weights: Singles = np.zeros(shape, dtype=np.float32)
        self._made: list[Singles] = []
        self.chosen: Counts = np.zeros(series, dtype=np.int64)

    def tick(self, history: Floats) -> Forecast:
        """Learn from one more sample and forecast again. `history` is [s, n], newest last."""
        if history.shape[1]:
            self._learn(history[:, -1])
        self._made = self._made[-self.horizon + 1 :] if self.horizon > 1 else []
        made: Singles = np.empty(self._squares.shape, dtype=np.float32)
        mean, squares = np.empty((2, len(history), self.horizon))
        for begin in range(0, len(history), BLOCK):
            block = slice(begin, begin + BLOCK)
            means = np.stack([f.means(history[block], self.horizon) for f in self.forecasters])
            made[:, block] = means
            mean[block], squares[block] = self._choose(means, block)
        self._made.append(made)
        return Forecast(mean, *around(mean, squares))

    def warm(self, history: Floats, ticks: int) -> None:
        """Learn from the last `ticks` samples of a history, as if they had arrived one by one."""
        for end in range(max(1, history.shape[1] - ticks), history.shape[1]):
            self.tick(history[:, :end])

    def errors(self) -> Floats:
        """Return the root mean squared error by forecaster and series over all steps, [f, s]; NaN
        unknown."""
        with np.errstate(invalid="ignore"):
            squares = self._squares.sum(axis=2) / self._weights.sum(axis=2)
        return np.asarray(np.sqrt(squares), dtype=np.float64)

    def realign(self, rows: Counts) -> None:
        """Reorder the series: new series i is old series `rows[i]`, or starts empty where that is
        −1."""
        if len(self.chosen) == 0:
            self._pad()
        fresh = rows < 0
        self._squares, self._weights = self._squares[:, rows], self._weights[:, rows]
        self._squares[:, fresh] = 0.0
        self._weights[:, fresh] = 0.0
        self._made = [made[:, rows] for made in self._made]
        for made in self._made:
            made[:, fresh] = np.nan
        self.chosen = np.where(fresh, 0, self.chosen[rows])

    def _pad(self) -> None:
        """Add one empty series, so that row −1 exists."""
        shape = (len(self.forecasters), 1, self.horizon)
        self._squares = np.zeros(shape, dtype=np.float32)
        self._weights = np.zeros(shape, dtype=np.float32)
        self._made = [np.full(shape, np.nan, dtype=np.float32) for _ in self._made]
        self.chosen = np.zeros(1, dtype=np.int64)

    def _learn(self, came: Floats) -> None:
        """Compare `came` with the forecasts of this sample: step k of the one made k samples
        ago."""
        actual = came.astype(np.float32)
        for step, made in enumerate(reversed(self._made)):
            error = actual - made[:, :, step]
            known = ~np.isnan(error)
            squares, weights = self._squares[:, :, step], self._weights[:, :, step]
            fading = np.where(known, np.float32(self.keep), np.float32(1.0))
            squares *= fading
            squares += np.where(known, (1.0 - self.keep) * error * error, np.float32(0.0))
            weights *= fading
            weights += np.where(known, np.float32(1.0 - self.keep), np.float32(0.0))

    def _choose(self, means: Floats, block: slice) -> tuple[Floats, Floats]:
        """Return (means, mean squared errors) of the best forecaster of each series, [s, h]
        each."""
        squares, weights = self._squares[:, block], self._weights[:, block]
        with np.errstate(invalid="ignore"):
            per_step = squares / weights
            overall = squares.sum(axis=2) / weights.sum(axis=2)
        usable = ~np.isnan(overall) & ~np.isnan(means).any(axis=2)
        chosen = np.argmin(np.where(usable, overall, np.inf), axis=0)
        self.chosen[block] = chosen
        rows = np.arange(means.shape[1])
        return means[chosen, rows], per_step[chosen, rows].astype(np.float64)
