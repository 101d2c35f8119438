"""Colours of figures, light and dark, and each policy's look: the same in every report, and
different from all others in one report.

Figures are drawn in light colours, so that a file looks right anywhere; a page recolours them for
dark screens by its style sheet, so each light colour has one dark colour. There are more policies
than distinguishable colours, so lines also differ in dash and marker. Weft's own policies have
fixed places in a list; another policy's colour follows from its name."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple


class Paint(NamedTuple):
    """A colour on paper and light screens, and its counterpart on dark screens."""

    light: str
    dark: str


PAPER = Paint("#fefefe", "none")
INK = Paint("#1a2230", "#e8ecf2")
SOFT = Paint("#5a6675", "#9fabba")
GRID = Paint("#e6eaef", "#2b333e")
AXIS = Paint("#aab4c0", "#566273")

SERIES = (
    Paint("#0b5fb3", "#5aa9f5"),  # blue
    Paint("#d4541b", "#f58a56"),  # vermilion
    Paint("#067a3d", "#3fc77f"),  # green
    Paint("#b0409a", "#ee8fdc"),  # magenta
    Paint("#a97a00", "#e3b43c"),  # ochre
    Paint("#69737f", "#8d9aa8"),  # grey
    Paint("#009aab", "#45d3de"),  # teal
    Paint("#7d3b1c", "#b98465"),  # brown
    Paint("#c4122f", "#ff5f74"),  # crimson
    Paint("#6b46d6", "#a88bff"),  # violet
    Paint("#6f8a00", "#b9d53a"),  # olive
    Paint("#1f2733", "#f4f6f9"),  # ink
)
"""Colours of lines, with a contrast of at least 3:1 on white and on the page's dark cards."""

HEAT = (
    Paint("#f1f5fa", "#1c2630"),
    Paint("#dce8f4", "#1f3347"),
    Paint("#c2d8ed", "#22415f"),
    Paint("#a1c4e4", "#265178"),
    Paint("#7aabd7", "#2d6495"),
    Paint("#5592c9", "#336d9f"),
    Paint("#2f73b3", "#5594cb"),
    Paint("#1a5896", "#7cb2e0"),
    Paint("#0c3f74", "#abd0f0"),
)
"""Colours from low to high values: one hue, even steps of lightness."""

_LIGHT_ON_DARK, _DARK_ON_LIGHT = Paint("#ffffff", "#10161d"), Paint("#1a2231", "#10161d")
ON_HEAT = tuple(INK if step < 6 else _LIGHT_ON_DARK for step in range(len(HEAT)))
"""Text colours that are readable on each step of `HEAT`."""

REASONS = (
    Paint("#33475b", "#c3d0de"),
    Paint("#c98a2b", "#d9a04a"),
    Paint("#7f97ad", "#7d93a9"),
    Paint("#8d5a7c", "#b98aab"),
    Paint("#b9c7d4", "#4f6275"),
    Paint("#679a8a", "#79ab9b"),
    Paint("#dfe5eb", "#36424f"),
)
"""Colours of the reasons why pods failed: quieter than policies' colours; neighbours differ in
lightness."""

ON_REASONS = tuple(
    _LIGHT_ON_DARK if i in (0, 3) else INK if i in (4, 6) else _DARK_ON_LIGHT
    for i in range(len(REASONS))
)

PAINTS = (
    *(PAPER, INK, SOFT, GRID, AXIS, _LIGHT_ON_DARK, _DARK_ON_LIGHT),
    *(*SERIES, *HEAT, *REASONS),
)


def dark_rules() -> str:
    """Return CSS that replaces each light colour in drawings by its dark counterpart."""
    return "".join(
        f'svg [style*="{what}: {paint.light}"]{{{what}:{paint.dark}!important}}'
        for paint in PAINTS
        for what in ("fill", "stroke")
    )


def shorten(text: str, limit: int = 26) -> str:
    """Shorten a label in its middle, since long names differ mostly at their ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[-tail:]}"


_IN_ORDER = """
fgd best-fit gpu-packing gpu-clustering dot-product random
binpack spread first-fit exclusive auto load-aware

kube-knots-cbp kube-knots-pp res-ag gpushare elastic-binpack elastic-spread
interference coscheml horus lucid genius ferikoglou

nano-binpack nano-spread nano-load-binpack nano-load-spread smallest-first ferikoglou-safe
alnair-cost-saving alnair-high-performance least-stranding
"""
# The first twelve policies, compared most, have a colour of their own; the next twelve reuse
# these colours in the same order, and so on.
PLACES = tuple(_IN_ORDER.split())
"""Weft's policies in the order of their colours. Append new policies, since the place sets the
colour."""

DASHES: tuple[tuple[float, ...], ...] = (
    *((), (7, 3), (2, 2.5), (9, 3, 2, 3)),
    *((4.5, 2.5), (12, 3), (1.5, 4), (9, 2.5, 2, 2.5, 2, 2.5)),
)
MARKERS = ("o", "s", "^", "D", "v")
"""Markers as matplotlib names them: circle, square, triangle, diamond, inverted triangle."""


class Look(NamedTuple):
    """The look of a line: colour, dashes (on-off lengths in pixels) and marker."""

    paint: Paint
    dash: tuple[float, ...]
    marker: str


def looks(policies: Sequence[str]) -> dict[str, Look]:
    """Return the look of each policy of a report, by its name with options.

    Weft's policies without options look the same in every report; other policies keep their colour
    and get the next free dash and marker."""
    taken: dict[tuple[int, int], str] = {}
    for policy in sorted(set(policies), key=lambda policy: (policy not in PLACES, policy)):
        colour, turn = _wanted(policy)
        while (colour, turn) in taken:
            turn += 1
        taken[colour, turn] = policy
    return {policy: _look(colour, turn) for (colour, turn), policy in taken.items()}


def numbered(number: int) -> Look:
    """Return the look of line `number` in figures whose lines are not policies."""
    return _look(number % len(SERIES), number // len(SERIES))


def _wanted(policy: str) -> tuple[int, int]:
    """Return the number of the policy's colour, and its place among the policies with this
    colour."""
    name = policy.partition(":")[0]
    # Not hash(), which differs between processes.
    place = PLACES.index(name) if name in PLACES else zlib.crc32(name.encode())
    own = len(PLACES) // len(SERIES) + 1
    return place % len(SERIES), place // len(SERIES) if policy in PLACES else own


def _look(colour: int, turn: int) -> Look:
    marker = MARKERS[(colour + turn) % len(MARKERS)]
    return Look(SERIES[colour], DASHES[turn % len(DASHES)], marker)
