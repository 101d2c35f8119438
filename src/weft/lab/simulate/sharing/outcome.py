"""Results of one run of jobs on shared GPUs. Plain values."""

from collections.abc import Sequence

import msgspec
import numpy as np

from weft.lab.simulate.sharing.job import SECOND_NS


class JobTimes(msgspec.Struct, frozen=True):
    """One job: seconds since the run began, None for what has not happened.

    `restarts` are deaths of its container by out of memory, `evictions` times it was sent away.
    """

    uid: str
    kind: str
    arrived_s: float
    bound_s: float | None
    finished_s: float | None
    restarts: int = 0
    evictions: int = 0

    @property
    def jct_s(self) -> float | None:
        """Job completion time: from its creation to its completion."""
        return None if self.finished_s is None else self.finished_s - self.arrived_s


class JobOutcome(JobTimes, frozen=True):
    """One job that shared cards.

    `alone_s` is how long its container runs alone on a card. `queries` are those it answers,
    `late_queries` of them took too long; the percentiles are of those that were answered.
    """

    alone_s: float = 0.0
    queries: int = 0
    late_queries: int = 0
    query_p90_s: float | None = None
    query_p99_s: float | None = None


class UsagePoint(msgspec.Struct, frozen=True):
    """The use of all cards together from `at_s` on, until the next point's time.

    `gpu_util_percent` is GPU_UTIL's mean over cards, `resident` counts pods with a place, `waiting`
    those without one.
    """

    at_s: float
    gpu_util_percent: float
    memory_used_mib: int
    power_w: float
    resident: int
    waiting: int


class SharedRun(msgspec.Struct, frozen=True):
    """One policy on one workload.

    `jct_…_s` are percentiles over finished jobs (p99 interpolated, as NumPy does), seconds.
    `makespan_s` ends with the last job. `residents` is the time-averaged number of pods on a GPU
    while any job is in the system, `memory_used_percent` likewise of all memory. `lost_s` is time
    that containers ran for nothing because they died or were evicted. `slowdown_evictions` are
    of pods that made others slow, `critical_slow_percent` is how many of the looks at
    latency-critical jobs found them slower than they may be; None where there was no look.
    `gpu_util_percent` is GPU_UTIL, averaged over time and cards. `energy_kj` is what all cards
    drew, `idle_energy_kj` what they had drawn without anybody on them: so much of two runs'
    difference in energy is for the shorter or longer time alone. `usage` has a point wherever
    something changed.
    """

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
        """The same without what there is of each job and each moment."""
        return msgspec.structs.replace(self, outcomes=(), usage=())


def seconds(ns: int) -> float:
    """Nanoseconds as seconds, to the millisecond."""
    return round(ns / SECOND_NS, 3)


def percentiles(outcomes: Sequence[JobOutcome]) -> dict[str, float]:
    """Mean, p50, p99 and maximum of the finished jobs' completion times; NaN without any."""
    times = [outcome.jct_s for outcome in outcomes if outcome.jct_s is not None]
    values = np.array(times) if times else np.array([np.nan])
    p50, p99 = (float(each) for each in np.percentile(values, [50, 99]))
    return {
        "jct_mean_s": round(float(values.mean()), 3),
        "jct_p50_s": round(p50, 3),
        "jct_p99_s": round(p99, 3),
        "jct_max_s": round(float(values.max()), 3),
    }
