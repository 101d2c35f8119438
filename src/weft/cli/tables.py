"""Results as tables for people and as CSV for spreadsheets."""

from operator import attrgetter

from weft.cli import output
from weft.cli.output import print_table, table_with
from weft.lab.experiment.notes import seeds_text
from weft.lab.simulate.results import PolicySummary, SimulationResults

CSV_COLUMNS = (
    "policy",
    "seed",
    "arrived_percent",
    "gpu_allocation_percent",
    "gpu_fragmentation_percent",
    "fragmentation_of_idle_percent",
    "used_gpu_milli",
    "failed_pods",
    "pods",
    "cpu_s",
    "wall_s",
)


def print_csv(results: SimulationResults) -> None:
    """One line a run."""
    output.print_csv(CSV_COLUMNS, map(attrgetter(*CSV_COLUMNS), results.runs))


def print_results(results: SimulationResults) -> None:
    """One row a policy, best allocation first."""
    timed = any(summary.mean_wait_s is not None for summary in results.summary)
    table = table_with(
        "policy|>seeds|>GPU % at 100 %|>GPU % at end|>fragments %|>failed pods"
        + ("|>mean wait s" if timed else "")
        + "|>CPU s"
    )
    for summary in sorted(results.summary, key=lambda s: -s.gpu_allocation_percent):
        table.add_row(*_row(summary, timed))
    print_table(table, width=120)
    for note in results.notes:
        print(note)


def _row(summary: PolicySummary, timed: bool) -> list[str]:
    waits = [f"{summary.mean_wait_s:.1f}" if summary.mean_wait_s is not None else "–"]
    return [
        summary.policy,
        seeds_text(summary.seeds),
        _with_interval(summary.at_100_percent, summary.at_100_ci95),
        _with_interval(summary.gpu_allocation_percent, summary.gpu_allocation_ci95),
        _with_interval(summary.gpu_fragmentation_percent, summary.gpu_fragmentation_ci95),
        f"{summary.failed_pods:,.0f}",
        *(waits if timed else []),
        "–" if summary.cpu_s is None else f"{summary.cpu_s:.2f}",
    ]


def _with_interval(mean: float | None, half: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.2f}" if half is None else f"{mean:.2f} ± {half:.2f}"
