"""Charts of results: policies' curves with a band for their spread, use by GPU model, reasons of
failed pods, measures over an experiment's levels, and how often predicted bounds held."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.interference.intervals import ENOUGH_FOR_INTERVAL, mean_interval
from weft.lab.experiment.pages.figures import (
    BarChart,
    BarPart,
    Chart,
    EmptyChart,
    HeatMap,
    Line,
    LineChart,
    count,
)
from weft.lab.experiment.pages.looks import REASONS, Look, looks, numbered
from weft.lab.experiment.run.store import RunStore
from weft.lab.experiment.spec.experiment import ExperimentSpec, axes_of, plan
from weft.lab.experiment.spec.measures import TITLES, capital, measure_of
from weft.lab.experiment.spec.workloads import OpenbPods
from weft.lab.experiment.statistics.comparison import ExperimentResults, MeasureSummary, level_text
from weft.lab.experiment.statistics.ranking import is_timed, ranked, summarise
from weft.lab.simulate.results import PolicyRun, SimulationResults, Timeline

TRACE_FIGURES = ("allocation", "queue", "fragmentation")
FIGURES = (*TRACE_FIGURES, "by-model", "unscheduled")
"""Names of the figures that `weft simulate` may write."""
_OTHER = "other reasons"
MOST_TOGETHER = 8
"""Maximum number of lines in one panel; with more, each policy gets a panel of its own."""


def simulation_charts(
    results: SimulationResults, models_gpus: Mapping[str, int] | None = None
) -> list[Chart]:
    """Return the charts of `weft simulate`; `models_gpus` is the number of GPUs by model."""
    return [*trace_charts(results), by_model(results, models_gpus or {}), unscheduled(results)]


def trace_charts(results: SimulationResults) -> list[Chart]:
    """Return charts of allocation and fragmentation by demand, or over time with pending pods if
    pods leave."""
    if is_timed(results):
        return [_over_time(results, name) for name in TRACE_FIGURES]
    return [allocation(results), fragmentation(results)]


def trace_results(spec: ExperimentSpec, store: RunStore) -> SimulationResults | None:
    """Return the runs up to the highest demand and their summary, as `weft simulate` prints them.

    None if there are no runs, or if the workload is not a trace."""
    if not isinstance(spec.workload, OpenbPods):
        return None
    highest = max(range(len(spec.workload.demands)), key=spec.workload.demands.__getitem__)
    runs = store.trace_runs(cell for cell in plan(spec) if (cell.index("demand") or 0) == highest)
    return SimulationResults(runs, summarise(runs)) if runs else None


# --- by demand, and over time ---------------------------------------------------------------------


def allocation(results: SimulationResults) -> Chart:
    """Draw allocated GPUs against arrived demand, and a close-up of the part where policies
    differ."""
    lines, possible = _best_first(allocation_lines(results), results), _possible(results)
    return _by_demand(
        "allocation",
        "GPUs allocated as demand arrives",
        "GPUs allocated, %",
        results,
        lines,
        corner=_corner(lines, possible) if lines else None,
        shows_demand=True,
        possible=possible,
    )


def fragmentation(results: SimulationResults) -> Chart:
    """Draw fragmented GPUs against arrived demand: idle capacity on which typical pods do not
    fit."""
    lines = _best_first(fragmentation_lines(results), results)
    title = "Idle GPU capacity lost to fragments"
    return _by_demand("fragmentation", title, "Fragmented, % of capacity", results, lines)


def _by_demand(
    name: str,
    title: str,
    y_title: str,
    results: SimulationResults,
    lines: Sequence[Line],
    *,
    corner: tuple[float, float] | None = None,
    shows_demand: bool = False,
    possible: float | None = None,
) -> Chart:
    if not lines:
        return _empty(name, title)
    x_title = "GPU demand arrived, % of capacity"
    return LineChart(
        name=name,
        title=title,
        under=f"{y_title}: {_seeds(results)}",
        says=describe(lines, x_title, y_title, "at the end"),
        lines=lines,
        x_title=x_title,
        y_title=y_title,
        corner=corner,
        possible=possible,
        shows_full=True,
        shows_demand=shows_demand,
        apart=len(lines) > MOST_TOGETHER,
    )


def _over_time(results: SimulationResults, name: str) -> Chart:
    title, y_title, lines_of = _TIMED[name]
    lines = _best_first(lines_of(results), results)
    if not lines:
        return _empty(name, title)
    x_title = f"{time_unit(results).name} since the first pod"
    return LineChart(
        name=name,
        title=title,
        under=f"{y_title}: {_seeds(results)}; lines end when all pods of all seeds have started",
        says=describe(lines, x_title, y_title, "on average"),
        lines=lines,
        x_title=x_title,
        y_title=y_title,
        apart=len(lines) > MOST_TOGETHER,
    )


def _empty(name: str, title: str, text: str = "These runs recorded no curve.") -> Chart:
    return EmptyChart(name=name, title=title, under=text, says=text)


def _best_first(lines: Sequence[Line], results: SimulationResults) -> list[Line]:
    order = ranked(results)
    return sorted(lines, key=lambda line: order.index(line.name))


def describe(lines: Sequence[Line], x_title: str, y_title: str, when: str) -> str:
    """Describe a chart of lines for screen readers."""
    ends = ", ".join(f"{line.name} {line.end:,.2f}" for line in lines)
    over = x_title if x_title[1].isupper() else x_title[0].lower() + x_title[1:]
    return f"Lines over {over}, one per policy. {y_title}, {when}: {ends}."


def _possible(results: SimulationResults) -> float | None:
    """Return the percentage that the best policy could have reached at the end, if known."""
    of_policy = {summary.policy: summary.possible_percent for summary in results.summary}
    return of_policy[ranked(results)[0]]


def _corner(lines: Sequence[Line], possible: float | None) -> tuple[float, float] | None:
    """Return both ends of the close-up in percent, the same on both axes; None if it would not
    help.

    All curves lie on allocation = demand until a policy begins to reject pods, so the close-up
    begins below the lowest end, by a third of the range."""
    highest = max(possible or 0.0, *(max(curve.high) for curve in lines))
    lowest = min(curve.mean[-1] for curve in lines)
    room = max(highest - lowest, 2.0)
    low = 2.5 * math.floor((lowest - 0.35 * room) / 2.5)
    high = 2.5 * math.ceil((highest + 0.08 * room) / 2.5)
    last = min(curve.x[-1] for curve in lines)
    return (low, high) if low >= 40 and last - low >= 5 else None


def _seeds(results: SimulationResults) -> str:
    seeds = max(summary.seeds for summary in results.summary)
    if seeds == 1:
        return "one seed"
    if seeds < ENOUGH_FOR_INTERVAL:
        return f"mean of {seeds} seeds; bands run from the smallest to the largest"
    return f"mean of {seeds} seeds with its 95 % confidence interval"


class TimeUnit(msgspec.Struct, frozen=True):
    """A unit of time axes, used if the longest run takes less than `below_s` seconds."""

    name: str
    seconds: float
    below_s: float


TIME_UNITS = (
    TimeUnit("Seconds", 1, 600),
    TimeUnit("Minutes", 60, 4 * 3600),
    TimeUnit("Hours", 3600, 5 * 86_400),
    TimeUnit("Days", 86_400, float("inf")),
)
MOST_POINTS = 400
"""Maximum points per curve; more points than a figure has pixels only add bytes."""


def allocation_lines(results: SimulationResults) -> list[Line]:
    """Return allocated GPUs (%) by arrived demand (%), or by time in timed mode.

    There is one line per policy, in the results' order; its end value is the value in the
    tables."""
    if is_timed(results):
        return _lines_over_time(results, "allocated_percent")
    return _series(results, "curve", "gpu_allocated_percent")


def fragmentation_lines(results: SimulationResults) -> list[Line]:
    """Return fragmented GPUs (%) by arrived demand (%), or by time in timed mode."""
    if is_timed(results):
        return _lines_over_time(results, "fragmented_percent")
    return _series(results, "fragmentation_curve", "gpu_fragmentation_percent")


def waiting_lines(results: SimulationResults) -> list[Line]:
    """Return the number of pending pods by time; only in timed mode."""
    return _lines_over_time(results, "waiting_pods")


def time_unit(results: SimulationResults) -> TimeUnit:
    """Return the unit in which the time axis of the longest run has readable numbers."""
    lines = [run.timeline for run in results.runs if run.timeline is not None]
    longest_s = max((_last_start_s(line) for line in lines), default=0.0)
    return next((unit for unit in TIME_UNITS if longest_s < unit.below_s), TIME_UNITS[-1])


def _last_start_s(line: Timeline) -> float:
    return line.step_s * line.steps_to_last_start


def _lines_over_time(results: SimulationResults, field: str) -> list[Line]:
    """Return curves up to the last start of a policy's longest run; shorter runs keep their last
    value.

    Values are at the middle of their steps; the end value is the mean up to each run's last
    start."""
    seconds, series, look_of = time_unit(results).seconds, [], _looks(results)
    for summary in results.summary:
        lines = [r.timeline for r in results.runs if r.policy == summary.policy and r.timeline]
        longest_s = max((_last_start_s(line) for line in lines), default=0.0)
        curves, means = [], []
        for line in lines:
            steps = [
                ((at + 0.5) * line.step_s, value) for at, value in enumerate(getattr(line, field))
            ]
            curves.append({at / seconds: value for at, value in steps if at < longest_s})
            busy = [value for _, value in steps[: line.steps_to_last_start]]
            means.append(sum(busy) / max(1, len(busy)))
        if curves and all(curves):
            value = sum(means) / len(means)
            look = look_of[summary.policy]
            series.append(_over_seeds(summary.policy, look, curves, value, max(map(max, curves))))
    return series


def _series(results: SimulationResults, field: str, end: str) -> list[Line]:
    series, look_of = [], _looks(results)
    for summary in results.summary:
        runs = [run for run in results.runs if run.policy == summary.policy]
        curves = [_curve(run, field) for run in runs]
        if curves and all(curves):
            value = float(getattr(summary, end))
            # Beyond the end of the shortest seed, the mean would be over fewer seeds.
            look, end_at = look_of[summary.policy], min(map(max, curves))
            series.append(_over_seeds(summary.policy, look, curves, value, end_at))
    return series


def _looks(results: SimulationResults) -> dict[str, Look]:
    return looks([summary.policy for summary in results.summary])


def _curve(run: PolicyRun, field: str) -> dict[float, float]:
    by_percent: Mapping[str, float] = getattr(run, field)
    return {float(percent): by_percent[percent] for percent in sorted(by_percent, key=int)}


def _over_seeds(
    name: str, look: Look, curves: list[dict[float, float]], value: float, end: float
) -> Line:
    """Return the mean and band over seeds, each interpolated between its own points.

    Seeds have different points, since a large pod skips whole percents. After its last point a seed
    keeps its value."""
    grid = sorted({percent for curve in curves for percent in curve if percent <= end})
    if len(grid) > MOST_POINTS:
        picked = np.linspace(0, len(grid) - 1, MOST_POINTS).round().astype(int)
        grid = [grid[i] for i in picked]
    rows = np.array([np.interp(grid, list(curve), list(curve.values())) for curve in curves])

    mean = tuple(rows.mean(axis=0).tolist())
    return Line(name, look, tuple(grid), mean, *_band(rows), value)


def _band(rows: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and upper edge at each point: the mean's 95 % interval, or the range of
    values for few seeds."""
    if len(rows) < ENOUGH_FOR_INTERVAL:
        return tuple(rows.min(axis=0).tolist()), tuple(rows.max(axis=0).tolist())
    ends = [mean_interval(column) or (column[0], column[0]) for column in rows.T.tolist()]
    # Measures are never negative, but a symmetric interval may be.
    return tuple(max(0.0, low) for low, _ in ends), tuple(high for _, high in ends)


