"""`weft simulate`: compares policies on a trace."""

import math
import os
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from typer import Option, echo

from weft.cli import completion, options
from weft.cli.options import MissingOptionError
from weft.cli.output import SimulateOutput, json_text, print_warning
from weft.cli.progress import bar
from weft.cli.simulate_bound import BoundOptions
from weft.cli.simulate_teams import (
    DisciplineName,
    Durations,
    GraceS,
    Move,
    Preempt,
    QueuesFile,
    ReserveAfterS,
    TeamOptions,
)
from weft.files.writing import unwritten
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weft.core.framework.registry import Registry
    from weft.lab.experiment.pages.simulation_report import HowMade
    from weft.lab.experiment.run.trace_runs import RunGrid
    from weft.lab.simulate.arrivals import Arrivals
    from weft.lab.simulate.holdings import ClusterHoldings
    from weft.lab.simulate.results import SimulationResults
    from weft.lab.simulate.scenario import Scenario

_Nodes = Annotated[
    Path | None, Option(help="Node list, openb CSV (sn,cpu_milli,memory_mib,gpu,model) or .gz.")
]
_Pods = Annotated[
    Path | None, Option(help="Pod list, openb CSV (name,cpu_milli,memory_mib,num_gpu,gpu_milli,…).")
]
_DecisionsFrom = Annotated[
    Path | None,
    Option(
        help="Instead of --nodes and --pods: the nodes, arrivals and durations recorded in a "
        "decisions file (`weft scheduler --decisions`), under other policies."
    ),
]
_Snapshot = Annotated[
    Path | None,
    Option(
        help="Instead of --nodes and --pods: a live state (`weft snapshot`): bound pods stay, "
        "pending pods arrive."
    ),
]
_Policies = Annotated[
    list[str],
    Option(
        help="A policy: name, or name:option=value,…; repeat for several. See `weft policies`.",
        autocompletion=completion.policies,
    ),
]
_Order = Annotated[
    Path | None, Option(help="Published arrival orders (JSON, plain or .gz): the first --seeds.")
]
_Demand = Annotated[
    float | None,
    Option(
        min=0.01,
        show_default=False,
        help="Pods arrive until they request this multiple of the cluster's GPUs.  "
        "[default: 1.3, or all of --order]",
    ),
]
_Timed = Annotated[
    bool,
    Option(
        "--timed",
        help="Replay the trace's own arrivals and departures, queueing; with several seeds each "
        "draws other pods of the trace for its arrival times.",
    ),
]
_Compress = Annotated[
    float, Option(min=0.001, help="With --timed: make arrivals this many times faster.")
]
_Seeds = Annotated[
    int | None,
    Option(
        min=1,
        max=options.MOST_SEEDS,
        show_default=False,
        help="How many arrival orders.  [default: 20, or all of --order; 1 with --timed, --bound, "
        "--decisions]",
    ),
]
_FirstSeed = Annotated[
    int,
    Option(
        min=0,
        max=options.LARGEST_SEED,
        help="Without --order: the first seed; the others follow.",
    ),
]
_Report = Annotated[Path | None, Option(help="Write report.html and SVG figures into this folder.")]
_Png = Annotated[bool, Option("--png", help="With --report: figures as PNG too.")]
_Decisions = Annotated[
    Path | None,
    Option(help="Write the decisions file (one policy, one seed), for replay and explain."),
]
_Interference = Annotated[
    Path | None,
    Option(
        help="How much applications slow each other down (JSON table), for policies that use it; "
        "the pod list's column application names each pod's application."
    ),
]
_Mystic = Annotated[
    Path | None, Option(help="Distances between applications (JSON), for coscheml:pairing=mystic.")
]
_Bound = Annotated[
    bool,
    Option("--bound", help="Also compute an upper bound that no policy can exceed."),
]
_BoundDemand = Annotated[
    float | None,
    Option(
        show_default=False,
        help="With --bound: demand up to which all pods must be taken.  [default: up to the first "
        "pod that the policy rejected]",
    ),
]
_BoundLimit = Annotated[
    float | None,
    Option(
        show_default=False,
        help="With --bound: seconds to search each bound, at most.  [default: 180]",
    ),
]
_BoundsIn = Annotated[
    Path | None,
    Option(
        show_default=False,
        help="With --bound: folder that caches bounds.  [default: the user's cache]",
    ),
]
_Learn = Annotated[
    bool,
    Option(
        "--learn",
        help="Policies learn the typical pods from arrivals so far instead of the whole trace.",
    ),
]
_HalfLife = Annotated[
    float | None,
    Option(
        min=1,
        max=1e9,
        show_default=False,
        help="With --learn and times: seconds after which an arrival counts half.  [default: "
        "never]",
    ),
]
_Strict = Annotated[
    bool,
    Option("--strict", help="Refuse a policy that would run without inputs it needs."),
]
_Timing = Annotated[
    bool,
    Option(
        "--timing/--no-timing",
        help="Print cpu_s and wall_s; without them, equal runs print equal output.",
    ),
]


