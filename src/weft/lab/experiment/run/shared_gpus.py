"""Runs jobs that share GPUs: builds a scenario from a workload for each seed and level, and
computes the measures by which schedulers are compared."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from weft.core.record import DecisionsWriter
from weft.lab.experiment.run.runner import (
    CellResult,
    DecisionsKept,
    MakeScheduler,
)
from weft.lab.experiment.spec.experiment import PlannedCell
from weft.lab.experiment.spec.workloads import (
    InferenceList,
    KnotsCluster,
    KnotsTraining,
    ListedCluster,
    ManifestPods,
    MetricFaults,
    OverprovisionedJobs,
    SimulatedJobs,
    TimeAssumptions,
    TracedArrivals,
    WatchedJobs,
)
from weft.lab.simulate.openb import read_nodes
from weft.lab.simulate.sharing import arrival_times, ece_like, job_lists, knots
from weft.lab.simulate.sharing.gpus import ByResidents, PowerModel, power_of
from weft.lab.simulate.sharing.job import SECOND_NS, Job, needing_compute
from weft.lab.simulate.sharing.job_lists import read_generated
from weft.lab.simulate.sharing.outcome import SharedRun
from weft.lab.simulate.sharing.pipeline import ExporterFaults, ScrapeOptions, read_spoof
from weft.lab.simulate.sharing.run import SharedScenario, run_shared
from weft.lab.simulate.sharing.trial_packing import PackByTrial, TrialRun
from weft.model import BadInputError, Gpu, Node, PodRequest

BEST, GANDIVA = "best-residency", "gandiva"
"""Schedulers that are not policies: best fit with requests equal to peak use, and packing by
trial."""
NO_SLOWDOWN = ByResidents((1000,))
"""No slowdown by sharing, unless jobs together need more compute than the GPU has."""
IN_PROPORTION = TimeAssumptions(name="in-proportion", compute="proportional")
"""The assumption for programs without measured slowdowns."""
GAP_S = 30.0
"""Mean seconds between two jobs per GPU, for job lists without arrival times."""

ReadPods = Callable[[Path], Sequence[PodRequest]]
"""Function that reads manifests as `weft parse` does, with a pod for each replica."""


class ScenarioMaker:
    """Builds the scenarios of one workload; `data` are its files by field."""

    def __init__(
        self, workload: SimulatedJobs, data: Mapping[str, Path], read_pods: ReadPods | None = None
    ) -> None:
        self._workload, self._data, self._read_pods = workload, data, read_pods

    def scenario(self, cell: PlannedCell) -> SharedScenario:
        """Return the scenario for a cell's seed and levels; it does not depend on the scheduler."""
        workload = self._workload
        if isinstance(workload, OverprovisionedJobs):
            base = self._overprovisioned(workload, cell)
        elif isinstance(workload, KnotsCluster):
            base = self._knots_cluster(workload, cell)
        elif isinstance(workload, KnotsTraining):
            base = self._knots_training(workload, cell)
        elif isinstance(workload, ListedCluster):
            base = self._listed(workload, cell)
        else:
            raise TypeError(workload)
        scenario = self.assumed(self.watched(base, cell), cell)
        if isinstance(workload, KnotsTraining):
            workers = (knots.workers_of(job, cell.seed) for job in scenario.jobs)
            jobs = tuple(itertools.chain.from_iterable(workers))
            scenario = msgspec.structs.replace(scenario, jobs=jobs)
        return scenario

    def watched(self, base: SharedScenario, cell: PlannedCell) -> SharedScenario:
        """Return the scenario with the workload's scrape period and harvest limit, and the cell's
        metric faults."""
        workload = self._workload
        if not isinstance(workload, WatchedJobs):
            return base
        return msgspec.structs.replace(
            base,
            watching=ScrapeOptions(scrape_ns=round(workload.scrape_seconds * SECOND_NS)),
            faults=exporter_faults(workload.faults[cell.index("faults") or 0]),
            harvest_permille=round(workload.harvest_limit * 1000),
        )

    def assumed(self, base: SharedScenario, cell: PlannedCell) -> SharedScenario:
        """Return the scenario with the cell's assumptions and the workload's arrivals, images and
        power."""
        workload, level = self._workload, None
        if (at := cell.index("assumption")) is not None:
            level = workload.assumptions[at]
        changes = {"sharing": level.sharing, "knows_kinds": level.earlier_runs} if level else {}
        jobs = self._arriving(base, cell)
        if level and level.compute_shown and level.compute_ratio is not None:
            jobs = tuple(needing_compute(job, level.compute_ratio) for job in jobs)
        if workload.image_mib:
            jobs = tuple(msgspec.structs.replace(job, image_mib=workload.image_mib) for job in jobs)
        power = workload.power.model if workload.power is not None else base.power
        pull = workload.pull_mib_per_second
        return msgspec.structs.replace(
            base, jobs=jobs, power=power, pull_mib_per_s=pull, seed=cell.seed, **changes
        )

    def _arriving(self, base: SharedScenario, cell: PlannedCell) -> tuple[Job, ...]:
        """Return the jobs with arrival times from the workload's `arrivals`; unchanged if it has
        none."""
        arrivals = self._workload.arrivals
        if arrivals is None:
            return base.jobs
        gap_s = self._load_gap_s(base.jobs, sum(len(node.gpus) for node in base.nodes), cell)
        mean_s = gap_s or arrivals.mean_seconds
        count = len(base.jobs)
        if isinstance(arrivals, TracedArrivals):
            instants = arrival_times.traced_ns(self._times_s, count, cell.seed, mean_s)
        else:
            if mean_s is None:
                ends = max(job.arrives_ns for job in base.jobs) / SECOND_NS
                mean_s = ends / count if ends else GAP_S
            instants = arrival_times.drawn_ns(arrivals.law, count, mean_s, cell.seed)
        return arrival_times.arriving(base.jobs, instants)

    @cached_property
    def _times_s(self) -> list[float]:
        return arrival_times.read_times_s(self._data["arrivals.file"])

    def _load_gap_s(self, jobs: Sequence[Job], gpus: int, cell: PlannedCell) -> float | None:
        """Return the mean seconds between jobs at the cell's load, mean time alone ÷ (load · GPUs);
        None without loads."""
        at = cell.index("load")
        loads = getattr(self._workload, "loads", ())
        if at is None or not loads:
            return None
        mean_s = sum(job.work_ns for job in jobs) / SECOND_NS / len(jobs)
        return float(mean_s / (loads[at] * gpus))

    def _drawn(
        self, jobs: tuple[Job, ...], mean_s: float, seed: int, sigma: float = 1.0
    ) -> tuple[Job, ...]:
        law = arrival_times.ArrivalLaw("bursty", sigma=sigma, day_swing=0.0)
        instants = arrival_times.drawn_ns(law, len(jobs), mean_s, seed)
        return arrival_times.arriving(jobs, instants)

    def _overprovisioned(self, workload: OverprovisionedJobs, cell: PlannedCell) -> SharedScenario:
        percent = workload.percents[cell.index("percent") or 0]
        jobs = ece_like.jobs(percent, cell.seed, workload.cards, ece_like.JobMix(workload.mix))
        gap_s = self._load_gap_s(jobs, workload.cards, cell)
        if gap_s is not None and workload.arrivals is None:
            own_s = (ece_like.ARRIVAL_LEAST_S + ece_like.ARRIVAL_MOST_S) / 2 / workload.cards
            jobs = tuple(
                msgspec.structs.replace(job, arrives_ns=round(job.arrives_ns * gap_s / own_s))
                for job in jobs
            )
        return SharedScenario(
            ece_like.cluster(workload.cards), jobs, ece_like.slowdown(percent), seed=cell.seed
        )

    def _knots_cluster(self, workload: KnotsCluster, cell: PlannedCell) -> SharedScenario:
        mix = workload.mixes[cell.index("mix") or 0]
        chosen = knots.MIXES[mix]
        jobs = knots.mix_jobs(mix, workload.jobs, cell.seed)
        gap_s = self._load_gap_s(jobs, workload.gpus, cell)
        if gap_s is None:
            mean_s = sum(job.work_ns for job in jobs) / SECOND_NS / len(jobs)
            gap_s = mean_s / (chosen.load * workload.gpus)
        jobs = self._drawn(jobs, gap_s, cell.seed, chosen.sigma)
        return _in_proportion(knots.cluster(workload.gpus, 1), jobs, knots.P100)

    def _knots_training(self, workload: KnotsTraining, cell: PlannedCell) -> SharedScenario:
        jobs = knots.training_jobs(workload.training, workload.inference, cell.seed)
        jobs = self._drawn(jobs, workload.hours * 3600 / len(jobs), cell.seed)
        return _in_proportion(knots.cluster(workload.gpus, 8), jobs, knots.P100)

    def _listed(self, workload: ListedCluster, cell: PlannedCell) -> SharedScenario:
        nodes = self._nodes
        cards = [gpu for node in nodes for gpu in node.gpus]
        most_mib = max(gpu.memory_mib for gpu in cards)
        at = cell.index("percent")
        percent = getattr(workload, "percents", (0,))[at] if at is not None else 0
        if isinstance(workload, ManifestPods):
            jobs = _pod_jobs(workload, self._pods, most_mib, cell.seed)
        else:
            jobs = job_lists.jobs_of(self._jobs, percent, most_mib, cell.seed)
        gap_s = self._load_gap_s(jobs, len(cards), cell)
        if gap_s is not None or not any(job.arrives_ns for job in jobs):
            law = arrival_times.ArrivalLaw("poisson")
            mean_s = GAP_S / len(cards) if gap_s is None else gap_s
            instants = arrival_times.drawn_ns(law, len(jobs), mean_s, cell.seed)
            jobs = arrival_times.arriving(jobs, instants)
        return _in_proportion(nodes, jobs, power_of(cards[0].model))

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        workload = self._workload
        assert isinstance(workload, ListedCluster)
        if "nodes" in self._data:
            nodes = tuple(node for node in read_nodes(self._data["nodes"]) if node.gpus)
            if not nodes:
                raise BadInputError(str(self._data["nodes"]), "has no GPU")
            return nodes
        whole = range(0, workload.gpus, workload.node_gpus)
        return tuple(
            Node(
                f"node-{first // workload.node_gpus:03d}",
                tuple(
                    Gpu(at, workload.gpu_mib, workload.gpu_model)
                    for at in range(min(workload.node_gpus, workload.gpus - first))
                ),
            )
            for first in whole
        )

    @cached_property
    def _jobs(self) -> tuple[job_lists.ListedJob, ...]:
        workload, path = self._workload, self._data["jobs_file"]
        if isinstance(workload, InferenceList):
            times = job_lists.QueryTimes(
                workload.query_seconds, workload.start_seconds, workload.query_limit_seconds
            )
            return job_lists.listed_programs(path, read_generated(path), times)
        return job_lists.read_jobs(path)

    @cached_property
    def _pods(self) -> Sequence[PodRequest]:
        path = self._data["manifests"]
        if self._read_pods is None:
            raise BadInputError(str(path), "can only be read by the weft command")
        return self._read_pods(path)


