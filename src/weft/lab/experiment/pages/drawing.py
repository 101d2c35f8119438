"""Figures as plain marks in pixel coordinates, their light and dark colours, and each policy's
look: the same colour in every report, and no two alike in one report.

y grows downwards. Marks know nothing of data or scales. Every mark has its light colour as a plain
SVG attribute, so that a file looks right anywhere (GitHub, Inkscape, a slide), and a class through
which the report's page recolours it for dark screens: CSS overrides attributes. There are more
policies than distinguishable colours, so lines also differ in dash and marker. Weft's own policies
have fixed places in a list; another policy's colour follows from its name."""

import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec


class Paint(msgspec.Struct, frozen=True):
    """A named colour: the class is `f-NAME` on filled marks and `l-NAME` on lines."""

    name: str
    light: str
    dark: str


PAPER = Paint("paper", "#ffffff", "none")
INK = Paint("ink", "#1a2230", "#e8ecf2")
SOFT = Paint("soft", "#5a6675", "#9fabba")
GRID = Paint("grid", "#e6eaef", "#2b333e")
AXIS = Paint("axis", "#aab4c0", "#566273")
WINDOW = Paint("window", "#f3f6fa", "#1d242d")

SERIES = (
    Paint("s0", "#0b5fb3", "#5aa9f5"),  # blue
    Paint("s1", "#d4541b", "#f58a56"),  # vermilion
    Paint("s2", "#067a3d", "#3fc77f"),  # green
    Paint("s3", "#b0409a", "#ee8fdc"),  # magenta
    Paint("s4", "#a97a00", "#e3b43c"),  # ochre
    Paint("s5", "#69737f", "#8d9aa8"),  # grey
    Paint("s6", "#009aab", "#45d3de"),  # teal
    Paint("s7", "#7d3b1c", "#b98465"),  # brown
    Paint("s8", "#c4122f", "#ff5f74"),  # crimson
    Paint("s9", "#6b46d6", "#a88bff"),  # violet
    Paint("s10", "#6f8a00", "#b9d53a"),  # olive
    Paint("s11", "#1f2733", "#f4f6f9"),  # ink
)
"""Colours of lines, with a contrast of at least 3:1 on white and on the page's dark cards."""

HEAT = (
    Paint("h0", "#f1f5fa", "#1c2630"),
    Paint("h1", "#dce8f4", "#1f3347"),
    Paint("h2", "#c2d8ed", "#22415f"),
    Paint("h3", "#a1c4e4", "#265178"),
    Paint("h4", "#7aabd7", "#2d6495"),
    Paint("h5", "#5592c9", "#336d9f"),
    Paint("h6", "#2f73b3", "#5594cb"),
    Paint("h7", "#1a5896", "#7cb2e0"),
    Paint("h8", "#0c3f74", "#abd0f0"),
)
"""Colours from little to much: one hue, even steps of lightness."""

ON_HEAT = tuple(
    Paint(f"o{step}", "#1a2230" if step < 6 else "#ffffff", "#e8ecf2" if step < 6 else "#10161d")
    for step in range(len(HEAT))
)
"""Text colours that are readable on each step of `HEAT`."""

REASONS = (
    Paint("r0", "#33475b", "#c3d0de"),
    Paint("r1", "#c98a2b", "#d9a04a"),
    Paint("r2", "#7f97ad", "#7d93a9"),
    Paint("r3", "#8d5a7c", "#b98aab"),
    Paint("r4", "#b9c7d4", "#4f6275"),
    Paint("r5", "#679a8a", "#79ab9b"),
    Paint("r6", "#dfe5eb", "#36424f"),
)
"""Colours of reasons: quieter than policies' colours; neighbours differ in lightness."""

ON_REASONS = tuple(
    Paint(f"p{i}", "#ffffff" if i in (0, 3) else "#1a2230", "#e8ecf2" if i in (4, 6) else "#10161d")
    for i in range(len(REASONS))
)

ALL = (PAPER, INK, SOFT, GRID, AXIS, WINDOW, *SERIES, *HEAT, *ON_HEAT, *REASONS, *ON_REASONS)

FONTS = ("Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")
FONT_STACK = ", ".join(f"'{font}'" if " " in font else font for font in FONTS) + ", sans-serif"


def recolour(dark: bool) -> str:
    """Return CSS that gives every class its colour on the page, where the paper is transparent."""
    rules = []
    for paint in ALL:
        colour = "none" if paint is PAPER else paint.dark if dark else paint.light
        rules.append(f".f-{paint.name}{{fill:{colour}}}.l-{paint.name}{{stroke:{colour}}}")
    return "".join(rules)


