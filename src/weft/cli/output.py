"""Choices of output that several commands share, and how values and tables are printed."""

import csv
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


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


def table_with(headers: str) -> "Table":
    """An empty table, its headers separated by "|"; ">" before one justifies its column right."""
    from rich.table import Table

    table = Table(header_style="bold", box=None, pad_edge=False)
    for header in headers.split("|"):
        table.add_column(header.removeprefix(">"), justify="right" if header[0] == ">" else "left")
    return table


def print_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A header and its rows on standard output, None as an empty cell."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def print_table(table: "Table", width: int) -> None:
    """As wide as the terminal; elsewhere `width` columns."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=width)
    console.print(table)
