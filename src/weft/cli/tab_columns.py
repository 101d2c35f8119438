"""Aligns text in columns as Go's text/tabwriter does: byte for byte, with trailing blanks.

A cell ends with a tab; text after a line's last tab is in no column. A column is as wide as its
widest cell among consecutive lines that have the column, plus a gap.
"""

from collections.abc import Iterator, Sequence


def aligned(text: str, gap: int = 2) -> str:
    """Return the text with every tab replaced by blanks (`NewWriter(…, 0, 0, gap, ' ', 0)`)."""
    lines = [line.split("\t") for line in text.split("\n")]
    widths: list[list[int]] = [[0] * (len(line) - 1) for line in lines]
    for column in range(max(map(len, lines)) - 1):
        for first, behind in _blocks(lines, column):
            rows = range(first, behind)
            width = max(len(lines[row][column]) for row in rows) + gap
            for row in rows:
                widths[row][column] = width
    return "\n".join(
        "".join(map(str.ljust, line, width)) + line[-1]
        for line, width in zip(lines, widths, strict=True)
    )


def _blocks(lines: Sequence[Sequence[str]], column: int) -> Iterator[tuple[int, int]]:
    """Yield (first line, line after the last) for each run of consecutive lines with this
    column."""
    first = None
    for row, line in enumerate([*lines, ()]):
        if column < len(line) - 1:
            first = row if first is None else first
        elif first is not None:
            yield first, row
            first = None
