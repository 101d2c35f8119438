"""Lays lines out: panels side by side, or one below the other; labels beside them or in a key."""

import msgspec

from weft.lab.experiment.axes import CurveSeries, Panel, Scale, label_marks, picked
from weft.lab.experiment.drawing import Drawing, DrawingGroup, Mark, Rect, Stroke, Text
from weft.lab.experiment.layouts import Layout, heading
from weft.lab.experiment.style import AXIS, SOFT, WINDOW, fitted, shorten, text_width

Marks = list[Mark | DrawingGroup]


class LineFigure(msgspec.Struct, frozen=True):
    """The content of a figure of lines, whatever its width.

    `unit` is of y and x, for the words at a point; `last` and `top` are the axes' ends, `order` is
    the policies from the best; `corner` bounds a close-up, of both axes alike; `possible` is what
    the best could have reached at the end. Without `titles_y` the y axis has no title of its own:
    its numbers are too wide for one.
    """

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
        """The policy whose line is strongest."""
        return self.order[0]

    def says(self, series: CurveSeries, number: int) -> str:
        """A point in words."""
        low, high, x = series.low[number], series.high[number], series.x[number]
        between = f" ({low:,.2f} to {high:,.2f})" if low != high else ""
        value = f"{series.mean[number]:,.2f} {self.unit[0]}{between}"
        return f"{series.name}: {value} at {x:,.4g} {self.unit[1]}"

    def drawing(
        self, layout: Layout, height: float, marks: Marks, series: list[CurveSeries]
    ) -> Drawing:
        """The whole, with a description for those who do not see it."""
        ends = ", ".join(f"{curve.name} {curve.end:,.2f}" for curve in series)
        over, value = within_sentence(self.x_title), self.y_title
        when = "at the end" if self.labels_at_ends else "on average"
        text = f"Lines over {over}, one a policy. {value}, {when}: {ends}."
        return Drawing(self.name, self.title, text, layout.width, height, tuple(marks))


def within_sentence(title: str) -> str:
    """A title without its capital, unless that is of an abbreviation."""
    return title if title[1].isupper() else title[0].lower() + title[1:]


def draw_side_by_side(figure: LineFigure, series: list[CurveSeries], layout: Layout) -> Drawing:
    """The whole at the left, its close-up at the right, names and values beside the lines' ends."""
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
    """The whole, its close-up below it, and a key of names and values below both."""
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
    """About `count` points of one line within the panel, apart from those of the other lines."""
    low, high = panel.x.low, min(panel.x.high, series[place].x[-1])
    step = (high - low) / count
    first = low + step * (place + 0.5) / len(series)
    return picked(series[place], [*(first + step * k for k in range(count)), high])


def _labels_at(series: list[CurveSeries], layout: Layout) -> float:
    """The left edge of the values beside the line ends, so that the longest name fits."""
    longest = max(text_width(shorten(curve.name, 20), 12, bold=True) for curve in series)
    return layout.width - 22 - 52 - longest


def _window(panel: Panel, corner: tuple[float, float], series: list[CurveSeries]) -> Mark:
    """The frame of the close-up in the whole."""
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
    """Thin lines without points: the close-up has them."""
    return [DrawingGroup(tuple(panel.line(s, width=1.4)), "overview", s.name) for s in series]


def guides(figure: LineFigure, panel: Panel, *, labelled: bool = True) -> list[Mark]:
    """Every pod placed (allocation = demand), where demand is capacity, and what is possible."""
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
    """Bands below all lines; the best policy's line last and strongest; points above them."""
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
    """Names and values from the best on, in columns: `room` is the width and their number."""
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
