"""The report's tables as HTML: policies, reasons for failure, and every run."""

from collections.abc import Callable, Sequence
from html import escape
from operator import attrgetter

import msgspec

from weft.lab.experiment.bar_figures import reason_means
from weft.lab.experiment.notes import policy_text, seeds_text
from weft.lab.experiment.ranking import is_timed, ranked
from weft.lab.experiment.statistics import mean_ci95
from weft.lab.experiment.style import series_dash, series_paint
from weft.lab.simulate.results import PolicyRun, PolicySummary, SimulationResults, WaitTimes


class Column(msgspec.Struct, frozen=True):
    """One measure of a policy: mean and half-width of its interval, from the policy's runs.

    `best` is `max` or `min` where one end is better, None where the number judges nothing.
    """

    title: str
    value: Callable[[PolicySummary, Sequence[PolicyRun]], tuple[float, float | None] | None]
    decimals: int
    best: Callable[[Sequence[float]], float] | None = None


def policy_table(results: SimulationResults) -> str:
    """One row a policy, best first: mean ± 95 % interval of each measure; the best one bold."""
    columns = _columns(results)
    order = ranked(results)
    indexes = {summary.policy: i for i, summary in enumerate(results.summary)}
    cells = {policy: _values(results, policy, columns) for policy in order}
    best = [_best(column, [cells[p][i] for p in order]) for i, column in enumerate(columns)]
    lines = [_head(["Policy", "Seeds", *(column.title for column in columns)])]
    for policy in order:
        summary = results.summary[indexes[policy]]
        row = [f"<td>{seeds_text(summary.seeds)}</td>"]
        for i, column in enumerate(columns):
            row.append(_cell(cells[policy][i], column, best[i]))
        mark = ' class="best"' if policy == order[0] and len(order) > 1 else ""
        name = f'<th scope="row">{_chip(indexes[policy])}{escape(policy_text(summary))}</th>'
        lines.append(f"<tr{mark}>{name}{''.join(row)}</tr>")
    return _table("Policies compared", lines)


def reason_table(results: SimulationResults, reasons: Sequence[str]) -> str:
    """Unscheduled pods by reason, mean per seed."""
    lines = [_head(["Policy", *reasons, "all"])]
    for policy in ranked(results):
        means = reason_means(results, policy)
        row = [f"<td>{means.get(reason, 0.0):,.1f}</td>" for reason in reasons]
        row.append(f"<td>{sum(means.values()):,.1f}</td>")
        lines.append(f'<tr><th scope="row">{escape(policy)}</th>{"".join(row)}</tr>')
    return _table("Pods without a place, by reason", lines)


def run_table(results: SimulationResults) -> str:
    """Every run as it was measured."""
    timed = is_timed(results)
    timing = any(run.cpu_s is not None for run in results.runs)
    titles = ["Policy", "Seed", "Pods", "Failed pods"]
    titles += _TIMED_TITLES if timed else _RUN_TITLES
    titles += ["CPU, s", "Wall, s"] if timing else []
    lines = [_head(titles)]
    for run in results.runs:
        values = [
            str(run.seed),
            f"{run.pods:,}",
            f"{run.failed_pods:,}",
            *map(_plain, _timed_values(run) if timed else _run_values(run)),
        ]
        values += [_plain(run.cpu_s), _plain(run.wall_s)] if timing else []
        cells = "".join(f"<td>{value}</td>" for value in values)
        lines.append(f'<tr><th scope="row">{escape(run.policy)}</th>{cells}</tr>')
    return _table("All runs", lines)


