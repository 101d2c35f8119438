"""The calibration plot: how often bounds held against how often they were meant to."""

from collections.abc import Sequence

from weft.lab.experiment.axes import CurveSeries, Panel, Scale
from weft.lab.experiment.drawing import Drawing, DrawingGroup, Mark, Stroke, Text
from weft.lab.experiment.looks import numbered
from weft.lab.experiment.style import AXIS, INK, SOFT

_WIDTH, _HEIGHT = 760.0, 470.0

Curve = tuple[str, Sequence[tuple[float, float]]]
"""A name, and (wanted, reached) coverage."""


def calibration(title: str, under: str, curves: Sequence[Curve]) -> Drawing:
    """A line for each split; on the dotted diagonal bounds hold exactly as often as wanted."""
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
