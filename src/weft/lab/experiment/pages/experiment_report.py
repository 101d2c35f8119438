"""The pages of experiments: who wins at which level, in words, figures and tables; and the page of
several reproductions, each with its results next to the expected ones."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from weft.lab.experiment.pages.charts import (
    MOST_TOGETHER,
    TRACE_FIGURES,
    measure_chart,
    trace_charts,
    trace_results,
)
from weft.lab.experiment.pages.document import (
    Report,
    Table,
    TableRow,
    document,
    folded,
    part,
    section,
    with_code,
    with_interval,
    write_files,
)
from weft.lab.experiment.pages.figures import WIDE, TextPage, to_pdf
from weft.lab.experiment.pages.looks import Look, looks
from weft.lab.experiment.pages.usage_charts import LevelRows, names_of_level
from weft.lab.experiment.run.store import CellRows, RunStore
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell, axes_of, plan
from weft.lab.experiment.spec.measures import TITLES, capital, measure_of
from weft.lab.experiment.statistics.comparison import (
    AXIS,
    AssumedRow,
    ExperimentResults,
    MeasureSummary,
    assumed_rows,
    level_text,
    model_of_time,
)
from weft.lab.experiment.statistics.differences import SeedMean
from weft.lab.experiment.statistics.reproduction import CheckResult, ExpectedResults, Reproduction

HEADLINES = ("jct_p99_s", "jct_mean_s", "energy_kj")
"""Measures that an experiment's page shows under each assumption."""
_BY_DEMAND = ("gpu_allocated_at_100_percent", "gpu_allocated_percent", "gpu_fragmentation_percent")
"""Measures whose figures are drawn against arrived demand for a trace."""
PDF = "report.pdf"
INDEX = "index.html"
MOST_COLUMNS = 4
"""Maximum number of columns that a table keeps on narrow screens; with more, each row becomes a
card."""
COLUMNS = ("Check", "Result", "Criterion", "Published", "")


def write_experiment_report(
    folder: Path,
    spec: ExperimentSpec,
    results: ExperimentResults,
    versions: str,
    store: RunStore | None = None,
    *,
    pdf: bool = False,
) -> Path:
    """Write `report.html` and its SVG figures into the folder, with `pdf` a PDF too; return the
    page's path.

    `store` has the cells' rows over time; without it the page has no figures over time."""
    look_of = looks(spec.schedulers)
    report = Report(f"Weft: {spec.name}")
    runs = None if store is None else trace_results(spec, store)
    measures = _measure_sections(spec, results, look_of, report, drawn=runs is not None)
    levels = [] if store is None else rows_of_levels(spec, results, store, look_of)
    over_time = [_over_time(level, number, report) for number, level in enumerate(levels)]
    on_trace = ""
    if runs is not None:
        drawn = [report.figure(chart) for chart in trace_charts(runs)]
        on_trace = section(*drawn, title="As pods arrive")
    parts = [
        part("header", spec.name, spec.question),
        _who_wins(results),
        _rests_on(spec, results),
        on_trace,
        *measures,
        *over_time,
        part("made", _made(spec, results, versions, store), _command(store, folder)),
    ]
    others = {}
    if pdf:
        others[PDF] = to_pdf([*text_pages(spec, results), *report.charts], report.title)
    names = [*TITLES, *TRACE_FIGURES]
    names += [name for number in range(3) for name in names_of_level(number)]
    return report.write(folder, parts, [PDF, *(f"{name}.svg" for name in names)], others=others)


def _measure_sections(
    spec: ExperimentSpec,
    results: ExperimentResults,
    look_of: Mapping[str, Look],
    report: Report,
    *,
    drawn: bool,
) -> list[str]:
    """Return a section per measure by which schedulers are compared.

    A measure equal to another in every run gets only a note. With `drawn`, measures that the
    page already draws against arrived demand get no figure here."""
    sections: list[str] = []
    for measure in (name for name in TITLES if _of(results, name)):
        title = capital(TITLES[measure])
        if other := results.same_as.get(measure):
            note = part("note", f"The same as {TITLES[other]}, in every run.")
            sections.append(section(note, title=title))
            continue
        chart = None if drawn and measure in _BY_DEMAND else measure_chart(spec, results, measure)
        figure = report.figure(chart) if chart else ""
        table = measure_table(spec, results, measure, look_of).html()
        sections.append(section(figure, table, title="" if chart else title, label=title))
    return sections


