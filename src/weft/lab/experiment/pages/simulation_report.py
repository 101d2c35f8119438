"""The report of `weft simulate`: a page, its figures and tables, and a map of nodes and GPUs.

Everything is drawn in memory first, written under temporary names, then renamed: on a failure the
previous report stays. `report.html` is renamed last. Other files in the folder are not touched."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from weft.lab.experiment.pages.charts import FIGURES, reason_means, simulation_charts, top_reasons
from weft.lab.experiment.pages.document import (
    Report,
    Table,
    TableRow,
    folded,
    part,
    section,
    with_code,
    with_interval,
)
from weft.lab.experiment.pages.looks import HEAT, looks
from weft.lab.experiment.spec.measures import capital, measure_of
from weft.lab.experiment.statistics.differences import SeedMean, mean_ci95
from weft.lab.experiment.statistics.ranking import (
    headline,
    holds_more,
    is_timed,
    measured_mean,
    policy_text,
    ranked,
    seeds_text,
)
from weft.lab.simulate.holdings import ClusterHoldings, GpuHoldings, Holder, NodeHoldings
from weft.lab.simulate.results import PolicyRun, SimulationResults, WaitTimes
from weft.model.errors import BadInputError


class HowMade(msgspec.Struct, frozen=True):
    """The command line, and the versions, host and date of its run.

    `host` and `date` are empty if equal runs must give equal pages."""

    command: str
    versions: str
    host: str = ""
    date: str = ""

    def rows(self) -> dict[str, str]:
        """Return the known values by title, without the command."""
        rows = {"Versions": self.versions, "Host": self.host, "Date": self.date}
        return {title: text for title, text in rows.items() if text}


class ReportTexts(NamedTuple):
    """The page's title, the simulated workload as subtitle, and how the results were made."""

    title: str
    subtitle: str
    made: HowMade


CAPTIONS = {
    "allocation": "As long as every pod finds a place, allocation follows demand (dotted). "
    "Each line falls below demand where its policy begins to reject pods.",
    "fragmentation": "FGD’s measure: idle GPU capacity on which a typical pod of this workload "
    "would not fit, over all GPU capacity.",
    "by-model": "A column compares policies on one GPU model. A row differs between models, as the "
    "workload’s CPU and memory needs suit some machines better than others.",
    "unscheduled": "A pod fails when no node takes it; it is counted under the reason that most "
    "nodes gave.",
}
_TIMED = {
    "by-model": "What is still held at the end of the run, by pods that never end.",
    "allocation": "What is allocated to running pods, step by step until the last pod started; the "
    "number beside a line is its mean.",
    "queue": "Pods that were created but not placed yet; the number beside a line is its mean, in "
    "each seed until the last pod started.",
    "unscheduled": "Pods still waiting at the end, by the last reason that most nodes gave.",
}


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
    are pods' shares of GPUs in one run of each policy, for the map. An older report in `directory`
    is replaced. `BadInputError` if there is no run, or the folder cannot be written."""
    if not results.runs or not results.summary:
        raise BadInputError("report", "there is no run to report; give at least one policy")
    report = Report(texts.title)
    captions = {**CAPTIONS, **(_TIMED if is_timed(results) else {})}
    lead = headline(results, sum(models_gpus.values()) if models_gpus else None)
    figures = [
        report.figure(chart, captions.get(chart.name, ""))
        for chart in simulation_charts(results, models_gpus)
    ]
    parts = [
        part("header", texts.title, texts.subtitle, _together(lead.lead), _together(lead.rest)),
        figures[0],
        section(
            policy_table(results).html(),
            part("note", _note(results)),
            *(part("note", with_code(note)) for note in results.notes),
            label="Policies compared",
        ),
        *figures[1:],
        *_queues(results),
        *maps(holdings, ranked(results)),
        _reasons(results),
        folded(f"All {len(results.runs)} runs", run_table(results).html()),
        _made(results, texts),
    ]
    stale = [f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
    return report.write(directory, parts, stale, png=png)


def _note(results: SimulationResults) -> str:
    several = any(summary.gpu_held_ci95 is not None for summary in results.summary)
    interval = " ± is the half-width of a 95 % interval over seeds."
    return (
        "Percentages are of all GPU capacity; the best value is bold where higher or lower is "
        f"better.{interval * several}"
    )


def _together(text: str) -> str:
    """Prevent line breaks between a number and its unit."""
    return text.replace(" %", "\u00a0%").replace(" s ", "\u00a0s ")


def _queues(results: SimulationResults) -> list[str]:
    """Return the section on teams' queues, in a list; an empty list without queues."""
    table = queue_table(results)
    if not table.rows:
        return []
    note = (
        "Means over seeds. Held: GPU time charged to the queue, in percent of all GPU time from "
        "the first arrival to the last start. Held when wanted: the same, only while what its pods "
        "held and waited for was at least its guarantee."
    )
    return [section(table.html(), part("note", note), title="Teams’ queues", label="Teams’ queues")]


