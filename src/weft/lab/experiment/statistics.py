"""Means with intervals over seeds."""

import math
from collections.abc import Sequence

from weft.lab.simulate.results import PolicyRun, PolicySummary


def mean_ci95(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % confidence interval (0 for a single value)."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return mean, 0.0
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    from scipy.special import stdtrit  # heavy

    student_t = float(stdtrit(n - 1, 0.975))
    return mean, student_t * deviation / math.sqrt(n)


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
