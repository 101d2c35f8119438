"""The report of `weft simulate`: one HTML file without external resources, and its figures.

Everything is drawn in memory first, written under temporary names, then renamed: on a failure the
previous report stays. `report.html` is renamed last. Other files in the folder are not touched."""

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from weft.lab.experiment.pages import bar_figures, line_figures
from weft.lab.experiment.pages.bar_figures import top_reasons
from weft.lab.experiment.pages.document import ReportWriter, how_made
from weft.lab.experiment.pages.drawing import HEAT, Drawing
from weft.lab.experiment.pages.line_charts import WIDE, Layout
from weft.lab.experiment.pages.pictures import check_matplotlib
from weft.lab.experiment.pages.tables import policy_table, reason_table, run_table
from weft.lab.experiment.statistics.ranking import headline, is_timed, ranked
from weft.lab.simulate.holdings import ClusterHoldings, GpuHoldings, Holder, NodeHoldings
from weft.lab.simulate.results import SimulationResults
from weft.model.errors import BadInputError

FIGURES = ("allocation", "queue", "fragmentation", "by-model", "unscheduled")
"""Names of the figures that a report may have."""


def names_of(results: SimulationResults) -> tuple[str, ...]:
    """Return the names of the figures for these results: a queue exists only in timed runs."""
    return tuple(name for name in FIGURES if name != "queue" or is_timed(results))


def draw_all(
    results: SimulationResults,
    models_gpus: dict[str, int] | None = None,
    layout: Layout = WIDE,
) -> list[Drawing]:
    """Return a drawing for each of `names_of`; `models_gpus` is the number of GPUs by model."""
    return [
        *line_figures.trace_drawings(results, layout),
        bar_figures.by_model(results, models_gpus, layout),
        bar_figures.unscheduled(results, layout),
    ]


class HowMade(msgspec.Struct, frozen=True):
    """The command line, and with which versions, where and when it ran.

    `host` and `date` are empty if equal runs must give equal pages."""

    command: str
    versions: str
    host: str = ""
    date: str = ""

    def rows(self) -> dict[str, str]:
        """Return the known values by title."""
        rows = {"Versions": self.versions, "Host": self.host, "Date": self.date}
        return {title: text for title, text in rows.items() if text}


CAPTIONS = {
    "allocation": "As long as every pod finds a place, allocation follows demand (dotted). "
    "Each line leaves it where its policy begins to turn pods away.",
    "fragmentation": "FGD’s measure: idle GPU capacity on which a typical pod of this workload "
    "would not fit, over all GPU capacity.",
    "by-model": "Down a column the policies differ; along a row the models do, as the workload’s "
    "CPU and memory needs suit some machines better than others.",
    "unscheduled": "A pod fails when no node takes it; it is counted under the reason that most "
    "nodes gave.",
}
_TIMED = {
    "by-model": "What is held when nothing is left to happen: pods without an end.",
    "allocation": "What the running pods asked for, step by step until the last pod started; the "
    "number beside a line is its mean.",
    "queue": "Pods that were created and had no place yet; the number beside a line is its mean, "
    "each seed until its last pod started.",
    "unscheduled": "Pods that were still waiting at the end, by what most nodes said last.",
}


class ReportTexts(NamedTuple):
    """The page's title, what was simulated, and how."""

    title: str
    subtitle: str
    made: HowMade


def page(
    results: SimulationResults,
    texts: ReportTexts,
    figures: Sequence[str],
    holdings: Sequence[ClusterHoldings],
    gpus: int | None,
) -> str:
    """Return the report's body."""
    lead, drawn = headline(results, gpus), "\n".join(figures)
    return f"""<header>
<h1>{escape(texts.title)}</h1>
<p class="subtitle">{escape(texts.subtitle)}</p>
<p class="lead">{_together(lead.lead)}</p>
<p class="rest">{_together(lead.rest)}</p>
</header>
<section aria-label="Policies compared">
{policy_table(results)}
<p class="note">{_note(results)}</p>
{_notes(results)}
</section>
{drawn}
{map_section(holdings, ranked(results))}
{_reasons(results)}
<details>
<summary>All {len(results.runs)} runs</summary>
{run_table(results)}
</details>
{_made(results, texts)}"""


def _together(text: str) -> str:
    """Escape, and prevent line breaks between a number and its unit."""
    return escape(text).replace(" %", "&nbsp;%").replace(" s ", "&nbsp;s ")


