"""Runners of simulated experiments: each kind of workload by the engine under `lab/simulate`."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from weft.lab.experiment.decisions_kept import DecisionsKept
from weft.lab.experiment.grid import RunGrid, openb_measures, run_recorded
from weft.lab.experiment.measured_pairs import ORACLE, PairsRunner
from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.runner import CellResult, Runner
from weft.lab.experiment.scenarios import BEST, GANDIVA, ReadPods, ScenarioMaker, run_with
from weft.lab.experiment.schedulers import MakePolicy, MakeScheduler, SchedulerMaker
from weft.lab.experiment.shared_results import shared_result
from weft.lab.experiment.simulated_cluster import SimulatedClusterRunner
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.experiment.spec_cluster import ClusterJobs
from weft.lab.experiment.spec_workloads import MeasuredPairs, OpenbPods
from weft.lab.simulate import arrivals
from weft.lab.simulate.openb_scenario import read_scenario
from weft.lab.simulate.pod_rows import TimedPods, pod_rows
from weft.lab.simulate.scenario import Scenario

_SPECIAL: dict[type, set[str]] = {
    MeasuredPairs: {GANDIVA, ORACLE},
    OpenbPods: set(),
}
"""Schedulers that are no policies, of workloads that do not have the usual ones."""


def runner_of(
    spec: ExperimentSpec,
    data: Mapping[str, Path],
    make_policy: MakePolicy,
    read_pods: ReadPods | None = None,
) -> Runner:
    """The runner of this experiment's workload; a scheduler nobody knows fails here.

    `data` are the workload's files by field; `read_pods` reads manifests, where these are the jobs.
    """
    workload, make = spec.workload, SchedulerMaker(make_policy, spec.profiles)
    if isinstance(workload, ClusterJobs):
        return SimulatedClusterRunner(spec, workload, data.get("models"), make)
    special = _SPECIAL.get(type(workload), {BEST, GANDIVA})
    for at, name in enumerate(spec.schedulers):
        if name not in special:
            make.check(name, f"schedulers[{at}]")
    if isinstance(workload, MeasuredPairs):
        return PairsRunner(workload, data, make, records=spec.decisions)
    if isinstance(workload, OpenbPods):
        return OpenbRunner(spec, workload, data, make)
    scenarios = ScenarioMaker(workload, data, read_pods)
    return SharedGpusRunner(scenarios, make, records=spec.decisions)


class SharedGpusRunner:
    """Runs jobs that share GPUs, whatever they are.

    `best-residency` is best fit where every pod asks for exactly what it will use, which nobody can
    know; `gandiva` packs by trial.
    """

    def __init__(
        self, scenarios: ScenarioMaker, make: MakeScheduler, *, records: bool = False
    ) -> None:
        self._scenarios, self._make, self._records = scenarios, make, records

    def run(self, cell: PlannedCell) -> CellResult:
        """One scheduler on one seed's jobs at one level of each axis."""
        scenario = self._scenarios.scenario(cell)
        decisions = DecisionsKept(wanted=self._records)
        run = run_with(scenario, cell.scheduler, self._make, decisions.writer)
        return msgspec.structs.replace(shared_result(run), decisions=decisions.packed())


class OpenbRunner:
    """Runs pods of a trace that never leave, or that come and go."""

    def __init__(
        self,
        spec: ExperimentSpec,
        workload: OpenbPods,
        data: Mapping[str, Path],
        make: MakeScheduler,
    ) -> None:
        self._workload, self._data, self._make = workload, data, make
        self._seeds, self._records = spec.seeds, spec.decisions

    @cached_property
    def _scenario(self) -> Scenario:
        timed = self._workload.mode == "timed"
        return read_scenario(self._data["nodes"], self._data["pods"], timed=timed)

    @cached_property
    def _orders(self) -> dict[int, arrivals.Arrivals]:
        """The published arrival orders by their place in the file."""
        scenario, count = self._scenario, self._seeds.count
        path = self._data["order"]
        orders = arrivals.read_orders(path, len(scenario.pods), len(scenario.nodes), count)
        return dict(enumerate(orders))

    def run(self, cell: PlannedCell) -> CellResult:
        """One scheduler on one arrival order, up to one demand."""
        workload, scenario = self._workload, self._scenario
        order = self._arrivals(cell)
        work = scenario, (cell.scheduler,), (order,), self._make, workload.mode
        grid = RunGrid(*work, compress=workload.compress, timing=False)
        decisions = DecisionsKept(wanted=self._records)
        times: list[TimedPods] = []
        run = run_recorded(grid, cell.scheduler, order, decisions.writer, times.append).run
        rows = [row for timed in times for row in pod_rows(timed)]
        packed = decisions.packed()
        return CellResult(openb_measures(run), msgspec.to_builtins(run), rows, decisions=packed)

    def _arrivals(self, cell: PlannedCell) -> arrivals.Arrivals:
        scenario = self._scenario
        counts = len(scenario.pods), len(scenario.nodes)
        if self._workload.mode == "timed":
            # One seed is the trace itself, as in `weft simulate --timed`.
            make = arrivals.replayed if self._seeds.count == 1 else arrivals.resampled
            return make(*counts, cell.seed)
        demand = self._workload.demands[cell.index("demand") or 0] / 100
        if self._workload.order:
            order = self._orders[cell.seed]
            return arrivals.cut(order, scenario.pods, scenario.capacity_milli, demand)
        drawn = scenario.pods, len(scenario.nodes), scenario.capacity_milli
        return arrivals.draw(*drawn, cell.seed, demand)
