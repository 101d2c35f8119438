"""Summarises runs of policies on one trace: which did best, by how much and how certainly, and
notes for the reader."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from weft.interference.intervals import ENOUGH_FOR_INTERVAL
from weft.lab.experiment.run.execution import run_in_memory
from weft.lab.experiment.run.trace_runs import CellOutcome, RunGrid, openb_measures
from weft.lab.experiment.spec.measures import measure_of
from weft.lab.experiment.statistics.comparison import of_places, summaries_of_levels
from weft.lab.experiment.statistics.differences import Difference, SeedMean, mean_ci95
from weft.lab.simulate.holdings import ClusterHoldings
from weft.lab.simulate.results import (
    PolicyRun,
    PolicySummary,
    QueueSummary,
    QueueTimes,
    SimulationResults,
    TimedSummary,
)
from weft.lab.simulate.scenario import REMEDIES

AT_100, AT_END, WAIT = "gpu_allocated_at_100_percent", "gpu_allocated_percent", "queue_mean_s"
"""Measures by which policies are ranked."""


def run_grid(
    grid: RunGrid, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> SimulationResults:
    """Run all cells in `jobs` processes; `progress(policy, seed, cells done)` is called after
    each."""
    return run_grid_with_holdings(grid, jobs, progress)[0]


def run_grid_with_holdings(
    grid: RunGrid, jobs: int, progress: Callable[[str, int, int], None] | None = None
) -> tuple[SimulationResults, list[ClusterHoldings]]:
    """Run like `run_grid`, and also return the shares of GPUs that pods held in each policy's first
    run, if the grid keeps them."""
    results = run_in_memory(grid, grid.cells(), jobs, progress)
    outcomes: list[CellOutcome] = [result.run for result in results.values()]
    ordered = [outcome.run for outcome in outcomes]
    holdings = [outcome.holdings for outcome in outcomes if outcome.holdings is not None]
    summary = [
        msgspec.structs.replace(row, lacks=grid.lacks()[row.policy]) for row in summarise(ordered)
    ]
    notes = [*grid.notes(), *notes_on(ordered, summary, once=grid.once)]
    return SimulationResults(ordered, summary, notes), holdings


def measured_mean(
    runs: Sequence[PolicyRun],
    measure: str,
    value: Callable[[PolicyRun], float | None] | None = None,
) -> SeedMean | None:
    """Return a measure's mean over the runs that have it; None if no run has it.

    `value`, if given, reads a related number from a run instead."""
    values = [
        number
        for run in runs
        if (number := value(run) if value else openb_measures(run).get(measure)) is not None
    ]
    gpus = gpus_of(runs)
    return mean_ci95(values, measure_of(measure).resolution_on(gpus)) if values else None


def gpus_of(runs: Sequence[PolicyRun]) -> float | None:
    """Return the number of GPUs of the runs' cluster; None if unknown."""
    return next((run.gpus for run in runs if run.gpus), None)


