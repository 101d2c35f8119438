"""Writes drawings as one PDF, a page each, with matplotlib from the optional extra."""

import io
from collections.abc import Sequence

from weft.lab.experiment.comparison import (
    ExperimentResults,
    MeasureSummary,
    level_text,
)
from weft.lab.experiment.drawing import Drawing, DrawingGroup, Mark, Text
from weft.lab.experiment.layouts import WIDE, heading
from weft.lab.experiment.measures import TITLES
from weft.lab.experiment.png import as_figure, check, drawing_settings
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.experiment.style import INK, fitted, wrapped
from weft.model.errors import install_extra

_LINE, _ROWS = 18.0, 40
"""Height of a line, and how many a page has."""


def to_pdf(drawings: Sequence[Drawing], title: str) -> bytes:
    """The same drawings give the same bytes. `BadInputError` without matplotlib."""
    check("--pdf", install_extra("experiments"))
    from matplotlib.backends.backend_pdf import PdfPages

    out = io.BytesIO()
    about = {"Title": title, "Creator": "weft", "Producer": None, "CreationDate": None}
    with drawing_settings(), PdfPages(out, metadata=about) as pages:
        for drawing in drawings:
            pages.savefig(as_figure(drawing))
    return out.getvalue()


def text_pages(spec: ExperimentSpec, results: ExperimentResults) -> list[Drawing]:
    """Pages that say in words who wins where, and a table of every measure that judges: mean ± half
    of its 95 % interval, and the difference to the baseline, in brackets where chance may explain
    it."""
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
    """Rows of text in columns that begin at these pixels, on as many pages as it takes."""
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
