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
    longest = max(text_width(shorten(row.scheduler), 12.5) for row in means)
    left = 20.0 if layout.narrow else 34 + min(longest, layout.width / 3)
    top = nice_ceiling(max(row.mean + (row.ci95 or 0.0) for row in means))
    scale = (layout.width - 90 - left) / top
    step = _ROW + (18 if layout.narrow else 0)
    marks: list[Mark | DrawingGroup] = list(head.marks)
    y = head.bottom + 16
    for row in means:
        marks.append(
            DrawingGroup(tuple(_bar(row, look_of, (left, y, scale), layout)), "bar", row.scheduler)
        )
        y += step
    values_text = "; ".join(f"{row.scheduler} {row.mean:,.6g}" for row in means)
    return Drawing(
        name, titles[0], f"A bar a scheduler: {values_text}.", layout.width, y + 10, tuple(marks)
    )


def _bar(
    row: MeasureSummary,
    look_of: Mapping[str, Look],
    at: tuple[float, float, float],
    layout: Layout,
) -> list[Mark]:
    """Name, bar, interval and value; `at` is the bar's left end, the row's top, pixels a unit."""
    left, y, scale = at
    label_y, bar_y = y + 13, y + (18 if layout.narrow else 0)
    room = layout.width - 40 if layout.narrow else left - 30
    middle, end = bar_y + _THICK / 2, left + row.mean * scale
    hint = f"{row.scheduler}: {row.mean:,.6g}"
    marks: list[Mark] = [
        Text(20, label_y, fitted(row.scheduler, room, 12.5), INK, 12.5),
        Rect(left, bar_y, max(1.0, end - left), _THICK, look_of[row.scheduler].paint, 2, hint),
    ]
    if row.ci95:
        half = row.ci95 * scale
        ends = (max(left, end - half), end + half)
        marks.append(Stroke(((ends[0], middle), (ends[1], middle)), INK, 1.4))
        marks += [Stroke(((x, middle - 4), (x, middle + 4)), INK, 1.4) for x in ends]
        end = ends[1]
    return [*marks, Text(end + 8, bar_y + 12, f"{row.mean:,.6g}", INK, 12)]
