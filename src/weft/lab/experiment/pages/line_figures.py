"""Figures of lines for `weft simulate` and for an experiment's runs on a trace: allocation and
fragmentation against arrived demand or time; and how often bounds held."""

import math
from collections.abc import Sequence

import msgspec

from weft.interference.intervals import ENOUGH_FOR_INTERVAL
from weft.lab.experiment.pages import curves
from weft.lab.experiment.pages.drawing import (
    AXIS,
    INK,
    SOFT,
    Drawing,
    DrawingGroup,
    Mark,
    Stroke,
    Text,
    numbered,
)
from weft.lab.experiment.pages.line_charts import (
    WIDE,
    CurveSeries,
    Layout,
    LineFigure,
    Panel,
    Scale,
    draw_each,
    draw_side_by_side,
    draw_stacked,
    empty_figure,
    nice_ceiling,
)
from weft.lab.experiment.run.store import RunStore
from weft.lab.experiment.spec.experiment import ExperimentSpec, plan
from weft.lab.experiment.spec.workloads import OpenbPods
from weft.lab.experiment.statistics.ranking import is_timed, ranked, summarise
from weft.lab.simulate.results import PolicyRun, SimulationResults

MOST_TOGETHER = 8
"""With more lines in one panel they cannot be told apart: then each policy gets its own."""
_DEMAND = "GPU demand arrived, % of capacity"


def allocation(results: SimulationResults, layout: Layout = WIDE) -> Drawing:
    """Draw allocated GPUs against arrived demand: the whole, and the corner where policies
    differ."""
    if is_timed(results):
        return _over_time(results, layout, "allocation")
    series, title = curves.allocation(results), "GPUs allocated as demand arrives"
    if not series:
        return empty_figure("allocation", title, layout=layout)
    figure = LineFigure(
        name="allocation",
        title=title,
        under=_under(results),
        x_title=_DEMAND,
        y_title="GPUs that placed pods asked for, %",
        unit=("% asked for", "% demand"),
        last=_round_end(max(curve.x[-1] for curve in series)),
        top=nice_ceiling(max(100.0, *(max(curve.high) for curve in series)), 5),
        order=ranked(results),
        corner=_corner(series, _possible(results)),
        shows_full=True,
        shows_demand=True,
        possible=_possible(results),
    )
    return _drawn(figure, series, layout)


def _possible(results: SimulationResults) -> float | None:
    """Return what the best policy could have reached at the end, if known."""
    of_policy = {summary.policy: summary.possible_percent for summary in results.summary}
    return of_policy[ranked(results)[0]]


def fragmentation(results: SimulationResults, layout: Layout = WIDE) -> Drawing:
    """Draw fragmented GPUs against arrived demand: idle capacity that typical pods do not fit."""
    if is_timed(results):
        return _over_time(results, layout, "fragmentation")
    series, title = curves.fragmentation(results), "Idle GPU capacity lost to fragments"
    if not series:
        return empty_figure("fragmentation", title, layout=layout)
    figure = LineFigure(
        name="fragmentation",
        title=title,
        under=_under(results),
        x_title=_DEMAND,
        y_title="Fragmented, % of capacity",
        unit=("% fragmented", "% demand"),
        last=_round_end(max(curve.x[-1] for curve in series)),
        top=nice_ceiling(max(max(curve.high) for curve in series)),
        order=ranked(results),
        shows_full=True,
    )
    return _drawn(figure, series, layout)


def queue(results: SimulationResults, layout: Layout = WIDE) -> Drawing:
    """Draw pending pods against time."""
    return _over_time(results, layout, "queue")


def _over_time(results: SimulationResults, layout: Layout, name: str) -> Drawing:
    title, y_title, unit, series_of = _TIMED[name]
    series, time_unit = series_of(results), curves.time_unit(results).name
    if not series:
        return empty_figure(name, title, layout=layout)
    highest = max(max(curve.high) for curve in series)
    top = 100.0 if name == "allocation" else nice_ceiling(highest, 5)
    figure = LineFigure(
        name=name,
        title=title,
        under=f"{_under(results)}; lines end when in one seed all pods have started",
        x_title=f"{time_unit} since the first pod",
        y_title=y_title,
        unit=(unit, time_unit.lower()),
        last=max(curve.x[-1] for curve in series),
        top=top,
        order=ranked(results),
        labels_at_ends=False,
    )
    return _drawn(figure, series, layout)


