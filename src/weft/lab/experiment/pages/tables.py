"""The report's tables as HTML: policies, reasons for failure, and every run.

Every cell has its column's title: if a table is too wide for the screen, each row becomes a card of
titles and values. The page's script sorts rows; without it they keep their order."""

from collections.abc import Callable, Sequence
from html import escape

import msgspec

from weft.lab.experiment.pages.bar_figures import reason_means
from weft.lab.experiment.pages.drawing import Look, looks
from weft.lab.experiment.pages.pictures import line_sample
from weft.lab.experiment.spec.measures import capital, measure_of
from weft.lab.experiment.statistics.differences import SeedMean, mean_ci95
from weft.lab.experiment.statistics.ranking import (
    headline,
    is_timed,
    measured_mean,
    policy_text,
    ranked,
    seeds_text,
)
from weft.lab.simulate.results import PolicyRun, SimulationResults, WaitTimes

MANY_COLUMNS = 7
"""A table with more columns becomes cards below 1,000 pixels, others only on phones."""


class Column(msgspec.Struct, frozen=True):
    """One measure of a policy over its seeds.

    `best` is `max` or `min` if one end is better, None if the number does not judge policies."""

    title: str
    value: Callable[[Sequence[PolicyRun]], SeedMean | None]
    decimals: int
    best: Callable[[Sequence[float]], float] | None = None


def policy_table(results: SimulationResults) -> str:
    """Return a row per policy, best first: mean ± 95 % interval of each measure, the best one
    bold."""
    columns = _columns(results)
    order, settled = ranked(results), headline(results).settled
    summaries = {summary.policy: summary for summary in results.summary}
    look_of = looks(list(summaries))
    cells = {policy: _values(results, policy, columns) for policy in order}
    best = [_best(column, [cells[p][i] for p in order]) for i, column in enumerate(columns)]
    titles = ["Policy", "Seeds", *(column.title for column in columns)]
    better = ["", "", *(_better(column) for column in columns)]
    rows = []
    for policy in order:
        summary = summaries[policy]
        row = [seeds_text(summary.seeds)]
        row += [_cell(cells[policy][i], column) for i, column in enumerate(columns)]
        bold = [False] + [
            top is not None and _shown(cells[policy][i], columns[i]) == top
            for i, top in enumerate(best)
        ]
        name = look_chip(look_of[policy]) + escape(policy_text(summary))
        rows.append(html_row(name, titles, row, bold=bold, first=settled and policy == order[0]))
    return html_table("Policies compared", titles, rows, better)


def reason_table(results: SimulationResults, reasons: Sequence[str]) -> str:
    """Return unscheduled pods by reason, mean per seed."""
    titles, rows = ["Policy", *reasons, "all"], []
    for policy in ranked(results):
        means = reason_means(results, policy)
        row = [f"{means.get(reason, 0.0):,.1f}" for reason in reasons]
        rows.append(html_row(escape(policy), titles, [*row, f"{sum(means.values()):,.1f}"]))
    return html_table("Pods without a place, by reason", titles, rows)


def run_table(results: SimulationResults) -> str:
    """Return a row for every run."""
    timed = is_timed(results)
    timing = any(run.cpu_s is not None for run in results.runs)
    titles = ["Policy", "Seed", "Pods", "Failed pods"]
    titles += _TIMED_TITLES if timed else _RUN_TITLES
    titles += ["CPU, s", "Wall, s"] if timing else []
    rows = []
    for run in results.runs:
        values = [
            str(run.seed),
            f"{run.pods:,}",
            f"{run.failed_pods:,}",
            *map(_plain, _timed_values(run) if timed else _run_values(run)),
        ]
        values += [_plain(run.cpu_s), _plain(run.wall_s)] if timing else []
        rows.append(html_row(escape(run.policy), titles, values))
    return html_table("All runs", titles, rows)


_RUN_TITLES = ["Demand, %", "Asked at 100 %", "Asked, %", "Held, %", "Fragmented, %", "of idle, %"]
_TIMED_TITLES = ["Mean wait, s", "p50 wait, s", "p95 wait, s", "p99 wait, s"]
_TIMED_TITLES += [f"{part} completion, s" for part in ("Mean", "p50", "p95", "p99")]
_TIMED_TITLES += ["Asked, %", "Held, %"]


def _run_values(run: PolicyRun) -> list[float | None]:
    return [
        run.arrived_percent,
        run.curve.get("100"),
        run.gpu_asked_percent,
        run.gpu_allocation_percent,
        run.gpu_fragmentation_percent,
        run.fragmentation_of_idle_percent,
    ]


def _timed_values(run: PolicyRun) -> list[float | None]:
    waits, took = run.waits, run.completion
    if waits is None or took is None:
        return [None] * len(_TIMED_TITLES)
    return [
        *(waits.mean_s, waits.p50_s, waits.p95_s, waits.p99_s),
        *(took.mean_s, took.p50_s, took.p95_s, took.p99_s),
        *(waits.mean_asked_percent, waits.mean_allocation_percent),
    ]


