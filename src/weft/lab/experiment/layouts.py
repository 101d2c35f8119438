"""The widths a figure is drawn in: text keeps its size, so a narrow figure is another drawing."""

from typing import NamedTuple

from weft.lab.experiment.drawing import Drawing, DrawingGroup, Mark, Text
from weft.lab.experiment.style import INK, SOFT, wrapped


class Layout(NamedTuple):
    """A figure's width in pixels. `name` is the page's class for it."""

    name: str
    width: float

    @property
    def narrow(self) -> bool:
        """On a telephone: labels stand above what they name."""
        return self.width < 600

    @property
    def stacked(self) -> bool:
        """Too little room for panels side by side, or for labels beside lines."""
        return self.width < 900


WIDE = Layout("wide", 960)
MEDIUM = Layout("medium", 640)
NARROW = Layout("narrow", 350)
LAYOUTS = (WIDE, MEDIUM, NARROW)


class Heading(NamedTuple):
    """A figure's title and what is said below it; the rest begins at `bottom`."""

    marks: list[Mark | DrawingGroup]
    bottom: float


def heading(title: str, under: str, layout: Layout = WIDE, right: float = 20) -> Heading:
    """In as many lines as it takes, `right` pixels from the right edge."""
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
    """The figure where there is nothing to draw: it says why."""
    top = heading(title, "", layout)
    lines = wrapped(text, layout.width - 40, 13.5)
    marks = [
        Text(layout.width / 2, top.bottom + 30 + 18 * i, line, SOFT, 13, "middle")
        for i, line in enumerate(lines)
    ]
    height = top.bottom + 66 + 18 * len(lines)
    return Drawing(name, title, text, layout.width, height, (*top.marks, *marks))
