"""Scales, ticks and line panels: from data to marks."""

import math
from bisect import bisect_left
from collections.abc import Callable

import msgspec

from weft.lab.experiment.drawing import (
    Area,
    Dot,
    DrawingGroup,
    Mark,
    Point,
    Rect,
    Spot,
    Stroke,
    Text,
)
from weft.lab.experiment.looks import Look, Marker
from weft.lab.experiment.style import AXIS, GRID, INK, SOFT, Paint, shorten


class Scale(msgspec.Struct, frozen=True):
    """Maps data from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


class CurveSeries(msgspec.Struct, frozen=True):
    """A policy's curve: mean over seeds at each `x`, in a band from `low` to `high`.

    `end` is the value to print beside the line, the same as in the tables.
    """

    name: str
    look: Look
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    end: float


Say = Callable[[CurveSeries, int], str]
"""The text of a curve's point for those who point at it, by its number."""


class Panel(msgspec.Struct, frozen=True):
    """A rectangle with two scales; `y` runs from bottom to top."""

    x: Scale
    y: Scale

    def frame(self, x_title: str, y_title: str, about: int = 6, about_y: int = 6) -> list[Mark]:
        """Axis, tick labels, titles, and grid lines across only: the eye follows y."""
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
        """The series' band, where seeds differ."""
        if series.low == series.high:
            return []
        upper = self.inside(series.x, series.high)
        lower = self.inside(series.x, series.low)
        if len(upper) < 2 or len(lower) < 2:
            return []
        return [Area((*upper, *reversed(lower)), series.look.paint)]

    def line(self, series: CurveSeries, *, width: float = 2.0) -> list[Mark]:
        """The mean."""
        points = self.inside(series.x, series.mean)
        if len(points) < 2:
            return []
        return [Stroke(points, series.look.paint, width, series.look.dash)]

    def points(self, series: CurveSeries, at: list[int], say: Say) -> list[Mark]:
        """Markers at these points of the mean, as far as they are inside, and what each says."""
        marks: list[Mark] = []
        spots: list[Mark] = []
        for number in at:
            x, y = series.x[number], series.mean[number]
            if self.x.low <= x <= self.x.high and self.y.low <= y <= self.y.high:
                marks += marker(self.x(x), self.y(y), series.look.marker, series.look.paint)
                spots.append(Spot(self.x(x), self.y(y), say(series, number)))
        return [*marks, *spots]

    def inside(self, xs: tuple[float, ...], ys: tuple[float, ...]) -> tuple[Point, ...]:
        """The pixels of a rising or level curve from where it enters this panel."""
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
        """The point at which the line from `outside` to `inside` crosses the left or lower edge."""
        (x0, y0), (x1, y1) = outside, inside
        share = 0.0
        if x0 < self.x.low:
            share = (self.x.low - x0) / (x1 - x0)
        if y0 < self.y.low:
            share = max(share, (self.y.low - y0) / (y1 - y0))
        return self.x(x0 + share * (x1 - x0)), self.y(y0 + share * (y1 - y0))

    def ends(self, series: list[CurveSeries], best: str, text_x: float) -> list[DrawingGroup]:
        """A name and a last value beside each line's end; labels make room for line another."""
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
    """A line's sample, its value and its name, in one row; `name` where there is little room."""
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
    """A filled sign, about seven pixels wide."""
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
    """The numbers of the curve's own points nearest to these places, each once."""
    numbers = set()
    for x in wanted:
        after = min(bisect_left(series.x, x), len(series.x) - 1)
        before = max(0, after - 1)
        nearest = min(before, after, key=lambda number: abs(series.x[number] - x))
        numbers.add(nearest)
    return sorted(numbers)


def spread(ideal: list[float], gap: float, top: float, bottom: float) -> list[float]:
    """Places near the wanted ones (ascending), at least `gap` apart, between top and bottom."""
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
    """Round numbers between `low` and `high`, about so many: steps of 1, 2, 2.5 or 5 × 10ⁿ."""
    if not high > low:
        return [low]
    step = nice_step((high - low) / max(1, about))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def nice_step(raw: float) -> float:
    """The smallest round step that is not below `raw`."""
    power: float = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10):
        if raw <= factor * power * (1 + 1e-9):
            return factor * power
    return 10 * power


def nice_ceiling(value: float, about: int = 6) -> float:
    """A round number at or above `value`, a whole number of ticks from 0."""
    if value <= 0:
        return 1.0
    step = nice_step(value / about)
    return math.ceil(value / step - 1e-9) * step


def label(value: float) -> str:
    """A tick's text: thousands apart, no decimals that say nothing."""
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"
