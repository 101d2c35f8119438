"""Line charts: from data to marks, in each width that figures come in (text keeps its size, so a
narrow figure is drawn anew); panels side by side, stacked, or one per policy."""

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from weft.lab.experiment.pages.drawing import (
    AXIS,
    GRID,
    INK,
    SOFT,
    WINDOW,
    Area,
    Dot,
    Drawing,
    DrawingGroup,
    Look,
    Mark,
    Marker,
    Paint,
    Point,
    Rect,
    Spot,
    Stroke,
    Text,
    fitted,
    shorten,
    text_width,
    wrapped,
)


class Scale(msgspec.Struct, frozen=True):
    """Maps data from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


class CurveSeries(msgspec.Struct, frozen=True):
    """A policy's curve: mean over seeds at each `x`, in a band from `low` to `high`.

    `end` is the value to print at the line's end, the same as in the tables."""

    name: str
    look: Look
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    end: float


Say = Callable[[CurveSeries, int], str]
"""Returns the hint for a curve's point, by its number."""


class Panel(msgspec.Struct, frozen=True):
    """A rectangle with two scales; `y` runs from bottom to top."""

    x: Scale
    y: Scale

    def frame(self, x_title: str, y_title: str, about: int = 6, about_y: int = 6) -> list[Mark]:
        """Draw axis, tick labels, titles, and horizontal grid lines, `about` this many ticks."""
        marks: list[Mark] = []
        left, right, bottom = self.x.start, self.x.end, self.y.start
        for tick in ticks(self.y.low, self.y.high, about_y):
            at = self.y(tick)
            marks.append(Stroke(((left, at), (right, at)), GRID))
            marks.append(Text(left - 8, at + 4, label(tick), SOFT, 11.5, "end"))
        marks.append(Stroke(((left, bottom), (right, bottom)), AXIS))
        for tick in ticks(self.x.low, self.x.high, about):
            at = self.x(tick)
            marks.append(Stroke(((at, bottom), (at, bottom + 4)), AXIS))
            marks.append(Text(at, bottom + 18, label(tick), SOFT, 11.5, "middle"))
        if x_title:
            marks.append(Text((left + right) / 2, bottom + 38, x_title, SOFT, 12, "middle"))
        if y_title:
            middle = (self.y.start + self.y.end) / 2
            marks.append(Text(left - 40, middle, y_title, SOFT, 12, "middle", turned=True))
        return marks

    def band(self, series: CurveSeries) -> list[Mark]:
        """Draw the series' band, if seeds differ."""
        if series.low == series.high:
            return []
        upper = self.inside(series.x, series.high)
        lower = self.inside(series.x, series.low)
        if len(upper) < 2 or len(lower) < 2:
            return []
        return [Area((*upper, *reversed(lower)), series.look.paint)]

    def line(self, series: CurveSeries, *, width: float = 2.0) -> list[Mark]:
        """Draw the mean."""
        points = self.inside(series.x, series.mean)
        if len(points) < 2:
            return []
        return [Stroke(points, series.look.paint, width, series.look.dash)]

    def points(self, series: CurveSeries, at: list[int], say: Say) -> list[Mark]:
        """Draw markers with hints at these points of the mean, if they are inside."""
        marks: list[Mark] = []
        spots: list[Mark] = []
        for number in at:
            x, y = series.x[number], series.mean[number]
            if self.x.low <= x <= self.x.high and self.y.low <= y <= self.y.high:
                marks += marker(self.x(x), self.y(y), series.look.marker, series.look.paint)
                spots.append(Spot(self.x(x), self.y(y), say(series, number)))
        return [*marks, *spots]

    def inside(self, xs: tuple[float, ...], ys: tuple[float, ...]) -> tuple[Point, ...]:
        """Return the pixels of a rising or level curve from where it enters this panel."""
        points: list[Point] = []
        before: Point | None = None
        for x, y in zip(xs, ys, strict=True):
            if x >= self.x.low and y >= self.y.low and x <= self.x.high:
                if before is not None and not points:
                    points.append(self._entry(before, (x, y)))
                points.append((self.x(x), self.y(min(y, self.y.high))))
            elif points and y < self.y.low:
                points.append((self.x(x), self.y(self.y.low)))
            before = (x, y)
        return tuple(points)

    def _entry(self, outside: Point, inside: Point) -> Point:
        """Return the point at which the line from `outside` to `inside` crosses the left or lower
        edge."""
        (x0, y0), (x1, y1) = outside, inside
        share = 0.0
        if x0 < self.x.low:
            share = (self.x.low - x0) / (x1 - x0)
        if y0 < self.y.low:
            share = max(share, (self.y.low - y0) / (y1 - y0))
        return self.x(x0 + share * (x1 - x0)), self.y(y0 + share * (y1 - y0))

    def ends(self, series: list[CurveSeries], best: str, text_x: float) -> list[DrawingGroup]:
        """Draw a name and a last value at each line's end; labels are moved so as not to
        overlap."""
        shown = sorted((line for line in series if line.mean), key=lambda line: -line.mean[-1])
        ideal = [self.y(line.mean[-1]) for line in shown]
        places = spread(ideal, 16, self.y.end, self.y.start + 6)
        groups = []
        for line, at, place in zip(shown, ideal, places, strict=True):
            right = self.x(line.x[-1])
            marks = marker(right, at, line.look.marker, line.look.paint)
            marks.append(Stroke(((right + 5, at), (text_x - 22, place)), GRID))
            marks += label_marks(line, (text_x - 20, place), bold=line.name == best)
            groups.append(DrawingGroup(tuple(marks), "label", line.name))
        return groups


