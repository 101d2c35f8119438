"""Draws figures with matplotlib, in two widths: for wide screens and files, and for phones.

A chart is plain data; `to_svg`, `to_png` and `to_pdf` draw it. Equal charts give equal bytes on
every machine: text is laid out in the font that comes with matplotlib, and readers' own fonts
replace it. The parts of a drawing that show a policy are SVG groups with its name, which a page
shows under the pointer. matplotlib takes a second to import, so it is imported only when something
is drawn."""

import io
import re
import textwrap
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from weft.lab.experiment.pages.looks import (
    AXIS,
    HEAT,
    INK,
    ON_HEAT,
    ON_REASONS,
    REASONS,
    SOFT,
    Look,
    Paint,
    shorten,
)
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FONTS = "'Helvetica Neue',Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
_FONT = " font-family: 'DejaVu Sans';"
_STYLE = Path(__file__).with_name("figures.mplstyle")
_PER_INCH = 72
"""Pixels per inch, so that points are pixels."""
_KEY, _KEY_ROW = 240, 18
"""Size of a legend of lines in pixels: its width, and the height of a row."""


_SVG = re.compile(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')


class Size(NamedTuple):
    """The width of a figure in pixels; `name` is its CSS class on a page."""

    name: str
    width: int

    @property
    def narrow(self) -> bool:
        """True if the figure is for phones."""
        return self.width < 600

    def lines(self, text: str, pixels: float) -> list[str]:
        """Wrap a text, set in letters of this many pixels, into lines of the figure's width."""
        return textwrap.wrap(text, int(self.width / (0.6 * pixels)))


WIDE, NARROW = SIZES = (Size("wide", 860), Size("narrow", 360))


class Room(NamedTuple):
    """The panels of a figure, and the pixels around and between them."""

    left: float = 14
    right: float = 14
    above: float = 10
    below: float = 10
    rows: int = 1
    columns: int = 1
    under: float = 0
    between: float = 0
    shared: bool = False


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A figure: `name` is its file's stem, `under` its subtitle, `says` its content in words."""

    name: str
    title: str
    under: str = ""
    says: str = ""

    @abstractmethod
    def draw(self, size: Size) -> "Figure":
        """Draw the chart; call it within `drawing`."""

    def frame(self, size: Size, height: float, room: "Room") -> "tuple[Figure, list[Axes]]":
        """Return a figure with title, subtitle and panels, `height` pixels below the titles."""
        from matplotlib.figure import Figure

        titles, unders = size.lines(self.title, 17), size.lines(self.under, 12)
        above = 12 + 21 * len(titles) + 17 * len(unders)
        total = above + height
        figure = Figure((size.width / _PER_INCH, total / _PER_INCH))
        y = 8
        for line in titles:
            y += 20
            figure.text(14 / size.width, 1 - y / total, line, size=16, weight="bold")
        for line in unders:
            y += 17
            figure.text(14 / size.width, 1 - y / total, line, color=SOFT.light)
        wide = (
            size.width - room.left - room.right - room.between * (room.columns - 1)
        ) / room.columns
        tall = (height - room.above - room.below - room.under * (room.rows - 1)) / room.rows
        panels = figure.subplots(
            room.rows,
            room.columns,
            squeeze=False,
            sharex=room.shared,
            sharey=room.shared,
            gridspec_kw={
                "left": room.left / size.width,
                "right": 1 - room.right / size.width,
                "bottom": room.below / total,
                "top": (height - room.above) / total,
                "wspace": room.between / wide,
                "hspace": room.under / tall,
            },
        )
        return figure, list(panels.flat)


class EmptyChart(Chart, frozen=True, kw_only=True):
    """A figure without data, whose subtitle gives the reason."""

    def draw(self, size: Size) -> "Figure":
        """Draw the title and the reason."""
        figure, (axes,) = self.frame(size, 40, Room())
        axes.set_axis_off()
        return figure


class Line(msgspec.Struct, frozen=True):
    """A policy's curve: mean over seeds at each `x`, in a band from `low` to `high`.

    `end` is the value printed next to its name, the same as in the tables."""

    name: str
    look: Look
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    end: float

    def plot(self, axes: "Axes", width: float = 2.0, points: int = 9) -> "Line2D":
        """Draw the line with about `points` markers, and the band if seeds differ."""
        colour = self.look.paint.light
        if self.low != self.high:
            band = axes.fill_between(self.x, self.low, self.high, color=colour, alpha=0.1, lw=0)
            band.set_gid(f"band|{clean(self.name)}")
            for edge in (self.low, self.high):  # visible where bands overlap
                axes.plot(self.x, edge, color=colour, alpha=0.45, lw=0.7)
        every = max(1, len(self.x) // points) if points else None
        (line,) = axes.plot(
            self.x,
            self.mean,
            marker=self.look.marker if points else "",
            color=colour,
            lw=width,
            ls=(0, self.look.dash) if self.look.dash else "-",
            markevery=every,
            gid=f"series|{clean(self.name)}: {self.end:,.2f}",
        )
        return line


class LineChart(Chart, frozen=True, kw_only=True):
    """Lines of policies, the best first, together or (`apart`) in one panel each.

    `corner` has the ends of a close-up, the same on both axes; `possible` is the value that the
    best policy could have reached; `shows_demand` draws allocation = demand, and `shows_full`
    demand = capacity."""

    lines: Sequence[Line]
    x_title: str
    y_title: str
    start: float = 0.0
    corner: tuple[float, float] | None = None
    possible: float | None = None
    shows_full: bool = False
    shows_demand: bool = False
    apart: bool = False
    from_zero: bool = True
    """False if differences are too small to see on an axis from 0: then the axis has the values'
    range."""

    def draw(self, size: Size) -> "Figure":
        """Draw all lines in one panel, and in a second one as a close-up; or one panel per line."""
        if self.apart:
            return self._draw_apart(size)
        panels = 1 if self.corner is None else 2
        if size.narrow:
            guides = self.shows_demand + self.shows_full + (self.possible is not None)
            below = 52 + _KEY_ROW * (len(self.lines) + guides)
            room = Room(self._beside_ticks(20), 16, below=below, rows=panels, under=52)
            figure, (whole, *closer) = self.frame(size, 200 * panels + below, room)
        else:
            left = self._beside_ticks(42)
            room = Room(left, _KEY + 24, below=52, columns=panels, between=left - 16)
            figure, (whole, *closer) = self.frame(size, 330, room)
            whole.set_ylabel(self.y_title)
        for axes in (whole, *closer):
            for line in reversed(self.lines):
                if closer and axes is whole:
                    line.plot(axes, 1.4, points=0)
                else:
                    line.plot(axes, 2.8 if line is self.lines[0] else 2.0)
            self._bound(axes, close=axes is not whole)
            axes.set_xlabel(self.x_title)
        self._key(
            figure, size, [*self._guides(whole), *(g for a in closer for g in self._guides(a))]
        )
        return figure

    def _beside_ticks(self, more: float) -> float:
        """Return the width in pixels of the numbers next to the y axis, plus `more`."""
        top = max(max(line.high) for line in self.lines)
        return more + 7.2 * max(3, len(number(round(top, 2))))

    def _bound(self, axes: "Axes", *, close: bool) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        for axis, most in ((axes.xaxis, 3 if self.apart else 5), (axes.yaxis, 6)):
            axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        last = max(line.x[-1] for line in self.lines)
        axes.set_xlim(self.start, last or 1.0)
        if self.from_zero:
            axes.set_ylim(bottom=0)
        if close and self.corner is not None:
            axes.set_xlim(self.corner[0], min(line.x[-1] for line in self.lines))
            axes.set_ylim(*self.corner)

    def _guides(self, axes: "Axes") -> "Iterator[Artist]":
        """Draw guide lines, and return them for the legend."""
        grey: dict[str, Any] = {"color": AXIS.light, "lw": 1.2, "scalex": False, "scaley": False}
        (low, high), top = axes.get_xlim(), axes.get_ylim()[1]
        if self.shows_demand:
            upto = min(100.0, high, top)
            yield from axes.plot((0, upto), (0, upto), ls=":", label="allocation = demand", **grey)
        if self.shows_full and low < 100 < high:
            ends = axes.get_ylim()
            yield from axes.plot((100, 100), ends, ls="-.", label="demand = capacity", **grey)
        if self.possible is not None:
            name = f"possible: {self.possible:.2f}"
            level = (self.possible, self.possible)
            yield from axes.plot((low, high), level, ls=(0, (6, 3)), label=name, **grey)

    def _key(self, figure: "Figure", size: Size, guides: "Sequence[Artist]") -> None:
        """Draw the legend: values and names from the best policy on, then the guide lines."""
        from matplotlib.lines import Line2D

        values = [f"{line.end:,.2f}" for line in self.lines]
        longest = max(map(len, values))
        handles: list[Artist] = [
            Line2D(
                [],
                [],
                color=line.look.paint.light,
                marker=line.look.marker,
                ls=(0, line.look.dash) if line.look.dash else "-",
                label=clean(f"{value:\u2007>{longest}}  {shorten(line.name, 28)}"),
            )
            for line, value in zip(self.lines, values, strict=True)
        ]
        handles += {guide.get_label(): guide for guide in guides}.values()
        at = (8 / size.width, 0.0) if size.narrow else (1 - (_KEY + 12) / size.width, 0.45)
        key = figure.legend(
            handles=handles, loc="lower left" if size.narrow else "center left", bbox_to_anchor=at
        )
        texts = key.get_texts()
        texts[0].set_fontweight("bold")
        for line, text in zip(self.lines, texts, strict=False):
            text.set_gid(f"label|{clean(line.name)}")

    def _draw_apart(self, size: Size) -> "Figure":
        """Draw each line in its own panel, in front of the best line and a band with the range
        of all lines."""
        columns = 2 if size.narrow else 4
        rows = -(-len(self.lines) // columns)
        room = Room(44, 16, 36, 26, rows, columns, under=64, between=44, shared=True)
        figure, panels = self.frame(size, 164 * rows, room)
        x = np.linspace(self.start, max(line.x[-1] for line in self.lines), 60)
        all_y = np.array([np.interp(x, line.x, line.mean) for line in self.lines])
        for axes in panels:
            axes.set_axis_off()
        for line, axes in zip(self.lines, panels, strict=False):
            axes.set_axis_on()
            axes.fill_between(x, all_y.min(axis=0), all_y.max(axis=0), color=AXIS.light, alpha=0.3)
            axes.plot(x, all_y[0], color=SOFT.light, lw=1.2)
            line.plot(axes, 2.4, points=5)
            self._bound(axes, close=True)
            axes.tick_params(labelbottom=True, labelleft=True)
            axes.set_title(clean(f"{shorten(line.name, 20)}\n{line.end:,.2f}"), fontsize=11)
            axes.title.set_gid(f"label|{clean(line.name)}")
        return figure


class HeatMap(Chart, frozen=True, kw_only=True):
    """A table of percentages, coloured from `low` to 100, with a row per policy; None is shown as a
    dash."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    low: float

    def draw(self, size: Size) -> "Figure":
        """Draw a box and a number for each value; narrow figures have names above their rows."""
        from matplotlib.patches import Rectangle

        step = 52 if size.narrow else 34
        above = 84.0 if size.narrow else 44.0
        room = Room(14 if size.narrow else _beside(self.rows), above=above)
        figure, (axes,) = self.frame(size, step * len(self.rows) + above + 10, room)
        tall = 0.62 if size.narrow else 0.92
        for y, (name, values) in enumerate(zip(self.rows, self.values, strict=True)):
            weight = "bold" if y == 0 else "normal"
            if size.narrow:
                axes.text(0, y - 0.08, clean(shorten(name, 44)), weight=weight)
            for x, value in enumerate(values):
                shade = self._shade(value)
                text = "–" if value is None else f"{value:.1f}"
                ink = SOFT if value is None else ON_HEAT[shade]
                size_px = 10 if size.narrow else 12.5
                where = (
                    f"cell|{clean(name)}, {clean(self.columns[x].partition(chr(10))[0])}: {text}"
                )
                axes.text(
                    x + 0.48,
                    y + tall / 2,
                    text,
                    color=ink.light,
                    fontsize=size_px,
                    ha="center",
                    va="center",
                    gid=where,
                )
                if value is not None:
                    colour = HEAT[shade].light
                    axes.add_patch(Rectangle((x, y), 0.96, tall, color=colour, lw=0))
        axes.set(xlim=(0, len(self.columns)), ylim=(len(self.rows), -0.35 if size.narrow else 0))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=11 if size.narrow else 12)
        turned = 90 if size.narrow else 0
        heads = [clean(each.partition("\n")[0] if size.narrow else each) for each in self.columns]
        axes.set_xticks(np.arange(len(heads)) + 0.48, heads, rotation=turned)
        names = [] if size.narrow else [clean(shorten(name)) for name in self.rows]
        axes.set_yticks(np.arange(len(names)) + 0.46, names)
        axes.yaxis.set_tick_params(labelcolor=INK.light)
        return figure

    def _shade(self, value: float | None) -> int:
        share = ((value or 0.0) - self.low) / (100 - self.low)
        return round((len(HEAT) - 1) * min(1.0, max(0.0, share)))


class BarPart(NamedTuple):
    """A segment of every bar: its length and colour in each bar, and its text in the legend."""

    lengths: Sequence[float]
    paints: Sequence[Paint]
    text: str = ""


class BarChart(Chart, frozen=True, kw_only=True):
    """Bars from 0, each made of `parts`; `ends` are the texts at their ends, `halves` the
    half-widths of their intervals."""

    rows: Sequence[str]
    parts: Sequence[BarPart]
    ends: Sequence[str]
    halves: Sequence[float] = ()

    def draw(self, size: Size) -> "Figure":
        """Draw the bars; narrow figures have names above them."""
        from matplotlib.patches import Patch

        named = [part for part in self.parts if part.text]
        step = 48 if size.narrow else 34
        above = 8.0 + 21 * len(named)
        room = Room(14 if size.narrow else _beside(self.rows), above=above)
        height = step * len(self.rows) + above + 10
        figure, (axes,) = self.frame(size, height, room)
        totals = sum((np.array(part.lengths) for part in self.parts), np.zeros(len(self.rows)))
        reach = totals + (np.array(self.halves) if self.halves else 0)
        most = float(max(reach, default=0.0)) or 1.0
        self._segments(axes, tall=0.45 if size.narrow else 0.7, least=most * 34 / size.width)
        if self.halves:
            places = range(len(self.rows))
            colour = INK.light
            axes.errorbar(totals, places, xerr=self.halves, fmt="none", ecolor=colour, capsize=4)
        for y, (name, text) in enumerate(zip(self.rows, self.ends, strict=True)):
            weight = "bold" if y == 0 else "normal"
            axes.text(reach[y] + most * 0.01, y, text, va="center", weight=weight)
            axes.texts[-1].set_gid(f"policy|{clean(name)}: {text}")
            if size.narrow:
                axes.text(0, y - 0.3, clean(shorten(name, 44)), weight=weight, va="bottom")
        axes.set(xlim=(0, most * 1.14), ylim=(len(self.rows) - 0.5, -0.75 if size.narrow else -0.5))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xticks([])
        names = [] if size.narrow else [clean(shorten(name)) for name in self.rows]
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(labelcolor=INK.light, labelsize=12.5)
        if named:
            limit = 44 if size.narrow else 90
            keys = [
                Patch(color=part.paints[0].light, label=clean(shorten(part.text, limit)))
                for part in named
            ]
            figure.legend(
                handles=keys,
                loc="upper left",
                bbox_to_anchor=(8 / size.width, height / _PER_INCH / figure.get_figheight()),
                handlelength=1,
            )
        return figure

    def _segments(self, axes: "Axes", *, tall: float, least: float) -> None:
        """Draw the segments, with a number in those that are at least `least` long."""
        starts = np.cumsum([np.zeros(len(self.rows)), *(p.lengths for p in self.parts)], axis=0)
        for part, left in zip(self.parts, starts, strict=False):
            places = range(len(self.rows))
            colours = [paint.light for paint in part.paints]
            axes.barh(places, part.lengths, tall, left, color=colours)
            for y, length in enumerate(part.lengths) if part.text else ():
                if length >= least:
                    ink = ON_REASONS[REASONS.index(part.paints[y])].light
                    middle, text = left[y] + length / 2, count(length)
                    axes.text(middle, y, text, color=ink, fontsize=11, ha="center", va="center")


class TextPage(Chart, frozen=True, kw_only=True):
    """A page of a PDF: rows of text in columns that begin at the pixels `columns`."""

    rows: Sequence[Sequence[str]]
    columns: Sequence[float]

    def draw(self, size: Size) -> "Figure":
        """Draw the rows, each text shortened to its column."""
        height = 18.0 * len(self.rows) + 20
        figure, (axes,) = self.frame(size, height, Room(0, 0, 0, 0))
        axes.set_axis_off()
        axes.set(xlim=(0, size.width), ylim=(height, 0))
        ends = [*self.columns[1:], size.width]
        for at, row in enumerate(self.rows):
            for text, x, end in zip(row, self.columns, ends, strict=False):
                axes.text(x, 18 * (at + 1), clean(shorten(text, int((end - x) / 7.2))))
        return figure


def _beside(names: Sequence[str]) -> float:
    """Return the width in pixels of the names left of the rows."""
    return 24 + 7.6 * max(len(shorten(name)) for name in names)


def count(value: float) -> str:
    """Format a mean count: whole, unless it is below 10 and not a whole number."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def number(value: float) -> str:
    """Format a number of an axis, with thousands separators and without trailing zeros."""
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"


def clean(text: str) -> str:
    """Replace control characters, which XML does not allow."""
    return "".join(c if c >= " " or c == "\n" else "�" for c in text)


@contextmanager
def drawing(salt: str = "") -> Iterator[None]:
    """Set matplotlib up for our figures; figures on one page need different `salt`, for unique ids.

    `BadInputError` if matplotlib is not installed, as in Weft's image."""
    try:
        import matplotlib as mpl
        import matplotlib.style
    except ImportError:
        problem = "need matplotlib, which is not installed (Weft's image has none); pip install it"
        raise BadInputError("figures", problem) from None

    with mpl.style.context(_STYLE), mpl.rc_context({"svg.hashsalt": salt or "weft"}):
        yield


def to_svg(chart: Chart, size: Size = WIDE) -> str:
    """Return the figure as one `<svg>` element, for a file or a page.

    Its class is the size's name, and its ids are unique within a page."""
    out, name = io.StringIO(), chart.name if size is WIDE else f"{chart.name}-{size.name}"
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with drawing(name):
        chart.draw(size).savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"| transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"(\.\d\d)\d+", r"\1", text).replace(_FONT, "").replace(" \nL ", "L")
    text = re.sub(
        r'<g id="(\w+)\|([^"]*)">', r'<g class="\1" data-name="\2"><title>\2</title>', text
    )
    _, width, height, rest = _SVG.split(text, maxsplit=1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'class="{size.name}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="{name}-title {name}-description" stroke-linejoin="round" '
        f'font-family="{FONTS}">\n'
        f'<title id="{name}-title">{escape(clean(chart.title))}</title>\n'
        f'<desc id="{name}-description">{escape(clean(chart.says))}</desc>'
        f"{rest}"
    )


def to_png(chart: Chart) -> bytes:
    """Return the wide figure as a PNG, with twice its width and height in pixels."""
    out = io.BytesIO()
    with drawing():
        figure = chart.draw(WIDE)
        figure.savefig(out, format="png", dpi=2 * _PER_INCH, metadata={"Software": None})
    return out.getvalue()


def to_pdf(charts: Sequence[Chart], title: str) -> bytes:
    """Return a PDF with a page for each chart."""
    out = io.BytesIO()
    about = {"Title": title, "Creator": "weft", "Producer": None, "CreationDate": None}
    with drawing():
        from matplotlib.backends.backend_pdf import PdfPages

        with PdfPages(out, metadata=about) as pages:
            for chart in charts:
                pages.savefig(chart.draw(WIDE))
    return out.getvalue()