def simulate(
    policy: _Policies,
    nodes: _Nodes = None,
    pods: _Pods = None,
    decisions_from: _DecisionsFrom = None,
    snapshot: _Snapshot = None,
    seeds: _Seeds = None,
    order: _Order = None,
    demand: _Demand = None,
    timed: _Timed = False,
    compress: _Compress = 1.0,
    first_seed: _FirstSeed = 42,
    jobs: options.Jobs = None,
    output: options.ResultsOutput = SimulateOutput.table,
    report: _Report = None,
    png: _Png = False,
    decisions: _Decisions = None,
    interference: _Interference = None,
    mystic: _Mystic = None,
    learn: _Learn = False,
    half_life: _HalfLife = None,
    queues: QueuesFile = None,
    preempt: Preempt = None,
    grace_s: GraceS = None,
    move: Move = False,
    discipline: DisciplineName = None,
    reserve_after_s: ReserveAfterS = None,
    durations: Durations = "learnt",
    bound: _Bound = False,
    bound_demand: _BoundDemand = None,
    bound_limit_s: _BoundLimit = None,
    bounds_in: _BoundsIn = None,
    strict: _Strict = False,
    timing: _Timing = True,
) -> None:
    """Place a workload on a cluster with one or more policies and measure how well it packs.

    Pods arrive in random order up to 130 % demand, and stay (FGD, ATC'23). --timed replays a
    trace's times, --decisions-from a recorded day; --snapshot continues from a cluster's state.
    """
    _check_options(demand, timed, compress, png, report)
    start = _start(decisions_from, snapshot)
    of_bound = BoundOptions(bound, bound_demand, bound_limit_s, bounds_in)
    of_bound.check(grows=not timed and start.path is None)
    inputs = [nodes, pods, order, interference, mystic, queues, start.path]
    _check_files(inputs, decisions, report)
    if start.path is not None:
        start.check(nodes or pods or order, seeds or 1, timed or compress != 1.0, demand)
        grid = start.grid(policy, timing)
    else:
        seeds = seeds or _usual_seeds(once=timed or bound or decisions is not None)
        grid = _grid(nodes, pods, policy, seeds, order, demand, timed, compress, first_seed, timing)
    grid = _learning(grid, learn, half_life)
    of_teams = TeamOptions(queues, preempt, grace_s, move, discipline, reserve_after_s, durations)
    grid = of_teams.completed(grid)
    grid = _completed(grid, interference, mystic, decisions, keeps_holdings=report is not None)
    results, holdings = _run(grid, jobs, of_bound, output, strict)
    _print(results, output)
    workload = (start.path or pods or Path()).name
    _write_report((results, holdings, report, grid.scenario), workload, png, timing)


def _usual_seeds(*, once: bool) -> int | None:
    """Return 1 if further seeds have no effect or take long; None for the default number."""
    return 1 if once else None


