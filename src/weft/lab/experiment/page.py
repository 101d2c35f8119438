"""The report page: one HTML file that loads nothing."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from weft.lab.experiment.bar_figures import top_reasons
from weft.lab.experiment.how_made import HowMade
from weft.lab.experiment.page_map import map_section
from weft.lab.experiment.page_script import SCRIPT, SCRIPT_HASH
from weft.lab.experiment.page_style import STYLE
from weft.lab.experiment.ranking import headline, is_timed, ranked
from weft.lab.experiment.tables import policy_table, reason_table, run_table
from weft.lab.simulate.holdings import ClusterHoldings
from weft.lab.simulate.results import SimulationResults

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


class PageParts(NamedTuple):
    """Figures by name, each in all its widths; who held what; and how many GPUs there are."""

    svgs: Mapping[str, Sequence[str]]
    holdings: Sequence[ClusterHoldings]
    gpus: int | None


_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src "
    f"'{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'"
)
"""Nothing is loaded, whatever a policy's or a pod's name may hold."""


def page(results: SimulationResults, texts: ReportTexts, parts: PageParts) -> str:
    """The whole report."""
    lead = headline(results, parts.gpus)
    timed = is_timed(results)
    figures = "\n".join(_figure(name, svgs, timed) for name, svgs in parts.svgs.items())
    body = f"""<header>
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
{figures}
{map_section(parts.holdings, ranked(results))}
{_reasons(results)}
<details>
<summary>All {len(results.runs)} runs</summary>
{run_table(results)}
</details>
<section>
<h2>How this was made</h2>
{_made(results, texts)}
</section>"""
    return document(texts.title, body)


def document(title: str, body: str) -> str:
    """A page of this title around the HTML `body`, with all reports' style and script."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _together(text: str) -> str:
    """Escaped, with no line break between a number and its unit."""
    return escape(text).replace(" %", "&nbsp;%").replace(" s ", "&nbsp;s ")


def _figure(name: str, svgs: Sequence[str], timed: bool) -> str:
    caption = (_TIMED.get(name) if timed else None) or CAPTIONS[name]
    drawn = "".join(svgs)
    return f'<figure id="{name}">\n{drawn}<figcaption>{escape(caption)}</figcaption>\n</figure>'


def _note(results: SimulationResults) -> str:
    several = any(summary.gpu_allocation_ci95 is not None for summary in results.summary)
    interval = " ± is the half-width of a 95 % interval over seeds."
    return (
        f"Percentages are of all GPU capacity; bold is best, where one end is.{interval * several}"
    )


def _notes(results: SimulationResults) -> str:
    return "\n".join(f'<p class="note">{_with_code(note)}</p>' for note in results.notes)


def _with_code(text: str) -> str:
    """Escaped, with `names` in backticks as code."""
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
    cells = "\n".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows.items())
    command = f"<dt>Command</dt><dd><code>{escape(texts.made.command)}</code></dd>"
    return f"<dl>\n{command}\n{cells}\n</dl>"


def _ranges(seeds: list[int]) -> str:
    """42, 43, 44 as 42–44."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)
