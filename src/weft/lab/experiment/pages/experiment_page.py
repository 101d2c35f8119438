"""The page of an experiment's results: who wins where, in words, figures and tables."""

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path

from weft.lab.experiment.pages.bar_figures import draw_bars
from weft.lab.experiment.pages.document import ReportWriter, how_made
from weft.lab.experiment.pages.drawing import Drawing, Look, looks
from weft.lab.experiment.pages.line_charts import (
    CurveSeries,
    Layout,
    LineFigure,
    draw_side_by_side,
    draw_stacked,
    nice_ceiling,
)
from weft.lab.experiment.pages.line_figures import TRACE_FIGURES, trace_drawings, trace_results
from weft.lab.experiment.pages.pictures import text_pages, to_pdf
from weft.lab.experiment.pages.tables import html_row, html_table, look_chip
from weft.lab.experiment.pages.usage_figures import LevelRows, names_of_level
from weft.lab.experiment.run.store import CellRows, RunStore
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell, axes_of, plan
from weft.lab.experiment.spec.measures import TITLES, capital, measure_of
from weft.lab.experiment.statistics.assumed import AXIS, AssumedRow, assumed_rows, model_of_time
from weft.lab.experiment.statistics.comparison import ExperimentResults, MeasureSummary, level_text

HEADLINES = ("jct_p99_s", "jct_mean_s", "energy_kj")
"""Measures that an experiment's page shows under each assumption."""


def assumed_table(headings: Sequence[str], columns: Sequence[Sequence[AssumedRow]]) -> str:
    """Return a table with a row per assumption and a column per headline; "" without any."""
    if not columns or not columns[0]:
        return ""
    titles = ["Assumed", *headings]
    rows = [
        html_row(escape(same[0].assumption), titles, [escape(each.text) for each in same])
        for same in zip(*columns, strict=True)
    ]
    return html_table("What it rests on", titles, rows, most=3)


def rests_on(spec: ExperimentSpec, results: ExperimentResults) -> str:
    """Return the section with the experiment's model of time, and its headlines under other
    assumptions."""
    model = model_of_time(spec)
    if not model:
        return ""
    tables = []
    others = [name for name in spec.schedulers if name != spec.reference]
    for measure in HEADLINES:
        columns = [assumed_rows(spec, results, measure, name) for name in others]
        if table := assumed_table([f"{name} against {spec.reference}" for name in others], columns):
            tables.append(f"<h3>{escape(TITLES[measure].capitalize())}</h3>\n{table}")
    first = results.levels[0] if results.levels else {}
    at = level_text(spec, {axis: text for axis, text in first.items() if axis != AXIS})
    if tables and at:
        tables.insert(0, f"<p>At {escape(at)}:</p>")
    if not tables:
        tables.append("<p>Nothing else was assumed here: <code>assumptions</code> is the axis.</p>")
    body = "\n".join(tables)
    return f"<section>\n<h2>What this rests on</h2>\n<p>{escape(model)}</p>\n{body}\n</section>"


PDF = "report.pdf"
MOST_COLUMNS = 4
"""With more columns, a table of such cells becomes cards on screens that are not wide."""
MOST_LINES = 8
"""With more schedulers no figure is drawn, as it could not be read; the table remains."""


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

    `store` has the cells' rows over time; without it the page has no figures of them."""
    look_of = looks(spec.schedulers)
    report = ReportWriter(f"Weft: {spec.name}")
    sections = _measure_sections(spec, results, look_of, report)
    levels = [] if store is None else rows_of_levels(spec, results, store, look_of)
    for number, level in enumerate(levels):
        figures = report.figures(partial(level.drawings, number=number))
        sections.append(_over_time(level.text, figures, is_open=number == 0))
    if store is not None and (runs := trace_results(spec, store)) is not None:
        sections.insert(0, _trace_section(report.figures(partial(trace_drawings, runs))))
    others = {}
    if pdf:
        others[PDF] = to_pdf([*text_pages(spec, results), *report.drawings], report.title)
    parts = [_header(spec, results), rests_on(spec, results), *sections]
    body = "\n".join([*filter(None, parts), _made(spec, results, versions)])
    names = [
        *TITLES,
        *TRACE_FIGURES,
        *(name for number in range(3) for name in names_of_level(number)),
    ]
    return report.write(folder, body, [PDF, *(f"{name}.svg" for name in names)], others=others)


