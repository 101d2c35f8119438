"""The page of several reproductions: each question, with its results next to the expected ones."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from weft.lab.experiment.pages.document import document, write_files
from weft.lab.experiment.pages.experiment_page import assumed_table
from weft.lab.experiment.pages.tables import html_row, html_table
from weft.lab.experiment.statistics.reproduction import CheckResult, ExpectedResults, Reproduction

INDEX = "index.html"
COLUMNS = ("Check", "Result", "Criterion", "Published", "")


def write_index(
    folder: Path,
    reproductions: Sequence[Reproduction],
    figures: Mapping[str, str],
    *,
    short: bool,
) -> Path:
    """Write `index.html` and return its path; `figures` are SVG elements by reproduction."""
    what = "Short forms: fewer seeds or levels." if short else "In full."
    header = (
        "<header>\n<h1>Published experiments, reproduced</h1>\n"
        f'<p class="subtitle">{what}</p>\n</header>'
    )
    sections = [_section(folder, each, figures.get(each.name, "")) for each in reproductions]
    body = "\n".join([header, *sections])
    write_files(folder, {INDEX: document("Weft: experiments", body).encode()}, [])
    return folder / INDEX


def _section(folder: Path, reproduction: Reproduction, figure: str) -> str:
    expected = reproduction.expected
    parts = [f"<h2>{escape(expected.title)}</h2>"]
    parts += [f"<p>{escape(each.spec.question)}</p>" for each in reproduction.experiments[:1]]
    parts += [f'<p class="note">{escape(text)}</p>' for text in reproduction.absent]
    if figure:
        parts.append(f"<figure>\n{figure}\n</figure>")
    rows = [
        html_row(escape(each.check.name), COLUMNS, _cells(each)) for each in reproduction.checks
    ]
    parts.append(html_table(f"Checks of {reproduction.name}", COLUMNS, rows, most=3))
    parts += [f"<p>{escape(text)}</p>" for text in _reasons(expected, reproduction.checks)]
    parts += _rests_on(reproduction)
    links = [
        f'<a href="{escape(_relative(each.folder, folder))}/report/report.html">'
        f"{escape(each.spec.name)}</a>"
        for each in reproduction.experiments
        if each.results is not None
    ]
    if links:
        parts.append(f"<p>In full: {', '.join(links)}</p>")
    return f'<section id="{escape(reproduction.name)}">\n' + "\n".join(parts) + "\n</section>"


def _rests_on(reproduction: Reproduction) -> list[str]:
    """Return the headlines' assumptions in words, and the headlines under other assumptions."""
    parts = []
    if reproduction.expected.rests_on:
        parts.append(f"<p>It rests on: {escape(reproduction.expected.rests_on)}</p>")
    for headline, rows in reproduction.assumed():
        table = assumed_table([headline.name], [rows])
        if table:
            parts.append(table)
    return parts


def _cells(check: CheckResult) -> list[str]:
    value = "not run" if check.value is None else _number(check.value)
    low, high = check.check.criterion
    published = check.check.published
    published_text = (
        _number(published) if isinstance(published, float | int) else escape(published or "–")
    )
    return [value, f"{_number(low)} to {_number(high)}", published_text, escape(verdict(check))]


def verdict(check: CheckResult) -> str:
    """Say in few words how a result compares with the criterion and with what is expected."""
    if check.value is None:
        return "not run"
    if check.meets:
        return "met" if check.as_expected else "met, expected to be missed"
    missed = f"missed by {_number(check.misses_by)}"
    return f"{missed}, as expected" if check.as_expected else missed


def _reasons(expected: ExpectedResults, checks: Sequence[CheckResult]) -> list[str]:
    """Return the result in words, and why criteria are missed, each reason once."""
    missed = [each.check.why for each in checks if each.check.why and not each.meets]
    return list(dict.fromkeys(text for text in [expected.result, *missed] if text))


def _relative(folder: Path, root: Path) -> str:
    return folder.resolve().relative_to(root.resolve()).as_posix()


def _number(value: float) -> str:
    if abs(value) == float("inf"):
        return "∞" if value > 0 else "−∞"
    return f"{value:,.6g}".replace("-", "−")