_TIMED = {
    "allocation": (
        "GPUs in use over time",
        "GPUs that running pods asked for, %",
        "% asked for",
        curves.allocation,
    ),
    "queue": ("Pods waiting over time", "Pods waiting", "pods waiting", curves.waiting),
    "fragmentation": (
        "Idle GPU capacity lost to fragments, over time",
        "Fragmented, % of capacity",
        "% fragmented",
        curves.fragmentation,
    ),
}
"""Title, title of y, unit of y, and series of each measure over time."""


def _drawn(figure: LineFigure, series: list[CurveSeries], layout: Layout) -> Drawing:
    if len(series) > MOST_TOGETHER:
        return draw_each(figure, series, layout)
    draw = draw_stacked if layout.stacked else draw_side_by_side
    return draw(figure, series, layout)


def _corner(series: list[CurveSeries], possible: float | None) -> tuple[float, float] | None:
    """Return both ends of the close-up in percent, the same on both axes; None if it would show no
    more.

    All curves lie on allocation = demand until they part, so the corner begins below the lowest
    end, by a third of the range."""
    highest = max(possible or 0.0, *(max(curve.high) for curve in series))
    lowest = min(curve.mean[-1] for curve in series)
    room = max(highest - lowest, 2.0)
    low = 2.5 * math.floor((lowest - 0.35 * room) / 2.5)
    high = 2.5 * math.ceil((highest + 0.08 * room) / 2.5)
    last = min(curve.x[-1] for curve in series)
    return (low, high) if low >= 40 and last - low >= 5 else None


def _under(results: SimulationResults) -> str:
    seeds = max(summary.seeds for summary in results.summary)
    if seeds == 1:
        return "one seed"
    if seeds < ENOUGH_FOR_INTERVAL:
        return f"mean of {seeds} seeds; bands run from the smallest to the largest"
    return f"mean of {seeds} seeds with its 95 % confidence interval"


def _round_end(last: float) -> float:
    return last if last <= 200 else nice_ceiling(last)


TRACE_FIGURES = ("allocation", "queue", "fragmentation")


def trace_results(spec: ExperimentSpec, store: RunStore) -> SimulationResults | None:
    """Return the runs up to the highest demand with their summary, as `weft simulate` has it.

    None without runs, and for other workloads."""
    if not isinstance(spec.workload, OpenbPods):
        return None
    highest = max(range(len(spec.workload.demands)), key=spec.workload.demands.__getitem__)
    runs = [
        msgspec.convert(record.run, PolicyRun)
        for cell in plan(spec)
        if (cell.index("demand") or 0) == highest and (record := store.record(cell)) is not None
    ]
    return SimulationResults(runs, summarise(runs)) if runs else None


def trace_drawings(results: SimulationResults, layout: Layout) -> list[Drawing]:
    """Draw allocation and fragmentation by demand; or over time, with pending pods, if pods
    leave."""
    drawings = [allocation(results, layout)]
    if is_timed(results):
        drawings.append(queue(results, layout))
    return [*drawings, fragmentation(results, layout)]


_WIDTH, _HEIGHT = 760.0, 470.0

Curve = tuple[str, Sequence[tuple[float, float]]]
"""A name, and (nominal, reached) coverage."""


def calibration(title: str, under: str, curves: Sequence[Curve]) -> Drawing:
    """Draw a line per split; on the dotted diagonal, bounds hold exactly as often as they
    should."""
    panel = Panel(Scale(40, 100, 70, 500), Scale(0, 100, 400, 74))
    ends = tuple((panel.x(at), panel.y(at)) for at in (40, 100))
    marks: list[Mark | DrawingGroup] = [
        Text(20, 28, title, INK, 16, bold=True),
        Text(20, 47, under, SOFT, 12),
        *panel.frame("bound wanted to hold, % of measurements", "held, %"),
        Stroke(ends, AXIS, 1.0, "1.5 3"),
    ]
    series = [_series(number, *curve) for number, curve in enumerate(curves)]
    marks += [DrawingGroup(tuple(panel.line(s, width=2.2)), "series", s.name) for s in series]
    if series:
        marks += panel.ends(series, "", 560)
    coverage = "; ".join(
        f"{s.name} {_at_90(points):.1f}" for s, (_, points) in zip(series, curves, strict=True)
    )
    text = f"How often bounds held against how often they should. Percent at 90: {coverage}."
    return Drawing("calibration", title, text, _WIDTH, _HEIGHT, tuple(marks))


def _series(number: int, name: str, points: Sequence[tuple[float, float]]) -> CurveSeries:
    x = tuple(100 * nominal for nominal, _ in points)
    y = tuple(100 * reached for _, reached in points)
    return CurveSeries(name, numbered(number), x, y, y, y, y[-1])


def _at_90(points: Sequence[tuple[float, float]]) -> float:
    return 100 * min(points, key=lambda point: abs(point[0] - 0.9))[1]