_RUN_TITLES = ["Demand, %", "Asked at 100 %", "Asked, %", "Held, %", "Fragmented, %", "of idle, %"]
_TIMED_TITLES = ["Mean wait, s", "p50", "p95", "p99", "Mean completion, s", "p50", "p95", "p99"]
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
    def of_summary(
        title: str, field: str, best: Callable[[Sequence[float]], float] | None
    ) -> Column:
        fields = attrgetter(f"{field}_percent", f"{field}_ci95")
        return Column(title, lambda summary, _: _pair(*fields(summary)), 2, best)

    columns = [
        of_summary("Asked at 100 % demand, %", "at_100", max),
        of_summary("Asked at the end, %", "gpu_asked", max),
        of_summary("Held at the end, %", "gpu_allocation", None),
        of_summary("Fragmented at the end, %", "gpu_fragmentation", min),
        Column("Failed pods", lambda _, runs: mean_ci95([run.failed_pods for run in runs]), 1, min),
    ]
    if is_timed(results):
        # Everybody has left by the end, so what is allocated then says nothing.
        columns = _wait_columns()
    if any(summary.cpu_s is not None for summary in results.summary):
        columns.append(Column("CPU, s", lambda _, runs: _over(runs, lambda run: run.cpu_s), 2))
    return columns


def _wait_columns() -> list[Column]:
    def of(
        title: str,
        value: Callable[[WaitTimes], float],
        decimals: int,
        best: Callable[[Sequence[float]], float] | None,
    ) -> Column:
        def over(_: PolicySummary, runs: Sequence[PolicyRun]) -> tuple[float, float | None] | None:
            return _over(runs, lambda run: value(run.waits) if run.waits else None)

        return Column(title, over, decimals, best)

    return [
        of("Failed pods", lambda w: w.never_started, 1, min),
        of("Mean wait, s", lambda w: w.mean_s, 1, min),
        of("p50 wait, s", lambda w: w.p50_s, 1, min),
        of("p95 wait, s", lambda w: w.p95_s, 1, min),
        of("p99 wait, s", lambda w: w.p99_s, 1, min),
        Column(
            "Mean completion, s",
            lambda _, runs: mean_ci95([run.completion.mean_s for run in runs if run.completion]),
            1,
            min,
        ),
        of("Asked over time, %", lambda w: w.mean_asked_percent, 2, None),
        of("Held over time, %", lambda w: w.mean_allocation_percent, 2, None),
    ]


def _pair(mean: float | None, half: float | None) -> tuple[float, float | None] | None:
    return None if mean is None else (mean, half)


def _over(
    runs: Sequence[PolicyRun], value: Callable[[PolicyRun], float | None]
) -> tuple[float, float | None] | None:
    values = [number for run in runs if (number := value(run)) is not None]
    return mean_ci95(values) if values else None


def _values(
    results: SimulationResults, policy: str, columns: list[Column]
) -> list[tuple[float, float | None] | None]:
    runs = [run for run in results.runs if run.policy == policy]
    summary = next(each for each in results.summary if each.policy == policy)
    return [column.value(summary, runs) if runs else None for column in columns]


def _best(column: Column, cells: list[tuple[float, float | None] | None]) -> float | None:
    """The value to print bold; none where all are equal."""
    values = [cell[0] for cell in cells if cell is not None]
    if column.best is None or len(set(values)) < 2:
        return None
    return column.best(values)


def _cell(cell: tuple[float, float | None] | None, column: Column, best: float | None) -> str:
    if cell is None:
        return "<td>–</td>"
    mean, half = cell
    mark = ' class="best"' if best is not None and mean == best else ""
    interval = f' <span class="ci">± {half:,.{column.decimals}f}</span>' if half is not None else ""
    return f"<td{mark}>{mean:,.{column.decimals}f}{interval}</td>"


def _chip(index: int) -> str:
    """The policy's line as it looks in the figures."""
    paint, dash = series_paint(index), series_dash(index)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        '<svg class="chip" width="26" height="8" aria-hidden="true"><path d="M0 4H26" '
        f'class="l-{paint.name}" stroke="{paint.light}" stroke-width="2.6"{dashes}/></svg>'
    )


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _head(titles: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    return f"<thead><tr>{cells}</tr></thead>"


def _table(label: str, lines: list[str]) -> str:
    head, *rows = lines
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table aria-label="{escape(label)}">\n{head}\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