def _note(results: SimulationResults) -> str:
    several = any(summary.gpu_allocation_ci95 is not None for summary in results.summary)
    interval = " ± is the half-width of a 95 % interval over seeds."
    return (
        f"Percentages are of all GPU capacity; bold is best, where one end is.{interval * several}"
    )


def _notes(results: SimulationResults) -> str:
    return "\n".join(f'<p class="note">{_with_code(note)}</p>' for note in results.notes)


def _with_code(text: str) -> str:
    """Escape, and format text in backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _reasons(results: SimulationResults) -> str:
    reasons = sorted({reason for run in results.runs for reason in run.unscheduled})
    if not reasons:
        return ""
    first = [reason for reason in top_reasons(results) if reason in reasons]
    order = [*first, *(reason for reason in reasons if reason not in first)]
    return (
        "<details>\n<summary>Pods without a place, by reason</summary>\n"
        f"{reason_table(results, order)}\n</details>"
    )


def _made(results: SimulationResults, texts: ReportTexts) -> str:
    seeds = sorted({run.seed for run in results.runs})
    mode = (
        "replay of the workload’s own arrivals and departures"
        if is_timed(results)
        else "pods arrive one by one, stay, and are dropped where they fit nowhere"
    )
    rows = {
        "Workload": texts.subtitle,
        "Experiment": mode,
        "Policies": ", ".join(summary.policy for summary in results.summary),
        "Seeds": _ranges(seeds),
        **texts.made.rows(),
    }
    return how_made(rows, texts.made.command)


def _ranges(seeds: list[int]) -> str:
    """Format 42, 43, 44 as 42–44."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)


MOST_NODES = 4_000
"""Most nodes of all maps together: with more the page would open slowly."""
_FEW_NODES = 40
"""Up to this many nodes are drawn large, with their names."""


def map_section(holdings: Sequence[ClusterHoldings], order: Sequence[str]) -> str:
    """Return a map per policy from the best on, while there is room; the first one is open."""
    by_policy = {cluster.policy: cluster for cluster in holdings}
    shown: list[ClusterHoldings] = []
    for policy in order:
        cluster = by_policy.get(policy)
        drawn = sum(len(each.nodes) for each in shown)
        if cluster and (not shown or drawn + len(cluster.nodes) <= MOST_NODES):
            shown.append(cluster)
    if not shown:
        return ""
    maps = "\n".join(_map(cluster, is_open=number == 0) for number, cluster in enumerate(shown))
    left_out = [policy for policy in order if policy in by_policy][len(shown) :]
    note = f'<p class="note">{escape(_left_out(left_out))}</p>' if left_out else ""
    first = shown[0]
    return (
        f'<section aria-label="Nodes and GPUs">\n<h2>Nodes and GPUs {escape(first.moment)}, seed '
        f"{first.seed}</h2>\n{_KEY}\n{note}\n</section>\n{maps}"
    )


def _left_out(policies: Sequence[str]) -> str:
    names = ", ".join(policies)
    return f"A map more would make this page slow: run these alone for theirs: {names}."


_SHADES = "".join(f'<b class="{paint.name}"></b>' for paint in HEAT)
_KEY = (
    '<p class="mapkey"><span>A square is a GPU, a block a node.</span>'
    f'<span>idle <span class="n">{_SHADES}</span> held in full</span>'
    '<span><span class="n"><i></i></span> the part of a node’s GPUs that is idle and that typical '
    "pods cannot use</span></p>"
)


def _map(cluster: ClusterHoldings, *, is_open: bool) -> str:
    gpus = [gpu for node in cluster.nodes for gpu in node.gpus]
    idle = sum(not gpu.holders for gpu in gpus)
    lost = sum(node.fragments_milli for node in cluster.nodes) / 1000
    said = f"{_count(len(gpus), 'GPU')}, {idle:,} idle, {lost:,.1f} in fragments"
    large = len(cluster.nodes) <= _FEW_NODES
    nodes = sorted(cluster.nodes, key=lambda node: (node.gpus[0].model, node.name))
    by_model = {
        model: list(group) for model, group in groupby(nodes, lambda node: node.gpus[0].model)
    }
    order = sorted(by_model, key=lambda model: -sum(len(node.gpus) for node in by_model[model]))
    parts = "\n".join(_model(model, by_model[model], large=large) for model in order)
    return (
        f'<details class="map"{" open" if is_open else ""}>\n'
        f"<summary>{escape(cluster.policy)}: {said}</summary>\n{parts}\n</details>"
    )