_TIMED: dict[str, tuple[str, str, Callable[[SimulationResults], list[Line]]]] = {
    "allocation": (
        "GPUs in use over time",
        "GPUs allocated, %",
        allocation_lines,
    ),
    "queue": ("Pods waiting over time", "Pods waiting", waiting_lines),
    "fragmentation": (
        "Idle GPU capacity lost to fragments, over time",
        "Fragmented, % of capacity",
        fragmentation_lines,
    ),
}
"""Title, title of the y axis, and lines of each measure over time."""


# --- by model and by reason -----------------------------------------------------------------------


def by_model(results: SimulationResults, models_gpus: Mapping[str, int]) -> Chart:
    """Draw allocation at the end: a row per policy and a column per GPU model, the most frequent
    first."""
    title, order = "GPUs allocated at the end, by model", ranked(results)
    rows = {policy: model_means(results, policy) for policy in order}
    if not any(value for row in rows.values() for value in row.values()):
        return _empty("by-model", title, "Nothing is allocated any more at the end.")
    models = sorted(
        {model for row in rows.values() for model in row},
        key=lambda model: (-models_gpus.get(model, 0), model),
    )
    everything = {row.policy: row.gpu_held_percent for row in results.summary}
    gpus = [*(models_gpus.get(model, 0) for model in models), sum(models_gpus.values())]
    heads = [f"{m}\n{_gpus(n)}" if n else m for m, n in zip([*models, "all"], gpus, strict=True)]
    values = [[*(rows[p].get(model) for model in models), everything[p]] for p in order]
    least = min(90.0, *(value for row in values for value in row if value is not None))
    totals = "; ".join(f"{policy} {everything[policy]:.1f} % in all" for policy in order)
    return HeatMap(
        name="by-model",
        title=title,
        under="mean over seeds, % of the model's GPUs",
        says=f"A row per policy, a column per model: {totals}.",
        rows=order,
        columns=heads,
        values=values,
        low=10 * int(least // 10),
    )


def _gpus(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus:,} GPUs"


def model_means(results: SimulationResults, policy: str) -> dict[str, float]:
    """Return allocation (%) by GPU model, averaged over the seeds that have the model."""
    runs = [run for run in results.runs if run.policy == policy]
    models = {model for run in runs for model in run.by_model}
    means = {}
    for model in models:
        values = [run.by_model[model] for run in runs if model in run.by_model]
        means[model] = sum(values) / len(values)
    return means


def reason_means(results: SimulationResults, policy: str) -> dict[str, float]:
    """Return the number of unscheduled pods by reason, averaged over all seeds (a seed without a
    reason counts 0)."""
    runs = [run for run in results.runs if run.policy == policy]
    sums: Counter[str] = Counter()
    for run in runs:
        sums.update(run.unscheduled)
    return {reason: count / len(runs) for reason, count in sums.items()}


def top_reasons(results: SimulationResults) -> list[str]:
    """Return reasons by descending frequency; if there are more reasons than colours, the
    least frequent ones become "other reasons"."""
    sums: Counter[str] = Counter()
    for run in results.runs:
        sums.update(run.unscheduled)
    order = sorted(sums, key=lambda reason: (-sums[reason], reason))
    if len(order) <= len(REASONS):
        return order
    return [*order[: len(REASONS) - 1], _OTHER]


def unscheduled(results: SimulationResults) -> Chart:
    """Draw stacked bars of pods that were not placed, by the commonest reason of nodes."""
    order, reasons = ranked(results), top_reasons(results)
    means = [_folded(reason_means(results, policy), reasons) for policy in order]
    ends = [count(sum(each.values())) for each in means]
    every = "" if reasons else "; every pod found a place"
    totals = "; ".join(f"{name} {end}" for name, end in zip(order, ends, strict=True))
    return BarChart(
        name="unscheduled",
        title="Pods without a place, by reason",
        under=f"mean per seed; the reason is the one that most nodes gave{every}",
        says=f"Stacked bars, pods without a place: {totals}.",
        rows=order,
        parts=[
            BarPart([each.get(reason, 0.0) for each in means], [paint] * len(order), reason)
            for reason, paint in zip(reasons, REASONS, strict=False)
        ],
        ends=ends,
    )


def _folded(means: dict[str, float], reasons: list[str]) -> dict[str, float]:
    named = {reason: means[reason] for reason in reasons if reason in means}
    rest = sum(count for reason, count in means.items() if reason not in reasons)
    return {**named, _OTHER: rest} if rest else named


# --- measures of an experiment --------------------------------------------------------------------


def measure_chart(spec: ExperimentSpec, results: ExperimentResults, measure: str) -> Chart | None:
    """Draw a measure over the first axis that has several numbers, with all other axes at their
    first level.

    Without such an axis, draw a bar per scheduler. None if there are too many schedulers, or
    nothing was measured."""
    axes, look_of = axes_of(spec), looks(spec.schedulers)
    axis = next((name for name, texts in axes.items() if len(texts) > 1 and _numbers(texts)), None)
    if len(spec.schedulers) > MOST_TOGETHER:
        return None
    rows = [row for row in results.summary if row.measure == measure]
    if axis is None:
        return _bars(spec, measure, [r for r in rows if r.levels == results.levels[0]], look_of)
    others = {name: texts[0] for name, texts in axes.items() if name != axis}
    lines = []
    for scheduler in spec.schedulers:
        points = sorted(
            (float(row.levels[axis]), row)
            for row in rows
            if row.scheduler == scheduler and others.items() <= row.levels.items()
        )
        if len(points) > 1:
            lines.append(_line(scheduler, look_of[scheduler], points))
    if not lines:
        return None
    title, unit = _at(TITLES[measure], level_text(spec, others)), measure_of(measure).unit
    y_title = f"{capital(TITLES[measure])}, {unit}".removesuffix(", ")
    lines.sort(key=lambda line: line.end, reverse=measure_of(measure).more_is_better is True)
    lowest, highest = min(min(each.low) for each in lines), max(max(each.high) for each in lines)
    from_zero = lowest < highest / 2
    under = _under(unit, max(row.seeds for row in rows), any(x.low != x.mean for x in lines))
    return LineChart(
        name=measure,
        title=title,
        under=under if from_zero else f"{under}; the axis does not begin at 0",
        says=describe(lines, capital(axis), y_title, "at the end"),
        lines=lines,
        x_title=capital(axis),
        y_title=y_title,
        start=min(line.x[0] for line in lines),
        from_zero=from_zero,
    )


def _bars(
    spec: ExperimentSpec, measure: str, means: list[MeasureSummary], look_of: Mapping[str, Look]
) -> Chart | None:
    """Draw the measure at one level, the best scheduler first; None if all means are 0."""
    if not any(row.mean for row in means):
        return None
    means.sort(key=lambda row: row.mean, reverse=measure_of(measure).more_is_better is True)
    first, names = means[0], [row.scheduler for row in means]
    ends = [f"{row.mean:,.6g}" for row in means]
    said = "; ".join(f"{name} {end}" for name, end in zip(names, ends, strict=True))
    return BarChart(
        name=measure,
        title=_at(TITLES[measure], level_text(spec, first.levels)),
        under=_under(measure_of(measure).unit, first.seeds, bool(first.ci95)),
        says=f"A bar per scheduler: {said}.",
        rows=names,
        parts=[BarPart([row.mean for row in means], [look_of[name].paint for name in names])],
        ends=ends,
        halves=[row.ci95 or 0.0 for row in means],
    )


def _at(title: str, level: str) -> str:
    return capital(title) + (f" at {level}" if level else "")


def _under(unit: str, seeds: int, interval: bool) -> str:
    over = "one seed" if seeds == 1 else f"mean of {seeds} seeds"
    return f"{unit or 'number'}, {over}{' with its 95 % interval' * interval}"


def _line(name: str, look: Look, points: Sequence[tuple[float, MeasureSummary]]) -> Line:
    ends = [(max(0.0, row.mean - half), row.mean + half) for row, half in _halves(points)]
    low, high = zip(*ends, strict=True)
    means = tuple(row.mean for _, row in points)
    return Line(name, look, tuple(x for x, _ in points), means, low, high, means[-1])


def _halves(points: Sequence[tuple[float, MeasureSummary]]) -> list[tuple[MeasureSummary, float]]:
    return [(row, row.ci95 or 0.0) for _, row in points]


def _numbers(texts: Sequence[str]) -> bool:
    return all(text.replace(".", "", 1).isdigit() for text in texts)


# --- how often bounds held ------------------------------------------------------------------------

Curve = tuple[str, Sequence[tuple[float, float]]]
"""A name, and points of (nominal, reached) coverage, 0 to 1."""


def calibration(title: str, under: str, curves: Sequence[Curve]) -> Chart:
    """Draw a line per curve; on the dotted diagonal, bounds hold exactly as often as they
    should."""
    lines = []
    for number, (name, points) in enumerate(curves):
        x, y = (tuple(100 * share for share in shares) for shares in zip(*points, strict=True))
        lines.append(Line(name, numbered(number), x, y, y, y, y[-1]))
    at_90 = {
        name: 100 * min(points, key=lambda point: abs(point[0] - 0.9))[1] for name, points in curves
    }
    coverage = "; ".join(f"{name} {percent:.1f}" for name, percent in at_90.items())
    return LineChart(
        name="calibration",
        title=title,
        under=under,
        says="How often bounds held, against how often they should. Bounds for 90 % of "
        f"measurements held in this percentage: {coverage}.",
        lines=lines,
        x_title="how often the bound should hold, % of measurements",
        y_title="held, %",
        start=40,
        shows_demand=True,
    )