def summarise(runs: Sequence[PolicyRun]) -> list[PolicySummary]:
    """Return one summary per policy, in the order in which policies first appear."""
    by_policy: dict[str, list[PolicyRun]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    return [_summary(policy, group) for policy, group in by_policy.items()]


def _summary(policy: str, runs: list[PolicyRun]) -> PolicySummary:
    held = measured_mean(runs, "gpu_held_percent")
    fragments = measured_mean(runs, "gpu_fragmentation_percent")
    allocated, at_100 = measured_mean(runs, AT_END), measured_mean(runs, AT_100)
    cpu = [run.cpu_s for run in runs if run.cpu_s is not None]
    timed, of_times = _timed(runs)
    means = {
        "gpu_allocated_percent": allocated,
        "gpu_held_percent": held,
        "gpu_fragmentation_percent": fragments,
        "gpu_allocated_at_100_percent": at_100,
        **of_times,
    }
    return PolicySummary(
        policy=policy,
        seeds=len(runs),
        gpu_allocated_percent=_mean(allocated),
        gpu_allocated_ci95=_half(allocated),
        gpu_held_percent=_mean(held),
        gpu_held_ci95=_half(held),
        gpu_fragmentation_percent=_mean(fragments),
        gpu_fragmentation_ci95=_half(fragments),
        gpu_allocated_at_100_percent=_mean(at_100) if at_100 else None,
        gpu_allocated_at_100_ci95=_half(at_100),
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
        mean_allocated_percent=mean([wait.mean_allocated_percent for wait in waits]),
        mean_held_percent=mean([wait.mean_held_percent for wait in waits]),
    )
    means: dict[str, SeedMean | None] = {"queue_mean_s": wait, "jct_mean_s": completion}
    gangs = [run.gangs for run in runs if run.gangs is not UNSET]
    if gangs:
        gang_wait = mean_ci95(
            [each.wait_mean_s for each in gangs], measure_of("gang_wait_mean_s").resolution
        )
        means["gang_wait_mean_s"] = gang_wait
        timed = msgspec.structs.replace(
            timed,
            gang_wait_mean_s=_mean(gang_wait),
            gang_wait_mean_ci95=_half(gang_wait),
            wasted_gpu_s=mean([each.wasted_gpu_s for each in gangs]),
            preempted_gpu_s=mean([each.preempted_gpu_s for each in gangs]),
        )
    return _with_teams(timed, runs), means


def _with_teams(timed: TimedSummary, runs: Sequence[PolicyRun]) -> TimedSummary:
    """Add the mean number of preemptions and of GPU-seconds lost to them, and each queue's
    means, if the runs have them."""
    lost = [run.preemption for run in runs if run.preemption is not UNSET]
    if lost:
        timed = msgspec.structs.replace(
            timed,
            preempted_gpu_s=round(sum(each.lost_gpu_s for each in lost) / len(lost), 3),
            preemptions=round(sum(each.preempted for each in lost) / len(lost), 3),
        )
    by_name: dict[str, list[QueueTimes]] = {}
    for run in runs:
        for queue in run.queues or ():
            by_name.setdefault(queue.queue, []).append(queue)
    if by_name:
        queues = [_queue_summary(by_name[name]) for name in sorted(by_name)]
        timed = msgspec.structs.replace(timed, queues=queues)
    return timed


def _queue_summary(queues: Sequence[QueueTimes]) -> QueueSummary:
    """Return one queue's means, each over the runs that have the value."""

    def mean(values: Iterable[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return round(sum(there) / len(there), 3) if there else None

    names = QueueSummary.__struct_fields__[1:]
    means = {name: mean(getattr(queue, name) for queue in queues) for name in names}
    return msgspec.convert({"queue": queues[0].queue, **means}, QueueSummary)


def _mean(mean: SeedMean | None) -> float:
    return 0.0 if mean is None else round(mean.mean, 3)


def _half(mean: SeedMean | None) -> float | None:
    return None if mean is None or mean.half is None else round(mean.half, 3)


class Headline(msgspec.Struct, frozen=True):
    """The headline of a report: `lead` is its first sentence, `rest` the numbers that support it.

    `settled` is True if the seeds show beyond chance that the first policy leads."""

    lead: str
    rest: str
    settled: bool = False


def is_timed(results: SimulationResults) -> bool:
    """Return True if the runs are of timed mode, in which pods wait and leave."""
    return any(run.waits is not None for run in results.runs)


def holds_more(results: SimulationResults) -> bool:
    """Return True if some policy holds more than pods request, such as whole GPUs for shares."""
    return any(run.gpu_held_percent != run.gpu_allocated_percent for run in results.runs)


def ranking_measure(results: SimulationResults) -> str:
    """Return the measure to rank by: in timed mode the mean wait, else allocated GPUs when demand
    equals capacity, or at the end if demand stays lower."""
    if is_timed(results):
        return WAIT
    return AT_100 if all(run.at_100_percent is not None for run in results.runs) else AT_END


def by_seed(results: SimulationResults, policy: str, measure: str) -> dict[int, float]:
    """Return the measure by seed, for seeds of the policy that have a value."""
    values = {
        run.seed: openb_measures(run).get(measure) for run in results.runs if run.policy == policy
    }
    return {seed: value for seed, value in values.items() if value is not None}


def ranked(results: SimulationResults) -> list[str]:
    """Return the policies, best first; equal ones in the results' order.

    In timed mode policies with the fewest pods that never started come first, since these pods do
    not count in mean waits."""
    measure = ranking_measure(results)
    sign = -1 if measure_of(measure).more_is_better else 1

    def key(policy: str) -> tuple[float, float]:
        values = by_seed(results, policy, measure).values()
        mean = sign * sum(values) / len(values) if values else float("inf")
        return never_started(results, policy), mean

    return sorted((summary.policy for summary in results.summary), key=key)


def never_started(results: SimulationResults, policy: str) -> float:
    """Return the mean number of pods that were still pending at the end; 0 unless timed."""
    waits = [run.waits for run in results.runs if run.policy == policy and run.waits]
    return sum(wait.never_started for wait in waits) / len(waits) if waits else 0.0


def headline(results: SimulationResults, gpus: int | None = None) -> Headline:
    """Return a headline with the winner and its lead; `gpus` converts percentage points to GPUs."""
    measure, order = ranking_measure(results), ranked(results)
    best = by_seed(results, order[0], measure)
    if not best:
        return Headline("No run measured anything to compare.", "")
    value = _shown(sum(best.values()) / len(best), measure)
    if len(order) == 1:
        return Headline(f"{_does(measure, value, order[0])}.", _seeds_text(len(best)))
    left = [never_started(results, policy) for policy in order[:2]]
    if left[0] < left[1]:
        lead = f"{order[0]} leaves {left[0]:,.1f} pods without a place, {order[1]} {left[1]:,.1f}."
        rest = f"{_does(measure, value, order[0])}."
        return Headline(lead, f"{rest} Mean waits leave out pods that never start.")
    apart = _apart(results, (order[0], order[1]), measure)
    if apart is None:
        return Headline(
            f"{_does(measure, value, order[0])}.", "It shares no seed with another policy."
        )
    return _against((order[0], order[1]), measure, value, apart, gpus)


def _apart(results: SimulationResults, names: tuple[str, str], measure: str) -> Difference | None:
    """Return how much better the first policy is than the second on common seeds; None without
    common seeds."""
    better = names if measure_of(measure).more_is_better else (names[1], names[0])
    cells = ((((), run.policy), run.seed, openb_measures(run)) for run in results.runs)
    compared = summaries_of_levels(of_places(cells), [()], better, measure, gpus_of(results.runs))
    return compared[0].difference if compared else None


def _against(
    names: tuple[str, str], measure: str, value: str, apart: Difference, gpus: int | None
) -> Headline:
    """Return a headline that compares the winner with the second by their difference `apart`."""
    best, second = names
    did = _does(measure, value, best)
    if apart.equal:
        seeds = "in the one seed" if apart.seeds == 1 else "in all seeds"
        # They are equal by this measure; other measures may differ.
        both = _does(measure, value, "Both")
        return Headline(f"{best} and {second} are equal {seeds}.", f"{both}.")
    more = "more" if measure_of(measure).more_is_better else "less"
    than = f"{_gap(apart.mean, measure)} {more} than {second}"
    if apart.low is None or apart.high is None:
        return Headline(f"{did}.", f"{than}, {_too_few(apart.seeds)}.")
    interval = _interval((apart.low, apart.high), measure, apart.seeds)
    if apart.low <= 0:
        # The order may be chance, so no winner is claimed.
        lead = f"No difference shown between {best} and {second}."
        return Headline(lead, f"{did}, {than} {interval}.")
    cards = _cards(apart.mean, measure, gpus)
    return Headline(f"{did}.", f"{than} {interval}.{cards}", settled=True)


def _too_few(seeds: int) -> str:
    number = "one seed" if seeds == 1 else f"{seeds} seeds"
    return f"in {number}: it may be chance; an interval needs {ENOUGH_FOR_INTERVAL} seeds"


def _does(measure: str, value: str, who: str) -> str:
    """Return a sentence with the measure's value for a policy; `who` is its name, or "Both"."""
    s = "" if who == "Both" else "s"
    if measure == WAIT:
        return f"{who} start{s} pods after a mean wait of {value}"
    when = "when demand equals capacity" if measure == AT_100 else "at the end"
    return f"{who} allocate{s} {value} of the GPUs {when}"


def _shown(value: float, measure: str) -> str:
    return f"{value:.2f} %" if measure_of(measure).unit == "%" else f"{value:,.1f} s"


def _gap(value: float, measure: str) -> str:
    return f"{value:.2f} points" if measure_of(measure).unit == "%" else f"{value:,.1f} s"


def _interval(ends: tuple[float, float], measure: str, seeds: int) -> str:
    low, high = (_bare(end, measure) for end in ends)
    return f"(95 % interval {low} to {high}, {seeds} paired seeds)"


def _bare(value: float, measure: str) -> str:
    text = f"{value:.2f}" if measure_of(measure).unit == "%" else f"{value:,.1f}"
    return text.replace("-", "−")


def _cards(points: float, measure: str, gpus: int | None) -> str:
    if measure_of(measure).unit != "%" or not gpus:
        return ""
    return f" On {gpus:,} GPUs that is {points * gpus / 100:,.1f} more GPUs at work."


def _seeds_text(seeds: int) -> str:
    return "One seed." if seeds == 1 else f"Mean of {seeds} seeds."


MAY_BE_CHANCE = "°"
"""Marks differences that may be chance."""
LACKS_INPUTS = "*"
"""Marks a policy that lacked inputs that it needs for its decisions."""
FEW_SEEDS = (
    f"{MAY_BE_CHANCE} fewer than {ENOUGH_FOR_INTERVAL} seeds: no intervals, and differences may be "
    f"chance; --seeds {ENOUGH_FOR_INTERVAL} or more gives them"
)
ONE_DAY = (
    f"{MAY_BE_CHANCE} a single recorded day: no intervals, and differences may be chance; "
    "also compare on records of other days"
)
ONE_STATE = (
    f"{MAY_BE_CHANCE} a single cluster state: no intervals, and differences may be chance; "
    "also compare on other snapshots"
)


def notes_on(
    runs: Sequence[PolicyRun], summary: Sequence[PolicySummary], *, once: str = ""
) -> list[str]:
    """Return notes on all results, in the order to show them.

    `once` is the reason for a single arrival order, "" with several."""
    few = any(policy.seeds < ENOUGH_FOR_INTERVAL for policy in summary)
    lacks = {policy.policy: policy.lacks for policy in summary}
    marked = [f"{LACKS_INPUTS} {note}" for note in lacking_notes(lacks)]
    broken = Counter[str]()
    for run in runs:
        broken[run.policy] += run.side_faults
    faults = [_faulty(name, count) for name, count in broken.items() if count]
    return [*faults, *marked, *_alike(runs, summary), *([once or FEW_SEEDS] if few else [])]


def _faulty(policy: str, count: int) -> str:
    return (
        f"{policy}: {count} side tasks, such as learning, failed and were left out (the log "
        "says which): these figures are not those of the whole policy"
    )


def lacking_notes(lacks: Mapping[str, Sequence[str]]) -> list[str]:
    """Return notes on the inputs that policies (by name) lacked, and how to provide each."""
    inputs = dict.fromkeys(lack for missing in lacks.values() for lack in missing)
    return [
        f"without {lack}: {', '.join(name for name in lacks if lack in lacks[name])}"
        + (f" ({REMEDIES[lack]})" if lack in REMEDIES else "")
        for lack in inputs
    ]


def _alike(runs: Sequence[PolicyRun], summary: Sequence[PolicySummary]) -> list[str]:
    """Return notes on policies that did the same in every run, which may be due to missing
    inputs."""
    groups: dict[bytes, list[str]] = {}
    for policy in summary:
        bare = [
            msgspec.structs.replace(run, policy="", cpu_s=None, wall_s=None)
            for run in runs
            if run.policy == policy.policy
        ]
        groups.setdefault(msgspec.msgpack.encode(bare), []).append(policy.policy)
    return [
        f"identical results in every run: {', '.join(names)}"
        for names in groups.values()
        if names[1:]
    ]


def seeds_text(seeds: int) -> str:
    """Return the number of seeds, marked if too few for an interval."""
    return f"{seeds}{MAY_BE_CHANCE if seeds < ENOUGH_FOR_INTERVAL else ''}"


def policy_text(summary: PolicySummary) -> str:
    """Return the policy's name, marked if it lacked inputs."""
    return summary.policy + LACKS_INPUTS * bool(summary.lacks)
