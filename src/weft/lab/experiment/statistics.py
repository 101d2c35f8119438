"""Means with intervals over seeds."""

import math
from collections.abc import Sequence

from weft.lab.simulate.results import PolicyRun, PolicySummary

_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
"""Student's t, two-sided 95 %, by degrees of freedom from 1; beyond 30 an expansion is exact to
0.2 %."""


def mean_ci95(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % confidence interval (0 for a single value)."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return mean, 0.0
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    freedom = n - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + (1.96**3 + 1.96) / (4 * freedom)
    return mean, t * deviation / math.sqrt(n)


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
    waits = [run.waits.mean_s for run in runs if run.waits is not None]
    cpu = [run.cpu_s for run in runs if run.cpu_s is not None]
    return PolicySummary(
        policy=policy,
        seeds=len(runs),
        gpu_allocation_percent=round(allocation, 3),
        gpu_allocation_ci95=round(allocation_ci, 3),
        gpu_fragmentation_percent=round(fragments, 3),
        gpu_fragmentation_ci95=round(fragments_ci, 3),
        at_100_percent=None if mean_100 is None else round(mean_100, 3),
        at_100_ci95=None if ci_100 is None else round(ci_100, 3),
        failed_pods=round(sum(run.failed_pods for run in runs) / len(runs), 2),
        mean_wait_s=round(sum(waits) / len(waits), 3) if waits else None,
        cpu_s=round(sum(cpu) / len(cpu), 3) if cpu else None,
    )
