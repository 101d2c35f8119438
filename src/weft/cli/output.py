"""Choices of output that several commands share, and how values and tables are printed."""

import csv
import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.cli.text_table import TextTable


class ListOutput(StrEnum):
    """A list for people or for programs."""

    table = "table"
    json = "json"


class SimulateOutput(StrEnum):
    """The form of the results."""

    table = "table"
    json = "json"
    csv = "csv"


def json_text(value: object, indent: int = 1) -> str:
    """Any value of ours as JSON that a person can read too, without a last newline."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()


def table_with(headers: str) -> "TextTable":
    """An empty table, its headers separated by "|"; ">" before one: its column holds numbers."""
    from weft.cli.text_table import TableColumn, TextTable

    return TextTable(
        [
            TableColumn(header.removeprefix(">"), header.startswith(">"))
            for header in headers.split("|")
        ]
    )


def print_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A header and its rows on standard output, None as an empty cell."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def print_warning(text: str) -> None:
    """A warning on stderr, where it is in no output's way."""
    print(f"weft: warning: {text}", file=sys.stderr)


def print_remark(text: str) -> None:
    """Something worth knowing on stderr, where it is in no output's way."""
    print(f"weft: note: {text}", file=sys.stderr)


def print_note(text: str) -> None:
    """A sentence below a table, wrapped between words as the table is."""
    note = table_with("")
    note.add_row(text)
    print_table(note)


def print_table(table: "TextTable") -> None:
    """Within the terminal, or within COLUMNS; elsewhere a line a row, however long."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    narrow = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    for line, header in table.lines(console.width if narrow else None):
        console.print(line, style="bold" if header else None)


def duration_text(seconds: float) -> str:
    """Seconds as people say it: 80 s, 12 min, 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