def rows_of_levels(
    spec: ExperimentSpec, results: ExperimentResults, store: RunStore, look_of: Mapping[str, Look]
) -> list[LevelRows]:
    """Return the reliable cells' rows at a few measured levels: the first, a middle one, the
    last; without levels at which over `MOST_TOGETHER` schedulers have rows."""
    measured = results.levels
    last = len(measured) - 1
    shown = [measured[number] for number in sorted({0, last // 2, last}) if last >= 0]
    levels = []
    for at in shown:
        rows: dict[str, list[CellRows]] = {}
        for cell in plan(spec):
            if {level.axis: level.text for level in cell.levels} == at and _counts(store, cell):
                rows.setdefault(cell.scheduler, []).append(store.rows(cell))
        if len(rows) <= MOST_TOGETHER:
            levels.append(LevelRows(level_text(spec, at), rows, look_of))
    return levels


def _counts(store: RunStore, cell: PlannedCell) -> bool:
    """Return True if the cell exists and has no marks that make its numbers unreliable."""
    record = store.record(cell)
    return record is not None and not record.marks


def _over_time(level: LevelRows, number: int, report: Report) -> str:
    drawn = [report.figure(chart) for chart in level.charts(number)]
    title = "Over time" + (f" at {level.text}" if level.text else "")
    return folded(title, *drawn, is_open=number == 0) if drawn else ""


def assumed_table(headings: Sequence[str], columns: Sequence[Sequence[AssumedRow]]) -> str:
    """Return a table with a row per assumption and a column per headline; "" if there are no
    rows."""
    if not columns or not columns[0]:
        return ""
    rows = [
        TableRow(same[0].assumption, [each.text for each in same])
        for same in zip(*columns, strict=True)
    ]
    return Table("Other assumptions", ["Assumption", *headings], rows, most=3).html()


def _rests_on(spec: ExperimentSpec, results: ExperimentResults) -> str:
    """Return a section with the assumptions on how jobs share a GPU, and the headlines under other
    assumptions."""
    model = model_of_time(spec)
    if not model:
        return ""
    tables = []
    others = [name for name in spec.schedulers if name != spec.reference]
    headings = [f"{name} against {spec.reference}" for name in others]
    for measure in HEADLINES:
        columns = [assumed_rows(spec, results, measure, name) for name in others]
        if table := assumed_table(headings, columns):
            tables += [part("heading", TITLES[measure].capitalize()), table]
    first = results.levels[0] if results.levels else {}
    at = level_text(spec, {axis: text for axis, text in first.items() if axis != AXIS})
    if tables and at:
        tables.insert(0, part("text", f"At {at}:"))
    if not tables:
        tables.append(
            part("text", with_code("To try others, list them in `assumptions` of the workload."))
        )
    return section(part("text", model), *tables, title="Assumptions")


def measure_table(
    spec: ExperimentSpec, results: ExperimentResults, measure: str, look_of: Mapping[str, Look]
) -> Table:
    """Return a table with a row per scheduler and a column per level.

    Cells have mean ± interval, and the difference to the baseline, in brackets if it may be
    chance."""
    rows_of = {(row.scheduler, *row.levels.values()): row for row in _of(results, measure)}
    levels = results.levels
    unit = measure_of(measure).unit
    titles = ["Scheduler"]
    titles += [f"{level_text(spec, at) or 'Mean'}{f', {unit}' if unit else ''}" for at in levels]
    decimals = _decimals(unit, [row.mean for row in rows_of.values()])
    rows = [
        TableRow(
            scheduler,
            [_cell(rows_of.get((scheduler, *at.values())), decimals) for at in levels],
            look_of[scheduler],
        )
        for scheduler in spec.schedulers
    ]
    better = "higher is better" if measure_of(measure).more_is_better else "lower is better"
    ends = ["", *[better] * len(levels)]
    return Table(TITLES[measure], titles, rows, ends, most=MOST_COLUMNS)


def _decimals(unit: str, means: Sequence[float]) -> int:
    """Return the number of decimals for all numbers of a table: about four digits of the
    largest."""
    largest = max(map(abs, means), default=0.0)
    digits = 1 + int(math.log10(largest)) if largest >= 1 else 1
    return 2 if unit == "%" else max(0, 4 - digits)


def _cell(row: MeasureSummary | None, decimals: int) -> str:
    if row is None:
        return "–"
    text = with_interval(SeedMean(row.mean, row.ci95, row.equal).text(decimals))
    if row.difference is None:
        return text
    return Markup("{}<br>{}").format(text, _bracketed(row.difference.short_text(), row))


def _who_wins(results: ExperimentResults) -> str:
    absent = [f"{len(results.missing)} of {results.planned} cells are missing."]
    notes = absent if results.missing else []
    for folder, marks in results.marked.items():
        notes.append(f"{folder} is left out of comparisons: {'; '.join(marks)}")
    against = (
        f"Differences are to {results.baseline}, on the same seeds. Listed are those whose 95 % "
        "paired interval excludes 0 and whose p-value after Holm's correction is below 5 %; in the "
        "tables, all other differences are in brackets, as they may be chance. Intervals are "
        "Student's, from five seeds on."
    )
    return section(
        *(part("note", note) for note in [*notes, *results.notes]),
        part("findings", results.in_words),
        part("note", against),
        title="Who wins where",
    )


def _command(store: RunStore | None, folder: Path) -> str:
    return "" if store is None else f"weft experiment report {store.folder} --page {folder}"


def _made(
    spec: ExperimentSpec, results: ExperimentResults, versions: str, store: RunStore | None
) -> dict[str, str]:
    first, workload = spec.seeds.first, spec.workload
    files = [getattr(workload, name, "") for name in ("nodes", "pods", "order")]
    named = ", ".join(file for file in files if isinstance(file, str) and file)
    return {
        **({"Runs": str(store.folder)} if store is not None else {}),
        "Workload": str(workload.__struct_config__.tag) + (f": {named}" if named else ""),
        "Schedulers": f"{', '.join(spec.schedulers)}; baseline {results.baseline}",
        **{capital(axis): ", ".join(texts) for axis, texts in axes_of(spec).items()},
        "Seeds": f"{first} to {first + spec.seeds.count - 1}",
        **({"Repeats": str(spec.repeats)} if spec.repeats > 1 else {}),
        "Cells": f"{results.cells:,} of {results.planned:,}",
        "Versions": versions,
    }


def _of(results: ExperimentResults, measure: str) -> list[MeasureSummary]:
    return [row for row in results.summary if row.measure == measure]


# --- reproductions --------------------------------------------------------------------------------


def page_figure(spec: ExperimentSpec, results: ExperimentResults, measure: str) -> str:
    """Return a measure's figure as HTML, in all sizes; "" if it cannot be drawn."""
    chart = measure_chart(spec, results, measure)
    return Report(spec.name).figure(chart) if chart else ""


def write_index(
    folder: Path,
    reproductions: Sequence[Reproduction],
    figures: Mapping[str, str],
    *,
    short: bool,
) -> Path:
    """Write `index.html` and return its path; `figures` are results of `page_figure`, by
    reproduction."""
    what = "Short forms: fewer seeds or levels." if short else "All seeds and levels."
    parts: list[str] = [part("header", "Published experiments, reproduced", what)]
    parts += [_section(folder, each, figures.get(each.name, "")) for each in reproductions]
    write_files(folder, {INDEX: document("Weft: experiments", parts).encode()}, [])
    return folder / INDEX


def _section(folder: Path, reproduction: Reproduction, figure: str) -> str:
    expected = reproduction.expected
    rows = [TableRow(each.check.name, _cells(each)) for each in reproduction.checks]
    links = [
        (each.spec.name, f"{_relative(each.folder, folder)}/report/report.html")
        for each in reproduction.experiments
        if each.results is not None
    ]
    return section(
        *(part("text", each.spec.question) for each in reproduction.experiments[:1]),
        *(part("note", text) for text in reproduction.absent),
        figure,
        Table(f"Checks of {reproduction.name}", COLUMNS, rows, most=3).html(),
        *(part("text", text) for text in _reasons(expected, reproduction.checks)),
        part("text", f"Assumptions: {expected.rests_on}") if expected.rests_on else "",
        *(assumed_table([headline.name], [rows]) for headline, rows in reproduction.assumed()),
        part("links", links) if links else "",
        title=expected.title,
        name=reproduction.name,
    )


def _cells(check: CheckResult) -> list[str]:
    value = "not run" if check.value is None else _number(check.value)
    low, high = check.check.criterion
    match check.check.published:
        case str() | None as text:
            published = text or "–"
        case number:
            published = _number(number)
    return [value, f"{_number(low)} to {_number(high)}", published, verdict(check)]


def verdict(check: CheckResult) -> str:
    """Say in few words how a result compares with the criterion and with the expected range."""
    if check.value is None:
        return "not run"
    if check.meets:
        return "met" if check.as_expected else "met, expected to be missed"
    missed = f"missed by {_number(check.misses_by)}"
    return f"{missed}, as expected" if check.as_expected else missed


def _reasons(expected: ExpectedResults, checks: Sequence[CheckResult]) -> list[str]:
    """Return the result in words, and the reasons why criteria are missed, each once."""
    missed = [each.check.why for each in checks if each.check.why and not each.meets]
    return list(dict.fromkeys(text for text in [expected.result, *missed] if text))


def _relative(folder: Path, root: Path) -> str:
    return folder.resolve().relative_to(root.resolve()).as_posix()


def _number(value: float) -> str:
    if abs(value) == float("inf"):
        return "∞" if value > 0 else "−∞"
    return f"{value:,.6g}".replace("-", "−")


# --- the PDF's text -------------------------------------------------------------------------------


_ROWS = 40
"""Lines per page."""


def text_pages(spec: ExperimentSpec, results: ExperimentResults) -> list[TextPage]:
    """Return pages with the findings in words, and a table per measure that compares schedulers.

    Tables have mean ± half-width of the 95 % interval, and the difference to the baseline, in
    brackets if it may be chance."""
    words = [line for text in results.in_words for line in WIDE.lines(f"• {text}", 12)]
    pages = _pages(spec.name, spec.question, [[line] for line in words], [14])
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
            pages += _pages(title, measure, rows, [14, 230, 460, 620])
    return pages


def _bracketed(text: str, row: MeasureSummary) -> str:
    return text if row.beyond_chance else f"({text})"


def _pages(
    title: str, under: str, rows: Sequence[Sequence[str]], columns: Sequence[float]
) -> list[TextPage]:
    """Lay out rows of text in columns that begin at these pixels, on as many pages as needed."""
    return [
        TextPage(
            name="text",
            title=title,
            under=under,
            rows=rows[first : first + _ROWS],
            columns=columns,
        )
        for first in range(0, len(rows), _ROWS)
    ]
