"""Writes a drawing as PNG, with matplotlib from the optional extra `png`.

The layout is done already: matplotlib only puts the same marks on the same pixels.
"""

import io
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from weft.lab.experiment.drawing import (
    Area,
    Dot,
    Drawing,
    DrawingGroup,
    Mark,
    Rect,
    Spot,
    Stroke,
    Text,
)
from weft.lab.experiment.style import FONTS
from weft.model.errors import BadInputError, install_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PIXELS_PER_INCH = 100
_SHARPNESS = 2
"""Pixels of the PNG per pixel of the drawing, so that it is crisp on a slide."""


def check(option: str = "--png", way_out: str = install_extra("png")) -> None:
    """Raises `BadInputError` with the way out where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        problem = f"needs matplotlib, which is not installed; {way_out}"
        raise BadInputError(option, problem) from None


def to_png(drawing: Drawing) -> bytes:
    """The figure as a PNG on white, twice the drawing's size."""
    check()
    with drawing_settings():
        out = io.BytesIO()
        dpi = _PIXELS_PER_INCH * _SHARPNESS
        as_figure(drawing).savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()


def drawing_settings() -> AbstractContextManager[None]:
    """matplotlib's settings while it draws: our fonts, and text as it is written."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "font.family": _installed_fonts(),
        "text.parse_math": False,
        "pdf.fonttype": 42,
    }
    return mpl.rc_context(settings)


def as_figure(drawing: Drawing) -> "Figure":
    """The drawing's marks on a matplotlib figure of its size, within `drawing_settings`."""
    from matplotlib.figure import Figure

    inches = drawing.width / _PIXELS_PER_INCH, drawing.height / _PIXELS_PER_INCH
    figure = Figure(figsize=inches, facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    order = 0
    for item in drawing.marks:
        for mark in item.marks if isinstance(item, DrawingGroup) else (item,):
            order += 1
            _draw(axes, mark, order)
    return figure


def _draw(axes: "Axes", mark: Mark, order: int) -> None:
    from matplotlib import patches

    match mark:
        case Rect():
            corner, size = (mark.x, mark.y), (mark.width, mark.height)
            box = patches.Rectangle(corner, *size, color=mark.fill.light, lw=0, zorder=order)
            axes.add_patch(box)
        case Area():
            colour, alpha = mark.fill.light, mark.opacity
            area = patches.Polygon(mark.points, facecolor=colour, alpha=alpha, lw=0, zorder=order)
            axes.add_patch(area)
        case Dot():
            anchor, colour = (mark.x, mark.y), mark.fill.light
            axes.add_patch(patches.Circle(anchor, mark.radius, color=colour, lw=0, zorder=order))
        case Spot():
            pass  # a picture has nobody to speak to
        case Stroke():
            xs, ys = zip(*mark.points, strict=True)
            (line,) = axes.plot(xs, ys, color=mark.stroke.light, lw=_points(mark.width))
            line.set(ls=_dashes(mark), solid_joinstyle="round", zorder=order)
        case Text():
            axes.text(
                mark.x,
                mark.y,
                mark.text,
                color=mark.fill.light,
                fontsize=_points(mark.size),
                ha={"start": "left", "middle": "center", "end": "right"}[mark.anchor],
                va="baseline",
                rotation=90 if mark.turned else 0,
                rotation_mode="anchor",
                fontweight="bold" if mark.bold else "normal",
                zorder=order,
            )


def _points(pixels: float) -> float:
    return pixels * 72 / _PIXELS_PER_INCH


def _dashes(mark: Stroke) -> Any:
    """matplotlib counts dashes in line widths."""
    if not mark.dash:
        return "solid"
    return (0, tuple(float(length) / mark.width for length in mark.dash.split()))


def _installed_fonts() -> list[str]:
    """Those of our fonts that this machine has: matplotlib warns about every other."""
    from matplotlib import font_manager

    have = {font.name for font in font_manager.fontManager.ttflist}
    return [font for font in FONTS if font in have] or ["DejaVu Sans"]
