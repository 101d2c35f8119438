"""Results of one simulated run, and of several together. Plain values."""

import msgspec


class WaitTimes(msgspec.Struct, frozen=True):
    """Timed mode: how long pods waited from creation to start, seconds of the trace.

    `started` pods got a place, `never_started` were still waiting at the end; `mean_allocation_
    percent` is the time-averaged share of all GPU cores that were held between the first arrival
    and the last event.
    """

    started: int
    never_started: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float
    mean_allocation_percent: float
    end_s: float


class PolicyRun(msgspec.Struct, frozen=True, omit_defaults=False):
    """One policy on one arrival order.

    Percentages are of all GPU milli of the cluster. `curve` is the mean allocation (%) over the
    pods that arrive within each whole percent of demand, by that percent as a string;
    `fragmentation_curve` the cluster fragment (%, FGD's measure) at the end of each. `by_model`
    is allocation (%) per GPU model at the end; `unscheduled` counts failed pods by the reason
    most nodes gave. `cpu_s` and `wall_s` are None where timing was not wanted.
    """

    policy: str
    seed: int
    arrived_percent: float
    gpu_allocation_percent: float
    gpu_fragmentation_percent: float
    fragmentation_of_idle_percent: float
    used_gpu_milli: int
    failed_pods: int
    pods: int
    curve: dict[str, float]
    fragmentation_curve: dict[str, float]
    by_model: dict[str, float]
    unscheduled: dict[str, int]
    waits: WaitTimes | None = None
    cpu_s: float | None = None
    wall_s: float | None = None


class PolicySummary(msgspec.Struct, frozen=True):
    """A policy over its seeds: means with half-widths of 95 % intervals, None below five.

    `at_100_percent` is the mean allocation where demand equals capacity, None if it never does.
    """

    policy: str
    seeds: int
    gpu_allocation_percent: float
    gpu_allocation_ci95: float | None
    gpu_fragmentation_percent: float
    gpu_fragmentation_ci95: float | None
    at_100_percent: float | None
    at_100_ci95: float | None
    failed_pods: float
    mean_wait_s: float | None = None
    cpu_s: float | None = None


class SimulationResults(msgspec.Struct, frozen=True):
    """Everything `weft simulate` prints as JSON; `notes` are what a reader must know of it."""

    runs: list[PolicyRun]
    summary: list[PolicySummary]
    notes: list[str] = []