def _reasons(results: SimulationResults) -> str:
    """Return a table of all reasons if the figure groups some as "other reasons", else ""."""
    reasons = sorted({reason for run in results.runs for reason in run.unscheduled})
    if set(reasons) <= set(top_reasons(results)):
        return ""
    first = [reason for reason in top_reasons(results) if reason in reasons]
    order = [*first, *(reason for reason in reasons if reason not in first)]
    return folded("Pods without a place, by reason", reason_table(results, order).html())


def _made(results: SimulationResults, texts: ReportTexts) -> str:
    seeds = sorted({run.seed for run in results.runs})
    mode = (
        "replay of the workload’s own arrivals and departures"
        if is_timed(results)
        else "pods arrive one by one and never leave; a pod that fits nowhere is dropped"
    )
    rows = {
        "Workload": texts.subtitle,
        "Experiment": mode,
        "Policies": ", ".join(summary.policy for summary in results.summary),
        "Seeds": _ranges(seeds),
        **texts.made.rows(),
    }
    return part("made", rows, texts.made.command)


def _ranges(seeds: list[int]) -> str:
    """Format 42, 43, 44 as 42–44."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)


# --- tables ---------------------------------------------------------------------------------------


class Column(msgspec.Struct, frozen=True):
    """A column of the table of policies: one measure over a policy's seeds.

    `best` is `max` or `min` if higher or lower is better, None if policies are not compared by
    it."""

    title: str
    value: Callable[[Sequence[PolicyRun]], SeedMean | None]
    decimals: int
    best: Callable[[Sequence[float]], float] | None = None


def policy_table(results: SimulationResults) -> Table:
    """Return a table of policies, best first: mean ± 95 % interval of each measure, the best one
    bold."""
    columns = _columns(results)
    order, settled = ranked(results), headline(results).settled
    summaries = {summary.policy: summary for summary in results.summary}
    look_of = looks(list(summaries))
    cells = {policy: _values(results, policy, columns) for policy in order}
    best = [_best(column, [cells[p][i] for p in order]) for i, column in enumerate(columns)]
    titles = ["Policy", "Seeds", *(column.title for column in columns)]
    better = ["", "", *(_better(column) for column in columns)]
    rows = []
    for policy in order:
        summary = summaries[policy]
        row = [seeds_text(summary.seeds)]
        row += [_cell(cells[policy][i], column) for i, column in enumerate(columns)]
        bold = [False] + [
            top is not None and _shown(cells[policy][i], columns[i]) == top
            for i, top in enumerate(best)
        ]
        first, look = settled and policy == order[0], look_of[policy]
        rows.append(TableRow(policy_text(summary), row, look, bold, first))
    return Table("Policies compared", titles, rows, better)


def reason_table(results: SimulationResults, reasons: Sequence[str]) -> Table:
    """Return a table of pods that were not placed, by policy and reason, mean per seed."""
    titles, rows = ["Policy", *reasons, "all"], []
    for policy in ranked(results):
        means = reason_means(results, policy)
        row = [f"{means.get(reason, 0.0):,.1f}" for reason in reasons]
        rows.append(TableRow(policy, [*row, f"{sum(means.values()):,.1f}"]))
    return Table("Pods without a place, by reason", titles, rows)


_QUEUE_TITLES = ["Pods", "Mean wait, s", "p99 wait, s", "Held, %", "Guarantee, %"]
_QUEUE_TITLES += ["Held when wanted, %", "Preempted, GPU s", "Never started"]


def queue_table(results: SimulationResults) -> Table:
    """Return a table with a row for each policy and queue, best policy first; empty without
    queues."""
    of_policy, rows = {summary.policy: summary for summary in results.summary}, []
    for policy in ranked(results):
        timed = of_policy[policy].timed
        for queue in (timed.queues or ()) if timed else ():
            shares = queue.held_percent, queue.guarantee_percent, queue.held_while_wanting_percent
            values = [
                queue.queue,
                f"{queue.pods:,.0f}",
                *map(_plain, (queue.wait_mean_s, queue.wait_p99_s, *shares)),
                f"{queue.preempted_gpu_s:,.0f}",
                f"{queue.never_started:,.1f}",
            ]
            rows.append(TableRow(policy, values))
    return Table("Teams’ queues", ["Policy", "Queue", *_QUEUE_TITLES], rows)


def run_table(results: SimulationResults) -> Table:
    """Return a table with a row for every run."""
    timed = is_timed(results)
    timing = any(run.cpu_s is not None for run in results.runs)
    titles = ["Policy", "Seed", "Pods", "Failed pods"]
    titles += _TIMED_TITLES if timed else _RUN_TITLES
    titles += ["CPU, s", "Wall, s"] if timing else []
    rows = []
    for run in results.runs:
        values = [
            str(run.seed),
            f"{run.pods:,}",
            f"{run.failed_pods:,}",
            *map(_plain, _timed_values(run) if timed else _run_values(run)),
        ]
        values += [_plain(run.cpu_s), _plain(run.wall_s)] if timing else []
        rows.append(TableRow(run.policy, values))
    return Table("All runs", titles, rows)


_RUN_TITLES = [
    "Demand, %",
    "Allocated at 100 % demand, %",
    "Allocated, %",
    "Held, %",
    "Fragmented, %",
    "Fragmented, % of idle",
]
_TIMED_TITLES = ["Mean wait, s", "p50 wait, s", "p95 wait, s", "p99 wait, s"]
_TIMED_TITLES += [f"{part} completion, s" for part in ("Mean", "p50", "p95", "p99")]
_TIMED_TITLES += ["Allocated, %", "Held, %"]


def _run_values(run: PolicyRun) -> list[float | None]:
    return [
        run.arrived_percent,
        run.curve.get("100"),
        run.gpu_allocated_percent,
        run.gpu_held_percent,
        run.gpu_fragmentation_percent,
        run.fragmentation_of_idle_percent,
    ]


def _timed_values(run: PolicyRun) -> list[float | None]:
    waits, took = run.waits, run.completion
    if waits is None or took is None:
        return [None] * len(_TIMED_TITLES)
    return [
        *(waits.mean_s, waits.p50_s, waits.p95_s, waits.p99_s),
        *(took.mean_s, took.p50_s, took.p95_s, took.p99_s),
        *(waits.mean_allocated_percent, waits.mean_held_percent),
    ]


def _columns(results: SimulationResults) -> list[Column]:
    columns = [
        _column("gpu_allocated_at_100_percent", 2),
        _column("gpu_allocated_percent", 2),
        *([_column("gpu_held_percent", 2, judges=False)] if holds_more(results) else []),
        # Low fragmentation does not make a policy better: a policy that fills all GPUs has none.
        _column("gpu_fragmentation_percent", 2, judges=False),
        # Placing small pods instead of large ones lowers failed pods, but also allocated GPUs.
        _column("failed_pods", 1, judges=False),
    ]
    if is_timed(results):
        # By the end all pods have left, so the final allocation says nothing.
        columns = _wait_columns()
        if any(run.gangs is not UNSET for run in results.runs):
            columns += [_column("gang_wait_mean_s", 1), _column("wasted_gpu_s", 0)]
        preempts = any(run.preemption is not UNSET for run in results.runs)
        if preempts or any(run.gangs is not UNSET for run in results.runs):
            columns.append(_column("preempted_gpu_s", 0))
        if preempts:
            columns.append(_column("preemptions", 1))
    if any(summary.cpu_s is not None for summary in results.summary):
        columns.append(Column("CPU, s", _cpu, 2))
    return columns


def _column(
    name: str,
    decimals: int,
    *,
    title: str = "",
    value: Callable[[PolicyRun], float | None] | None = None,
    judges: bool = True,
) -> Column:
    """Return the column of a measure, named as in experiments; with `title` and `value`, of a
    related value."""
    measure = measure_of(name)
    title = title or measure.title
    unit = f", {measure.unit}" if measure.unit else ""
    best = max if measure.more_is_better else min
    return Column(
        f"{capital(title)}{unit}",
        lambda runs: measured_mean(runs, name, value),
        decimals,
        best if judges and measure.more_is_better is not None else None,
    )


def _wait_columns() -> list[Column]:
    def of(name: str, value: Callable[[WaitTimes], float], decimals: int, title: str) -> Column:
        def of_run(run: PolicyRun) -> float | None:
            return value(run.waits) if run.waits else None

        return _column(name, decimals, title=title, value=of_run)

    return [
        _column("failed_pods", 1),
        _column("queue_mean_s", 1),
        of("queue_p99_s", lambda w: w.p50_s, 1, "p50 wait"),
        of("queue_p99_s", lambda w: w.p95_s, 1, "p95 wait"),
        _column("queue_p99_s", 1),
        _column("jct_mean_s", 1),
        of("mean_held_percent", lambda w: w.mean_allocated_percent, 2, _ALLOCATED_OVER_TIME),
        _column("mean_held_percent", 2),
    ]


_CPU_RESOLUTION_S = 0.01
_ALLOCATED_OVER_TIME = "GPUs allocated over time"


def _cpu(runs: Sequence[PolicyRun]) -> SeedMean | None:
    values = [run.cpu_s for run in runs if run.cpu_s is not None]
    return mean_ci95(values, _CPU_RESOLUTION_S) if values else None


def _values(
    results: SimulationResults, policy: str, columns: list[Column]
) -> list[SeedMean | None]:
    runs = [run for run in results.runs if run.policy == policy]
    return [column.value(runs) if runs else None for column in columns]


def _best(column: Column, cells: list[SeedMean | None]) -> str | None:
    """Return the value to print in bold, as text; None if neither direction is better, or all
    are equal."""
    there = [cell for cell in cells if cell is not None]
    if column.best is None or len({_shown(cell, column) for cell in there}) < 2:
        return None
    return _shown(SeedMean(column.best([cell.mean for cell in there])), column)


def _better(column: Column) -> str:
    """Return whether higher or lower is better in a column, in words; "" if neither."""
    if column.best is None:
        return ""
    return "higher is better" if column.best is max else "lower is better"


def _shown(cell: SeedMean | None, column: Column) -> str:
    return "–" if cell is None else f"{cell.mean:,.{column.decimals}f}"


def _cell(cell: SeedMean | None, column: Column) -> str:
    if cell is None or cell.half is None:
        return _shown(cell, column)
    return with_interval(cell.text(column.decimals))


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


# --- the map --------------------------------------------------------------------------------------

MOST_NODES = 4_000
"""Maximum number of nodes of all maps together; with more the page would open slowly."""
_FEW_NODES = 40
"""Up to this number of nodes, each is drawn large and with its name."""


def maps(holdings: Sequence[ClusterHoldings], order: Sequence[str]) -> list[str]:
    """Return a map per policy, best first, up to `MOST_NODES` nodes; the first map is open."""
    by_policy = {cluster.policy: cluster for cluster in holdings}
    there = [by_policy[policy] for policy in order if policy in by_policy]
    shown: list[ClusterHoldings] = []
    for cluster in there:
        if not shown or sum(len(each.nodes) for each in (*shown, cluster)) <= MOST_NODES:
            shown.append(cluster)
    if not shown:
        return []
    names = ", ".join(cluster.policy for cluster in there if cluster not in shown)
    left_out = f"More maps would make this page slow. For a map, run these policies alone: {names}."
    first = shown[0]
    return [
        section(
            part("map_key", len(HEAT)),
            part("note", left_out) if names else "",
            title=f"Nodes and GPUs {first.moment}, seed {first.seed}",
            label="Nodes and GPUs",
        ),
        *(_map(cluster, is_open=cluster is first) for cluster in shown),
    ]


def _map(cluster: ClusterHoldings, *, is_open: bool) -> str:
    gpus = [gpu for node in cluster.nodes for gpu in node.gpus]
    idle = sum(not gpu.holders for gpu in gpus)
    lost = sum(node.fragments_milli for node in cluster.nodes) / 1000
    said = f"{_count(len(gpus), 'GPU')}, {idle:,} idle, {lost:,.1f} in fragments"
    by_model: dict[str, list[NodeHoldings]] = {}
    for node in sorted(cluster.nodes, key=lambda node: (node.gpus[0].model, node.name)):
        by_model.setdefault(node.gpus[0].model, []).append(node)
    order = sorted(by_model, key=lambda model: -sum(len(node.gpus) for node in by_model[model]))
    models = [_model(model, by_model[model]) for model in order]
    large = len(cluster.nodes) <= _FEW_NODES
    return part("gpu_map", f"{cluster.policy}: {said}", models, large, is_open)


def _model(model: str, nodes: Sequence[NodeHoldings]) -> dict[str, Any]:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    held = 100 * sum(gpu.held for gpu in gpus) / len(gpus)
    lost = sum(node.fragments_milli for node in nodes) / 10 / len(gpus)
    said = f"{_count(len(nodes), 'node')}, {_count(len(gpus), 'GPU')}: {held:.1f} % held, "
    said += f"{lost:.1f} % in fragments"
    return {"name": model or "unknown model", "words": said, "nodes": list(map(_node, nodes))}


def _node(node: NodeHoldings) -> dict[str, Any]:
    """Return a node's block of squares for the template: shades, squares per row, and hint."""
    gpus = len(node.gpus)
    return {
        "name": node.name,
        "words": _words(node),
        "shades": [_shade(gpu.held) for gpu in node.gpus],
        "lost": min(100.0, node.fragments_milli / 10 / gpus),
        "columns": gpus if gpus < 4 else 4 if gpus <= 8 else 8,
    }


def _shade(held: float) -> int:
    """Return the shade for a held fraction; 0 and 1 have shades of their own."""
    last = len(HEAT) - 1
    if held <= 0:
        return 0
    return last if held > 0.9995 else 1 + int(held * (last - 1))


def _words(node: NodeHoldings) -> str:
    """Return a node's hint: the pods on each GPU, with neighbouring equal GPUs joined."""
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