def label_marks(line: CurveSeries, at: Point, *, bold: bool, name: str | None = None) -> list[Mark]:
    """Draw a line's sample, its value and its name in one row; `name` is a shorter name, if
    needed."""
    x, y = at
    paint, value = line.look.paint, f"{line.end:,.2f}"
    value_x = x + 64 if line.end < 1000 else x + 78
    return [
        Stroke(((x, y), (x + 20, y)), paint, 2.4, line.look.dash),
        *marker(x + 10, y, line.look.marker, paint),
        Text(value_x, y + 4, value, INK, 12, "end", bold=bold),
        Text(value_x + 8, y + 4, name or shorten(line.name, 20), INK, 12, bold=bold),
    ]


def marker(x: float, y: float, kind: Marker, paint: Paint) -> list[Mark]:
    """Draw a filled marker, about seven pixels wide."""
    match kind:
        case "circle":
            return [Dot(x, y, 3.2, paint)]
        case "square":
            return [Rect(x - 3, y - 3, 6, 6, paint)]
        case "triangle":
            return [Area(((x, y - 4), (x + 3.8, y + 3), (x - 3.8, y + 3)), paint, 1)]
        case "down":
            return [Area(((x, y + 4), (x + 3.8, y - 3), (x - 3.8, y - 3)), paint, 1)]
        case "diamond":
            return [Area(((x, y - 4.3), (x + 4.3, y), (x, y + 4.3), (x - 4.3, y)), paint, 1)]


def picked(series: CurveSeries, wanted: list[float]) -> list[int]:
    """Return the numbers of the curve's points nearest to these places, each once."""
    numbers = set()
    for x in wanted:
        after = min(bisect_left(series.x, x), len(series.x) - 1)
        before = max(0, after - 1)
        nearest = min(before, after, key=lambda number: abs(series.x[number] - x))
        numbers.add(nearest)
    return sorted(numbers)


def spread(ideal: list[float], gap: float, top: float, bottom: float) -> list[float]:
    """Return places near the wanted ones (ascending), at least `gap` apart, between top and
    bottom."""
    if not ideal:
        return []
    gap = min(gap, (bottom - top) / max(1, len(ideal) - 1))
    places: list[float] = []
    for want in ideal:
        places.append(max(want, top if not places else places[-1] + gap))
    floor = bottom
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], floor)
        floor = places[i] - gap
    return places


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about `about` round numbers between `low` and `high`: steps of 1, 2, 2.5 or 5 ×
    10ⁿ."""
    if not high > low:
        return [low]
    step = nice_step((high - low) / max(1, about))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def nice_step(raw: float) -> float:
    """Return the smallest round step that is at least `raw`."""
    power: float = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10):
        if raw <= factor * power * (1 + 1e-9):
            return factor * power
    return 10 * power


def nice_ceiling(value: float, about: int = 6) -> float:
    """Return a round number at or above `value`, a whole number of ticks from 0."""
    if value <= 0:
        return 1.0
    step = nice_step(value / about)
    return math.ceil(value / step - 1e-9) * step


def label(value: float) -> str:
    """Return a tick's text, with thousands separators and without trailing zeros."""
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"


