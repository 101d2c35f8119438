"""Results as tables for people and as CSV for spreadsheets."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from msgspec import UNSET

from weft.cli import output
from weft.cli.output import print_note, print_table, table_with
from weft.lab.experiment.statistics.differences import SeedMean
from weft.lab.experiment.statistics.ranking import (
    holds_more,
    is_timed,
    policy_text,
    ranked,
    seeds_text,
)
from weft.lab.simulate.results import (
    PolicyRun,
    PolicySummary,
    QueueSummary,
    SimulationResults,
    TimedSummary,
)

_FIRST, _LAST = ("policy", "seed", "arrived_percent"), ("failed_pods", "pods", "cpu_s", "wall_s")
_AT_THE_END = (
    "gpu_allocated_percent",
    "gpu_held_percent",
    "gpu_fragmentation_percent",
    "fragmentation_of_idle_percent",
    "used_gpu_milli",
)
CSV_COLUMNS = (*_FIRST, "gpu_allocated_at_100_percent", *_AT_THE_END, *_LAST)
_CSV_FIELDS = (*_FIRST, "at_100_percent", *_AT_THE_END, *_LAST)
POSSIBLE = "possible_percent"
"""The last column of the CSV with `--bound`."""
TIMED_CSV_COLUMNS = {
    "queue_mean_s": "waits.mean_s",
    "queue_p50_s": "waits.p50_s",
    "queue_p95_s": "waits.p95_s",
    "queue_p99_s": "waits.p99_s",
    "jct_mean_s": "completion.mean_s",
    "jct_p50_s": "completion.p50_s",
    "jct_p95_s": "completion.p95_s",
    "jct_p99_s": "completion.p99_s",
    "mean_allocated_percent": "waits.mean_allocated_percent",
    "mean_held_percent": "waits.mean_held_percent",
    "end_s": "waits.end_s",
}
"""Columns of timed runs, which replace those of the end state: the name as in experiments, and the
field of the run."""

GANG_CSV_COLUMNS = {
    "gangs": "gangs.gangs",
    "gangs_unfinished": "gangs.never_ran",
    "gang_wait_mean_s": "gangs.wait_mean_s",
    "gang_wait_p99_s": "gangs.wait_p99_s",
    "gang_makespan_s": "gangs.makespan_s",
    "wasted_gpu_s": "gangs.wasted_gpu_s",
    "preempted_gpu_s": "gangs.preempted_gpu_s",
}
"""Further columns of timed runs with gangs."""
PREEMPTION_CSV_COLUMNS = {
    "preempted_gpu_s": "preemption.lost_gpu_s",
    "preemptions": "preemption.preempted",
}
"""Further columns of timed runs with preemption; `preempted_gpu_s` then covers all pods, not only
gangs'."""
_QUEUE_CSV_FIELDS = (
    *("pods", "wait_mean_s", "wait_p99_s", "held_percent"),
    *("guarantee_percent", "held_while_wanting_percent", "preempted_gpu_s"),
)
"""Columns of each queue; their titles are the queue's name, a dot and the field."""


def print_csv(results: SimulationResults) -> None:
    """Print one CSV line per run."""
    if is_timed(results):
        _print_timed_csv(results)
        return
    columns: Iterable[str] = CSV_COLUMNS
    fields: Callable[[PolicyRun], tuple[object, ...]] = attrgetter(*_CSV_FIELDS)
    if any(run.possible is not None for run in results.runs):
        columns = *CSV_COLUMNS, POSSIBLE
        fields = attrgetter(*_CSV_FIELDS, "possible.percent")
    output.print_csv(columns, map(fields, results.runs))


def _print_timed_csv(results: SimulationResults) -> None:
    runs = results.runs
    columns = dict(TIMED_CSV_COLUMNS)
    if any(run.gangs is not UNSET for run in runs):
        columns |= GANG_CSV_COLUMNS
    if any(run.preemption is not UNSET for run in runs):
        columns |= PREEMPTION_CSV_COLUMNS
    values = attrgetter(*_FIRST, *columns.values())
    last = attrgetter(*_LAST)
    names = sorted({queue.queue for run in runs for queue in run.queues or ()})
    of_queues = [f"{name}.{field}" for name in names for field in _QUEUE_CSV_FIELDS]

    def cells(run: PolicyRun) -> tuple[object, ...]:
        by_name = {queue.queue: queue for queue in run.queues or ()}
        queues = [
            getattr(by_name.get(name), field, None) for name in names for field in _QUEUE_CSV_FIELDS
        ]
        return (*values(run), *queues, *last(run))

    output.print_csv((*_FIRST, *columns, *of_queues, *_LAST), map(cells, runs))


def print_results(results: SimulationResults) -> None:
    """Print one row per policy, best first as in the report, then queues and notes."""
    timed = is_timed(results)
    columns = _TIMED_COLUMNS if timed else _COLUMNS
    shows_held = holds_more(results)
    if not shows_held:
        columns = columns.replace(_HELD, "")
    more = _further_columns(results)
    columns = columns.replace(_CPU, "".join([*(f"|>{title}" for title in more), _CPU]))
    table = table_with(f"policy|>seeds|{columns}")
    of_policy = {summary.policy: summary for summary in results.summary}
    for policy in ranked(results):
        summary = of_policy[policy]
        values = [*_timed_row(summary, more)] if timed else _row(summary, shows_held)
        cpu = "–" if summary.cpu_s is None else f"{summary.cpu_s:.2f}"
        table.add_row(policy_text(summary), seeds_text(summary.seeds), *values, cpu)
    print_table(table)
    _print_queues(results)
    for note in results.notes:
        print_note(note)


