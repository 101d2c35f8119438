"""Results of one simulated run, and of several runs of a policy: data only."""

import msgspec
from msgspec import UNSET, UnsetType


class WaitTimes(msgspec.Struct, frozen=True):
    """Timed mode: the time that pods waited from creation to start, in seconds of the trace.

    `started` pods were placed; `never_started` were still pending at the end, and count in no other
    number here. `mean_held_percent` is the time-averaged share of all GPU cores that was held
    between the first arrival and the last start, `mean_allocated_percent` the share that placed
    pods requested (the papers' GPU allocation)."""

    started: int
    never_started: int
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float
    mean_held_percent: float
    mean_allocated_percent: float
    end_s: float


class CompletionTimes(msgspec.Struct, frozen=True):
    """Timed mode: seconds from creation to end, over the `ended` pods."""

    ended: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


class GangTimes(msgspec.Struct, frozen=True):
    """Timed mode, of a trace with gangs; times in seconds of the trace.

    A gang waits from the arrival of its minimum number of pods until that many are placed;
    `never_ran` of the `gangs` never ran; the waiting times leave them out. `makespan_s` is from
    the first arrival to the last end of a gang's pod. `wasted_gpu_s` are GPUs × seconds that
    pods held before their gang ran, `preempted_gpu_s` those that evicted pods had run."""

    gangs: int
    never_ran: int
    wait_mean_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    wait_max_s: float
    makespan_s: float
    wasted_gpu_s: float
    preempted_gpu_s: float


class PreemptedWork(msgspec.Struct, frozen=True):
    """Timed mode with preemption: the number of evictions, and the GPUs × seconds of work lost by
    them."""

    preempted: int
    lost_gpu_s: float


class MovedWork(msgspec.Struct, frozen=True):
    """Timed mode, if pods are moved for pending ones: the number of moves, and the GPUs × seconds
    of work that pods had to repeat, also in percent of all work."""

    moved: int
    lost_gpu_s: float
    lost_percent: float


class SizeWaits(msgspec.Struct, frozen=True):
    """Timed mode: waits in seconds of the `pods` that request several GPUs (`several`), or of all
    others.

    Pods that never started count in no wait."""

    several: bool
    pods: int
    never_started: int
    mean_s: float
    p99_s: float


class QueueTimes(msgspec.Struct, frozen=True):
    """Timed mode: one team's queue. Times are seconds of the trace, percentages of all GPUs.

    `never_started` of its `pods` were pending at the end, and count in no wait. `held_percent` is
    the average that its pods held from the first arrival to the last start, as the scheduler
    charges queues. `guarantee_percent` is its guarantee, None without one for GPUs. For `wanting_s`
    seconds its pods held and waited for at least the guarantee; in this time they held
    `held_while_wanting_percent` on average. `preempted_gpu_s` is the work that its evicted pods
    lost."""

    queue: str
    pods: int
    never_started: int
    wait_mean_s: float
    wait_p99_s: float
    held_percent: float
    guarantee_percent: float | None
    wanting_s: float
    held_while_wanting_percent: float | None
    preempted: int
    preempted_gpu_s: float


class Timeline(msgspec.Struct, frozen=True):
    """Timed mode: means over steps of `step_s` seconds from the first arrival on.

    `steps_to_last_start` of them lead up to the last start; at most 400 more follow, in which pods
    only end. If the run ends earlier, the last step holds the final values. Percentages are of all
    GPU cores: requested by placed pods, held by them, and fragmented (FGD's measure) late in the
    step. `waiting_pods` is the number of pending pods."""

    step_s: float
    steps_to_last_start: int
    allocated_percent: list[float]
    held_percent: list[float]
    waiting_pods: list[float]
    fragmented_percent: list[float]


class PossibleAllocation(msgspec.Struct, frozen=True):
    """The most that any policy can allocate at the end, in percent of all GPU milli, if it takes
    the first `must_take_pods` pods, which are all pods up to `must_take_percent` demand.

    `lowest`: the search found its relaxation's lowest bound; else it hit its time limit."""

    percent: float
    must_take_pods: int
    must_take_percent: float
    lowest: bool


