"""A measure's figure where no axis has several numbers: a bar a scheduler, with its interval."""

from collections.abc import Mapping, Sequence

from weft.lab.experiment.axes import nice_ceiling
from weft.lab.experiment.comparison import MeasureSummary
from weft.lab.experiment.drawing import Drawing, DrawingGroup, Mark, Rect, Stroke, Text
from weft.lab.experiment.layouts import Layout, heading
from weft.lab.experiment.looks import Look
from weft.lab.experiment.style import INK, fitted, shorten, text_width

_ROW, _THICK = 30.0, 16.0


def draw_bars(
    name: str,
    titles: tuple[str, str],
    means: Sequence[MeasureSummary],
    look_of: Mapping[str, Look],
    layout: Layout,
) -> Drawing:
    """Bars from 0 in the order of `means`; `titles` are the figure's and what is below it."""
    head = heading(*titles, layout)
    longest = max(text_width(shorten(one.scheduler), 12.5) for one in means)
    left = 20.0 if layout.narrow else 34 + min(longest, layout.width / 3)
    top = nice_ceiling(max(one.mean + (one.ci95 or 0.0) for one in means))
    scale = (layout.width - 90 - left) / top
    step = _ROW + (18 if layout.narrow else 0)
    marks: list[Mark | DrawingGroup] = list(head.marks)
    y = head.bottom + 16
    for one in means:
        marks.append(
            DrawingGroup(tuple(_bar(one, look_of, (left, y, scale), layout)), "bar", one.scheduler)
        )
        y += step
    told = "; ".join(f"{one.scheduler} {one.mean:,.6g}" for one in means)
    return Drawing(
        name, titles[0], f"A bar a scheduler: {told}.", layout.width, y + 10, tuple(marks)
    )


def _bar(
    one: MeasureSummary,
    look_of: Mapping[str, Look],
    at: tuple[float, float, float],
    layout: Layout,
) -> list[Mark]:
    """Name, bar, interval and value; `at` is the bar's left end, the row's top, pixels a unit."""
    left, y, scale = at
    label_y, bar_y = y + 13, y + (18 if layout.narrow else 0)
    room = layout.width - 40 if layout.narrow else left - 30
    middle, end = bar_y + _THICK / 2, left + one.mean * scale
    hint = f"{one.scheduler}: {one.mean:,.6g}"
    marks: list[Mark] = [
        Text(20, label_y, fitted(one.scheduler, room, 12.5), INK, 12.5),
        Rect(left, bar_y, max(1.0, end - left), _THICK, look_of[one.scheduler].paint, 2, hint),
    ]
    if one.ci95:
        half = one.ci95 * scale
        ends = (max(left, end - half), end + half)
        marks.append(Stroke(((ends[0], middle), (ends[1], middle)), INK, 1.4))
        marks += [Stroke(((x, middle - 4), (x, middle + 4)), INK, 1.4) for x in ends]
        end = ends[1]
    return [*marks, Text(end + 8, bar_y + 12, f"{one.mean:,.6g}", INK, 12)]
