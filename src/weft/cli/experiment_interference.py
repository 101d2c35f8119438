"""`weft experiment interference`: policies on jobs that slow each other down as measured."""

import math
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Option

from weft.cli import options
from weft.cli.experiment_options import known_policies, results_of, spec_of_options
from weft.cli.output import SimulateOutput, json_text, print_csv, print_table, table_with
from weft.model.errors import BadInputError
from weft.model.nearest import unknown

if TYPE_CHECKING:
    from weft.lab.experiment.spec.workloads import PredictorName
    from weft.lab.experiment.statistics.levels import InterferenceLevel, PolicyDifference

TOLD = ("trained", "ridge", "truth")
CSV_COLUMNS = ("load", "policy", "jct_mean_s", "jct_p99_s", "makespan_s", "residents", "unfinished")

_Table = Annotated[
    Path, Argument(metavar="TABLE", help="Measured pairs: CSV as Gavel's, or JSON as Co-scheML's.")
]
_Policies = Annotated[
    list[str],
    Option(
        help="A policy: name, or name:option=value,…; also gandiva, which tries pairs, and oracle, "
        "which is --ours told the truth; repeat for several."
    ),
]
_Ours = Annotated[str, Option(help="The policy that all are compared with; always run.")]
_Loads = Annotated[
    list[float],
    Option(help="Jobs that come, by mean time alone, for each GPU; repeat for several."),
]
_Told = Annotated[
    str,
    Option(help="What policies know: trained or ridge, learnt from half of the pairs; truth, all."),
]
_Watched = Annotated[
    bool, Option("--watched", help="Jobs report progress, which corrects what policies know.")
]


def interference(
    table: _Table,
    source: Annotated[str, Option(help="Of a CSV file: which campaign.")] = "oracle_throughputs",
    gpu: Annotated[str, Option(help="Of a CSV file: which GPU model.")] = "v100",
    policy: _Policies = ["binpack", "gandiva", "coscheml", "oracle"],  # noqa: B006 - typer's way
    ours: _Ours = "interference",
    load: _Loads = [0.7, 0.9, 1.1],  # noqa: B006
    told: _Told = "trained",
    watched: _Watched = False,
    seeds: options.Workloads = 20,
    first_seed: options.FirstSeed = 0,
    gpus: Annotated[int, Option(min=1, max=10_000, help="GPUs, four on a node.")] = 16,
    pods: Annotated[int, Option(min=1, max=1_000_000, help="Jobs, each one pod.")] = 400,
    jobs: options.Jobs = None,
    output: options.ResultsOutput = SimulateOutput.table,
) -> None:
    """Run jobs that come at random and share GPUs as measured pairs did, and compare policies.

    The table is the truth; policies only see what a predictor learnt from half of it.
    """
    from weft.cli.policies import registry
    from weft.lab.experiment.run.measured_pairs import ORACLE, PairsRunner
    from weft.lab.experiment.run.shared_gpus import GANDIVA
    from weft.lab.experiment.spec.workloads import MeasuredPairs
    from weft.lab.experiment.statistics.levels import interference_results

    for rate in load:
        if not (math.isfinite(rate) and rate > 0):
            raise BadInputError("--load", f"{rate} is no load; write a number above 0")
    if told not in TOLD:
        raise BadInputError("--told", unknown(told, TOLD))
    names = known_policies([ours, *policy], {GANDIVA, ORACLE} - {ours})
    workload = MeasuredPairs(
        table=str(table),
        source=source,
        gpu=gpu,
        loads=tuple(dict.fromkeys(load)),
        gpus=gpus,
        jobs=pods,
        told=cast("PredictorName", told),
        watched=watched,
    )
    runner = PairsRunner(workload, {"table": table}, registry().from_spec, ours).read()
    spec = spec_of_options("interference", workload, names, (first_seed, seeds))
    _print(interference_results(spec, results_of(spec, runner, jobs)), ours, output)


def _print(levels: "list[InterferenceLevel]", base: str, output: SimulateOutput) -> None:
    if output is SimulateOutput.json:
        print(json_text({"ours": base, "levels": levels}))
    elif output is SimulateOutput.csv:
        cells = attrgetter(*CSV_COLUMNS)
        print_csv(CSV_COLUMNS, map(cells, levels))
    else:
        _print_levels(levels, base)


def _print_levels(levels: "list[InterferenceLevel]", base: str) -> None:
    from weft.cli.experiment_tables import print_chance

    table = table_with(
        f"load|policy|>mean JCT s|>mean of {base}|>p99 JCT s|>p99 of {base}|>makespan s|>pods/GPU"
    )
    for level in levels:
        never = f" ({level.unfinished} never ended)" if level.unfinished else ""
        mean = f"{level.jct_mean_s:,.0f}", _change(level.jct_mean)
        p99 = f"{level.jct_p99_s:,.0f}", _change(level.jct_p99)
        others = f"{level.makespan_s:,.0f}", f"{level.residents:.2f}"
        table.add_row(f"{level.load:g}", level.policy + never, *mean, *p99, *others)
    print_table(table)
    changes = [level.jct_mean for level in levels if level.jct_mean is not None]
    print_chance(any(change.p_value is None for change in changes))


def _change(difference: "PolicyDifference | None") -> str:
    """In percent of the policy's own; ° is what may be chance."""
    from weft.cli.experiment_tables import percent_change
    from weft.lab.experiment.statistics.ranking import MAY_BE_CHANCE

    if difference is None:
        return "–"
    may_be_chance = difference.p_value is None or difference.p_value >= 0.05
    return percent_change(difference.difference, MAY_BE_CHANCE if may_be_chance else "")
