"""How each policy is drawn: the same colour in every report, and no two alike in one.

There are more policies than colours that people tell apart, so lines also differ in dash and
marker. Weft's own policies have their places in a list; another's colour follows from its name.
"""

import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

from weft.lab.experiment.style import SERIES, Paint

Marker = Literal["circle", "square", "triangle", "diamond", "down"]

PLACES = (
    # The first twelve have a colour of their own: those that are compared most.
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
    # The next twelve share colours with those above, in their order, and so on.
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
"""New policies go to the end: a place settles a colour."""

DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4.5 2.5", "12 3", "1.5 4", "9 2.5 2 2.5 2 2.5")
MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond", "down")


class Look(NamedTuple):
    """Colour, and how its line is dashed (on-off lengths in pixels) and marked."""

    paint: Paint
    dash: str
    marker: Marker


def looks(policies: Sequence[str]) -> dict[str, Look]:
    """The look of each policy of a report, by its name with options.

    Policies of Weft without options look the same in every report; others keep their colour and
    take the next free dash and marker.
    """
    taken: dict[tuple[int, int], str] = {}
    for policy in sorted(set(policies), key=lambda policy: (policy not in PLACES, policy)):
        colour, turn = _wanted(policy)
        while (colour, turn) in taken:
            turn += 1
        taken[colour, turn] = policy
    return {policy: _look(colour, turn) for (colour, turn), policy in taken.items()}


def numbered(number: int) -> Look:
    """The look of the number-th line where lines are no policies."""
    return _look(number % len(SERIES), number // len(SERIES))


def _wanted(policy: str) -> tuple[int, int]:
    """Number of the policy's colour, and which of those that share it the policy is."""
    name = policy.partition(":")[0]
    # Not hash(), which differs from process to process.
    place = PLACES.index(name) if name in PLACES else zlib.crc32(name.encode())
    own = len(PLACES) // len(SERIES) + 1
    return place % len(SERIES), place // len(SERIES) if policy in PLACES else own


def _look(colour: int, turn: int) -> Look:
    marker = MARKERS[(colour + turn) % len(MARKERS)]
    return Look(SERIES[colour], DASHES[turn % len(DASHES)], marker)
