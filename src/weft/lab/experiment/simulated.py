"""Runners of simulated experiments: each kind of workload by the engine under `lab/simulate`."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from weft.core.framework import Policy
from weft.lab.experiment import interference
from weft.lab.experiment.grid import RunGrid, run_cell
from weft.lab.experiment.plan import PlannedCell
from weft.lab.experiment.poor_predictions import SpoiltPredictions
from weft.lab.experiment.runner import CellResult, Runner
from weft.lab.experiment.scenarios import BEST, GANDIVA, ReadPods, ScenarioMaker, run_with
from weft.lab.experiment.simulated_cluster import SimulatedClusterRunner
from weft.lab.experiment.spec import ExperimentSpec, Seeds
from weft.lab.experiment.spec_cluster import ClusterJobs
from weft.lab.experiment.spec_workloads import MeasuredPairs, OpenbPods, ProgressFeedback
from weft.lab.simulate import arrivals
from weft.lab.simulate.openb_scenario import read_scenario
from weft.lab.simulate.results import PolicyRun
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.feedback import Feedback
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.run import SharedScenario
from weft.model import BadInputError
from weft.model.request import LATENCY_CRITICAL

_SPECIAL: dict[type, set[str]] = {
    MeasuredPairs: {GANDIVA, interference.ORACLE},
    OpenbPods: set(),
}
"""Schedulers that are no policies, of workloads that do not have the usual ones."""

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


def runner_of(
    spec: ExperimentSpec,
    data: Mapping[str, Path],
    make_policy: MakePolicy,
    read_pods: ReadPods | None = None,
) -> Runner:
    """The runner of this experiment's workload; a scheduler nobody knows fails here.

    `data` are the workload's files by field; `read_pods` reads manifests, where these are the jobs.
    """
    workload = spec.workload
    if isinstance(workload, ClusterJobs):
        assert spec.cluster is not None  # as `read_spec` has seen
        return SimulatedClusterRunner(workload, spec.cluster, data.get("models"), make_policy)
    special = _SPECIAL.get(type(workload), {BEST, GANDIVA})
    for at, name in enumerate(spec.schedulers):
        if name in special:
            continue
        try:
            make_policy(name)
        except BadInputError as error:
            raise BadInputError(f"schedulers[{at}]", error.problem) from error
    if isinstance(workload, MeasuredPairs):
        return PairsRunner(workload, data, make_policy)
    if isinstance(workload, OpenbPods):
        return OpenbRunner(workload, data, spec.seeds, make_policy)
    return SharedGpusRunner(ScenarioMaker(workload, data, read_pods), make_policy)


class SharedGpusRunner:
    """Runs jobs that share GPUs, whatever they are.

    `best-residency` is best fit where every pod asks for exactly what it will use, which nobody can
    know; `gandiva` packs by trial.
    """

    def __init__(self, scenarios: ScenarioMaker, make_policy: MakePolicy) -> None:
        self._scenarios, self._make_policy = scenarios, make_policy

    def run(self, cell: PlannedCell) -> CellResult:
        """One scheduler on one seed's jobs at one level of each axis."""
        scenario = self._scenarios.scenario(cell)
        return _shared(run_with(scenario, cell.scheduler, self._make_policy))