def _write_report(
    outcome: "tuple[SimulationResults, list[ClusterHoldings], Path | None, Scenario]",
    workload: str,
    png: bool,
    timing: bool,
) -> None:
    results, holdings, folder, scenario = outcome
    if folder is not None:
        write_simulation_report(
            results, holdings, folder, scenario, workload=workload, png=png, timing=timing
        )


def _run(
    grid: "RunGrid", jobs: int | None, of_bound: BoundOptions, output: SimulateOutput, strict: bool
) -> "tuple[SimulationResults, list[ClusterHoldings]]":
    from weft.lab.experiment.statistics.ranking import run_grid_with_holdings

    _tell_lacks(grid.lacks(), strict=strict, in_table=output is SimulateOutput.table)
    cells = len(grid.cells())
    jobs = min(jobs or os.cpu_count() or 1, cells)
    results, holdings = run_grid_with_holdings(grid, jobs, bar(cells))
    return of_bound.bounded(results, grid), holdings


def _completed(
    grid: "RunGrid",
    interference: Path | None,
    mystic: Path | None,
    decisions: Path | None,
    *,
    keeps_holdings: bool,
) -> "RunGrid":
    """Add the policies' inputs to the grid, and the decisions file if one is requested."""
    import msgspec

    scenario = _with_inputs(grid.scenario, interference, mystic)
    if decisions is not None and len(grid.cells()) > 1:
        raise BadInputError(
            "--decisions", "works with one policy and one seed; run them one at a time"
        )
    return msgspec.structs.replace(
        grid, scenario=scenario, decisions=decisions, keeps_holdings=keeps_holdings
    )


def _learning(grid: "RunGrid", learn: bool, half_life: float | None) -> "RunGrid":
    """Let policies learn the typical pods from earlier arrivals, if `learn`."""
    import msgspec

    if half_life is not None and not (learn and grid.mode == "timed" and half_life < math.inf):
        raise BadInputError(
            "--half-life", "expects seconds, and requires --learn and a run with times"
        )
    half_life_ns = round((half_life or 0) * 1e9)
    scenario = msgspec.structs.replace(grid.scenario, learn=learn, half_life_ns=half_life_ns)
    return msgspec.structs.replace(grid, scenario=scenario)


def _given(path: Path | None, option: str) -> Path:
    if path is None:
        raise MissingOptionError(
            option, "is missing: name a CSV file, or a decisions file with --decisions-from"
        )
    return path


def _start(decisions_from: Path | None, snapshot: Path | None) -> "SimulationStart":
    if decisions_from is not None and snapshot is not None:
        raise BadInputError(
            "--snapshot", "sets the start as --decisions-from does; remove one of them"
        )
    return SimulationStart(decisions_from or snapshot, of_snapshot=snapshot is not None)


def _tell_lacks(lacks: dict[str, list[str]], *, strict: bool, in_table: bool) -> None:
    """Warn of policies that would run without inputs they need, or refuse them if `strict`.

    With `in_table` there is no warning, as the table marks such policies."""
    from weft.lab.experiment.statistics.ranking import lacking_notes

    notes = lacking_notes(lacks)
    if strict and notes:
        raise BadInputError("--strict", f"policies would run {'; '.join(notes)}")
    for note in () if in_table else notes:
        print_warning(f"policies run {note}")


def _with_inputs(
    scenario: "Scenario", interference: Path | None, mystic: Path | None
) -> "Scenario":
    """Add to the scenario the tables of slowdowns and of distances between applications, if
    given."""
    import msgspec

    from weft.host.interference_files import read_interference, read_mystic

    if interference is not None:
        inputs = read_interference(interference, "--interference")
        scenario = msgspec.structs.replace(scenario, interference=inputs)
    if mystic is not None:
        scenario = msgspec.structs.replace(scenario, mystic=read_mystic(mystic, "--mystic"))
    return scenario


def _check_options(
    demand: float | None, timed: bool, compress: float, png: bool, report: Path | None
) -> None:
    if demand is not None and not math.isfinite(demand):
        raise BadInputError("--demand", f"{demand} is not a finite number")
    if not math.isfinite(compress):
        raise BadInputError("--compress", f"{compress} is not a finite number")
    if timed and demand is not None:
        raise BadInputError("--timed", "replays the trace's own arrivals; remove --demand")
    if compress != 1.0 and not timed:
        raise BadInputError("--compress", "has an effect only with --timed; add it")
    if png and report is None:
        raise BadInputError("--png", "requires --report DIR, the folder for the figures")