def run_with(
    scenario: SharedScenario,
    scheduler: str,
    make: MakeScheduler,
    decisions: DecisionsWriter | None = None,
) -> SharedRun:
    """Run the scenario with a policy, or with `best-residency` or `gandiva`.

    Decisions are recorded to `decisions`, except gandiva's, as its trials cannot be replayed."""
    if scheduler == GANDIVA:
        run = TrialRun(scenario, PackByTrial()).go()
    elif scheduler == BEST:
        peaks = (msgspec.structs.replace(job, request_mib=job.peak_mib) for job in scenario.jobs)
        asking = msgspec.structs.replace(scenario, jobs=tuple(peaks))
        run = run_shared(asking, make("gpushare"), decisions)
    else:
        run = run_shared(scenario, make(scheduler), decisions)
    return msgspec.structs.replace(run, policy=scheduler)


def exporter_faults(faults: MetricFaults) -> ExporterFaults:
    """Return the simulated exporters' faults for a level of the axis `faults`."""
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


def _in_proportion(
    nodes: tuple[Node, ...], jobs: tuple[Job, ...], power: PowerModel
) -> SharedScenario:
    sharing = IN_PROPORTION.sharing
    return SharedScenario(nodes, jobs, NO_SLOWDOWN, power=power, sharing=sharing)


