"""A figure as plain marks in pixel coordinates: what `svg` and `png` write.

y grows downwards. Marks know nothing of data or scales; those are `axes` and the figures.
"""

from typing import Literal

import msgspec

from weft.lab.experiment.style import Paint

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


class Rect(msgspec.Struct, frozen=True):
    """A filled box; `hint` is shown where the reader points at it."""

    x: float
    y: float
    width: float
    height: float
    fill: Paint
    radius: float = 0
    hint: str = ""


class Stroke(msgspec.Struct, frozen=True):
    """A stroke through points; `dash` is on-off lengths in pixels."""

    points: tuple[Point, ...]
    stroke: Paint
    width: float = 1.0
    dash: str = ""


class Area(msgspec.Struct, frozen=True):
    """A filled, see-through polygon."""

    points: tuple[Point, ...]
    fill: Paint
    opacity: float = 0.13


class Dot(msgspec.Struct, frozen=True):
    """A filled circle."""

    x: float
    y: float
    radius: float
    fill: Paint


class Text(msgspec.Struct, frozen=True):
    """One line of text; (x, y) is on its baseline. `turned` runs it upwards."""

    x: float
    y: float
    text: str
    fill: Paint
    size: float = 12
    anchor: Anchor = "start"
    bold: bool = False
    turned: bool = False


class Spot(msgspec.Struct, frozen=True):
    """An unseen place that says `hint` to readers who point at it or move there by keyboard."""

    x: float
    y: float
    hint: str
    radius: float = 8


Mark = Rect | Stroke | Area | Dot | Text | Spot


class DrawingGroup(msgspec.Struct, frozen=True):
    """Marks that belong together: a policy's line with its label, named for readers and tests."""

    marks: tuple[Mark, ...]
    kind: str
    name: str


class Drawing(msgspec.Struct, frozen=True):
    """A figure. `name` is its file's stem; `title` and `description` are read out aloud."""

    name: str
    title: str
    description: str
    width: float
    height: float
    marks: tuple[Mark | DrawingGroup, ...]