def _check_files(given: list[Path | None], decisions: Path | None, report: Path | None) -> None:
    """Check before a long run that `decisions` overwrites no input, and that the report's folder is
    writable."""
    inputs = [path for path in given if path]
    options.read_once(inputs)
    if decisions is not None and decisions.resolve() in [path.resolve() for path in inputs]:
        raise BadInputError("--decisions", f"{decisions} is also an input; specify another file")
    if report is not None:
        try:
            report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritten(f"--report {report}", error) from None
        if not os.access(report, os.W_OK):
            raise BadInputError("--report", f"{report} cannot be written to")


def _grid(
    nodes_path: Path | None,
    pods_path: Path | None,
    policies: list[str],
    seeds: int | None,
    order: Path | None,
    demand: float | None,
    timed: bool,
    compress: float,
    first_seed: int,
    timing: bool,
) -> "RunGrid":
    from weft.cli.policies import registry
    from weft.lab.experiment.run.trace_runs import RunGrid
    from weft.lab.simulate.scenario import read_scenario

    nodes, pods = _given(nodes_path, "--nodes"), _given(pods_path, "--pods")
    if timed and order is not None:
        raise BadInputError("--order", "applies to arrivals without times; remove it or --timed")
    known = registry()
    for name in policies:
        known.from_spec(name)  # report a wrong name before reading a long file
    scenario = read_scenario(nodes, pods, timed=timed)
    names, make = tuple(dict.fromkeys(policies)), known.from_spec
    mode: Literal["inflation", "timed"] = "timed" if timed else "inflation"
    orders = _arrivals(scenario, mode, seeds, order, demand, first_seed)
    return RunGrid(scenario, names, tuple(orders), make, mode, compress, timing)


def _arrivals(
    scenario: "Scenario",
    mode: Literal["inflation", "timed"],
    seeds: int | None,
    order: Path | None,
    demand: float | None,
    first_seed: int,
) -> "list[Arrivals]":
    from weft.lab.experiment.run.trace_runs import arrivals_of_seeds
    from weft.lab.simulate import arrivals

    if order is not None:
        orders = arrivals.read_orders(order, len(scenario.pods), len(scenario.nodes), seeds)
        if demand is None:
            return orders
        return [arrivals.cut(run, scenario.pods, scenario.capacity_milli, demand) for run in orders]
    demand = arrivals.DEMAND if demand is None else demand
    seeds = seeds or arrivals.USUAL_SEEDS
    return arrivals_of_seeds(scenario, mode, seeds, demand=demand, first_seed=first_seed)


def _print(results: "SimulationResults", output: SimulateOutput) -> None:
    if output is SimulateOutput.json:
        print(json_text(results))
        return
    from weft.cli.tables import print_csv, print_results

    if output is SimulateOutput.csv:
        print_csv(results)
    else:
        print_results(results)