class Layout(NamedTuple):
    """A figure's width in pixels; `name` is its class on the page."""

    name: str
    width: float

    @property
    def narrow(self) -> bool:
        """True for phones: labels are above what they name."""
        return self.width < 600

    @property
    def stacked(self) -> bool:
        """True if there is too little room for panels side by side, or for labels next to lines."""
        return self.width < 900


WIDE = Layout("wide", 960)
MEDIUM = Layout("medium", 640)
NARROW = Layout("narrow", 350)
LAYOUTS = (WIDE, MEDIUM, NARROW)


class Heading(NamedTuple):
    """A figure's title and subtitle; the rest begins at `bottom`."""

    marks: list[Mark | DrawingGroup]
    bottom: float


def heading(title: str, under: str, layout: Layout = WIDE, right: float = 20) -> Heading:
    """Draw title and subtitle on as many lines as needed, up to `right` pixels from the right
    edge."""
    width = layout.width - 20 - right
    marks: list[Mark | DrawingGroup] = []
    y = 8.0
    for line in wrapped(title, width, 17):
        y += 20
        marks.append(Text(20, y, line, INK, 16, bold=True))
    for line in wrapped(under, width, 12.5) if under else []:
        y += 18 if line else 0
        marks.append(Text(20, y, line, SOFT, 12))
    return Heading(marks, y)


def empty_figure(
    name: str, title: str, text: str = "These runs recorded no curve.", layout: Layout = WIDE
) -> Drawing:
    """Draw a figure without data, which says why."""
    top = heading(title, "", layout)
    lines = wrapped(text, layout.width - 40, 13.5)
    marks = [
        Text(layout.width / 2, top.bottom + 30 + 18 * i, line, SOFT, 13, "middle")
        for i, line in enumerate(lines)
    ]
    height = top.bottom + 66 + 18 * len(lines)
    return Drawing(name, title, text, layout.width, height, (*top.marks, *marks))


Marks = list[Mark | DrawingGroup]


class LineFigure(msgspec.Struct, frozen=True):
    """The content of a figure of lines, in any width.

    `unit` has the units of y and x for hints; `last` and `top` are the axes' ends; `order` lists
    the policies from the best; `corner` bounds a close-up, the same on both axes; `possible` is
    what the best policy could have reached at the end. Without `titles_y` the y axis has no title,
    as its numbers need the room."""

    name: str
    title: str
    under: str
    x_title: str
    y_title: str
    unit: tuple[str, str]
    last: float
    top: float
    order: list[str]
    corner: tuple[float, float] | None = None
    shows_full: bool = False
    shows_demand: bool = False
    labels_at_ends: bool = True
    titles_y: bool = True
    possible: float | None = None

    @property
    def best(self) -> str:
        """The policy whose line is drawn strongest."""
        return self.order[0]

    def says(self, series: CurveSeries, number: int) -> str:
        """Return a point's hint."""
        low, high, x = series.low[number], series.high[number], series.x[number]
        between = f" ({low:,.2f} to {high:,.2f})" if low != high else ""
        value = f"{series.mean[number]:,.2f} {self.unit[0]}{between}"
        return f"{series.name}: {value} at {x:,.4g} {self.unit[1]}"

    def drawing(
        self, layout: Layout, height: float, marks: Marks, series: list[CurveSeries]
    ) -> Drawing:
        """Return the finished drawing, with a description for screen readers."""
        ends = ", ".join(f"{curve.name} {curve.end:,.2f}" for curve in series)
        over, value = within_sentence(self.x_title), self.y_title
        when = "at the end" if self.labels_at_ends else "on average"
        text = f"Lines over {over}, one a policy. {value}, {when}: {ends}."
        return Drawing(self.name, self.title, text, layout.width, height, tuple(marks))


