"""Output formats shared by several commands, and printing of values and tables."""

import csv
import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.cli.text_table import TextTable


class ListOutput(StrEnum):
    """Output formats of a list."""

    table = "table"
    json = "json"


class SimulateOutput(StrEnum):
    """Output formats of results."""

    table = "table"
    json = "json"
    csv = "csv"


def json_text(value: object, indent: int = 1) -> str:
    """Format a value as readable JSON, without a final newline."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()


def table_with(headers: str) -> "TextTable":
    """Create an empty table with headers separated by "|"; ">" before a header marks a column of
    numbers."""
    from weft.cli.text_table import TableColumn, TextTable

    return TextTable(
        [
            TableColumn(header.removeprefix(">"), header.startswith(">"))
            for header in headers.split("|")
        ]
    )


def print_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a CSV header and rows on standard output; None is an empty cell."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def print_warning(text: str) -> None:
    """Print a warning on stderr, to keep it out of the output."""
    print(f"weft: warning: {text}", file=sys.stderr)


def print_remark(text: str) -> None:
    """Print a note on stderr, to keep it out of the output."""
    print(f"weft: note: {text}", file=sys.stderr)


def print_note(text: str) -> None:
    """Print a sentence below a table, wrapped to the same width."""
    note = table_with("")
    note.add_row(text)
    print_table(note)


def print_table(table: "TextTable") -> None:
    """Print a table, fitted to the terminal or to COLUMNS; without either, one line per row."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    narrow = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    for line, header in table.lines(console.width if narrow else None):
        console.print(line, style="bold" if header else None)


def duration_text(seconds: float) -> str:
    """Format seconds for people: 80 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
