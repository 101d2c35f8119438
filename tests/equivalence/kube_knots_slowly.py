"""The Kube-Knots rules as Ferikoglou coded them: may one more pod share this GPU?

Three questions, the first yes admits: (1) does the request fit what other pods did not ask for;
(2) correlation based prediction (CBP): is free memory steady, and does the request fit beside the
80th percentile of used memory; (3) peak prediction (PP): is free memory trending, and does the
request fit what a regression says will be free 10 s ahead.

Numbers are those of the original to the last bit: sums in time order, truncation towards zero, and
what it gets from an undefined number (no admission). All memory is MiB, samples are 1 s apart. The
rules look at nothing but their arguments; what they ignore (reserve, pods still warming up, age of
the samples) is why callers that must not overcommit add their own checks.
"""

import enum
from collections.abc import Sequence

import msgspec
import numpy as np

from weft.core.policies.kube_knots import LEAST_SAMPLES, STEADY_BELOW, TREND_ABOVE
from weft.telemetry.forecast import statistics as stats
from weft.telemetry.forecast.statistics import PackedSeries, lag_line


class Rules(msgspec.Struct, frozen=True):
    """The thresholds; defaults are those of the published runs."""

    capacity_mib: int = 32510
    """The whole card."""
    steady_below: float = STEADY_BELOW
    """CBP: coefficient of variation of free memory must be below this."""
    used_share: float = 0.8
    """CBP: which percentile of used memory residents are taken to need."""
    lag: int = 10
    """PP: samples between what is regressed and what it is regressed on."""
    steps: int = 1
    """PP: how often the regression is applied; the forecast lies lag · steps samples ahead."""
    trend_above: float = TREND_ABOVE
    """PP: autocorrelation at `lag` must be above this."""
    least_samples: int = LEAST_SAMPLES
    """Fewer samples of either series admit nothing."""
    least_window_s: int = 20
    """The window reaches back to the last bind, but at least so far."""


PUBLISHED = Rules()
"""As in the runs whose logs were published."""


class KnotsRule(enum.StrEnum):
    """Which question decided."""

    REQUESTS = "requests"
    CORRELATION = "correlation"
    PEAK = "peak"
    REFUSED = "refused"
    FEW_SAMPLES = "few-samples"

    @property
    def admits(self) -> bool:
        """True if the pod may be placed."""
        return self in {KnotsRule.REQUESTS, KnotsRule.CORRELATION, KnotsRule.PEAK}


class KnotsDecision(msgspec.Struct, frozen=True):
    """The decision and every number on the way to it; None where it was not asked for."""

    why: KnotsRule
    cov: float | None = None
    index: int | None = None
    percentile: float | None = None
    harvested_mib: int | None = None
    autocorrelation: float | None = None
    intercept: float | None = None
    slope: float | None = None
    predicted_mib: int | None = None

    @property
    def admits(self) -> bool:
        """True if the pod may be placed."""
        return self.why.admits


def window_start(now_s: int, last_bind_s: int, rules: Rules = PUBLISHED) -> int:
    """The first second of the window that ends `now_s`."""
    return min(last_bind_s, now_s - rules.least_window_s)


def decide(
    request_mib: int,
    unrequested_mib: int,
    free_mib: Sequence[float],
    used_mib: Sequence[float],
    rules: Rules = PUBLISHED,
) -> KnotsDecision:
    """May a pod of `request_mib` join the card, given its memory series, oldest sample first?

    `unrequested_mib` is capacity less the requests of residents: below 0 after harvesting.
    """
    if request_mib <= unrequested_mib:
        return KnotsDecision(KnotsRule.REQUESTS)
    free, used = _series(free_mib), _series(used_mib)
    if min(free.counts[0], used.counts[0]) < rules.least_samples:
        return KnotsDecision(KnotsRule.FEW_SAMPLES)
    correlation = _by_correlation(request_mib, free, used, rules)
    return correlation if correlation.admits else _by_peak(request_mib, free, correlation, rules)


def _by_correlation(
    request_mib: int, free: PackedSeries, used: PackedSeries, rules: Rules
) -> KnotsDecision:
    cov = float(stats.coefficient_of_variation(free)[0])
    if not cov < rules.steady_below:
        return KnotsDecision(KnotsRule.REFUSED, cov)
    percentile = float(stats.quantile_at_index(used, rules.used_share)[0])
    harvested = rules.capacity_mib - truncate(percentile)
    why = KnotsRule.CORRELATION if request_mib <= harvested else KnotsRule.REFUSED
    return KnotsDecision(why, cov, int(used.counts[0] * rules.used_share), percentile, harvested)


def _by_peak(
    request_mib: int, free: PackedSeries, so_far: KnotsDecision, rules: Rules
) -> KnotsDecision:
    trend = float(stats.autocorrelation(free, rules.lag)[0])
    if not trend > rules.trend_above:
        return msgspec.structs.replace(so_far, autocorrelation=trend)
    line = lag_line(free, rules.lag)
    value = free.values[:, free.counts[0] - 1]
    with np.errstate(all="ignore"):
        for _ in range(rules.steps):
            value = line.intercept + line.slope * value
    predicted = truncate(float(value[0]))
    return msgspec.structs.replace(
        so_far,
        why=KnotsRule.PEAK if request_mib <= predicted else KnotsRule.REFUSED,
        autocorrelation=trend,
        intercept=float(line.intercept[0]),
        slope=float(line.slope[0]),
        predicted_mib=predicted,
    )


def truncate(value: float) -> int:
    """Towards zero, as Go converts on amd64: what no int64 can hold is the least int64."""
    return int(value) if -(2.0**63) <= value < 2.0**63 else -(2**63)


def _series(values: Sequence[float]) -> PackedSeries:
    return stats.pack(np.asarray(values, dtype=np.float64).reshape(1, -1))
