"""The HTML document of all reports, filled in by Jinja, which escapes all text, and writing a
report's files into a folder, all or none.

The style is one column of cards, light or dark as the reader's system is set. The script makes
tables sortable and shows nodes' hints for mouse and keyboard; without the script hints are titles.
The page's content security policy forbids loading anything, whatever names of policies or pods
contain."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from weft.files.writing import replacing, unwritten
from weft.lab.experiment.pages.figures import FONTS, SIZES, Chart, to_png, to_svg
from weft.lab.experiment.pages.looks import HEAT, Look, dark_rules
from weft.model.errors import BadInputError

PAGE = "report.html"
MANY_COLUMNS = 7
"""Maximum number of columns that a table keeps on screens below 1,000 pixels: with more, each
row becomes a card there; with fewer, only on phones."""


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("weft.lab.experiment.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def part(kind: str, *values: object, **named: object) -> Markup:
    """Fill in the macro `kind` of `parts.html` with these values, and return it as HTML."""
    module: Any = _templates().get_template("parts.html").module
    filled: Markup = getattr(module, kind)(*values, **named)
    return filled


def section(*parts: str, title: str = "", label: str = "", name: str = "") -> Markup:
    """Return a card; `label` names it for screen readers, `name` for links."""
    return part("section", title, [each for each in parts if each], label, name)


def folded(title: str, *parts: str, is_open: bool = False) -> Markup:
    """Return a card that opens when its title is clicked."""
    return part("folded", title, parts, is_open)


def document(title: str, parts: Sequence[str]) -> str:
    """Return a page with this title and these parts, with the style and script of all reports."""
    templates = _templates()
    assert templates.loader is not None
    script = templates.loader.get_source(templates, "script.js")[0]
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template("page.html").render(
        title=title,
        parts=[each for each in parts if each],
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        fonts=Markup(FONTS),
        heat=HEAT,
        dark_rules=Markup(dark_rules()),
    )


class TableRow(NamedTuple):
    """A row of a table; `first` marks the winning policy, `bold` the best cells."""

    name: str
    cells: Sequence[str]
    look: Look | None = None
    bold: Sequence[bool] = ()
    first: bool = False


class Table(msgspec.Struct, frozen=True):
    """A table; `better` says for each column whether higher or lower is better.

    With more than `most` columns, each row becomes a card of titles and values on screens that are
    not wide."""

    label: str
    titles: Sequence[str]
    rows: Sequence[TableRow]
    better: Sequence[str] = ()
    most: int = MANY_COLUMNS

    @property
    def heads(self) -> list[tuple[str, str]]:
        """Each column's title, and whether higher or lower is better ("" for neither)."""
        missing = [""] * (len(self.titles) - len(self.better))
        return list(zip(self.titles, [*self.better, *missing], strict=True))

    def html(self) -> Markup:
        """Return the table as a part of a page."""
        rows = [
            row._replace(bold=[*row.bold, *[False] * (len(row.cells) - len(row.bold))])
            for row in self.rows
        ]
        return part("table", msgspec.structs.replace(self, rows=rows))


def with_interval(text: str) -> str:
    """Return a text of a mean and its interval as HTML, with the interval in small print."""
    mean, _, interval = text.partition(" ")
    return Markup('{} <span class="ci">{}</span>').format(mean, interval) if interval else text


def with_code(text: str) -> Markup:
    """Format text in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escape(text)))


def figure(drawn: Sequence[str], name: str, caption: str = "") -> Markup:
    """Return SVG drawings of different widths as a figure; the page shows the one that fits."""
    return part("figure", name, [Markup(svg) for svg in drawn], caption)


class Report:
    """A report being built: its charts, drawn in all sizes for the page and for files."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.charts: list[Chart] = []
        self.files: dict[str, bytes] = {}

    def figure(self, chart: Chart, caption: str = "") -> Markup:
        """Add a chart to the report's files, and return it as a part of the page."""
        drawn = [to_svg(chart, size) for size in SIZES]
        self.charts.append(chart)
        self.files[f"{chart.name}.svg"] = drawn[0].encode()
        return figure(drawn, chart.name, caption)

    def write(
        self,
        folder: Path,
        parts: Sequence[str],
        stale: Iterable[str],
        *,
        png: bool = False,
        others: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Path:
        """Write the charts (with `png` also as PNG), `others`, and last the page; return its path.

        Files of an older report that are named in `stale` are deleted."""
        if png:
            self.files |= {f"{chart.name}.png": to_png(chart) for chart in self.charts}
        page = document(self.title, parts).encode()
        write_files(folder, {**self.files, **others, PAGE: page}, stale)
        return folder / PAGE


def write_files(directory: Path, files: dict[str, bytes], stale: Iterable[str]) -> None:
    """Write these files into the folder, all or none; the last entry is renamed into place last.

    Files named in `stale` that are not written are deleted, since figures of an older report would
    show other numbers."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory, files)
        for name in stale:
            if name not in files:
                (directory / name).unlink(missing_ok=True)
    except FileExistsError:
        raise BadInputError(str(directory), "is a file; name a folder for the report") from None
    except OSError as error:
        raise unwritten(directory, error) from None


def _replace(directory: Path, files: dict[str, bytes]) -> None:
    """Write all files under temporary names, then rename them; nothing is left over on failure."""
    with ExitStack() as ready:
        for name, content in reversed(files.items()):  # the first is renamed first
            file = ready.enter_context(replacing(directory / name))
            file.write(content)
            file.flush()
