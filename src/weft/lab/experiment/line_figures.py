"""The two figures over arrived demand, in timed mode over time: allocation and fragmentation."""

import math

from weft.lab.experiment import curves
from weft.lab.experiment.axes import CurveSeries, Panel, Scale, nice_ceiling
from weft.lab.experiment.drawing import Drawing, DrawingGroup, Mark, Rect, Stroke, Text
from weft.lab.experiment.ranking import is_timed, ranked
from weft.lab.experiment.statistics import ENOUGH_FOR_INTERVAL
from weft.lab.experiment.style import AXIS, INK, SOFT, WINDOW, shorten, text_width
from weft.lab.simulate.results import SimulationResults

WIDTH = 960.0
_TOP = 74.0
_DEMAND = "GPU demand arrived, % of capacity"


def allocation(results: SimulationResults) -> Drawing:
    """Allocated GPUs against arrived demand: all of it, and its corner where policies part."""
    series, timed = curves.allocation(results), is_timed(results)
    title = "GPUs in use over time" if timed else "GPUs allocated as demand arrives"
    if not series:
        return empty_figure("allocation", title)
    corner = None if timed else _corner(series)
    height, bottom = 456.0, 400.0
    best = ranked(results)[0]
    text_x = _labels_at(series)
    top = nice_ceiling(max(100.0, *(max(curve.high) for curve in series)), 5)
    last = max(max(curve.x) for curve in series)
    y_title = "GPUs that placed pods asked for, %"
    marks: list[Mark | DrawingGroup] = [*heading(title, _under(results))]
    wide = text_x - 40 if corner is None else 300.0
    whole = Panel(Scale(0, _round_end(last), 62, wide), Scale(0, top, bottom, _TOP))
    window = [] if corner is None else [_window(whole, corner, last)]
    marks += [*window, *whole.frame(_x_title(results), y_title, 6 if corner is None else 4)]
    marks += [] if timed else _limits(whole)
    if corner is None:
        marks += _lines(whole, series, best)
        marks += whole.ends(series, best, text_x)
        return _drawing("allocation", title, height, marks, series, "allocated")
    marks += [DrawingGroup(tuple(whole.line(s, width=1.4)), "overview", s.name) for s in series]
    low, high = corner
    zoom = Panel(Scale(low, last, 372, text_x - 40), Scale(low, high, bottom, _TOP))
    marks += [*zoom.frame(_DEMAND, "", 6), *_limits(zoom), *_lines(zoom, series, best)]
    marks += zoom.ends(series, best, text_x)
    return _drawing("allocation", title, height, marks, series, "allocated")


def fragmentation(results: SimulationResults) -> Drawing:
    """Fragmented GPUs against arrived demand: what lies idle where typical pods do not fit."""
    series = curves.fragmentation(results)
    title = "Idle GPU capacity lost to fragments"
    if not series:
        return empty_figure("fragmentation", title)
    height, bottom, text_x = 396.0, 340.0, _labels_at(series)
    top = nice_ceiling(max(max(curve.high) for curve in series))
    last = max(max(curve.x) for curve in series)
    panel = Panel(Scale(0, _round_end(last), 62, text_x - 40), Scale(0, top, bottom, _TOP))
    best = ranked(results)[0]
    marks: list[Mark | DrawingGroup] = [*heading(title, _under(results))]
    marks += panel.frame(_x_title(results), "Fragmented, % of capacity", 8)
    marks += [] if is_timed(results) else _full(panel)
    marks += _lines(panel, series, best)
    marks += panel.ends(series, best, text_x)
    return _drawing("fragmentation", title, height, marks, series, "fragmented")


def _x_title(results: SimulationResults) -> str:
    return f"{curves.time_unit(results).name} since the first pod" if is_timed(results) else _DEMAND