class PolicyRun(msgspec.Struct, frozen=True, omit_defaults=False):
    """The results of one policy on one arrival order.

    Percentages are of all GPU milli of the cluster, at the end: `gpu_allocated_percent` is
    requested by placed pods, `gpu_held_percent` is held by them (whole GPUs, if the policy gives
    out only whole ones). `curve` is the mean allocation over pods that arrive within each whole
    percent of demand, by that percent as a string; `fragmentation_curve` is the cluster's
    fragmentation (%, FGD's measure) at the end of each. In timed mode both are empty, and
    `timeline` is set. `by_model` is allocation (%) per GPU model at the end. `unscheduled` counts
    failed pods by their last main reason, `waited` pods that had to wait by their first.
    `first_failed` is the number of pods that arrived before the first pod that failed; None if none
    failed, and in timed mode. `possible` is the bound, if requested. `side_faults` counts failures
    outside decisions (prices, learning). `cpu_s` and `wall_s` are None without timing. `gangs` is
    absent if no pod belongs to a gang, `preemption` without preemption, `queues` without teams'
    queues, `moves` if pods are not moved. `sizes` are, in timed mode, waits of pods of several GPUs
    and of all others."""

    policy: str
    seed: int
    arrived_percent: float
    gpu_allocated_percent: float
    gpu_held_percent: float
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
    gangs: GangTimes | UnsetType = UNSET
    preemption: PreemptedWork | UnsetType = UNSET
    queues: list[QueueTimes] | UnsetType = UNSET
    moves: MovedWork | UnsetType = UNSET
    sizes: list[SizeWaits] | UnsetType = UNSET
    cpu_s: float | None = None
    wall_s: float | None = None

    @property
    def at_100_percent(self) -> float | None:
        """Percent of GPU requested by placed pods when demand equals capacity; None if demand stays
        lower."""
        return self.curve.get("100")

    @property
    def gpus(self) -> float | None:
        """Number of the cluster's GPUs, computed from held capacity; None if too little is held."""
        held_percent = self.gpu_held_percent
        gpus = self.used_gpu_milli / 10 / held_percent if held_percent else 0.0
        return gpus if gpus >= 1 else None


class QueueSummary(msgspec.Struct, frozen=True):
    """One team's queue over a policy's seeds: means of its runs' `QueueTimes`."""

    queue: str
    pods: float
    never_started: float
    wait_mean_s: float
    wait_p99_s: float
    held_percent: float
    guarantee_percent: float | None
    held_while_wanting_percent: float | None
    preempted_gpu_s: float


class TimedSummary(msgspec.Struct, frozen=True):
    """Timed mode: means over a policy's seeds of waits, completion times and use, named as in
    experiments.

    Measures of gangs, of preemption and of queues are absent if the runs have none."""

    queue_mean_s: float
    queue_mean_ci95: float | None
    queue_p50_s: float
    queue_p95_s: float
    queue_p99_s: float
    jct_mean_s: float
    jct_mean_ci95: float | None
    jct_p95_s: float
    mean_allocated_percent: float
    mean_held_percent: float
    gang_wait_mean_s: float | UnsetType = UNSET
    gang_wait_mean_ci95: float | UnsetType | None = UNSET
    wasted_gpu_s: float | UnsetType = UNSET
    preempted_gpu_s: float | UnsetType = UNSET
    preemptions: float | UnsetType = UNSET
    queues: list[QueueSummary] | UnsetType = UNSET


class PolicySummary(msgspec.Struct, frozen=True):
    """A policy over its seeds: means with half-widths of 95 % intervals, None with fewer than five
    seeds.

    `equal_in_all_seeds` names the means whose value is the same in each of several seeds.
    `gpu_allocated_at_100_percent` is the percentage of the GPUs that placed pods request when
    demand equals capacity; None if demand stays lower. No policy can exceed `possible_percent`
    at the end. `lacks` lists inputs that the policy needs but did not get."""

    policy: str
    seeds: int
    gpu_allocated_percent: float
    gpu_allocated_ci95: float | None
    gpu_held_percent: float
    gpu_held_ci95: float | None
    gpu_fragmentation_percent: float
    gpu_fragmentation_ci95: float | None
    gpu_allocated_at_100_percent: float | None
    gpu_allocated_at_100_ci95: float | None
    failed_pods: float
    timed: TimedSummary | None = None
    possible_percent: float | None = None
    lacks: list[str] = []
    cpu_s: float | None = None
    equal_in_all_seeds: list[str] = []


class SimulationResults(msgspec.Struct, frozen=True):
    """All that `weft simulate` prints as JSON; `notes` are remarks for the reader."""

    runs: list[PolicyRun]
    summary: list[PolicySummary]
    notes: list[str] = []
