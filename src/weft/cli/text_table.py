"""Tables that fit the terminal: nothing is truncated, and no name or number is broken.

A table that is too wide first wraps its headers, then its texts between words. If it is still too
wide, first cells shared by many rows become headings, or the table is split into parts, each with
the columns that identify its rows, or it is printed row by row."""

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_GAP = 2
_MOST_FOR_KEYS = 0.6
"""Largest part of the width for a row's first columns, if they are repeated in each part of a
table."""


class TableColumn(NamedTuple):
    """A column's header; `right` for a column of numbers, which are right-aligned and never
    wrapped."""

    header: str
    right: bool = False


class TextTable:
    """Columns and rows of text."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self.columns = list(columns)
        self.rows: list[list[str]] = []

    def add_row(self, *cells: str) -> None:
        """Add a row with a cell for each column."""
        self.rows.append([shown(cell) for cell in cells])

    def lines(self, width: int | None) -> Iterator[tuple[str, bool]]:
        """Yield (line, whether it is a header) within this width; None: no limit."""
        widths = self._widths(width)
        if widths is not None:
            yield from self._drawn(widths)
            return
        assert width is not None
        parts = self._parts(width)
        if self._repeats() and (not parts or self._with(self._rest)._widths(width) is not None):
            yield from self._grouped(width)
        elif parts:
            for i, part in enumerate(parts):
                if i:
                    yield "", False
                yield from part.lines(width)
        else:
            yield from self._row_by_row(width)

    def _widths(self, width: int | None) -> list[int] | None:
        """Return each column's width; None if the table cannot be made that narrow."""
        natural = [max(map(_cells, column)) for column in self._texts()]
        if width is None or _total(natural) <= width:
            return natural
        for wrap_texts in (False, True):
            least = [
                max(map(_cells, _unbreakable(column, text, wrap_texts)))
                for column, text in zip(self.columns, self._texts(), strict=True)
            ]
            if _total(least) <= width:
                return _grown(least, natural, width)
        return None

    def _texts(self) -> list[list[str]]:
        """Return the header and cells of each column."""
        return [
            [column.header, *(row[i] for row in self.rows)] for i, column in enumerate(self.columns)
        ]

    def _drawn(self, widths: Sequence[int]) -> Iterator[tuple[str, bool]]:
        if any(column.header for column in self.columns):
            headers = [column.header for column in self.columns]
            yield from ((line, True) for line in self._row(headers, widths, low=True))
        for row in self.rows:
            yield from ((line, False) for line in self._row(row, widths))

    def _row(self, cells: Sequence[str], widths: Sequence[int], low: bool = False) -> Iterator[str]:
        """Yield the lines of a row, as many as its longest cell needs; cells are aligned at the
        bottom if `low`."""
        wrapped = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, wrapped))
        for lines in wrapped:
            missing = [""] * (height - len(lines))
            lines[:] = [*missing, *lines] if low else [*lines, *missing]
        for texts in zip(*wrapped, strict=True):
            yield (" " * _GAP).join(map(_padded, texts, widths, self.columns)).rstrip()

    @property
    def _rest(self) -> range:
        return range(1, len(self.columns))

    def _repeats(self) -> bool:
        """Return True if few distinct first cells are shared by many rows, so that each can be a
        heading."""
        first = {row[0] for row in self.rows if row[0]}
        return (
            len(self.columns) > 2 and not self.columns[0].right and len(first) * 2 <= len(self.rows)
        )

    def _grouped(self, width: int) -> Iterator[tuple[str, bool]]:
        """Yield the table with shared first cells as headings; a row whose first cell is empty
        belongs to the previous heading."""
        begins: list[str] = []
        for row in self.rows:
            begins.append(row[0] or (begins[-1] if begins else ""))
        numbered = zip(begins, self.rows, strict=True)
        for i, (first, rows) in enumerate(itertools.groupby(numbered, lambda pair: pair[0])):
            if i:
                yield "", False
            heading = f"{self.columns[0].header} {first}".strip()
            yield from ((line, True) for line in _wrapped(heading, width))
            group = TextTable(self.columns)
            group.rows = [row for _, row in rows]
            yield from group._with(self._rest).lines(width)

    def _parts(self, width: int) -> "list[TextTable]":
        """Split the columns into several tables, each with the first columns; empty if these are
        too wide."""
        keys = next((i for i, column in enumerate(self.columns) if column.right), 0)
        least = [
            max(map(_cells, _unbreakable(column, texts, wrap_texts=True)))
            for column, texts in zip(self.columns, self._texts(), strict=True)
        ]
        widest = max(least[keys:])
        if not keys or _total(least[:keys]) > width * _MOST_FOR_KEYS:
            return []
        if _total([*least[:keys], widest]) > width:
            return []
        chunks: list[list[int]] = []
        for i in range(keys, len(self.columns)):
            together = [*range(keys), *(chunks[-1] if chunks else []), i]
            if not chunks or _total([least[j] for j in together]) > width:
                chunks.append([])
            chunks[-1].append(i)
        return [self._with([*range(keys), *chunk]) for chunk in chunks]

    def _with(self, chosen: Sequence[int]) -> "TextTable":
        part = TextTable([self.columns[i] for i in chosen])
        part.rows = [[row[i] for i in chosen] for row in self.rows]
        return part

    def _row_by_row(self, width: int) -> Iterator[tuple[str, bool]]:
        """Yield each row as its first cell, and below it a line of header and value per column."""
        headers = [_cells(column.header) for column in self.columns[1:]]
        indent = max(headers, default=0) + 2 * _GAP
        for row in self.rows:
            heading = f"{self.columns[0].header} {row[0]}".strip() if row[0] else ""
            yield from ((line, True) for line in _wrapped(heading, width))
            for column, cell in zip(self.columns[1:], row[1:], strict=True):
                head = " " * _GAP + column.header
                first, *more = _wrapped(cell, width - indent)
                yield f"{head:<{indent}}{first}".rstrip(), False
                yield from ((" " * indent + line, False) for line in more)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _grown(least: Sequence[int], natural: Sequence[int], width: int) -> list[int]:
    """Distribute the remaining width, always to the column that lacks most of its natural width."""
    widths = list(least)
    for _ in range(width - _total(widths)):
        lacks = [wanted - has for wanted, has in zip(natural, widths, strict=True)]
        widths[lacks.index(max(lacks))] += max(lacks) > 0
    return widths


def _unbreakable(column: TableColumn, texts: Sequence[str], wrap_texts: bool) -> Iterator[str]:
    """Yield the texts that must stay on one line: words of the header, numbers, words of texts."""
    header, *cells = texts
    yield from header.split() or [""]
    for cell in cells:
        yield from [cell] if column.right or not wrap_texts else cell.split() or [""]


def _wrapped(text: str, width: int) -> list[str]:
    """Break text into lines between words; a longer word stays whole."""
    if _cells(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)


def _padded(text: str, width: int, column: TableColumn) -> str:
    space = " " * (width - _cells(text))
    return space + text if column.right else text + space


def shown(text: str) -> str:
    """Escape characters that control a terminal or break the line."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cells(text: str) -> int:
    """Return the number of terminal columns that the text takes."""
    from rich.cells import cell_len

    return cell_len(text)
