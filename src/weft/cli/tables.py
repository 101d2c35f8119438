"""Results as tables for people and as CSV for spreadsheets."""

from collections.abc import Callable, Iterable
from operator import attrgetter

from msgspec import UNSET

from weft.cli import output
from weft.cli.output import print_note, print_table, table_with
from weft.lab.experiment.statistics.differences import SeedMean
from weft.lab.experiment.statistics.ranking import is_timed, policy_text, ranked, seeds_text
from weft.lab.simulate.results import (
    PolicyRun,
    PolicySummary,
    SimulationResults,
    TimedSummary,
)

_FIRST, _LAST = ("policy", "seed", "arrived_percent"), ("failed_pods", "pods", "cpu_s", "wall_s")
_AT_THE_END = (
    "gpu_asked_percent",
    "gpu_allocation_percent",
    "gpu_fragmentation_percent",
    "fragmentation_of_idle_percent",
    "used_gpu_milli",
)
CSV_COLUMNS = (*_FIRST, "gpu_asked_at_100_percent", *_AT_THE_END, *_LAST)
_CSV_FIELDS = (*_FIRST, "at_100_percent", *_AT_THE_END, *_LAST)
POSSIBLE = "possible_percent"
"""The last column with `--bound`."""
TIMED_CSV_COLUMNS = {
    "queue_mean_s": "waits.mean_s",
    "queue_p50_s": "waits.p50_s",
    "queue_p95_s": "waits.p95_s",
    "queue_p99_s": "waits.p99_s",
    "jct_mean_s": "completion.mean_s",
    "jct_p50_s": "completion.p50_s",
    "jct_p95_s": "completion.p95_s",
    "jct_p99_s": "completion.p99_s",
    "mean_asked_percent": "waits.mean_asked_percent",
    "mean_allocation_percent": "waits.mean_allocation_percent",
    "end_s": "waits.end_s",
}
"""Columns of timed runs, which replace those of the end state: each named as in experiments, with
its field."""

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


def print_csv(results: SimulationResults) -> None:
    """Print one line per run."""
    if is_timed(results):
        has_gangs = any(run.gangs is not UNSET for run in results.runs)
        timed = TIMED_CSV_COLUMNS | (GANG_CSV_COLUMNS if has_gangs else {})
        columns: Iterable[str] = (*_FIRST, *timed, *_LAST)
        fields = attrgetter(*_FIRST, *timed.values(), *_LAST)
    else:
        columns, fields = CSV_COLUMNS, attrgetter(*_CSV_FIELDS)
        if any(run.possible is not None for run in results.runs):
            columns = *CSV_COLUMNS, POSSIBLE
            fields = attrgetter(*_CSV_FIELDS, "possible.percent")
    rows: Callable[[PolicyRun], tuple[object, ...]] = fields
    output.print_csv(columns, map(rows, results.runs))


def print_results(results: SimulationResults) -> None:
    """Print one row per policy, best first as in the report, then notes."""
    timed = is_timed(results)
    columns = _TIMED_COLUMNS if timed else _COLUMNS
    if any(summary.timed and _has_gangs(summary.timed) for summary in results.summary):
        columns = columns.replace(_CPU, f"{_GANG_COLUMNS}{_CPU}")
    table = table_with(f"policy|>seeds|{columns}")
    of_policy = {summary.policy: summary for summary in results.summary}
    for policy in ranked(results):
        summary = of_policy[policy]
        values = _timed_row(summary) if timed else _row(summary)
        cpu = "–" if summary.cpu_s is None else f"{summary.cpu_s:.2f}"
        table.add_row(policy_text(summary), seeds_text(summary.seeds), *values, cpu)
    print_table(table)
    for note in results.notes:
        print_note(note)


_COLUMNS = ">asked % at 100 %|>asked % at end|>held % at end|>fragments %|>failed pods|>CPU s"
_CPU = "|>CPU s"
_GANG_COLUMNS = "|>gang wait s, mean|>wasted GPU s|>preempted GPU s"
_TIMED_COLUMNS = ">wait s, mean|>p50|>p95|>p99|>completion s|>asked %|>held %|>never started|>CPU s"


def _row(summary: PolicySummary) -> list[str]:
    return [
        _with_interval(summary, "gpu_asked_at_100"),
        _with_interval(summary, "gpu_asked"),
        f"{summary.gpu_allocation_percent:.2f}",
        _with_interval(summary, "gpu_fragmentation"),
        f"{summary.failed_pods:,.0f}",
    ]


def _timed_row(summary: PolicySummary) -> list[str]:
    timed = summary.timed
    if timed is None:
        return ["–"] * 8
    return [
        _time(summary, "queue_mean"),
        *(f"{wait:,.1f}" for wait in (timed.queue_p50_s, timed.queue_p95_s, timed.queue_p99_s)),
        _time(summary, "jct_mean"),
        f"{timed.mean_asked_percent:.2f}",
        f"{timed.mean_allocation_percent:.2f}",
        f"{summary.failed_pods:,.1f}",
        *_gang_cells(summary, timed),
    ]


def _has_gangs(timed: TimedSummary) -> bool:
    return timed.gang_wait_mean_s is not UNSET


def _gang_cells(summary: PolicySummary, timed: TimedSummary) -> list[str]:
    if not _has_gangs(timed):
        return []
    lost = timed.wasted_gpu_s, timed.preempted_gpu_s
    return [_time(summary, "gang_wait_mean"), *(f"{each:,.0f}" for each in lost)]


def _with_interval(summary: PolicySummary, measure: str) -> str:
    mean = getattr(summary, f"{measure}_percent")
    half = getattr(summary, f"{measure}_ci95")
    equal = f"{measure}_percent" in summary.equal_in_all_seeds
    return "–" if mean is None else SeedMean(mean, half, equal).text(2)


def _time(summary: PolicySummary, name: str) -> str:
    timed = summary.timed
    mean, half = getattr(timed, f"{name}_s"), getattr(timed, f"{name}_ci95")
    return SeedMean(mean, half, f"{name}_s" in summary.equal_in_all_seeds).text(1)
