"""Lines of many policies: each has a panel of its own, against the best and the range of all."""

import numpy as np

from weft.lab.experiment.axes import CurveSeries, Panel, Scale, marker, picked
from weft.lab.experiment.drawing import Area, Drawing, DrawingGroup, Mark, Point, Stroke, Text
from weft.lab.experiment.layouts import Layout, heading
from weft.lab.experiment.line_layout import LineFigure, Marks, guides, within_sentence
from weft.lab.experiment.style import INK, SOFT, fitted

_MOST_POINTS = 60
_PANEL, _ROW = 92.0, 168.0


def draw_each(figure: LineFigure, series: list[CurveSeries], layout: Layout) -> Drawing:
    """A grid of small panels, from the best policy on."""
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
    """The part that is shown: the close-up where there is one."""
    if figure.corner is None:
        return Panel(Scale(0, figure.last, 0, 1), Scale(0, figure.top, 1, 0))
    low, high = figure.corner
    last = min(curve.x[-1] for curve in series)
    return Panel(Scale(low, last, 0, 1), Scale(low, high, 1, 0))


class _Behind:
    """The background of every policy's line: the range of all policies, and the best's line."""

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
    """Name, value and axes of one policy's panel."""
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
