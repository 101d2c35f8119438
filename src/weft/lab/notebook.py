"""Compares policies from Python, for notebooks and scripts: `weft.lab.compare`.

The runs and their numbers are the same as those of `weft simulate`."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from msgspec import to_builtins

from weft.core.framework import Policy
from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.trace_runs import RunGrid, arrivals_of_seeds, openb_measures
from weft.lab.experiment.statistics.ranking import ranked, run_grid
from weft.lab.simulate.arrivals import DEMAND
from weft.lab.simulate.results import PolicySummary, SimulationResults
from weft.lab.simulate.scenario import read_scenario
from weft.model import BadInputError

PolicyLike = str | type[Policy]
Row = dict[str, str | int | float | None]


class Comparison:
    """A comparison of policies, best first, with means over the seeds; printed, it is a table.

    `results` has all that `weft simulate --output json` prints, `notes` are remarks on the
    results."""

    def __init__(self, results: SimulationResults) -> None:
        self.results = results
        self.notes = list(results.notes)

    def rows(self) -> list[Row]:
        """Return one row per policy, best first: means, and half-widths of 95 % intervals
        ("…_ci95", None below five seeds). Percentages are of the cluster's GPUs, times in
        seconds."""
        summaries = {summary.policy: summary for summary in self.results.summary}
        return [_row(summaries[name]) for name in ranked(self.results)]

    def runs(self) -> list[Row]:
        """Return one row per policy and seed, with the run's measures."""
        return [
            {"policy": run.policy, "seed": run.seed, **openb_measures(run)}
            for run in self.results.runs
        ]

    def to_pandas(self) -> Any:
        """Return `rows` as a pandas DataFrame; ImportError if pandas is not installed."""
        return import_module("pandas").DataFrame(self.rows())

    def to_polars(self) -> Any:
        """Return `rows` as a Polars DataFrame; ImportError if Polars is not installed."""
        return import_module("polars").DataFrame(self.rows())

    def __str__(self) -> str:
        header, *rows = self._cells()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = (
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (header, *rows)
        )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        header, *rows = self._cells()
        head = "".join(f"<th>{escape(name)}</th>" for name in header)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _cells(self) -> list[list[str]]:
        rows = self.rows()
        shown = [name for name in rows[0] if any(row[name] is not None for row in rows)]
        return [shown, *([_shown(row[name]) for name in shown] for row in rows)]


class _MakePolicies:
    """Creates policies by name; `own` are the caller's classes, by policy name."""

    def __init__(self, own: Mapping[str, type[Policy]]) -> None:
        self.own = own

    def __call__(self, name: str) -> Policy:
        return self.own[name]() if name in self.own else built_in().from_spec(name)


def compare(
    nodes: str | Path,
    pods: str | Path,
    policies: Sequence[PolicyLike],
    seeds: int = 5,
    *,
    timed: bool = False,
    demand: float = DEMAND,
    jobs: int = 1,
) -> Comparison:
    """Place the pods on the nodes by each policy, in `seeds` random orders of arrival.

    `nodes` and `pods` are CSV files as `weft simulate` reads them; `policies` are names (also
    `name:option=value` and `./file.py:Class`) or classes. Pods arrive until they request `demand`
    times the cluster's GPUs, and stay; with `timed` the trace's times are replayed. `BadInputError`
    names the fault of a file or a policy."""
    if not policies or seeds < 1:
        raise BadInputError("compare", "needs at least one policy and one seed; name them")
    own = {policy.name: policy for policy in policies if not isinstance(policy, str)}
    names = tuple(dict.fromkeys(each if isinstance(each, str) else each.name for each in policies))
    make = _MakePolicies(own)
    for name in names:  # reject a wrong name before a long file is read
        make(name)
    scenario = read_scenario(Path(nodes), Path(pods), timed=timed)
    mode: Literal["inflation", "timed"] = "timed" if timed else "inflation"
    orders = tuple(arrivals_of_seeds(scenario, mode, seeds, demand=demand))
    return Comparison(run_grid(RunGrid(scenario, names, orders, make, mode, timing=False), jobs))


def _row(summary: PolicySummary) -> Row:
    flat = to_builtins(summary)
    flat |= flat.pop("timed") or {}
    return {name: each for name, each in flat.items() if not isinstance(each, list)}


def _shown(value: str | float | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,g}"
