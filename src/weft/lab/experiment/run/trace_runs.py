"""Runs pods of a trace, which stay for ever or arrive and leave, for each policy and seed."""

import errno
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET

from weft.core.engine import Engine
from weft.core.record import DecisionsWriter
from weft.files.writing import replacing, unwritten
from weft.lab.experiment.run.runner import (
    CellResult,
    DecisionsKept,
    MakeScheduler,
)
from weft.lab.experiment.run.shared_gpus import finite_or_none
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell, teams_of
from weft.lab.experiment.spec.workloads import OpenbPods
from weft.lab.simulate import arrivals
from weft.lab.simulate.arrivals import Arrivals
from weft.lab.simulate.holdings import ClusterHoldings, NodeHoldings, holdings_now
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.results import GangTimes, PolicyRun
from weft.lab.simulate.scenario import Scenario, lacking, read_scenario
from weft.lab.simulate.timed import TimedPods, pod_rows, run_timed

FIRST_SEED = 42
"""The first seed of `weft simulate`."""
REPLAYED = "Arrivals are the trace's own."
ONE_BY_ONE = "Pods of gangs are placed one by one: in mode inflation no pod waits for others."
RESAMPLED = (
    "Arrivals are resampled for each seed: the trace's arrival times, at each a pod of the trace "
    "drawn at random, with replacement."
)


class RunGrid(msgspec.Struct, frozen=True):
    """A `Runner` for every policy on every arrival order.

    `compress` is for timed mode; `decisions` is the path of the decisions file, for a single run.
    With `keeps_holdings` each policy's first run also returns the shares of GPUs that pods hold.
    `once` is the reason for a single arrival order, "" with several."""

    scenario: Scenario
    policies: tuple[str, ...]
    arrivals: tuple[Arrivals, ...]
    make: MakeScheduler
    mode: Literal["inflation", "timed"] = "inflation"
    compress: float = 1.0
    timing: bool = True
    decisions: Path | None = None
    keeps_holdings: bool = False
    once: str = ""

    def lacks(self) -> dict[str, list[str]]:
        """Return the inputs that each policy needs but does not get, by the policy's name as
        given."""
        return {name: lacking(self.make(name), self.scenario) for name in self.policies}

    def notes(self) -> list[str]:
        """Return notes on the arrivals for the reader."""
        if self.mode != "timed":
            return [ONE_BY_ONE] if any(pod.gang for pod in self.scenario.pods) else []
        own = list(range(len(self.scenario.pods)))
        return [REPLAYED if all(o.pod_rows == own for o in self.arrivals) else RESAMPLED]

    def cells(self) -> list[PlannedCell]:
        """Return a cell for every policy and arrival order, in the order of the results."""
        seeds = [order.seed for order in self.arrivals]
        return [PlannedCell((), policy, seed) for policy in self.policies for seed in seeds]

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one policy on one arrival order; the result's `run` is a `CellOutcome`."""
        outcome = run_cell(self, cell)
        return CellResult(openb_measures(outcome.run), outcome)


class CellOutcome(msgspec.Struct, frozen=True):
    """A run, and the shares of GPUs that pods held, None unless requested."""

    run: PolicyRun
    holdings: ClusterHoldings | None = None


def run_cell(grid: RunGrid, cell: PlannedCell) -> CellOutcome:
    """Run one policy on one arrival order, and write the decisions file if requested."""
    arrivals = next(order for order in grid.arrivals if order.seed == cell.seed)
    if grid.decisions is None:
        return run_recorded(grid, cell.scheduler, arrivals, None)
    try:
        return _recorded(grid, cell.scheduler, arrivals, grid.decisions)
    except OSError as error:
        raise unwritten(grid.decisions, error) from None