def _model(model: str, nodes: Sequence[NodeHoldings], *, large: bool) -> str:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    held = 100 * sum(gpu.held for gpu in gpus) / len(gpus)
    lost = sum(node.fragments_milli for node in nodes) / 10 / len(gpus)
    said = f"{_count(len(nodes), 'node')}, {_count(len(gpus), 'GPU')}: {held:.1f} % held, "
    said += f"{lost:.1f} % in fragments"
    size = "nodes large" if large else "nodes"
    blocks = "\n".join(
        _node(node, named=large, stop=number == 0) for number, node in enumerate(nodes)
    )
    return (
        f"<h3>{escape(model or 'unknown model')} <span>{said}</span></h3>\n"
        f'<div class="{size}">\n{blocks}\n</div>'
    )


def _node(node: NodeHoldings, *, named: bool, stop: bool) -> str:
    """Return a block of squares; the tab key stops at the first, arrow keys reach the others."""
    cells = "".join(f'<b class="{HEAT[_shade(gpu.held)].name}"></b>' for gpu in node.gpus)
    lost = min(100.0, node.fragments_milli / 10 / len(node.gpus))
    bar = f'<i style="--f:{lost:.0f}%"></i>' if lost >= 0.5 else ""
    name = f"<em>{escape(node.name)}</em>" if named else ""
    columns = len(node.gpus) if len(node.gpus) < 4 else 4 if len(node.gpus) <= 8 else 8
    width = "" if columns == 4 else f' style="--c:{columns}"'
    return (
        f'<span class="n" data-spot="" role="img" tabindex="{0 if stop else -1}"{width} '
        f'title="{escape(_words(node))}">{cells}{bar}{name}</span>'
    )


def _shade(held: float) -> int:
    """Return the shade for a held share; 0 and 1 have shades of their own."""
    last = len(HEAT) - 1
    if held <= 0:
        return 0
    return last if held > 0.9995 else 1 + int(held * (last - 1))


def _words(node: NodeHoldings) -> str:
    """Return a node's hint: the holders by GPU, with neighbouring equal GPUs joined."""
    held = sum(gpu.held for gpu in node.gpus)
    lines = [
        f"{node.name}: {held:.2f} of {_count(len(node.gpus), 'GPU')} held, "
        f"{node.fragments_milli / 1000:.2f} in fragments"
    ]
    for holders, group in groupby(enumerate(node.gpus), lambda numbered: _holders(numbered[1])):
        numbers = [number for number, _ in group]
        several = len(numbers) > 1
        which = f"GPUs {numbers[0]}–{numbers[-1]}" if several else f"GPU {numbers[0]}"
        lines.append(f"{which}: {holders}")
    return "\n".join(lines)


def _holders(gpu: GpuHoldings) -> str:
    return ", ".join(_share(holder, gpu) for holder in gpu.holders) or "idle"


def _share(holder: Holder, gpu: GpuHoldings) -> str:
    parts = [f"{100 * holder.milli / max(1, gpu.milli):g} %"] if holder.milli else []
    if holder.memory_mib and holder.memory_mib != gpu.memory_mib:
        parts.append(f"{holder.memory_mib:,} MiB")
    return " ".join([holder.pod, *parts])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_report(
    results: SimulationResults,
    directory: Path,
    texts: ReportTexts,
    *,
    png: bool = False,
    models_gpus: dict[str, int] | None = None,
    holdings: Sequence[ClusterHoldings] = (),
) -> Path:
    """Write `report.html` and its SVG figures, with `png` PNG copies too; return the page's path.

    `models_gpus` is the cluster's number of GPUs by model, for labels and the headline; `holdings`
    has what pods held in one run of each policy, for the map. An older report in `directory` is
    replaced. Raises `BadInputError` if there is no run, the folder cannot be written, or, for
    `png`, matplotlib is missing."""
    if not results.runs or not results.summary:
        raise BadInputError("report", "there is no run to report; give at least one policy")
    if png:
        check_matplotlib()
    report = ReportWriter(texts.title)
    captions = {**CAPTIONS, **(_TIMED if is_timed(results) else {})}
    figures = report.figures(lambda layout: draw_all(results, models_gpus, layout), captions)
    gpus = sum(models_gpus.values()) if models_gpus else None
    body = page(results, texts, figures, holdings, gpus)
    stale = [f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
    return report.write(directory, body, stale, png=png)
