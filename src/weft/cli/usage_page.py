"""The report of `weft usage` as one HTML page that loads no other files."""

from collections.abc import Sequence
from html import escape

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
:root{color-scheme:light dark}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.35rem .8rem .35rem 0;border-bottom:1px solid #8884}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}
meter{width:8rem}.wide{overflow-x:auto}caption{text-align:left;padding-bottom:.6rem}
"""


def usage_page(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    parts: Sequence[float],
    note: str,
) -> str:
    """Return the page: a table with a bar in each row, and a note. `parts` are the lengths of the
    bars: each row's part of the total, 0 to 1."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (*columns, "part of all"))
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}"
        f'<td><meter min="0" max="1" value="{part:.4f}">{100 * part:.1f} %</meter></td></tr>\n'
        for row, part in zip(rows, parts, strict=True)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f'<body><h1>{escape(title)}</h1><div class="wide"><table><caption>{escape(note)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table></div></body></html>\n"
    )