class SimulationStart(NamedTuple):
    """A decisions file or a snapshot to start from; without a path, the simulation uses a trace."""

    path: Path | None
    of_snapshot: bool = False

    @property
    def option(self) -> str:
        """The option that names this file."""
        return "--snapshot" if self.of_snapshot else "--decisions-from"

    def check(self, trace: Path | None, seeds: int, times: bool, demand: float | None) -> None:
        """Raise `BadInputError` if options for nodes, pods, demand, times or seeds are given
        beside this file."""
        if trace is not None:
            raise BadInputError(self.option, f"is a whole cluster and workload; remove {trace}")
        if seeds != 1:
            once = "a snapshot has only one arrival order"
            if not self.of_snapshot:
                once = "a recorded day has only one arrival order"
            raise BadInputError("--seeds", f"{once}; leave it out")
        if times or demand is not None:
            as_is = (
                ("starts from a cluster's state")
                if self.of_snapshot
                else "replays a day's own arrivals"
            )
            raise BadInputError(self.option, f"{as_is}; remove --timed, --compress and --demand")

    def grid(self, policies: list[str], timing: bool) -> "RunGrid":
        """Build a grid that runs every policy once, and print notes on the file to stderr."""
        from weft.cli.policies import registry
        from weft.lab.experiment.run.trace_runs import RunGrid
        from weft.lab.experiment.statistics.ranking import ONE_DAY, ONE_STATE

        assert self.path is not None
        known = registry()
        for name in policies:
            known.from_spec(name)
        scenario, arrivals, notes = self._read(self.path, known)
        for line in notes:
            echo(f"weft: {self.path}: {line}", err=True)
        names = tuple(dict.fromkeys(policies))
        orders, make = (arrivals,), known.from_spec
        if self.of_snapshot:
            return RunGrid(scenario, names, orders, make, timing=timing, once=ONE_STATE)
        return RunGrid(scenario, names, orders, make, "timed", timing=timing, once=ONE_DAY)

    def _read(self, path: Path, known: "Registry") -> "tuple[Scenario, Arrivals, Iterable[str]]":
        if self.of_snapshot:
            return _of_state(path)
        from weft.lab.simulate.recorded_day import read_day, summary

        day = read_day(path)
        return day.scenario, day.arrivals, summary(day)


def _of_state(path: Path) -> "tuple[Scenario, Arrivals, Iterable[str]]":
    from weft.cli.snapshot_files import open_snapshot
    from weft.lab.simulate.scenario import HeldStart, scenario_of

    state = open_snapshot(path)
    pending, bad = state.pending()
    notes = [f"pod {pod.name} is left out: {pod.why}" for pod in bad]
    if not pending:
        raise BadInputError(str(path), "has no pending pod: nothing to decide")
    limits = state.engine.ledger.limits
    start = HeldStart(state.nodes, state.events(), pending, state.usual(), limits)
    scenario, arrivals = scenario_of(start, state.engine.seed)
    gpus = sum(len(node.gpus) for node in state.nodes)
    head = (
        f"taken {state.snapshot.taken_at}: {len(state.nodes):,} nodes with {gpus:,} GPUs, "
        f"{len(state.bound):,} pods stay in place, {len(pending):,} wait"
    )
    return scenario, arrivals, [head, *notes]


def write_simulation_report(
    results: "SimulationResults",
    holdings: "Sequence[ClusterHoldings]",
    directory: Path,
    scenario: "Scenario",
    *,
    workload: str,
    png: bool,
    timing: bool,
) -> None:
    """Write the report's page and its figures, and print the page's path on stderr."""
    from weft.lab.experiment.pages.simulation_report import ReportTexts, write_report

    models = Counter(gpu.model for node in scenario.nodes for gpu in node.gpus)
    cluster = f"{len(scenario.nodes):,} nodes, {models.total():,} GPUs"
    subtitle = f"{workload}: {len(scenario.pods):,} pods on {cluster}"
    texts = ReportTexts("Weft: policies compared", subtitle, how_made(sys.argv, timing=timing))
    page = write_report(
        results, directory, texts, png=png, models_gpus=dict(models), holdings=holdings
    )
    echo(f"report: {page}", err=True)


def how_made(arguments: Sequence[str], *, timing: bool) -> "HowMade":
    """Return the command line, versions, host and date.

    Without `timing`, host and date are left out, as they differ from run to run."""
    import numpy
    import scipy

    import weft
    from weft.lab.experiment.pages.simulation_report import HowMade

    command = shlex.join(["weft", *arguments[1:]])
    python = f"Python {platform.python_version()}"
    versions = f"Weft {weft.__version__}, {python}, NumPy {numpy.__version__}, "
    versions += f"SciPy {scipy.__version__}"
    if not timing:
        return HowMade(command, versions)
    host = f"{platform.node()}: {platform.system()} {platform.release()}, {platform.machine()}"
    return HowMade(command, versions, host, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