def _corner(series: list[CurveSeries]) -> tuple[float, float] | None:
    """Lower and upper end of the close-up, in percent of both axes; None where it shows no more.

    Until they part all curves lie on demand = allocation, so the corner is where the lowest ends
    and a third as much again below.
    """
    ends = [curve.mean[-1] for curve in series]
    highest, lowest = max(max(curve.high) for curve in series), min(ends)
    room = max(highest - lowest, 2.0)
    low = 2.5 * math.floor((lowest - 0.35 * room) / 2.5)
    high = 2.5 * math.ceil((highest + 0.08 * room) / 2.5)
    last = min(curve.x[-1] for curve in series)
    return (low, high) if low >= 40 and last - low >= 5 else None


def _window(panel: Panel, corner: tuple[float, float], last: float) -> Mark:
    """The frame of the close-up in the whole."""
    low, high = corner
    left, right, top, bottom = panel.x(low), panel.x(last), panel.y(high), panel.y(low)
    return Rect(left, top, right - left, bottom - top, WINDOW, radius=3)


def _limits(panel: Panel) -> list[Mark]:
    """Every pod placed (allocation = demand), up to where demand is capacity."""
    start = max(panel.x.low, panel.y.low)
    stop = min(100.0, panel.x.high, panel.y.high)
    if stop <= start:
        return []
    ends = ((panel.x(start), panel.y(start)), (panel.x(stop), panel.y(stop)))
    marks: list[Mark] = [Stroke(ends, AXIS, 1.0, "1.5 3")]
    return [*marks, *_full(panel)]


def _full(panel: Panel) -> list[Mark]:
    """The line at which demand equals capacity."""
    if not panel.x.low < 100 < panel.x.high:
        return []
    at = panel.x(100)
    line = Stroke(((at, panel.y.start), (at, panel.y.end)), AXIS, 1.0, "1.5 3")
    wide = panel.x.end - panel.x.start > 300
    label = [Text(at, panel.y.end - 8, "demand = capacity", SOFT, 11, "middle")] if wide else []
    return [line, *label]


def _lines(panel: Panel, series: list[CurveSeries], best: str) -> list[DrawingGroup]:
    """Bands below all lines; the best policy's line last and strongest."""
    groups = [DrawingGroup(tuple(panel.band(curve)), "band", curve.name) for curve in series]
    for line in sorted(series, key=lambda curve: curve.name == best):
        width = 2.8 if line.name == best else 2.0
        groups.append(DrawingGroup(tuple(panel.line(line, width=width)), "series", line.name))
    return [group for group in groups if group.marks]


def heading(title: str, under: str) -> list[Mark]:
    """A figure's title, and what its numbers are below."""
    return [Text(20, 28, title, INK, 16, bold=True), Text(20, 47, under, SOFT, 12)]


def _under(results: SimulationResults) -> str:
    seeds = max(summary.seeds for summary in results.summary)
    if seeds == 1:
        return "one seed"
    if seeds < ENOUGH_FOR_INTERVAL:
        return f"mean of {seeds} seeds; bands run from the smallest to the largest"
    return f"mean of {seeds} seeds with its 95 % confidence interval"


def _labels_at(series: list[CurveSeries]) -> float:
    """The left edge of the values beside the line ends, so that the longest name fits."""
    longest = max(text_width(shorten(curve.name, 20), 12, bold=True) for curve in series)
    return WIDTH - 16 - 44 - longest


def _round_end(last: float) -> float:
    return last if last <= 200 else nice_ceiling(last)


def _drawing(
    name: str,
    title: str,
    height: float,
    marks: list[Mark | DrawingGroup],
    series: list[CurveSeries],
    did: str,
) -> Drawing:
    ends = ", ".join(f"{curve.name} {curve.end:.2f}" for curve in series)
    text = f"A line a policy, percent of capacity {did}; at the end, or over all time: {ends}."
    return Drawing(name, title, text, WIDTH, height, tuple(marks))


def empty_figure(name: str, title: str, text: str = "These runs recorded no curve.") -> Drawing:
    """The figure where there is nothing to draw: it says why."""
    marks = (*heading(title, ""), Text(WIDTH / 2, 84, text, SOFT, 13, "middle"))
    return Drawing(name, title, text, WIDTH, 120, marks)
