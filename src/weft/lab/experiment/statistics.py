"""Means over seeds, with the half-widths of their 95 % intervals: summaries of runs."""

from collections.abc import Callable, Sequence

import msgspec

from weft.interference.intervals import mean_interval
from weft.lab.experiment.measures import measure_of
from weft.lab.experiment.paired import EQUAL
from weft.lab.simulate.results import PolicyRun, PolicySummary, TimedSummary


class SeedMean(msgspec.Struct, frozen=True):
    """A mean over seeds with the half-width of its 95 % interval, None for few seeds; `equal` where
    several seeds all have the same value."""

    mean: float
    half: float | None = None
    equal: bool = False

    def text(self, decimals: int) -> str:
        """The mean ± the half-width, or that it is equal in all seeds."""
        mean = f"{self.mean:,.{decimals}f}"
        if self.half is None:
            return mean
        return f"{mean}, {EQUAL}" if self.equal else f"{mean} ± {self.half:,.{decimals}f}"


def mean_ci95(values: Sequence[float], resolution: float = 0.0) -> SeedMean:
    """The mean of a measure of this resolution."""
    mean, ends = sum(values) / len(values), mean_interval(values, resolution)
    equal = len(values) > 1 and max(values) == min(values)
    return SeedMean(mean, None if ends is None else (ends[1] - ends[0]) / 2, equal)


def measured_mean(
    runs: Sequence[PolicyRun], measure: str, value: Callable[[PolicyRun], float | None]
) -> SeedMean | None:
    """The mean over the runs that have this value; None if none has."""
    values = [number for run in runs if (number := value(run)) is not None]
    gpus = gpus_of(runs)
    return mean_ci95(values, measure_of(measure).resolution_on(gpus)) if values else None


def gpus_of(runs: Sequence[PolicyRun]) -> float | None:
    """How many GPUs these runs' cluster has; None where no run says."""
    return next((run.gpus for run in runs if run.gpus), None)


def summarise(runs: Sequence[PolicyRun]) -> list[PolicySummary]:
    """One summary a policy, in the order the policies first appear."""
    by_policy: dict[str, list[PolicyRun]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    return [_summary(policy, group) for policy, group in by_policy.items()]


def _summary(policy: str, runs: list[PolicyRun]) -> PolicySummary:
    allocation = measured_mean(runs, "gpu_allocation_percent", lambda r: r.gpu_allocation_percent)
    fragments = measured_mean(
        runs, "gpu_fragmentation_percent", lambda r: r.gpu_fragmentation_percent
    )
    asked = measured_mean(runs, "gpu_asked_percent", lambda r: r.gpu_asked_percent)
    at_100 = measured_mean(runs, "gpu_asked_at_100_percent", lambda r: r.at_100_percent)
    cpu = [run.cpu_s for run in runs if run.cpu_s is not None]
    timed, of_times = _timed(runs)
    means = {
        "gpu_asked_percent": asked,
        "gpu_allocation_percent": allocation,
        "gpu_fragmentation_percent": fragments,
        "gpu_asked_at_100_percent": at_100,
        **of_times,
    }
    return PolicySummary(
        policy=policy,
        seeds=len(runs),
        gpu_asked_percent=_mean(asked),
        gpu_asked_ci95=_half(asked),
        gpu_allocation_percent=_mean(allocation),
        gpu_allocation_ci95=_half(allocation),
        gpu_fragmentation_percent=_mean(fragments),
        gpu_fragmentation_ci95=_half(fragments),
        gpu_asked_at_100_percent=_mean(at_100) if at_100 else None,
        gpu_asked_at_100_ci95=_half(at_100),
        failed_pods=round(sum(run.failed_pods for run in runs) / len(runs), 2),
        timed=timed,
        cpu_s=round(sum(cpu) / len(cpu), 3) if cpu else None,
        equal_in_all_seeds=[name for name, mean in means.items() if mean and mean.equal],
    )


def _timed(runs: list[PolicyRun]) -> tuple[TimedSummary | None, dict[str, SeedMean | None]]:
    both = [(r.waits, r.completion) for r in runs if r.waits and r.completion]
    if not both:
        return None, {}
    waits, completions = zip(*both, strict=True)
    wait = mean_ci95([each.mean_s for each in waits], measure_of("queue_mean_s").resolution)
    completion = mean_ci95(
        [each.mean_s for each in completions], measure_of("jct_mean_s").resolution
    )

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / len(values), 3)

    timed = TimedSummary(
        queue_mean_s=_mean(wait),
        queue_mean_ci95=_half(wait),
        queue_p50_s=mean([wait.p50_s for wait in waits]),
        queue_p95_s=mean([wait.p95_s for wait in waits]),
        queue_p99_s=mean([wait.p99_s for wait in waits]),
        jct_mean_s=_mean(completion),
        jct_mean_ci95=_half(completion),
        jct_p95_s=mean([completion.p95_s for completion in completions]),
        mean_asked_percent=mean([wait.mean_asked_percent for wait in waits]),
        mean_allocation_percent=mean([wait.mean_allocation_percent for wait in waits]),
    )
    return timed, {"queue_mean_s": wait, "jct_mean_s": completion}


def _mean(mean: SeedMean | None) -> float:
    return 0.0 if mean is None else round(mean.mean, 3)


def _half(mean: SeedMean | None) -> float | None:
    return None if mean is None or mean.half is None else round(mean.half, 3)
