"""Results of one run of jobs on shared GPUs: data only."""

from collections.abc import Sequence

import msgspec
import numpy as np

from weft.lab.simulate.sharing.job import SECOND_NS


class JobTimes(msgspec.Struct, frozen=True):
    """One job's times in seconds since the run began, None for steps not reached.

    `restarts` counts how often its containers ran out of memory, `evictions` how often it was
    evicted."""

    uid: str
    kind: str
    arrived_s: float
    bound_s: float | None
    finished_s: float | None
    restarts: int = 0
    evictions: int = 0

    @property
    def jct_s(self) -> float | None:
        """Job completion time in seconds, from creation to completion; None if the job has not
        completed."""
        return None if self.finished_s is None else self.finished_s - self.arrived_s


class JobOutcome(JobTimes, frozen=True):
    """The results of one job that shared GPUs.

    `alone_s` is its container's run time alone on a GPU. Of its `queries`, `late_queries` took too
    long; the percentiles are over answered ones."""

    alone_s: float = 0.0
    queries: int = 0
    late_queries: int = 0
    query_p90_s: float | None = None
    query_p99_s: float | None = None


class UsagePoint(msgspec.Struct, frozen=True):
    """Use of all GPUs together from `at_s` until the time of the next point.

    `gpu_util_percent` is GPU_UTIL's mean over GPUs; `resident` counts placed pods, `waiting`
    pending ones."""

    at_s: float
    gpu_util_percent: float
    memory_used_mib: int
    power_w: float
    resident: int
    waiting: int


class SharedRun(msgspec.Struct, frozen=True):
    """The results of one policy on one workload.

    `jct_…_s` are percentiles over finished jobs in seconds (p99 interpolated, as in NumPy).
    `makespan_s` ends with the last job. `residents` is the time-averaged number of pods per GPU
    while any job is in the system, `memory_used_percent` likewise of all memory. `lost_s` is the
    run time of containers that died or were evicted. `slowdown_evictions` are of pods that slowed
    others; `critical_slow_percent` is the share of readings that found latency-critical jobs slower
    than allowed, None without readings. `gpu_util_percent` is GPU_UTIL averaged over time and GPUs.
    `energy_kj` is the energy of all GPUs, `idle_energy_kj` that of idle GPUs over the same time: it
    shows how much of a difference between two runs is due to their duration. `usage` has a point at
    every change."""

    policy: str
    seed: int
    jobs: int
    unfinished: int
    makespan_s: float
    jct_mean_s: float
    jct_p50_s: float
    jct_p99_s: float
    jct_max_s: float
    ooms: int
    evictions: int
    lost_s: float
    residents: float
    memory_used_percent: float
    slowdown_evictions: int = msgspec.field(default=0, name="relieved")
    critical_slow_percent: float | None = None
    gpu_util_percent: float = 0.0
    energy_kj: float = 0.0
    idle_energy_kj: float = 0.0
    outcomes: tuple[JobOutcome, ...] = ()
    usage: tuple[UsagePoint, ...] = ()

    def bare(self) -> "SharedRun":
        """Return the run without the lists of jobs and of use over time."""
        return msgspec.structs.replace(self, outcomes=(), usage=())


def seconds(ns: int) -> float:
    """Convert nanoseconds to seconds, rounded to milliseconds."""
    return round(ns / SECOND_NS, 3)


def percentiles(outcomes: Sequence[JobOutcome]) -> dict[str, float]:
    """Return mean, p50, p99 and maximum of finished jobs' completion times; NaN without any."""
    times = [outcome.jct_s for outcome in outcomes if outcome.jct_s is not None]
    values = np.array(times) if times else np.array([np.nan])
    p50, p99 = (float(each) for each in np.percentile(values, [50, 99]))
    return {
        "jct_mean_s": round(float(values.mean()), 3),
        "jct_p50_s": round(p50, 3),
        "jct_p99_s": round(p99, 3),
        "jct_max_s": round(float(values.max()), 3),
    }