def _columns(results: SimulationResults) -> list[Column]:
    columns = [
        _column("gpu_asked_at_100_percent", 2),
        _column("gpu_asked_percent", 2),
        _column("gpu_allocation_percent", 2, judges=False),
        # Low fragmentation does not make a policy better: one that holds everything has none.
        _column("gpu_fragmentation_percent", 2, judges=False),
        _column("failed_pods", 1),
    ]
    if is_timed(results):
        # By the end all pods have left, so the final allocation says nothing.
        columns = _wait_columns()
    if any(summary.cpu_s is not None for summary in results.summary):
        columns.append(Column("CPU, s", _cpu, 2))
    return columns


def _column(
    name: str,
    decimals: int,
    *,
    title: str = "",
    value: Callable[[PolicyRun], float | None] | None = None,
    judges: bool = True,
) -> Column:
    """Return the column of a measure, named as in experiments; with `title`, of a related value."""
    measure = measure_of(name)
    title = title or measure.title
    unit = f", {measure.unit}" if measure.unit else ""
    best = max if measure.more_is_better else min
    return Column(
        f"{capital(title)}{unit}",
        lambda runs: measured_mean(runs, name, value),
        decimals,
        best if judges and measure.more_is_better is not None else None,
    )


def _wait_columns() -> list[Column]:
    def of(name: str, value: Callable[[WaitTimes], float], decimals: int, title: str) -> Column:
        def of_run(run: PolicyRun) -> float | None:
            return value(run.waits) if run.waits else None

        return _column(name, decimals, title=title, value=of_run)

    return [
        _column("failed_pods", 1),
        _column("queue_mean_s", 1),
        of("queue_p99_s", lambda w: w.p50_s, 1, "p50 wait"),
        of("queue_p99_s", lambda w: w.p95_s, 1, "p95 wait"),
        _column("queue_p99_s", 1),
        _column("jct_mean_s", 1),
        of("mean_allocation_percent", lambda w: w.mean_asked_percent, 2, _ASKED_OVER_TIME),
        _column("mean_allocation_percent", 2),
    ]


_CPU_RESOLUTION_S = 0.01
_ASKED_OVER_TIME = "GPUs asked for over time"


def _cpu(runs: Sequence[PolicyRun]) -> SeedMean | None:
    values = [run.cpu_s for run in runs if run.cpu_s is not None]
    return mean_ci95(values, _CPU_RESOLUTION_S) if values else None


def _values(
    results: SimulationResults, policy: str, columns: list[Column]
) -> list[SeedMean | None]:
    runs = [run for run in results.runs if run.policy == policy]
    return [column.value(runs) if runs else None for column in columns]


def _best(column: Column, cells: list[SeedMean | None]) -> str | None:
    """Return the value to print bold, as shown; None if no end is better, or all are equal."""
    there = [cell for cell in cells if cell is not None]
    if column.best is None or len({_shown(cell, column) for cell in there}) < 2:
        return None
    return _shown(SeedMean(column.best([cell.mean for cell in there])), column)


def _better(column: Column) -> str:
    """Say which end of a column is better, if any."""
    if column.best is None:
        return ""
    return "higher is better" if column.best is max else "lower is better"


def _shown(cell: SeedMean | None, column: Column) -> str:
    return "–" if cell is None else f"{cell.mean:,.{column.decimals}f}"


def _cell(cell: SeedMean | None, column: Column) -> str:
    if cell is None or cell.half is None:
        return _shown(cell, column)
    mean, _, interval = cell.text(column.decimals).partition(" ")
    return f'{mean} <span class="ci">{interval}</span>'


def look_chip(look: Look) -> str:
    """Return a sample of the policy's line as in the figures."""
    drawn = line_sample(look)
    return f'<svg class="chip" width="26" height="10" aria-hidden="true">{drawn}</svg>'


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def html_row(
    name: str,
    titles: Sequence[str],
    values: Sequence[str],
    *,
    bold: Sequence[bool] = (),
    first: bool = False,
) -> str:
    """Return a row of HTML; `first` marks the policy that came out first."""
    marks = [*bold, *[False] * (len(values) - len(bold))]
    cells = "".join(
        f'<td data-title="{escape(title)}"{" class=best" if mark else ""}>{value}</td>'
        for title, value, mark in zip(titles[1:], values, marks, strict=True)
    )
    return f'<tr{" class=best" if first else ""}><th scope="row">{name}</th>{cells}</tr>'


def html_table(
    label: str,
    titles: Sequence[str],
    rows: Sequence[str],
    better: Sequence[str] = (),
    *,
    most: int = MANY_COLUMNS,
) -> str:
    """Return a table of rows from `html_row`; `better` says for each column which end is better.

    With more than `most` columns, rows become cards on screens that are not wide."""
    said = [*better, *[""] * (len(titles) - len(better))]
    head = "".join(
        f'<th scope="col">{escape(title)}{f"<small>{words}</small>" if words else ""}</th>'
        for title, words in zip(titles, said, strict=True)
    )
    size = "many" if len(titles) > most else "few"
    body = "\n".join(rows)
    return (
        f'<table class="{size}" aria-label="{escape(label)}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table>"
    )