def _recorded(grid: RunGrid, name: str, arrivals: Arrivals, path: Path) -> CellOutcome:
    """Run one policy with a decisions file, which is written completely or not at all."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with replacing(path) as file:
        decisions = DecisionsWriter(file)
        run = run_recorded(grid, name, arrivals, decisions)
        decisions.close()
    return run


def run_recorded(
    grid: RunGrid,
    name: str,
    arrivals: Arrivals,
    decisions: DecisionsWriter | None,
    on_times: Callable[[TimedPods], None] | None = None,
) -> CellOutcome:
    """Run one policy on one arrival order.

    Decisions go to `decisions`, and in timed mode the pods' times to `on_times`, if given."""
    scenario, timed = grid.scenario, grid.mode == "timed"
    nodes: list[NodeHoldings] = []

    def keep(engine: Engine, pod_name: Callable[[str], str]) -> None:
        nodes.extend(holdings_now(engine, scenario.typical(), pod_name))

    on_holdings = keep if grid.keeps_holdings and arrivals is grid.arrivals[0] else None
    if timed:
        run = run_timed(
            scenario,
            grid.make(name),
            arrivals,
            compress=grid.compress,
            timing=grid.timing,
            decisions=decisions,
            on_holdings=on_holdings,
            on_times=on_times,
        )
    else:
        run = run_inflation(
            scenario,
            grid.make(name),
            arrivals,
            timing=grid.timing,
            decisions=decisions,
            on_holdings=on_holdings,
        )
    run = msgspec.structs.replace(run, policy=name)  # the name as given, with its options
    if on_holdings is None:
        return CellOutcome(run)
    moment = "when the last pod had arrived" if timed else "at the end"
    return CellOutcome(run, ClusterHoldings(name, arrivals.seed, moment, tuple(nodes)))


def openb_measures(run: PolicyRun) -> dict[str, float | None]:
    """Return the measures of a trace's run, by name."""
    measures: dict[str, float | None] = {
        "gpu_allocated_at_100_percent": run.at_100_percent,
        "gpu_allocated_percent": run.gpu_allocated_percent,
        "gpu_held_percent": run.gpu_held_percent,
        "gpu_fragmentation_percent": run.gpu_fragmentation_percent,
        "failed_pods": run.failed_pods,
    }
    if run.waits is not None:
        waits = run.waits
        measures |= {
            "queue_mean_s": waits.mean_s,
            "queue_p99_s": waits.p99_s,
            "mean_held_percent": waits.mean_held_percent,
        }
    if run.completion is not None:
        measures |= {"jct_mean_s": run.completion.mean_s, "jct_p99_s": run.completion.p99_s}
    if run.gangs is not UNSET:
        measures |= gang_measures(run.gangs)
    measures |= team_measures(run)
    return {name: finite_or_none(value) for name, value in measures.items()}


def gang_measures(gangs: GangTimes) -> dict[str, float | None]:
    """Return the measures of a run's gangs, by name; times are None if no gang ever ran."""
    ran = gangs.gangs > gangs.never_ran
    return {
        "gang_wait_mean_s": gangs.wait_mean_s if ran else None,
        "gang_wait_p99_s": gangs.wait_p99_s if ran else None,
        "gang_makespan_s": gangs.makespan_s if ran else None,
        "wasted_gpu_s": gangs.wasted_gpu_s,
        "preempted_gpu_s": gangs.preempted_gpu_s,
        "gangs_unfinished": gangs.never_ran,
    }


def team_measures(run: PolicyRun) -> dict[str, float | None]:
    """Return the measures of preemption and of queues, by name; empty if the run has neither.

    `below_guarantee_percent`: the largest gap between a queue's guarantee and what it held while
    it wanted at least the guarantee; 0 if no queue did."""
    measures: dict[str, float | None] = {}
    if run.preemption is not UNSET:
        measures["preempted_gpu_s"] = run.preemption.lost_gpu_s
        measures["preemptions"] = run.preemption.preempted
    if run.queues is not UNSET:
        measures["below_guarantee_percent"] = max(
            (
                max(0.0, queue.guarantee_percent - queue.held_while_wanting_percent)
                for queue in run.queues
                if queue.guarantee_percent and queue.held_while_wanting_percent is not None
            ),
            default=0.0,
        )
    return measures


