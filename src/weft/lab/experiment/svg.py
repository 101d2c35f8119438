"""Writes a drawing as SVG: the same drawing gives the same bytes, and no program is needed."""

from html import escape

from weft.lab.experiment.axes import marker
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
from weft.lab.experiment.layouts import WIDE
from weft.lab.experiment.looks import Look
from weft.lab.experiment.style import FONT_STACK, PAPER, Paint


def to_svg(drawing: Drawing, layout: str = WIDE.name) -> str:
    """The figure as one `<svg>` element that stands alone and can be put into a page.

    `layout` is its class; names within a page differ with it.
    """
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
    """A group's marks; the tab key stops at the first that speaks, arrow keys go on from there."""
    lines, first = [], True
    for mark in marks:
        speaks = isinstance(mark, Rect | Spot) and mark.hint != ""
        lines.append(_mark(mark, stop=first))
        first = first and not speaks
    return lines


def line_sample(look: Look) -> str:
    """A piece of a policy's line, 26 by 10 pixels, to stand in text."""
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
    """Words for those who point at a mark, or come to it by keyboard; its tag ends here."""
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
    """Hundredths of a pixel, without trailing zeros or a minus before zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _text(text: str) -> str:
    """Escaped, and without the control characters that XML cannot hold."""
    return escape("".join(c if c >= " " or c in "\t\n" else "�" for c in text))
