"""Writes drawings as SVG, PNG and PDF; equal drawings give equal bytes.

SVG needs no library; PNG and PDF need matplotlib, from an optional extra."""

import io
from contextlib import AbstractContextManager
from html import escape
from typing import TYPE_CHECKING, Any

from weft.lab.experiment.pages.drawing import (
    FONT_STACK,
    FONTS,
    PAPER,
    Area,
    Dot,
    Drawing,
    DrawingGroup,
    Look,
    Mark,
    Paint,
    Rect,
    Spot,
    Stroke,
    Text,
)
from weft.lab.experiment.pages.line_charts import WIDE, marker
from weft.model.errors import BadInputError, install_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from collections.abc import Sequence

from weft.lab.experiment.pages.drawing import INK, fitted, wrapped
from weft.lab.experiment.pages.line_charts import heading
from weft.lab.experiment.spec.experiment import ExperimentSpec
from weft.lab.experiment.spec.measures import TITLES
from weft.lab.experiment.statistics.comparison import ExperimentResults, MeasureSummary, level_text


def to_svg(drawing: Drawing, layout: str = WIDE.name) -> str:
    """Return the figure as one `<svg>` element, which stands alone or goes into a page.

    `layout` is its class, and part of the ids, so that they are unique within a page."""
    width, height = _number(drawing.width), _number(drawing.height)
    name = escape(drawing.name if layout == WIDE.name else f"{drawing.name}-{layout}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{layout}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="group" '
        f'aria-labelledby="{name}-title {name}-description" '
        f'font-family="{escape(FONT_STACK)}">',
        f'<title id="{name}-title">{_text(drawing.title)}</title>',
        f'<desc id="{name}-description">{_text(drawing.description)}</desc>',
        _mark(Rect(0, 0, drawing.width, drawing.height, PAPER, radius=6)),
    ]
    for item in drawing.marks:
        if isinstance(item, DrawingGroup):
            lines.append(f'<g class="{escape(item.kind)}" data-name="{_text(item.name)}">')
            lines += _group(item.marks)
            lines.append("</g>")
        else:
            lines.append(_mark(item))
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _group(marks: tuple[Mark, ...]) -> list[str]:
    """Return a group's marks; the tab key stops at the first with a hint, arrow keys reach the
    others."""
    lines, first = [], True
    for mark in marks:
        speaks = isinstance(mark, Rect | Spot) and mark.hint != ""
        lines.append(_mark(mark, stop=first))
        first = first and not speaks
    return lines


def line_sample(look: Look) -> str:
    """Return a piece of a policy's line, 26 by 10 pixels, for use within text."""
    line = Stroke(((0, 5), (26, 5)), look.paint, 2.6, look.dash)
    return "".join(_mark(mark) for mark in (line, *marker(13, 5, look.marker, look.paint)))


def _mark(mark: Mark, *, stop: bool = True) -> str:
    match mark:
        case Rect():
            radius = f' rx="{_number(mark.radius)}"' if mark.radius else ""
            box = (
                f'<rect x="{_number(mark.x)}" y="{_number(mark.y)}" '
                f'width="{_number(mark.width)}" height="{_number(mark.height)}"'
                f"{radius} {_fill(mark.fill)}"
            )
            return f"{box}{_speaking(mark.hint, stop)}</rect>" if mark.hint else f"{box}/>"
        case Stroke():
            dash = f' stroke-dasharray="{mark.dash}"' if mark.dash else ""
            return (
                f'<path d="{_path(mark)}" fill="none" class="l-{mark.stroke.name}" '
                f'stroke="{mark.stroke.light}" stroke-width="{_number(mark.width)}" '
                f'stroke-linejoin="round"{dash}/>'
            )
        case Area():
            return (
                f'<path d="{_path(mark)}Z" {_fill(mark.fill)} '
                f'fill-opacity="{_number(mark.opacity)}"/>'
            )
        case Dot():
            return (
                f'<circle cx="{_number(mark.x)}" cy="{_number(mark.y)}" '
                f'r="{_number(mark.radius)}" {_fill(mark.fill)}/>'
            )
        case Spot():
            return (
                f'<circle cx="{_number(mark.x)}" cy="{_number(mark.y)}" '
                f'r="{_number(mark.radius)}" fill-opacity="0"{_speaking(mark.hint, stop)}</circle>'
            )
        case Text():
            return _letters(mark)


def _speaking(hint: str, stop: bool) -> str:
    """Return the attributes and hint of a mark, closing its tag."""
    tab = 0 if stop else -1
    return f' data-spot="" role="img" tabindex="{tab}"><title>{_text(hint)}</title>'


def _letters(mark: Text) -> str:
    x, y = _number(mark.x), _number(mark.y)
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    bold = ' font-weight="600"' if mark.bold else ""
    turn = f' transform="rotate(-90 {x} {y})"' if mark.turned else ""
    return (
        f'<text x="{x}" y="{y}" {_fill(mark.fill)} font-size="{_number(mark.size)}"'
        f"{anchor}{bold}{turn}>{_text(mark.text)}</text>"
    )


def _fill(paint: Paint) -> str:
    return f'class="f-{paint.name}" fill="{paint.light}"'