def within_sentence(title: str) -> str:
    """Return a title with a small first letter, unless it begins with an abbreviation."""
    return title if title[1].isupper() else title[0].lower() + title[1:]


def draw_side_by_side(figure: LineFigure, series: list[CurveSeries], layout: Layout) -> Drawing:
    """Draw the whole at the left, its close-up at the right, and names and values at the lines'
    ends."""
    head = heading(figure.title, figure.under, layout)
    top, bottom = head.bottom + 28, head.bottom + (354 if figure.corner else 294)
    text_x = _labels_at(series, layout)
    right = text_x - 40
    whole = Panel(
        Scale(0, figure.last, 62, 300.0 if figure.corner else right),
        Scale(0, figure.top, bottom, top),
    )
    marks: Marks = list(head.marks)
    marks += [] if figure.corner is None else [_window(whole, figure.corner, series)]
    y_title = figure.y_title if figure.titles_y else ""
    marks += whole.frame(figure.x_title, y_title, 4 if figure.corner else 7)
    marks += guides(figure, whole)
    last_panel = whole
    if figure.corner is not None:
        marks += _overview(whole, series)
        last_panel = _close_up(figure, series, Scale(0, 1, 372, right), (top, bottom))
        marks += [*last_panel.frame(figure.x_title, "", 6), *guides(figure, last_panel)]
    marks += _lines(figure, last_panel, series, 11)
    if figure.labels_at_ends:
        marks += last_panel.ends(series, figure.best, text_x)
    else:
        marks += _key(figure, series, (text_x - 20, top + 6), (layout.width - text_x + 20, 1))
    return figure.drawing(layout, bottom + 56, marks, series)