def _pod_jobs(
    workload: ManifestPods, pods: Sequence[PodRequest], most_mib: int, seed: int
) -> tuple[Job, ...]:
    """Return a job for each copy of each pod.

    `BadInputError` for pods that do not request exactly one GPU or a share of one."""
    listed = []
    for pod in pods:
        requests = pod.shape.gpu_requests
        if len(requests) != 1 or requests[0].count != 1:
            what = f"asks for {sum(each.count for each in requests)} GPUs; simulated pods take one"
            raise BadInputError(f"workload.manifests, pod {pod.namespace}/{pod.name}", what)
        asks_mib = min(most_mib, 0 if requests[0].whole else requests[0].memory.mib_on(most_mib))
        ratio = workload.compute_ratio
        asks_mib = asks_mib or most_mib
        used_mib = round(asks_mib * workload.used_ratio)
        phase = job_lists.ListedPhase(workload.seconds, used_mib, ratio, ratio / 2)
        kind = pod.shape.application or pod.name
        listed.append(
            job_lists.ListedJob(kind, asks_mib, (phase,), workload.copies, _class_of(pod))
        )
    return job_lists.jobs_of(tuple(listed), 0, most_mib, seed)


def _class_of(pod: PodRequest) -> job_lists.JobClass:
    return cast("job_lists.JobClass", pod.shape.job_class)


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
    "idle_energy_kj",
    "unfinished",
)
"""Fields of a shared run that are measures without conversion."""


