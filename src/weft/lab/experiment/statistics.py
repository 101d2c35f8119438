"""Means over seeds, with the half-widths of their 95 % intervals: summaries of runs."""

from collections.abc import Sequence

from weft.interference.intervals import mean_interval
from weft.lab.simulate.results import PolicyRun, PolicySummary, TimedSummary


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
    wait_s, wait_ci = mean_ci95([wait.mean_s for wait in waits])
    completion_s, completion_ci = mean_ci95([completion.mean_s for completion in completions])

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / len(values), 3)

    return TimedSummary(
        wait_mean_s=round(wait_s, 3),
        wait_mean_ci95=_rounded(wait_ci),
        wait_p50_s=mean([wait.p50_s for wait in waits]),
        wait_p95_s=mean([wait.p95_s for wait in waits]),
        wait_p99_s=mean([wait.p99_s for wait in waits]),
        completion_mean_s=round(completion_s, 3),
        completion_mean_ci95=_rounded(completion_ci),
        completion_p95_s=mean([completion.p95_s for completion in completions]),
        asked_percent=mean([wait.mean_asked_percent for wait in waits]),
        held_percent=mean([wait.mean_allocation_percent for wait in waits]),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
