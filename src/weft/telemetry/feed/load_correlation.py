"""Correlation of an application's load with a GPU's, as Kube-Knots compares two series.

An application's series are what its GPU did while one of its pods was alone there. Compared with
another GPU's latest samples they say whether the two peak at the same time:

    correlation = the largest, over memory, SMs and memory bandwidth, of Spearman's rank correlation

A series that does not vary correlates with nothing. Pure arithmetic on arrays of equal length.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from weft.telemetry.forecast.rank_correlation import spearman
from weft.telemetry.forecast.statistics import Floats

SAMPLES = 20
"""So many of the newest are compared; fewer say nothing (as for Kube-Knots' other numbers)."""
MOST_APPLICATIONS = 32
"""Each is a column of every snapshot; whoever was not alone for longest is forgotten first."""


Gpu: TypeAlias = tuple[str, int]
"""The node's name and the GPU's index on it: what a row is called, while rows move."""


class SoleTenants:
    """Pods that have a GPU for themselves, and since when."""

    def __init__(self) -> None:
        self.since: dict[Gpu, tuple[str, float]] = {}

    def observe(self, only: Mapping[Gpu, str], now_s: float, for_s: float) -> dict[Gpu, str]:
        """`only` are the GPUs' only pods; those of them that were so for `for_s`."""
        before = self.since
        self.since = {
            gpu: before[gpu] if before.get(gpu, ("", 0.0))[0] == uid else (uid, now_s)
            for gpu, uid in only.items()
        }
        return {gpu: uid for gpu, (uid, at_s) in self.since.items() if now_s - at_s >= for_s}


class LoadCorrelation:
    """Remembers applications' series, one a metric: [g, samples] arrays throughout."""

    def __init__(self) -> None:
        self._metrics: tuple[str, ...] = ()
        self._known: dict[str, Floats] = {}

    def observe(self, series: Mapping[str, Floats], alone: Mapping[int, str]) -> dict[str, Floats]:
        """Correlate every known application with each GPU, [g]; `series` are the GPUs', by metric.

        `alone` are GPUs (rows) that a pod of an application has had for itself all the while. NaN
        where a GPU's series has gaps. Only the newest `SAMPLES` matter.
        """
        if tuple(series) != self._metrics:
            self._metrics = tuple(series)
            self._known.clear()  # what was compared before is no answer to what is asked now
        self._learn([*series.values()], alone)
        return self._correlations([*series.values()])

    def _learn(self, series: Sequence[Floats], alone: Mapping[int, str]) -> None:
        for row, application in sorted(alone.items()):
            newest = np.array([values[row, -SAMPLES:] for values in series])
            if newest.shape[1] < SAMPLES or bool(np.isnan(newest).any()):
                continue
            self._known.pop(application, None)
            self._known[application] = newest
        for application in list(self._known)[:-MOST_APPLICATIONS]:
            del self._known[application]

    def _correlations(self, series: Sequence[Floats]) -> dict[str, Floats]:
        if not self._known or series[0].shape[1] < SAMPLES:
            return {}
        known = np.array([*self._known.values()])
        by_metric = [
            spearman(known[:, metric], values[:, -SAMPLES:]) for metric, values in enumerate(series)
        ]
        return dict(zip(self._known, np.maximum.reduce(by_metric), strict=True))
