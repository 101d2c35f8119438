"""Assumptions of results: the model of time on a card in words, and what a headline becomes under
other assumptions."""

from collections.abc import Sequence
from html import escape

import msgspec

from weft.lab.experiment.comparison import ExperimentResults, MeasureSummary, level_text
from weft.lab.experiment.measures import TITLES
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.experiment.spec_workloads import (
    MeasuredPairs,
    OverprovisionedJobs,
    SimulatedJobs,
    TimeAssumptions,
)
from weft.lab.experiment.tables import html_row, html_table

AXIS = "assumption"
HEADLINES = ("jct_p99_s", "jct_mean_s", "energy_kj")
"""The measures that an experiment's page shows under each assumption."""


class AssumedRow(msgspec.Struct, frozen=True):
    """A headline under one assumption; `summary` is None where its cells are missing."""

    assumption: str
    summary: MeasureSummary | None

    @property
    def text(self) -> str:
        """The difference to the baseline with its interval."""
        if self.summary is None:
            return "not run"
        difference = self.summary.difference
        return "–" if difference is None else difference.text().replace("-", "−")


def model_of_time(spec: ExperimentSpec) -> str:
    """How jobs of this experiment share a card, in words; empty where nobody assumes anything."""
    workload = spec.workload
    if not isinstance(workload, SimulatedJobs):
        return ""
    if isinstance(workload, OverprovisionedJobs):
        return "Slowdowns as measured on a V100, by how many share it, of jobs bound by the CPU."
    if isinstance(workload, MeasuredPairs):
        return "Slowdowns as measured for each pair of jobs; those of three and more multiply."
    return (
        "Compute shared in proportion to what containers together need of SMs and memory "
        "bandwidth; nobody measured these programs side by side."
    )


def in_words(assumed: TimeAssumptions, workload: SimulatedJobs) -> str:
    """An assumption as a sentence's part."""
    measured = isinstance(workload, OverprovisionedJobs | MeasuredPairs)
    if assumed.compute == "measured":
        compute = "slowdowns as measured" if measured else "sharing costs nothing"
    elif assumed.compute_ratio is None:
        compute = "compute shared in proportion"
    else:
        compute = f"compute shared in proportion, each needs {100 * assumed.compute_ratio:g} %"
        compute += ", as metrics show" if assumed.compute_shown else ", unseen by metrics"
    return compute if assumed.earlier_runs else f"{compute}; nothing known of earlier runs"


def assumed_rows(
    spec: ExperimentSpec, results: ExperimentResults, measure: str, scheduler: str
) -> list[AssumedRow]:
    """The scheduler's measure against the baseline, a row an assumption, at the first level of
    other axes; none without that axis."""
    workload = spec.workload
    if not isinstance(workload, SimulatedJobs):
        return []
    rows = []
    for assumed in workload.assumptions:
        summaries = (
            summary
            for summary in results.summary
            if (summary.measure, summary.scheduler) == (measure, scheduler)
            and summary.levels.get(AXIS) == assumed.name
        )
        rows.append(AssumedRow(in_words(assumed, workload), next(summaries, None)))
    return rows


def assumed_table(headings: Sequence[str], columns: Sequence[Sequence[AssumedRow]]) -> str:
    """A row an assumption, a column a headline; empty without any."""
    if not columns or not columns[0]:
        return ""
    titles = ["Assumed", *headings]
    rows = [
        html_row(escape(same[0].assumption), titles, [escape(each.text) for each in same])
        for same in zip(*columns, strict=True)
    ]
    return html_table("What it rests on", titles, rows, most=3)


def rests_on(spec: ExperimentSpec, results: ExperimentResults) -> str:
    """The section of an experiment's page: its model of time, and its headlines under others."""
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
