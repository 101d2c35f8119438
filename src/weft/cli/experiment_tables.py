"""An experiment's results as a table for people and as CSV for spreadsheets."""

from operator import attrgetter

from weft.cli import output
from weft.cli.output import print_table, table_with
from weft.interference.intervals import ENOUGH_FOR_INTERVAL
from weft.lab.experiment.statistics.differences import Difference
from weft.lab.experiment.statistics.levels import OverprovisionLevel, OverprovisionResults
from weft.lab.experiment.statistics.ranking import FEW_SEEDS, MAY_BE_CHANCE

CSV_COLUMNS = (
    "seed",
    "jobs",
    "unfinished",
    "makespan_s",
    "jct_mean_s",
    "jct_p50_s",
    "jct_p99_s",
    "jct_max_s",
    "ooms",
    "evictions",
    "lost_s",
    "residents",
    "memory_used_percent",
    "gpu_util_percent",
    "energy_kj",
    "idle_energy_kj",
)
"""Fields of a run, after its level and its policy."""


def print_csv(results: OverprovisionResults) -> None:
    """One line a run."""
    columns = ("policy", *CSV_COLUMNS)
    rows = ((level.percent, *attrgetter(*columns)(level.run)) for level in results.runs)
    output.print_csv(("percent", *columns), rows)


def print_levels(results: OverprovisionResults) -> None:
    """One row a level and policy, in the order they were asked for."""
    table = table_with(
        f"level %|policy|>mean JCT s|>p99 JCT s|>p99 against {results.baseline}|>gap to best"
        "|>makespan s|>OOMs|>evictions|>residents"
    )
    for level in results.levels:
        table.add_row(*_row(level))
    print_table(table)
    print_chance(any(level.seeds < ENOUGH_FOR_INTERVAL for level in results.levels))


def _row(level: OverprovisionLevel) -> list[str]:
    never = f" ({level.unfinished} never ended)" if level.unfinished else ""
    return [
        str(level.percent),
        level.policy + never,
        f"{level.jct_mean_s:,.0f}",
        f"{level.jct_p99_s:,.0f}",
        percent_change(level.jct_p99_change),
        percent_change(level.gap_to_best),
        f"{level.makespan_s:,.0f}",
        f"{level.ooms:.1f}",
        f"{level.evictions:.1f}",
        f"{level.residents:.2f}",
    ]


def print_chance(few_seeds: bool) -> None:
    """Say what ° means where seeds are too few for intervals."""
    if few_seeds:
        print(FEW_SEEDS)


def percent_change(difference: Difference | None, mark: str = "") -> str:
    """In percent with `mark` and its interval, or ° where it has none; – without a difference."""
    if difference is None:
        return "–"
    return difference.text(MAY_BE_CHANCE if difference.low_percent is None else mark)