def shared_result(run: SharedRun) -> CellResult:
    """Return the cell's result: the run, its jobs' rows, the GPUs' use, and all measures."""
    waits = [
        outcome.bound_s - outcome.arrived_s
        for outcome in run.outcomes
        if outcome.bound_s is not None
    ]  # time until the first binding
    measures = {name: finite_or_none(getattr(run, name)) for name in SHARED_MEASURES}
    if waits:
        measures["queue_mean_s"] = round(sum(waits) / len(waits), 3)
        measures["queue_p99_s"] = round(float(np.percentile(waits, 99)), 3)
    measures |= _of_jobs(run)
    return CellResult(measures, msgspec.to_builtins(run.bare()), run.outcomes, run.usage)


def _of_jobs(run: SharedRun) -> dict[str, float | None]:
    """Return measures of slowdown, fairness and energy per job, and of queries if jobs answer
    any."""
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


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None if it is not finite, such as a percentile of no jobs."""
    return None if value is None or not math.isfinite(value) else value


class SharedGpusRunner:
    """Runs jobs that share GPUs, of any workload.

    `best-residency` is best fit with every pod requesting exactly its peak use, which is unknown in
    practice; `gandiva` packs by trial."""

    def __init__(
        self, scenarios: ScenarioMaker, make: MakeScheduler, *, records: bool = False
    ) -> None:
        self._scenarios, self._make, self._records = scenarios, make, records

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one scheduler with one seed's jobs at one level of each axis."""
        scenario = self._scenarios.scenario(cell)
        decisions = DecisionsKept(wanted=self._records)
        run = run_with(scenario, cell.scheduler, self._make, decisions.writer)
        return msgspec.structs.replace(shared_result(run), decisions=decisions.packed())
