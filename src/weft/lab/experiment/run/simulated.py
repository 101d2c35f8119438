"""Chooses the runner of a simulated experiment by its kind of workload.

An experiment on a cluster is simulated with the same Jobs and requests: each pod is read by the
same dialects as on the cluster, its scheduler's `policy` decides, and it runs for `run_seconds`
from its binding on. Not simulated are the Job controller, image pulls, the scheduling queue's
back-off and interference."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from weft.dialects.dialect import DialectSettings
from weft.dialects.queues import named_queue
from weft.dialects.registry import parse_pod
from weft.lab.experiment.run.cluster_jobs import PlannedJob, planned_jobs, pod_template
from weft.lab.experiment.run.measured_pairs import ORACLE, PairsRunner
from weft.lab.experiment.run.runner import (
    CellResult,
    DecisionsKept,
    MakePolicy,
    MakeScheduler,
    Runner,
    SchedulerMaker,
    every_nth_node,
)
from weft.lab.experiment.run.shared_gpus import (
    BEST,
    GANDIVA,
    ReadPods,
    ScenarioMaker,
    SharedGpusRunner,
    finite_or_none,
)
from weft.lab.experiment.run.trace_runs import OpenbRunner, gang_measures, team_measures
from weft.lab.experiment.run.waiting import QUEUE_RULES, WaitingRunner
from weft.lab.experiment.spec.cluster import Cluster, ClusterJobs, ClusterScheduler
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell
from weft.lab.experiment.spec.workloads import GangJobs, MeasuredPairs, OpenbPods, WaitingPods
from weft.lab.simulate.arrivals import replayed
from weft.lab.simulate.gang_jobs import HostSize, gang_jobs
from weft.lab.simulate.gang_rules import GANG_RULES
from weft.lab.simulate.openb import TracePod, asked
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import TimedPods, TimedRun, pod_rows, pods_over_time, run_timed
from weft.model import BadInputError, Gpu, Node
from weft.model.manifest import PodManifest

_SPECIAL: dict[type, set[str]] = {
    MeasuredPairs: {GANDIVA, ORACLE},
    OpenbPods: set(),
    GangJobs: set(GANG_RULES),
    WaitingPods: set(QUEUE_RULES),
}
"""Schedulers that are not policies, by kind of workload; other kinds have `BEST` and `GANDIVA`."""


def runner_of(
    spec: ExperimentSpec,
    data: Mapping[str, Path],
    make_policy: MakePolicy,
    read_pods: ReadPods | None = None,
) -> Runner:
    """Return the runner of this experiment's workload; `BadInputError` for unknown schedulers.

    `data` are the workload's files by field; `read_pods` reads manifests, for workloads of pods."""
    workload, make = spec.workload, SchedulerMaker(make_policy, spec.profiles)
    if isinstance(workload, ClusterJobs):
        return SimulatedClusterRunner(spec, workload, data.get("models"), make)
    special = _SPECIAL.get(type(workload), {BEST, GANDIVA})
    for at, name in enumerate(spec.schedulers):
        if isinstance(workload, WaitingPods) and name not in special:
            what = f"{name!r} is none of {', '.join(QUEUE_RULES)}"
            raise BadInputError(f"schedulers[{at}]", what)
        if name not in special:
            make.check(name, f"schedulers[{at}]")
    if isinstance(workload, MeasuredPairs):
        return PairsRunner(workload, data, make, records=spec.decisions)
    if isinstance(workload, OpenbPods):
        return OpenbRunner(spec, workload, data, make)
    if isinstance(workload, GangJobs):
        return GangsRunner(spec, workload, data, make)
    if isinstance(workload, WaitingPods):
        make.check(workload.policy, "workload.policy")
        return WaitingRunner(spec, workload, data, make)
    scenarios = ScenarioMaker(workload, data, read_pods)
    return SharedGpusRunner(scenarios, make, records=spec.decisions)