def _measure_sections(
    spec: ExperimentSpec,
    results: ExperimentResults,
    look_of: dict[str, Look],
    report: ReportWriter,
) -> list[str]:
    """Return a section per measure to judge by; one that equals another measure in every run says
    so."""
    sections = []
    for measure in (name for name in TITLES if _of(results, name)):
        title = escape(capital(TITLES[measure]))
        if other := results.same_as.get(measure):
            text = f'<p class="note">The same as {escape(TITLES[other])}, in every run.</p>'
        else:
            drawn = report.figures(partial(_figures, spec, results, measure, look_of))
            text = _lines(drawn) + measure_table(spec, results, measure, look_of)
        sections.append(f"<section>\n<h2>{title}</h2>\n{text}\n</section>")
    return sections


def _lines(figures: Sequence[str]) -> str:
    return "".join(f"{each}\n" for each in figures)


def rows_of_levels(
    spec: ExperimentSpec, results: ExperimentResults, store: RunStore, look_of: dict[str, Look]
) -> list[LevelRows]:
    """Return the cells' rows at a few measured levels: the first, a middle one, the last."""
    measured = results.levels
    last = len(measured) - 1
    shown = [measured[number] for number in sorted({0, last // 2, last}) if last >= 0]
    levels = []
    for at in shown:
        rows: dict[str, list[CellRows]] = {}
        for cell in plan(spec):
            if {level.axis: level.text for level in cell.levels} == at and _counts(store, cell):
                rows.setdefault(cell.scheduler, []).append(store.rows(cell))
        if len(rows) <= MOST_LINES:
            levels.append(LevelRows(level_text(spec, at), rows, look_of))
    return levels


def _trace_section(figures: Sequence[str]) -> str:
    return f"<section>\n<h2>As pods come</h2>\n{_lines(figures)}</section>"


def _counts(store: RunStore, cell: PlannedCell) -> bool:
    """Tell whether the cell exists and has no marks that make its numbers unreliable."""
    record = store.record(cell)
    return record is not None and not record.marks


def _over_time(text: str, figures: Sequence[str], *, is_open: bool) -> str:
    if not figures:
        return ""
    title = escape(f"Over time{f' at {text}' if text else ''}")
    return (
        f"<details{' open' if is_open else ''}>\n<summary>{title}</summary>\n"
        f"{_lines(figures)}</details>"
    )


def page_figure(spec: ExperimentSpec, results: ExperimentResults, measure: str) -> str:
    """Return a measure's figure for a page, in all widths; "" if it cannot be drawn."""
    draw = partial(_figures, spec, results, measure, looks(spec.schedulers))
    return _lines(ReportWriter(spec.name).figures(draw))


def _figures(
    spec: ExperimentSpec,
    results: ExperimentResults,
    measure: str,
    look_of: dict[str, Look],
    layout: Layout,
) -> list[Drawing]:
    drawing = figure(spec, results, measure, look_of, layout)
    return [] if drawing is None else [drawing]


def figure(
    spec: ExperimentSpec,
    results: ExperimentResults,
    measure: str,
    look_of: dict[str, Look],
    layout: Layout,
) -> Drawing | None:
    """Draw a measure over the first axis with several numbers, at the first level of the others.

    Without such an axis, draw a bar per scheduler. None if there are too many schedulers."""
    axes = axes_of(spec)
    axis = next((name for name, texts in axes.items() if len(texts) > 1 and _numbers(texts)), None)
    if len(spec.schedulers) > MOST_LINES:
        return None
    if axis is None:
        return _bars(spec, results, measure, look_of, layout)
    others = {name: texts[0] for name, texts in axes.items() if name != axis}
    series = []
    for scheduler in spec.schedulers:
        points = sorted(
            (float(row.levels[axis]), row)
            for row in _of(results, measure)
            if row.scheduler == scheduler and others.items() <= row.levels.items()
        )
        if len(points) > 1:
            series.append(_series(scheduler, look_of[scheduler], points))
    if not series:
        return None
    at = level_text(spec, others)
    title = capital(TITLES[measure]) + (f" at {at}" if at else "")
    seeds = max(row.seeds for row in _of(results, measure))
    shown = LineFigure(
        name=measure,
        title=title,
        titles_y=False,
        under=f"{_unit(measure) or 'number'}, {_mean_of(seeds)}"
        + (" with its 95 % interval" if any(row.low != row.mean for row in series) else ""),
        x_title=capital(axis),
        y_title=f"{capital(TITLES[measure])}, {_unit(measure)}".removesuffix(", "),
        unit=(_unit(measure), axis),
        last=max(series[0].x),
        top=nice_ceiling(max(max(row.high) for row in series)),
        order=[row.name for row in sorted(series, key=lambda row: row.end, reverse=_more(measure))],
    )
    draw = draw_stacked if layout.stacked else draw_side_by_side
    return draw(shown, series, layout)


def _bars(
    spec: ExperimentSpec,
    results: ExperimentResults,
    measure: str,
    look_of: dict[str, Look],
    layout: Layout,
) -> Drawing | None:
    """Draw the measure at the first level, the best scheduler first."""
    at = results.levels[0]
    means = [row for row in _of(results, measure) if row.levels == at]
    if not means or not any(row.mean for row in means):
        return None
    means = sorted(means, key=lambda row: row.mean, reverse=_more(measure))
    text = level_text(spec, at)
    title = capital(TITLES[measure]) + (f" at {text}" if text else "")
    under = f"{_unit(measure) or 'number'}, {_mean_of(means[0].seeds)}"
    under += " with its 95 % interval" if means[0].ci95 else ""
    return draw_bars(measure, (title, under), means, look_of, layout)


def _mean_of(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"mean of {seeds} seeds"


def measure_table(
    spec: ExperimentSpec, results: ExperimentResults, measure: str, look_of: dict[str, Look]
) -> str:
    """Return a row per scheduler and a column per level: mean ± interval, and the difference to the
    baseline, in brackets if it may be due to chance."""
    rows_of = {(row.scheduler, *row.levels.values()): row for row in _of(results, measure)}
    levels = results.levels
    unit = _unit(measure)
    titles = ["Scheduler"]
    titles += [f"{level_text(spec, at) or 'Mean'}{f', {unit}' if unit else ''}" for at in levels]
    rows = [
        html_row(
            look_chip(look_of[scheduler]) + escape(scheduler),
            titles,
            [_cell(rows_of.get((scheduler, *at.values()))) for at in levels],
        )
        for scheduler in spec.schedulers
    ]
    better = "higher is better" if _more(measure) else "lower is better"
    return html_table(
        TITLES[measure], titles, rows, ["", *[better] * len(levels)], most=MOST_COLUMNS
    )


def _cell(row: MeasureSummary | None) -> str:
    if row is None:
        return "–"
    mean, _, interval = row.mean_text.partition(" ")
    text = f'{mean} <span class="ci">{interval}</span>' if interval else mean
    if row.difference is not None:
        change = row.difference.short_text()
        text += f"<br>{change if row.beyond_chance else f'({change})'}"
    return text


def _series(name: str, look: Look, points: Sequence[tuple[float, MeasureSummary]]) -> CurveSeries:
    means = tuple(row.mean for _, row in points)
    halves = [row.ci95 or 0.0 for _, row in points]
    low = tuple(max(0.0, mean - half) for mean, half in zip(means, halves, strict=True))
    high = tuple(mean + half for mean, half in zip(means, halves, strict=True))
    return CurveSeries(name, look, tuple(x for x, _ in points), means, low, high, means[-1])


def _header(spec: ExperimentSpec, results: ExperimentResults) -> str:
    words = "\n".join(f"<li>{escape(finding)}</li>" for finding in results.in_words)
    absent = ""
    if results.missing:
        count = len(results.missing)
        absent = f'<p class="note">{count} of {results.planned} cells are missing.</p>\n'
    for folder, marks in results.marked.items():
        why = escape(f"{folder} is marked, and left out: {'; '.join(marks)}")
        absent += f'<p class="note">{why}</p>\n'
    for note in results.notes:
        absent += f'<p class="note">{escape(note)}</p>\n'
    return (
        f'<header>\n<h1>{escape(spec.name)}</h1>\n<p class="subtitle">{escape(spec.question)}</p>\n'
        f"</header>\n<section>\n<h2>Who wins where</h2>\n{absent}<ul>\n{words}\n</ul>\n"
        f'<p class="note">Against {escape(results.baseline)}, on the same seeds. Only differences '
        "whose 95 % paired interval leaves out 0, and whose p-value after Holm is below 5 %; "
        "the tables have all others in brackets: for them no difference is shown, which does not "
        "mean that there is none. Intervals are Student's; none below five seeds.</p>\n</section>"
    )


def _made(spec: ExperimentSpec, results: ExperimentResults, versions: str) -> str:
    first = spec.seeds.first
    rows = {
        "Workload": str(spec.workload.__struct_config__.tag),
        **{capital(axis): ", ".join(texts) for axis, texts in axes_of(spec).items()},
        "Seeds": f"{first} to {first + spec.seeds.count - 1}",
        **({"Repeats": str(spec.repeats)} if spec.repeats > 1 else {}),
        "Cells": f"{results.cells:,} of {results.planned:,}",
        "Versions": versions,
    }
    return how_made(rows)


def _of(results: ExperimentResults, measure: str) -> list[MeasureSummary]:
    return [row for row in results.summary if row.measure == measure]


def _more(measure: str) -> bool:
    return measure_of(measure).more_is_better is True


def _unit(measure: str) -> str:
    return measure_of(measure).unit


def _numbers(texts: Sequence[str]) -> bool:
    return all(text.replace(".", "", 1).isdigit() for text in texts)