def _path(mark: Stroke | Area) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in mark.points)


def _number(value: float) -> str:
    """Format with hundredths of a pixel, without trailing zeros or a minus before zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _text(text: str) -> str:
    """Escape a text, and replace control characters that XML does not allow."""
    return escape("".join(c if c >= " " or c in "\t\n" else "�" for c in text))


_PIXELS_PER_INCH = 100
_SHARPNESS = 2
"""Pixels of the PNG per pixel of the drawing."""


def check_matplotlib(option: str = "--png", way_out: str = install_extra("png")) -> None:
    """Raise `BadInputError` with the remedy `way_out` if matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        problem = f"needs matplotlib, which is not installed; {way_out}"
        raise BadInputError(option, problem) from None


def to_png(drawing: Drawing) -> bytes:
    """Return the figure as a PNG on white, at twice the drawing's size."""
    check_matplotlib()
    with drawing_settings():
        out = io.BytesIO()
        dpi = _PIXELS_PER_INCH * _SHARPNESS
        as_figure(drawing).savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()


def drawing_settings() -> AbstractContextManager[None]:
    """Return a context with matplotlib's settings: our fonts, and no mathematical text."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "font.family": _installed_fonts(),
        "text.parse_math": False,
        "pdf.fonttype": 42,
    }
    return mpl.rc_context(settings)


def as_figure(drawing: Drawing) -> "Figure":
    """Draw the marks on a matplotlib figure of the same size; call it within `drawing_settings`."""
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
            corner, colour = (mark.x, mark.y), mark.fill.light
            box = patches.Rectangle(
                corner, mark.width, mark.height, color=colour, lw=0, zorder=order
            )
            axes.add_patch(box)
        case Area():
            colour, alpha = mark.fill.light, mark.opacity
            area = patches.Polygon(mark.points, facecolor=colour, alpha=alpha, lw=0, zorder=order)
            axes.add_patch(area)
        case Dot():
            anchor, colour = (mark.x, mark.y), mark.fill.light
            axes.add_patch(patches.Circle(anchor, mark.radius, color=colour, lw=0, zorder=order))
        case Spot():
            pass  # pictures have no hints
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
    """Return the dashes in units of line widths, as matplotlib takes them."""
    if not mark.dash:
        return "solid"
    return (0, tuple(float(length) / mark.width for length in mark.dash.split()))


def _installed_fonts() -> list[str]:
    """Return those of our fonts that are installed, as matplotlib warns about others."""
    from matplotlib import font_manager

    have = {font.name for font in font_manager.fontManager.ttflist}
    return [font for font in FONTS if font in have] or ["DejaVu Sans"]


_LINE, _ROWS = 18.0, 40
"""Height of a line in pixels, and lines per page."""


def to_pdf(drawings: Sequence[Drawing], title: str) -> bytes:
    """Return a PDF of these drawings; equal drawings give equal bytes. `BadInputError` without
    matplotlib."""
    check_matplotlib("--pdf", install_extra("experiments"))
    from matplotlib.backends.backend_pdf import PdfPages

    out = io.BytesIO()
    about = {"Title": title, "Creator": "weft", "Producer": None, "CreationDate": None}
    with drawing_settings(), PdfPages(out, metadata=about) as pages:
        for drawing in drawings:
            pages.savefig(as_figure(drawing))
    return out.getvalue()


def text_pages(spec: ExperimentSpec, results: ExperimentResults) -> list[Drawing]:
    """Return pages with the findings in words, and a table per measure to judge by: mean ± half of
    its 95 % interval, and the difference to the baseline, in brackets if it may be due to
    chance."""
    room = WIDE.width - 40
    words = [line for text in results.in_words for line in wrapped(f"• {text}", room, 12.5)]
    pages = _pages(spec.name, spec.question, [[line] for line in words], [20.0])
    for measure, title in TITLES.items():
        rows = [
            [
                level_text(spec, row.levels) or "all",
                row.scheduler,
                row.mean_text,
                "" if row.difference is None else _bracketed(row.difference.text(), row),
            ]
            for row in results.summary
            if row.measure == measure and measure not in results.same_as
        ]
        if rows:
            pages += _pages(title, measure, rows, [20.0, 260.0, 520.0, 700.0])
    return pages


def _bracketed(text: str, row: MeasureSummary) -> str:
    return text if row.beyond_chance else f"({text})"


def _pages(
    title: str, under: str, rows: Sequence[Sequence[str]], columns: Sequence[float]
) -> list[Drawing]:
    """Lay out rows of text in columns that begin at these pixels, on as many pages as needed."""
    ends = [*columns[1:], WIDE.width - 10]
    pages = []
    for first in range(0, len(rows), _ROWS):
        head = heading(title, under)
        marks: list[Mark | DrawingGroup] = list(head.marks)
        y = head.bottom + 14
        for row in rows[first : first + _ROWS]:
            y += _LINE
            for text, x, end in zip(row, columns, ends, strict=True):
                marks.append(Text(x, y, fitted(text, end - x - 8, 12), INK, 12))
        pages.append(Drawing("text", title, under, WIDE.width, y + 30, tuple(marks)))
    return pages