class GangsRunner:
    """Runs jobs of one or many pods in simulation, under Weft's policies or the rules of
    `gang_rules`."""

    def __init__(
        self,
        spec: ExperimentSpec,
        workload: GangJobs,
        data: Mapping[str, Path],
        make: MakeScheduler,
    ) -> None:
        self._workload, self._nodes, self._make = workload, data["nodes"], make
        self._records = spec.decisions

    @cached_property
    def _cluster(self) -> list[Node]:
        return every_nth_node(self._nodes, self._workload.every_node)

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one scheduler with one seed's jobs at one load."""
        workload, nodes = self._workload, self._cluster
        load = workload.loads[cell.index("load") or 0]
        hosts = [HostSize.of(node) for node in nodes]
        ratio = workload.shared_ratio
        pods = gang_jobs(hosts, jobs=workload.jobs, load=load, seed=cell.seed, shared_ratio=ratio)
        rule, decisions = GANG_RULES.get(cell.scheduler), DecisionsKept(wanted=self._records)
        times: list[TimedPods] = []
        run = run_timed(
            Scenario(nodes, pods),
            rule.make_policy() if rule else self._make(cell.scheduler),
            replayed(len(pods), len(nodes), cell.seed),
            timing=False,
            decisions=decisions.writer,
            on_times=times.append,
            make_run=rule.make_run if rule else TimedRun,
        )
        run = msgspec.structs.replace(run, policy=cell.scheduler)
        measures = _measures(run.waits, run.completion)
        measures["mean_held_percent"] = finite_or_none(
            run.waits.mean_held_percent if run.waits else None
        )
        if run.gangs is not UNSET:
            measures |= gang_measures(run.gangs)
        rows, packed = pod_rows(times[0]), decisions.packed()
        return CellResult(measures, msgspec.to_builtins(run), rows, decisions=packed)


class SimulatedClusterRunner:
    """Runs an experiment's Jobs in simulation, on the nodes of `cluster.simulated`."""

    def __init__(
        self,
        spec: ExperimentSpec,
        workload: ClusterJobs,
        models: Path | None,
        make: SchedulerMaker,
    ) -> None:
        """Check the schedulers; `BadInputError` if a scheduler has no policy or an unknown one."""
        assert spec.cluster is not None  # checked by `read_spec`
        self._workload, self._cluster, self._models = workload, spec.cluster, models
        self._make, self._records = make, spec.decisions
        for at, scheduler in enumerate(self._cluster.schedulers):
            if scheduler.name in spec.schedulers:
                make.check(scheduler.policy, f"cluster.schedulers[{at}].policy")

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one scheduler with one seed's Jobs at one level of over-provisioning."""
        percent = self._workload.percents[cell.levels[0].index]
        jobs = planned_jobs(self._workload, self._models, cell.seed)
        scheduler = self._cluster.scheduler(cell.scheduler)
        pods = [_pod(job, scheduler, self._cluster, percent) for job in jobs]
        scenario = Scenario(_nodes(self._cluster), pods)
        arrivals = replayed(len(pods), len(scenario.nodes), cell.seed)
        decider, decisions = self._make(scheduler.policy), DecisionsKept(wanted=self._records)
        times: list[TimedPods] = []
        run = run_timed(
            scenario,
            decider,
            arrivals,
            timing=False,
            decisions=decisions.writer,
            on_times=times.append,
        )
        rows = pod_rows(times[0], lambda number: (jobs[number].name, jobs[number].kind))
        measures, usage = _measures(run.waits, run.completion), pods_over_time(rows)
        if run.gangs is not UNSET:
            measures |= gang_measures(run.gangs)
        measures |= team_measures(run)
        built, packed = msgspec.to_builtins(run), decisions.packed()
        return CellResult(measures, built, rows, usage, decisions=packed)


def _measures(waits: Any, completion: Any) -> dict[str, float | None]:
    return {
        "jct_mean_s": completion.mean_s,
        "jct_p50_s": completion.p50_s,
        "jct_p99_s": completion.p99_s,
        "makespan_s": waits.end_s,
        "queue_mean_s": waits.mean_s,
        "queue_p99_s": waits.p99_s,
        "unfinished": waits.never_started,
    }


def _pod(job: PlannedJob, scheduler: ClusterScheduler, cluster: Cluster, percent: int) -> TracePod:
    if job.run_s is None:
        what = "does not say how long it runs, which a simulation needs; write `runSeconds`"
        raise BadInputError(f"workload.jobs ({job.kind})", what)
    template = pod_template(job, scheduler, cluster, percent)
    manifest = msgspec.convert(template, PodManifest)
    unit = scheduler.request.unit
    settings = DialectSettings(gpushare_unit="MiB" if unit == "MiB" else "GiB")
    request = parse_pod(manifest, settings)
    if queue := named_queue(manifest):
        request = msgspec.structs.replace(request, queue=queue)
    shape = msgspec.structs.replace(request.shape, extended=(), resources=())
    gpus, milli = asked(shape, cluster.simulated.memory_mib)
    return TracePod(
        name=job.name,
        shape=shape,
        gpus=gpus,
        milli=milli,
        created_s=job.arrival_s,
        scheduled_s=0.0,
        deleted_s=job.run_s,
        request=msgspec.structs.replace(request, shape=shape),
    )


def _nodes(cluster: Cluster) -> list[Node]:
    has = cluster.simulated
    gpus = tuple(Gpu(index, has.memory_mib, has.model) for index in range(has.gpus))
    return [Node(f"node-{number}", gpus) for number in range(has.nodes)]
