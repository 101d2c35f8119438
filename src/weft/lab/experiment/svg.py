"""Writes a drawing as SVG: the same drawing gives the same bytes, and no program is needed."""

from html import escape

from weft.lab.experiment.drawing import Area, Dot, Drawing, DrawingGroup, Mark, Rect, Stroke, Text
from weft.lab.experiment.style import FONT_STACK, PAPER, Paint


def to_svg(drawing: Drawing) -> str:
    """The figure as one `<svg>` element that stands alone and can be put into a page."""
    width, height = _number(drawing.width), _number(drawing.height)
    name = escape(drawing.name)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f'aria-labelledby="{name}-title {name}-description" '
        f'font-family="{escape(FONT_STACK)}">',
        f'<title id="{name}-title">{_text(drawing.title)}</title>',
        f'<desc id="{name}-description">{_text(drawing.description)}</desc>',
        _mark(Rect(0, 0, drawing.width, drawing.height, PAPER, radius=6)),
    ]
    for item in drawing.marks:
        if isinstance(item, DrawingGroup):
            lines.append(f'<g class="{escape(item.kind)}" data-name="{_text(item.name)}">')
            lines += [_mark(mark) for mark in item.marks]
            lines.append("</g>")
        else:
            lines.append(_mark(item))
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _mark(mark: Mark) -> str:
    match mark:
        case Rect():
            radius = f' rx="{_number(mark.radius)}"' if mark.radius else ""
            box = (
                f'<rect x="{_number(mark.x)}" y="{_number(mark.y)}" '
                f'width="{_number(mark.width)}" height="{_number(mark.height)}"'
                f"{radius} {_fill(mark.fill)}"
            )
            return f"{box}><title>{_text(mark.hint)}</title></rect>" if mark.hint else f"{box}/>"
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
        case Text():
            return _letters(mark)


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