def _further_columns(results: SimulationResults) -> list[str]:
    """Return the titles of columns for gangs and preemption, if the runs have any."""
    of_times = [summary.timed for summary in results.summary if summary.timed]
    titles = []
    if any(timed.gang_wait_mean_s is not UNSET for timed in of_times):
        titles += [_GANG_WAIT, _WASTED]
    if any(timed.preempted_gpu_s is not UNSET for timed in of_times):
        titles.append(_PREEMPTED)
    if any(timed.preemptions is not UNSET for timed in of_times):
        titles.append(_PREEMPTIONS)
    return titles


def _print_queues(results: SimulationResults) -> None:
    """Print a row for each policy and queue, if the runs have queues."""
    of_policy = {summary.policy: summary for summary in results.summary}
    table, has_rows = table_with(_QUEUE_COLUMNS), False
    for policy in ranked(results):
        timed = of_policy[policy].timed
        for queue in (timed.queues or ()) if timed else ():
            has_rows = True
            table.add_row(policy, queue.queue, *_queue_row(queue))
    if has_rows:
        print_table(table)


def _queue_row(queue: QueueSummary) -> list[str]:
    shares = queue.held_percent, queue.guarantee_percent, queue.held_while_wanting_percent
    return [
        f"{queue.pods:,.0f}",
        f"{queue.wait_mean_s:,.1f}",
        f"{queue.wait_p99_s:,.1f}",
        *("–" if share is None else f"{share:.2f}" for share in shares),
        f"{queue.preempted_gpu_s:,.0f}",
        f"{queue.never_started:,.1f}",
    ]


_COLUMNS = (
    ">allocated % at 100 %|>allocated % at end|>held % at end|>fragments %|>failed pods|>CPU s"
)
_CPU, _HELD = "|>CPU s", "|>held % at end"
_GANG_WAIT, _WASTED = "gang wait s, mean", "wasted GPU s"
_PREEMPTED, _PREEMPTIONS = "preempted GPU s", "preempted pods"
_QUEUE_COLUMNS = (
    "policy|queue|>pods|>wait s, mean|>p99|>held %|>guarantee %|>held % when wanted"
    "|>preempted GPU s|>never started"
)
_TIMED_COLUMNS = (
    ">wait s, mean|>p50|>p95|>p99|>completion s|>allocated %|>held %|>never started|>CPU s"
)


def _row(summary: PolicySummary, shows_held: bool) -> list[str]:
    """Return the cells of a policy; with `shows_held` also the percentage of GPUs held, which can
    differ from that allocated."""
    return [
        _with_interval(summary, "gpu_allocated_at_100"),
        _with_interval(summary, "gpu_allocated"),
        *([f"{summary.gpu_held_percent:.2f}"] if shows_held else []),
        _with_interval(summary, "gpu_fragmentation"),
        f"{summary.failed_pods:,.0f}",
    ]


def _timed_row(summary: PolicySummary, more: Sequence[str]) -> list[str]:
    """Return the cells of a policy in timed mode; `more` are the titles of further columns."""
    timed = summary.timed
    if timed is None:
        return ["–"] * (8 + len(more))
    return [
        _time(summary, "queue_mean"),
        *(f"{wait:,.1f}" for wait in (timed.queue_p50_s, timed.queue_p95_s, timed.queue_p99_s)),
        _time(summary, "jct_mean"),
        f"{timed.mean_allocated_percent:.2f}",
        f"{timed.mean_held_percent:.2f}",
        f"{summary.failed_pods:,.1f}",
        *(_further_cell(title, summary, timed) for title in more),
    ]


def _further_cell(title: str, summary: PolicySummary, timed: TimedSummary) -> str:
    if title == _GANG_WAIT:
        has_gangs = timed.gang_wait_mean_s is not UNSET
        return _time(summary, "gang_wait_mean") if has_gangs else "–"
    values = {
        _WASTED: timed.wasted_gpu_s,
        _PREEMPTED: timed.preempted_gpu_s,
        _PREEMPTIONS: timed.preemptions,
    }
    value = values[title]
    return "–" if value is UNSET else f"{value:,.0f}"


def _with_interval(summary: PolicySummary, measure: str) -> str:
    mean = getattr(summary, f"{measure}_percent")
    half = getattr(summary, f"{measure}_ci95")
    equal = f"{measure}_percent" in summary.equal_in_all_seeds
    return "–" if mean is None else SeedMean(mean, half, equal).text(2)


def _time(summary: PolicySummary, name: str) -> str:
    timed = summary.timed
    mean, half = getattr(timed, f"{name}_s"), getattr(timed, f"{name}_ci95")
    return SeedMean(mean, half, f"{name}_s" in summary.equal_in_all_seeds).text(1)
