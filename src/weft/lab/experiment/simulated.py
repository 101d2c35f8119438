"""Runners of simulated experiments: each kind of workload by the engine under `lab/simulate`."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from weft.core.framework import Policy
from weft.lab.experiment import interference, overprovision
from weft.lab.experiment.grid import RunGrid, run_cell
from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.runner import CellResult, Runner
from weft.lab.experiment.spec import (
    ExperimentSpec,
    MeasuredPairs,
    MetricFaults,
    OpenbPods,
    OverprovisionedJobs,
    Seeds,
)
from weft.lab.simulate import arrivals
from weft.lab.simulate.openb_scenario import read_scenario
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.ece_like import JobMix
from weft.lab.simulate.sharing.exporter import ExporterFaults, read_spoof
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.pipeline import ScrapeOptions
from weft.model import BadInputError

MakePolicy = Callable[[str], Policy]

SHARED_MEASURES = (
    "jct_mean_s",
    "jct_p50_s",
    "jct_p99_s",
    "makespan_s",
    "ooms",
    "evictions",
    "lost_s",
    "residents",
    "memory_used_percent",
    "gpu_util_percent",
    "energy_kj",
    "unfinished",
)
"""Fields of a run of shared GPUs that are measures as they stand."""


def runner_of(spec: ExperimentSpec, data: Mapping[str, Path], make_policy: MakePolicy) -> Runner:
    """The runner of this experiment's workload; a scheduler nobody knows fails here.

    `data` are the workload's files by field.
    """
    special = {interference.GANDIVA, interference.ORACLE}
    for at, name in enumerate(spec.schedulers):
        if isinstance(spec.workload, MeasuredPairs) and name in special:
            continue
        try:
            make_policy(name)
        except BadInputError as error:
            raise BadInputError(f"schedulers[{at}]", error.problem) from error
    workload = spec.workload
    if isinstance(workload, OverprovisionedJobs):
        return OverprovisionedRunner(workload, make_policy)
    if isinstance(workload, MeasuredPairs):
        return PairsRunner(workload, data, make_policy)
    return OpenbRunner(workload, data, spec.seeds, make_policy)


class OverprovisionedRunner:
    """Runs jobs that ask for more memory than they use."""

    def __init__(self, workload: OverprovisionedJobs, make_policy: MakePolicy) -> None:
        self._workload, self._make_policy = workload, make_policy

    def run(self, cell: PlannedCell) -> CellResult:
        """One scheduler on one seed's jobs at one level, with one level of faults."""
        workload = self._workload
        percent = workload.percents[cell.levels[0].index]
        study = overprovision.OverprovisionStudy(
            (cell.scheduler,),
            (percent,),
            (cell.seed,),
            self._make_policy,
            cell.scheduler,
            workload.cards,
            JobMix(workload.mix),
            ScrapeOptions(scrape_ns=round(workload.scrape_seconds * SECOND_NS)),
            exporter_faults(workload.faults[cell.levels[1].index]),
            round(workload.harvest_limit * 1000),
        )
        run = overprovision.OverprovisionRun(percent, cell.scheduler, cell.seed)
        return _shared(overprovision.run_whole(study, run))


class PairsRunner:
    """Runs jobs that slow each other down as measured pairs did."""

    def __init__(
        self, workload: MeasuredPairs, data: Mapping[str, Path], make_policy: MakePolicy
    ) -> None:
        self._workload, self._data, self._make_policy = workload, data, make_policy

    @cached_property
    def _table(self) -> pairs.PairTable:
        return pairs.read_table(self._data["table"], self._workload.source, self._workload.gpu)

    def run(self, cell: PlannedCell) -> CellResult:
        """One scheduler on one seed's jobs at one load."""
        workload = self._workload
        load = workload.loads[cell.levels[0].index]
        study = interference.InterferenceStudy(
            self._table,
            workload.gpu,
            (cell.scheduler,),
            (pairs.OfferedLoad(load, workload.gpus, workload.jobs),),
            (cell.seed,),
            self._make_policy,
            predictor=workload.told,
            watched=workload.watched,
        )
        run = interference.InterferenceRun(0, cell.scheduler, cell.seed)
        return _shared(interference.run_whole(study, run))


class OpenbRunner:
    """Runs pods of a trace that never leave, or that come and go."""

    def __init__(
        self, workload: OpenbPods, data: Mapping[str, Path], seeds: Seeds, make_policy: MakePolicy
    ) -> None:
        self._workload, self._data = workload, data
        self._seeds, self._make_policy = seeds, make_policy

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
        work = scenario, (cell.scheduler,), (order,), self._make_policy, workload.mode
        grid = RunGrid(*work, compress=workload.compress, timing=False)
        run = run_cell(grid, (cell.scheduler, 0)).run
        return CellResult(_openb_measures(run), msgspec.to_builtins(run))

    def _arrivals(self, cell: PlannedCell) -> arrivals.Arrivals:
        scenario = self._scenario
        counts = len(scenario.pods), len(scenario.nodes)
        if self._workload.mode == "timed":
            # One seed is the trace itself, as in `weft simulate --timed`.
            make = arrivals.replayed if self._seeds.count == 1 else arrivals.resampled
            return make(*counts, cell.seed)
        demand = self._workload.demands[cell.levels[0].index] / 100
        if self._workload.order:
            order = self._orders[cell.seed]
            return arrivals.cut(order, scenario.pods, scenario.capacity_milli, demand)
        drawn = scenario.pods, len(scenario.nodes), scenario.capacity_milli
        return arrivals.draw(*drawn, cell.seed, demand)


def exporter_faults(faults: MetricFaults) -> ExporterFaults:
    """The simulated exporters' faults that a level of the axis names."""
    metric, reads = read_spoof(faults.spoof)
    frozen_s = faults.frozen_seconds
    return ExporterFaults(
        round(faults.delay_seconds * SECOND_NS),
        faults.dropped,
        faults.missing,
        faults.noise,
        metric,
        reads,
        None if frozen_s is None else round(frozen_s * SECOND_NS),
        faults.frozen_busy,
    )


def _shared(run: SharedRun) -> CellResult:
    waits = [
        one.bound_s - one.arrived_s for one in run.outcomes if one.bound_s is not None
    ]  # until the first binding
    measures = {name: _finite(getattr(run, name)) for name in SHARED_MEASURES}
    if waits:
        measures["queue_mean_s"] = round(sum(waits) / len(waits), 3)
        measures["queue_p99_s"] = round(float(np.percentile(waits, 99)), 3)
    return CellResult(measures, msgspec.to_builtins(run.bare()), run.outcomes, run.usage)


def _openb_measures(run: PolicyRun) -> dict[str, float | None]:
    measures: dict[str, float | None] = {
        "gpu_asked_percent": run.gpu_asked_percent,
        "gpu_allocation_percent": run.gpu_allocation_percent,
        "gpu_fragmentation_percent": run.gpu_fragmentation_percent,
        "failed_pods": run.failed_pods,
    }
    if run.waits is not None:
        waits = run.waits
        measures |= {
            "queue_mean_s": waits.mean_s,
            "queue_p99_s": waits.p99_s,
            "mean_allocation_percent": waits.mean_allocation_percent,
        }
    if run.completion is not None:
        measures |= {"jct_mean_s": run.completion.mean_s, "jct_p99_s": run.completion.p99_s}
    return {name: _finite(value) for name, value in measures.items()}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