_NARROW, _WIDE = frozenset("fijlrtI.,:;'|!()[]/ -"), frozenset("mwMWGOQ%@—")


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return about how wide a text is in pixels: good enough for layout without a font engine."""
    em = sum(0.3 if c in _NARROW else 0.84 if c in _WIDE else 0.57 for c in text)
    return em * size * (1.06 if bold else 1.0)


def shorten(text: str, limit: int = 26) -> str:
    """Shorten a label in its middle, since long names differ mostly at their ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[-tail:]}"


def fitted(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """Return the text, shortened in its middle to about `width` pixels."""
    limit = len(text)
    while limit > 3 and text_width(shorten(text, limit), size, bold=bold) > width + 0.5:
        limit -= 1
    return shorten(text, limit)


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Return the text in lines of about `width` pixels, broken between words."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


Marker = Literal["circle", "square", "triangle", "diamond", "down"]

PLACES = (
    # The first twelve, which are compared most, have a colour of their own.
    "fgd",
    "best-fit",
    "gpu-packing",
    "gpu-clustering",
    "dot-product",
    "random",
    "binpack",
    "spread",
    "first-fit",
    "exclusive",
    "auto",
    "load-aware",
    # The next twelve reuse these colours in the same order, and so on.
    "kube-knots-cbp",
    "kube-knots-pp",
    "res-ag",
    "gpushare",
    "elastic-binpack",
    "elastic-spread",
    "interference",
    "coscheml",
    "horus",
    "lucid",
    "genius",
    "ferikoglou",
    "nano-binpack",
    "nano-spread",
    "nano-load-binpack",
    "nano-load-spread",
    "smallest-first",
    "ferikoglou-safe",
    "alnair-cost-saving",
    "alnair-high-performance",
    "least-stranding",
)
"""Weft's policies in the order of their colours. Append new policies, since the place sets the
colour."""

DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4.5 2.5", "12 3", "1.5 4", "9 2.5 2 2.5 2 2.5")
MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond", "down")


class Look(NamedTuple):
    """A colour, and how its line is dashed (on-off lengths in pixels) and marked."""

    paint: Paint
    dash: str
    marker: Marker


def looks(policies: Sequence[str]) -> dict[str, Look]:
    """Return the look of each policy of a report, by its name with options.

    Weft's policies without options look the same in every report; others keep their colour and take
    the next free dash and marker."""
    taken: dict[tuple[int, int], str] = {}
    for policy in sorted(set(policies), key=lambda policy: (policy not in PLACES, policy)):
        colour, turn = _wanted(policy)
        while (colour, turn) in taken:
            turn += 1
        taken[colour, turn] = policy
    return {policy: _look(colour, turn) for (colour, turn), policy in taken.items()}


def numbered(number: int) -> Look:
    """Return the look of the number-th line in figures whose lines are not policies."""
    return _look(number % len(SERIES), number // len(SERIES))


def _wanted(policy: str) -> tuple[int, int]:
    """Return the number of the policy's colour, and the policy's place among those that share
    it."""
    name = policy.partition(":")[0]
    # Not hash(), which differs between processes.
    place = PLACES.index(name) if name in PLACES else zlib.crc32(name.encode())
    own = len(PLACES) // len(SERIES) + 1
    return place % len(SERIES), place // len(SERIES) if policy in PLACES else own


def _look(colour: int, turn: int) -> Look:
    marker = MARKERS[(colour + turn) % len(MARKERS)]
    return Look(SERIES[colour], DASHES[turn % len(DASHES)], marker)


Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


class Rect(msgspec.Struct, frozen=True):
    """A filled box; `hint` is shown when the reader points at it."""

    x: float
    y: float
    width: float
    height: float
    fill: Paint
    radius: float = 0
    hint: str = ""


class Stroke(msgspec.Struct, frozen=True):
    """A line through points; `dash` is on-off lengths in pixels."""

    points: tuple[Point, ...]
    stroke: Paint
    width: float = 1.0
    dash: str = ""


class Area(msgspec.Struct, frozen=True):
    """A filled, translucent polygon."""

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
    """One line of text with (x, y) on its baseline; `turned` runs it upwards."""

    x: float
    y: float
    text: str
    fill: Paint
    size: float = 12
    anchor: Anchor = "start"
    bold: bool = False
    turned: bool = False


class Spot(msgspec.Struct, frozen=True):
    """An invisible place that shows `hint` when the reader points at it or reaches it by
    keyboard."""

    x: float
    y: float
    hint: str
    radius: float = 8


Mark = Rect | Stroke | Area | Dot | Text | Spot


class DrawingGroup(msgspec.Struct, frozen=True):
    """Marks that belong together, such as a policy's line and label; named for readers and
    tests."""

    marks: tuple[Mark, ...]
    kind: str
    name: str


class Drawing(msgspec.Struct, frozen=True):
    """A figure. `name` is its file's stem; `title` and `description` are for screen readers."""

    name: str
    title: str
    description: str
    width: float
    height: float
    marks: tuple[Mark | DrawingGroup, ...]
