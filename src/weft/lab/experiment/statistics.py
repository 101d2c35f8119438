"""Means over seeds, and how far chance may have moved them.

Intervals are Student's, widened on the side to which few skewed values make them too short (Hall
1992, "On the removal of skewness by transformation"): their coverage is tested.
"""

import math
from collections.abc import Sequence
from functools import cache

import msgspec

from weft.lab.simulate.results import PolicyRun, PolicySummary, TimedSummary

ENOUGH_FOR_INTERVAL = 5
"""Below so many seeds an interval would be wider than all that was seen, or too short."""
MOST_LONGER = 2.5
"""A half is so many times Student's at most: one outlier among few would make it boundless."""
_LEAST_SKEWNESS = 1e-6
"""Below it the correction is lost in rounding, as its formula divides by the skewness."""


class CriticalValues(msgspec.Struct, frozen=True):
    """How many standard errors a mean may lie from the truth: Student's, and with the correction
    `above` and `below` it."""

    student: float
    above: float
    below: float


def skewness(values: Sequence[float]) -> float:
    """Unbiased third standardised moment of three or more values; 0 where all are equal."""
    count, mean = len(values), sum(values) / len(values)
    centred = [value - mean for value in values]  # a report has 100,000 of few: no arrays
    variance = sum(value * value for value in centred) / count
    if not variance > 0:
        return 0.0
    unbiased = math.sqrt(count * (count - 1)) / (count - 2)
    return float(unbiased * (sum(value**3 for value in centred) / count) / variance**1.5)


def critical_values(count: int, skew: float, level: float = 0.05) -> CriticalValues:
    """Of an interval of the mean of so many values with this skewness, wrong at `level`."""
    student = _student(count - 1, 1 - level / 2)
    if abs(skew) < _LEAST_SKEWNESS:
        return CriticalValues(student, student, student)
    above, below = _unbent(student, count, skew), -_unbent(-student, count, skew)
    most = MOST_LONGER * student
    return CriticalValues(student, min(max(student, above), most), min(max(student, below), most))


@cache
def _student(degrees_of_freedom: int, probability: float) -> float:
    from scipy.special import stdtrit  # heavy

    return float(stdtrit(degrees_of_freedom, probability))


def _unbent(value: float, count: int, skew: float) -> float:
    """Hall's transformation, reversed: from a symmetric critical value to a skewed one."""
    root = math.sqrt(count)
    inner = 1 + skew / root * (value - skew / (6 * root))
    return 3 * root / skew * (math.cbrt(inner) - 1)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Ends of the mean's 95 % interval; None below `ENOUGH_FOR_INTERVAL` values."""
    count = len(values)
    if count < ENOUGH_FOR_INTERVAL:
        return None
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    critical, error = critical_values(count, skewness(values)), deviation / math.sqrt(count)
    return mean - critical.above * error, mean + critical.below * error


def mean_ci95(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half-width of its 95 % interval, the wider half; None for few values."""
    mean, ends = sum(values) / len(values), mean_interval(values)
    return mean, None if ends is None else max(mean - ends[0], ends[1] - mean)


def summarise(runs: Sequence[PolicyRun]) -> list[PolicySummary]:
    """One summary a policy, in the order the policies first appear."""
    by_policy: dict[str, list[PolicyRun]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    return [_summary(policy, group) for policy, group in by_policy.items()]


def _summary(policy: str, runs: list[PolicyRun]) -> PolicySummary:
    allocation, allocation_ci = mean_ci95([run.gpu_allocation_percent for run in runs])
    fragments, fragments_ci = mean_ci95([run.gpu_fragmentation_percent for run in runs])
    at_100 = [run.curve["100"] for run in runs if "100" in run.curve]
    mean_100, ci_100 = mean_ci95(at_100) if at_100 else (None, None)
    asked, asked_ci = mean_ci95([run.gpu_asked_percent for run in runs])
    waits = [run.waits.mean_s for run in runs if run.waits is not None]
    cpu = [run.cpu_s for run in runs if run.cpu_s is not None]
    return PolicySummary(
        policy=policy,
        seeds=len(runs),
        gpu_asked_percent=round(asked, 3),
        gpu_asked_ci95=_rounded(asked_ci),
        gpu_allocation_percent=round(allocation, 3),
        gpu_allocation_ci95=_rounded(allocation_ci),
        gpu_fragmentation_percent=round(fragments, 3),
        gpu_fragmentation_ci95=_rounded(fragments_ci),
        at_100_percent=_rounded(mean_100),
        at_100_ci95=_rounded(ci_100),
        failed_pods=round(sum(run.failed_pods for run in runs) / len(runs), 2),
        mean_wait_s=round(sum(waits) / len(waits), 3) if waits else None,
        timed=_timed(runs),
        cpu_s=round(sum(cpu) / len(cpu), 3) if cpu else None,
    )


def _timed(runs: list[PolicyRun]) -> TimedSummary | None:
    both = [(r.waits, r.completion) for r in runs if r.waits and r.completion]
    if not both:
        return None
    waits, completions = zip(*both, strict=True)
    wait, wait_ci = mean_ci95([one.mean_s for one in waits])
    completion, completion_ci = mean_ci95([one.mean_s for one in completions])

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / len(values), 3)

    return TimedSummary(
        wait_mean_s=round(wait, 3),
        wait_mean_ci95=_rounded(wait_ci),
        wait_p50_s=mean([one.p50_s for one in waits]),
        wait_p95_s=mean([one.p95_s for one in waits]),
        wait_p99_s=mean([one.p99_s for one in waits]),
        completion_mean_s=round(completion, 3),
        completion_mean_ci95=_rounded(completion_ci),
        completion_p95_s=mean([one.p95_s for one in completions]),
        asked_percent=mean([one.mean_asked_percent for one in waits]),
        held_percent=mean([one.mean_allocation_percent for one in waits]),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
