"""Results of one simulated run, and of several together. Plain values."""

import msgspec


class WaitTimes(msgspec.Struct, frozen=True):
    """Timed mode: how long pods waited from creation to start, seconds of the trace.

    `started` pods got a place, `never_started` were still waiting at the end and count in no other
    number here. `mean_allocation_percent` is the time-averaged share of all GPU cores that were
    held between the first arrival and the last start, `mean_asked_percent` what the pods with a
    place asked of it.
    """

    started: int
    never_started: int
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float
    mean_allocation_percent: float
    mean_asked_percent: float
    end_s: float


class CompletionTimes(msgspec.Struct, frozen=True):
    """Timed mode: how long pods took from creation to end, seconds, of the `ended` that did."""

    ended: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


class Timeline(msgspec.Struct, frozen=True):
    """Timed mode: means over steps of `step_s` seconds from the first arrival on.

    `steps_to_last_start` of them lead up to the last start; after them come at most 400 more, of
    pods that only end. The last step is what it stayed at, where the run ended before. Of all GPU
    cores, percent: what pods with a place asked for, what they held, and what was
    fragmented (FGD's measure) late in the step; and how many pods waited.
    """

    step_s: float
    steps_to_last_start: int
    asked_percent: list[float]
    held_percent: list[float]
    waiting_pods: list[float]
    fragmented_percent: list[float]


class PossibleAllocation(msgspec.Struct, frozen=True):
    """The most that any policy reaches at the end, percent of all GPU milli asked for by pods with
    a place, if it takes the first `must_take_pods` pods, that is all up to `must_take_percent`
    demand.

    `lowest`: the relaxation allows no lower bound; else the time limit came first.
    """

    percent: float
    must_take_pods: int
    must_take_percent: float
    lowest: bool


class PolicyRun(msgspec.Struct, frozen=True, omit_defaults=False):
    """One policy on one arrival order.

    Percentages are of all GPU milli of the cluster, at the end: `gpu_asked_percent` what pods with
    a place asked for, `gpu_allocation_percent` what they hold (a whole card, where a policy gives
    no less). `curve` is the former's mean over the pods that arrive within each whole percent of
    demand, by that percent as a string; `fragmentation_curve` the cluster fragment (%, FGD's
    measure) at the end of each; in timed mode both are empty, and `timeline` is there. `by_model`
    is allocation (%) per GPU model at the end; `unscheduled` counts failed pods by the reason most
    nodes gave last, `waited` those that had to wait, by the first. `first_failed` is how many pods
    came before the first that failed, None if none did, and in timed mode. `possible` is the bound,
    where it was wanted. `side_faults` is how often something beside deciding (prices, learning)
    broke off and was left out. `cpu_s` and `wall_s` are None where timing was not wanted.
    """

    policy: str
    seed: int
    arrived_percent: float
    gpu_asked_percent: float
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
    completion: CompletionTimes | None = None
    timeline: Timeline | None = None
    waited: dict[str, int] = {}
    first_failed: int | None = None
    possible: PossibleAllocation | None = None
    side_faults: int = 0
    cpu_s: float | None = None
    wall_s: float | None = None

    @property
    def at_100_percent(self) -> float | None:
        """The GPUs that pods with a place asked for where demand equals capacity, percent; None
        where it never does."""
        return self.curve.get("100")

    @property
    def gpus(self) -> float | None:
        """The number of the cluster's GPUs, by what of them is held; None where too little is."""
        held_percent = self.gpu_allocation_percent
        gpus = self.used_gpu_milli / 10 / held_percent if held_percent else 0.0
        return gpus if gpus >= 1 else None


class TimedSummary(msgspec.Struct, frozen=True):
    """Timed mode, over a policy's seeds: means of its runs' waits, completion times and use, named
    as in experiments."""

    queue_mean_s: float
    queue_mean_ci95: float | None
    queue_p50_s: float
    queue_p95_s: float
    queue_p99_s: float
    jct_mean_s: float
    jct_mean_ci95: float | None
    jct_p95_s: float
    mean_asked_percent: float
    mean_allocation_percent: float


class PolicySummary(msgspec.Struct, frozen=True):
    """A policy over its seeds: means with half-widths of 95 % intervals, None below five.

    `equal_in_all_seeds` names the means whose seeds, more than one, all have the same value.
    `gpu_asked_at_100_percent` is what pods with a place asked for where demand equals capacity,
    None if it never does; `possible_percent` is what no policy exceeds at the end; `lacks` what the
    policy would have decided by and was not given.
    """

    policy: str
    seeds: int
    gpu_asked_percent: float
    gpu_asked_ci95: float | None
    gpu_allocation_percent: float
    gpu_allocation_ci95: float | None
    gpu_fragmentation_percent: float
    gpu_fragmentation_ci95: float | None
    gpu_asked_at_100_percent: float | None
    gpu_asked_at_100_ci95: float | None
    failed_pods: float
    timed: TimedSummary | None = None
    possible_percent: float | None = None
    lacks: list[str] = []
    cpu_s: float | None = None
    equal_in_all_seeds: list[str] = []


class SimulationResults(msgspec.Struct, frozen=True):
    """Everything `weft simulate` prints as JSON; `notes` are what a reader must know of it."""

    runs: list[PolicyRun]
    summary: list[PolicySummary]
    notes: list[str] = []