def arrivals_of_seed(
    scenario: Scenario, mode: Literal["inflation", "timed"], seed: int, *, seeds: int, demand: float
) -> Arrivals:
    """Return the arrivals of a run without a published order.

    In inflation they are drawn until pods request `demand` times the cluster's GPUs; in timed mode
    they are the trace's own for a single seed, else the trace's times with pods drawn from it."""
    pods, nodes = len(scenario.pods), len(scenario.nodes)
    if mode == "timed":
        if seeds > 1 and any(pod.gang for pod in scenario.pods):
            return arrivals.resampled_gangs(scenario.pods, nodes, seed)
        make = arrivals.replayed if seeds == 1 else arrivals.resampled
        return make(pods, nodes, seed)
    return arrivals.draw(scenario.pods, nodes, scenario.capacity_milli, seed, demand)


def arrivals_of_seeds(
    scenario: Scenario,
    mode: Literal["inflation", "timed"],
    seeds: int,
    *,
    demand: float,
    first_seed: int = FIRST_SEED,
) -> list[Arrivals]:
    """Return the arrivals of `seeds` seeds, from `first_seed` on."""
    return [
        arrivals_of_seed(scenario, mode, seed, seeds=seeds, demand=demand)
        for seed in range(first_seed, first_seed + seeds)
    ]


class OpenbRunner:
    """Runs pods of a trace, which stay for ever or arrive and leave."""

    def __init__(
        self,
        spec: ExperimentSpec,
        workload: OpenbPods,
        data: Mapping[str, Path],
        make: MakeScheduler,
    ) -> None:
        self._workload, self._data, self._make = workload, data, make
        self._seeds, self._records, self._profile = spec.seeds, spec.decisions, spec.profile

    def _of_teams(self, scenario: Scenario, scheduler: str) -> Scenario:
        """Return the scenario with the queues and preemption of this scheduler."""
        queues, preempt = teams_of(self._workload, self._profile(scheduler))
        return msgspec.structs.replace(
            scenario,
            queues=queues.rules(),
            preempt=preempt,
            grace_ns=round(self._workload.grace_seconds * 1e9),
        )

    @cached_property
    def _scenario(self) -> Scenario:
        timed = self._workload.mode == "timed"
        return read_scenario(self._data["nodes"], self._data["pods"], timed=timed)

    @cached_property
    def _orders(self) -> dict[int, arrivals.Arrivals]:
        """The published arrival orders, by their position in the file."""
        scenario, count = self._scenario, self._seeds.count
        path = self._data["order"]
        orders = arrivals.read_orders(path, len(scenario.pods), len(scenario.nodes), count)
        return dict(enumerate(orders))

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one scheduler on one arrival order, up to one demand."""
        workload, scenario = self._workload, self._scenario
        order = self._arrivals(cell)
        grid = RunGrid(
            scenario if workload.mode == "inflation" else self._of_teams(scenario, cell.scheduler),
            (cell.scheduler,),
            (order,),
            self._make,
            workload.mode,
            compress=workload.compress,
            timing=False,
        )
        decisions = DecisionsKept(wanted=self._records)
        times: list[TimedPods] = []
        run = run_recorded(grid, cell.scheduler, order, decisions.writer, times.append).run
        rows = [row for timed in times for row in pod_rows(timed)]
        packed = decisions.packed()
        return CellResult(openb_measures(run), msgspec.to_builtins(run), rows, decisions=packed)

    def _arrivals(self, cell: PlannedCell) -> Arrivals:
        scenario, workload = self._scenario, self._workload
        demand = workload.demands[cell.index("demand") or 0] / 100
        if workload.order and workload.mode == "inflation":
            order = self._orders[cell.seed]
            return arrivals.cut(order, scenario.pods, scenario.capacity_milli, demand)
        count = self._seeds.count
        return arrivals_of_seed(scenario, workload.mode, cell.seed, seeds=count, demand=demand)