def draw_stacked(figure: LineFigure, series: list[CurveSeries], layout: Layout) -> Drawing:
    """Draw the whole, its close-up below it, and a key of names and values below both."""
    head = heading(figure.title, f"{figure.y_title}: {figure.under}", layout)
    marks: Marks = list(head.marks)
    left, right, tall = 52.0, layout.width - 22, 180.0 if layout.narrow else 230.0
    top = head.bottom + 28
    whole = Panel(Scale(0, figure.last, left, right), Scale(0, figure.top, top + tall, top))
    about = 4 if layout.narrow else 7
    marks += [] if figure.corner is None else [_window(whole, figure.corner, series)]
    marks += [*whole.frame(figure.x_title, "", about), *guides(figure, whole)]
    bottom = top + tall
    if figure.corner is None:
        marks += _lines(figure, whole, series, 7)
    else:
        marks += _overview(whole, series)
        top, bottom = bottom + 72, bottom + 72 + tall
        panel = _close_up(figure, series, Scale(0, 1, left, right), (top, bottom))
        marks += [*panel.frame(figure.x_title, "", about), *guides(figure, panel)]
        marks += _lines(figure, panel, series, 7)
    columns = 1 if layout.narrow else 2
    marks += _key(figure, series, (20, bottom + 66), (layout.width - 40, columns))
    rows = -(-len(series) // columns)
    return figure.drawing(layout, bottom + 66 + 19 * rows, marks, series)


def spread_out(series: list[CurveSeries], place: int, panel: Panel, count: int) -> list[int]:
    """Return about `count` points of one line within the panel, apart from the other lines'
    points."""
    low, high = panel.x.low, min(panel.x.high, series[place].x[-1])
    step = (high - low) / count
    first = low + step * (place + 0.5) / len(series)
    return picked(series[place], [*(first + step * k for k in range(count)), high])


def _labels_at(series: list[CurveSeries], layout: Layout) -> float:
    """Return the left edge of the values at the lines' ends, so that the longest name fits."""
    longest = max(text_width(shorten(curve.name, 20), 12, bold=True) for curve in series)
    return layout.width - 22 - 52 - longest


def _window(panel: Panel, corner: tuple[float, float], series: list[CurveSeries]) -> Mark:
    """Draw the frame that marks the close-up within the whole."""
    low, high = corner
    last = min(curve.x[-1] for curve in series)
    left, right, top, bottom = panel.x(low), panel.x(last), panel.y(high), panel.y(low)
    return Rect(left, top, right - left, bottom - top, WINDOW, radius=3)


def _close_up(
    figure: LineFigure, series: list[CurveSeries], x: Scale, height: tuple[float, float]
) -> Panel:
    assert figure.corner is not None
    (low, high), (top, bottom) = figure.corner, height
    last = min(curve.x[-1] for curve in series)
    return Panel(Scale(low, last, x.start, x.end), Scale(low, high, bottom, top))


def _overview(panel: Panel, series: list[CurveSeries]) -> Marks:
    """Draw thin lines without points, as the close-up has them."""
    return [DrawingGroup(tuple(panel.line(s, width=1.4)), "overview", s.name) for s in series]


def guides(figure: LineFigure, panel: Panel, *, labelled: bool = True) -> list[Mark]:
    """Draw guide lines: allocation = demand, demand = capacity, and what is possible."""
    marks: list[Mark] = []
    start = max(panel.x.low, panel.y.low)
    stop = min(100.0, panel.x.high, panel.y.high)
    if figure.shows_demand and stop > start:
        ends = ((panel.x(start), panel.y(start)), (panel.x(stop), panel.y(stop)))
        marks.append(Stroke(ends, AXIS, 1.0, "1.5 3"))
    if figure.shows_full and panel.x.low < 100 < panel.x.high:
        at, words = panel.x(100), "demand = capacity"
        marks.append(Stroke(((at, panel.y.start), (at, panel.y.end)), AXIS, 1.0, "1.5 3"))
        half = text_width(words, 11.5) / 2
        if labelled and panel.x.start + half <= at <= panel.x.end + 20 - half:
            marks.append(Text(at, panel.y.end - 8, words, SOFT, 11, "middle"))
    if figure.possible is not None and panel.y.low < figure.possible < panel.y.high:
        at = panel.y(figure.possible)
        marks.append(Stroke(((panel.x.start, at), (panel.x.end, at)), AXIS, 1.0, "6 3"))
        if labelled:
            words = f"possible: {figure.possible:.2f}"
            marks.append(Text(panel.x.start + 4, at - 4, words, SOFT, 11))
    return marks


def _lines(
    figure: LineFigure, panel: Panel, series: list[CurveSeries], count: int
) -> list[DrawingGroup]:
    """Draw bands below all lines, the best policy's line last and strongest, and points above
    them."""
    groups = [DrawingGroup(tuple(panel.band(curve)), "band", curve.name) for curve in series]
    for line in sorted(series, key=lambda curve: curve.name == figure.best):
        width = 2.8 if line.name == figure.best else 2.0
        groups.append(DrawingGroup(tuple(panel.line(line, width=width)), "series", line.name))
    for place, line in enumerate(series):
        at = spread_out(series, place, panel, count)
        points = panel.points(line, at, figure.says)
        groups.append(DrawingGroup(tuple(points), "points", line.name))
    return [group for group in groups if group.marks]


def _key(
    figure: LineFigure,
    series: list[CurveSeries],
    start: tuple[float, float],
    room: tuple[float, int],
) -> list[DrawingGroup]:
    """Draw names and values from the best policy on; `room` is the width and the number of
    columns."""
    (x, y), (width, columns) = start, room
    rows = -(-len(series) // columns)
    groups = []
    by_name = {line.name: line for line in series}
    for place, name in enumerate(name for name in figure.order if name in by_name):
        line, bold = by_name[name], name == figure.best
        at = x + width / columns * (place // rows), y + 19 * (place % rows)
        short = fitted(name, width / columns - 92, 12, bold=bold)
        marks = label_marks(line, at, bold=bold, name=short)
        groups.append(DrawingGroup(tuple(marks), "label", name))
    return groups


_MOST_POINTS = 60
_PANEL, _ROW = 92.0, 168.0


def draw_each(figure: LineFigure, series: list[CurveSeries], layout: Layout) -> Drawing:
    """Draw a grid of small panels, from the best policy on."""
    columns = 2 if layout.narrow else 3 if layout.stacked else 4
    over = within_sentence(figure.x_title)
    grey = f"the dark line is {figure.best}, the grey range is of all policies"
    under = f"{figure.y_title}, against {over}; {figure.under}; {grey}"
    head = heading(figure.title, under, layout)
    by_name = {line.name: line for line in series}
    order = [by_name[name] for name in figure.order if name in by_name]
    panel = _panel(figure, series)
    behind = _Behind(panel, order)
    width = (layout.width - 24) / columns
    marks: Marks = list(head.marks)
    for place, line in enumerate(order):
        x, y = 12 + width * (place % columns), head.bottom + 20 + _ROW * (place // columns)
        here = Panel(
            Scale(panel.x.low, panel.x.high, x + 38, x + width - 14),
            Scale(panel.y.low, panel.y.high, y + 44 + _PANEL, y + 44),
        )
        marks += _cell(figure, line, here, (x + 8, y + 14, width))
        marks += [*behind.marks(here), *guides(figure, here, labelled=False)]
        marks += _own(figure, line, here)
    rows = -(-len(order) // columns)
    return figure.drawing(layout, head.bottom + 24 + _ROW * rows, marks, series)


def _panel(figure: LineFigure, series: list[CurveSeries]) -> Panel:
    """Return the shown part: the close-up, if there is one."""
    if figure.corner is None:
        return Panel(Scale(0, figure.last, 0, 1), Scale(0, figure.top, 1, 0))
    low, high = figure.corner
    last = min(curve.x[-1] for curve in series)
    return Panel(Scale(low, last, 0, 1), Scale(low, high, 1, 0))


class _Behind:
    """Background of every policy's panel: the range of all policies, and the best policy's line."""

    def __init__(self, panel: Panel, order: list[CurveSeries]) -> None:
        x = np.linspace(panel.x.low, panel.x.high, _MOST_POINTS)
        rows = np.array([np.interp(x, curve.x, curve.mean) for curve in order])
        self.x = tuple(x.tolist())
        self.low, self.high = tuple(rows.min(axis=0).tolist()), tuple(rows.max(axis=0).tolist())
        self.best = tuple(rows[0].tolist())

    def marks(self, panel: Panel) -> list[Mark]:
        upper, lower = self._points(panel, self.high), self._points(panel, self.low)
        best = Stroke(self._points(panel, self.best), SOFT, 1.2)
        return [Area((*upper, *reversed(lower)), SOFT, 0.16), best]

    def _points(self, panel: Panel, values: tuple[float, ...]) -> tuple[Point, ...]:
        inside = [min(max(value, panel.y.low), panel.y.high) for value in values]
        return tuple((panel.x(x), panel.y(y)) for x, y in zip(self.x, inside, strict=True))


def _cell(
    figure: LineFigure, line: CurveSeries, panel: Panel, at: tuple[float, float, float]
) -> Marks:
    """Draw name, value and axes of one policy's panel."""
    x, y, width = at
    bold = line.name == figure.best
    look = line.look
    label: list[Mark] = [
        Text(x, y, fitted(line.name, width - 20, 12, bold=bold), INK, 12, bold=bold),
        Stroke(((x, y + 14), (x + 22, y + 14)), look.paint, 2.4, look.dash),
        *marker(x + 11, y + 14, look.marker, look.paint),
        Text(x + 30, y + 18, f"{line.end:,.2f}", INK, 12, bold=bold),
    ]
    return [DrawingGroup(tuple(label), "label", line.name), *panel.frame("", "", 3, 4)]


def _own(figure: LineFigure, line: CurveSeries, panel: Panel) -> Marks:
    low, high = panel.x.low, min(panel.x.high, line.x[-1])
    at = picked(line, [low + (high - low) * (k + 0.5) / 5 for k in range(5)])
    strokes = DrawingGroup(tuple(panel.line(line, width=2.4)), "series", line.name)
    points = DrawingGroup(tuple(panel.points(line, at, figure.says)), "points", line.name)
    return [group for group in (strokes, points) if group.marks]