class PairsRunner:
    """Runs jobs that slow each other down as measured pairs did."""

    def __init__(
        self, workload: MeasuredPairs, data: Mapping[str, Path], make_policy: MakePolicy
    ) -> None:
        self._workload, self._data, self._make_policy = workload, data, make_policy

    @cached_property
    def _table(self) -> pairs.PairTable:
        return pairs.read_table(self._data["table"], self._workload.source, self._workload.gpu)

    @cached_property
    def _mystic(self) -> dict[str, dict[str, float]]:
        path = self._data.get("mystic")
        if path is None:
            return {}
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, float]])
        except (OSError, msgspec.DecodeError) as error:
            raise BadInputError(str(path), f"is no table of distances: {error}") from None

    def run(self, cell: PlannedCell) -> CellResult:
        """One scheduler on one seed's jobs at one level of each axis."""
        study = self._study(cell)
        scenarios = ScenarioMaker(self._workload, self._data)
        pairs_run = interference.InterferenceRun(0, cell.scheduler, cell.seed)
        scenario = scenarios.assumed(interference.scenario_of(study, pairs_run), cell)
        run = interference.run_scenario(study, pairs_run, scenario)
        result = _shared(run)
        measures = result.measures | _of_critical_jobs(scenario, run)
        return msgspec.structs.replace(result, measures=measures)

    def _study(self, cell: PlannedCell) -> interference.InterferenceStudy:
        workload, shares = self._workload, self._workload.critical_shares
        at = cell.index("critical-share")
        load = pairs.OfferedLoad(
            workload.loads[cell.index("load") or 0],
            workload.gpus,
            workload.jobs,
            workload.mean_seconds,
            pairs.DurationLaw(workload.durations),
            workload.job_class,
            workload.expected_error,
            shares[at] if at is not None else 0.0,
        )
        at, spoilt = cell.index("predictions"), SpoiltPredictions()
        if at is not None:
            level = workload.predictions[at]
            spoilt = SpoiltPredictions(level.missing, level.noise)
        at, feedback = cell.index("feedback"), interference.PROGRESS if workload.watched else None
        if at is not None:
            feedback = _feedback(workload.feedback[at])
        return interference.InterferenceStudy(
            self._table,
            workload.gpu,
            (cell.scheduler,),
            (load,),
            (cell.seed,),
            self._make_policy,
            predictor=workload.told,
            mystic=self._mystic,
            feedback=feedback,
            spoilt=spoilt,
        )


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
        demand = self._workload.demands[cell.index("demand") or 0] / 100
        if self._workload.order:
            order = self._orders[cell.seed]
            return arrivals.cut(order, scenario.pods, scenario.capacity_milli, demand)
        drawn = scenario.pods, len(scenario.nodes), scenario.capacity_milli
        return arrivals.draw(*drawn, cell.seed, demand)


def _shared(run: SharedRun) -> CellResult:
    waits = [
        outcome.bound_s - outcome.arrived_s
        for outcome in run.outcomes
        if outcome.bound_s is not None
    ]  # until the first binding
    measures = {name: _finite(getattr(run, name)) for name in SHARED_MEASURES}
    if waits:
        measures["queue_mean_s"] = round(sum(waits) / len(waits), 3)
        measures["queue_p99_s"] = round(float(np.percentile(waits, 99)), 3)
    measures |= _of_jobs(run)
    return CellResult(measures, msgspec.to_builtins(run.bare()), run.outcomes, run.usage)


def _of_jobs(run: SharedRun) -> dict[str, float | None]:
    """How fairly jobs were slowed down, energy a job, and queries where they answer any."""
    stretched = [
        outcome.jct_s / outcome.alone_s
        for outcome in run.outcomes
        if outcome.jct_s is not None and outcome.alone_s > 0
    ]
    measures: dict[str, float | None] = {}
    if stretched:
        values = np.array(stretched)
        measures["slowdown_mean"] = round(float(values.mean()), 4)
        measures["slowdown_p99"] = round(float(np.percentile(values, 99)), 4)
        jain = float(values.sum() ** 2 / (len(values) * (values**2).sum()))
        measures["jain_fairness"] = round(jain, 4)
        measures["energy_kj_per_job"] = round(run.energy_kj / len(values), 4)
    queries = sum(outcome.queries for outcome in run.outcomes)
    if queries:
        late = sum(outcome.late_queries for outcome in run.outcomes)
        measures["late_queries_percent"] = round(100 * late / queries, 4)
        p99s = [outcome.query_p99_s for outcome in run.outcomes if outcome.query_p99_s is not None]
        measures["query_p99_s"] = round(sum(p99s) / len(p99s), 6) if p99s else None
    return measures


def _of_critical_jobs(scenario: SharedScenario, run: SharedRun) -> dict[str, float | None]:
    """How latency-critical jobs and others fared where there are both, and what progress showed."""
    critical = {job.uid for job in scenario.jobs if job.job_class == LATENCY_CRITICAL}
    measures: dict[str, float | None] = {}
    if scenario.feedback is not None:
        measures["slowdown_evictions"] = run.slowdown_evictions
        if critical:
            measures["critical_slow_percent"] = run.critical_slow_percent
    if 0 < len(critical) < len(scenario.jobs):
        jct_s = {one.uid: one.jct_s for one in run.outcomes if one.jct_s is not None}
        for name, of in (("critical", critical), ("other", jct_s.keys() - critical)):
            times = [jct_s[uid] for uid in sorted(of & jct_s.keys())]
            mean_s = round(sum(times) / len(times), 3) if times else None
            measures[f"jct_{name}_mean_s"] = mean_s
    return measures


def _feedback(level: ProgressFeedback) -> Feedback:
    return Feedback(
        round(level.period_seconds * SECOND_NS),
        level.noise,
        level.missing,
        level.teach,
        level.evict,
        level.keeps_work,
    )


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
