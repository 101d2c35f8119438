"""Runs an experiment's cells on a cluster: each cell is the turn of one scheduler, which binds its
Jobs alone."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from weft.kube.client import ApiClient, Endpoint
from weft.kube.config import load
from weft.lab.experiment.run.cluster_jobs import PlannedJob, planned_jobs
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.spec.cluster import Cluster, ClusterJobs, PrometheusAccess
from weft.lab.experiment.spec.experiment import PlannedCell
from weft.lab.stopping import run_cleaning_up
from weft.lab.trial.job_rows import TrialJob, clock_marks, job_marks, job_measures, job_rows
from weft.lab.trial.objects import TurnLabels, moment_s
from weft.lab.trial.ranges import (
    CardSeries,
    CardUsage,
    RangesRead,
    read_nodes,
    read_ranges,
    usage_measures,
    usage_over_time,
)
from weft.lab.trial.turn import Turn, TurnObjects, TurnPlan, prometheus_clock_marks
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions


class ClusterRunner:
    """Runs an experiment's Jobs on its cluster, one turn (scheduler and seed) after another.

    `name` is the experiment's name, `models` the workload's file, if any; `tell` is called with
    progress texts."""

    def __init__(
        self,
        name: str,
        workload: ClusterJobs,
        cluster: Cluster,
        models: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self._name, self._workload, self._cluster = name, workload, cluster
        self._models, self._tell = models, tell

    def run(self, cell: PlannedCell) -> CellResult:
        """Run one scheduler's turn with one seed's Jobs at one level of over-provisioning.

        `BadInputError` if the cluster cannot be reached, or another scheduler binds the Jobs. On
        SIGTERM, as on Ctrl-C, the turn's namespace is removed."""
        return run_cleaning_up(self._run(cell))

    def jobs(self, seed: int) -> list[PlannedJob]:
        """Return the Jobs of every turn with this seed, by arrival time."""
        return planned_jobs(self._workload, self._models, seed)

    async def _run(self, cell: PlannedCell) -> CellResult:
        cluster = self._cluster
        key = hashlib.sha256(cell.folder.encode()).hexdigest()[:16]
        plan = TurnPlan(
            TurnLabels(self._name, key),
            cluster,
            cluster.scheduler(cell.scheduler),
            self._workload.percents[cell.levels[0].index],
            self.jobs(cell.seed),
        )
        async with ApiClient(endpoint_of(cluster)) as client:
            nodes = await read_nodes(client, cluster)
            seen = await Turn(client, plan, self._tell).run()
            if cluster.prometheus is None or not seen.jobs:
                return _result(plan, seen, RangesRead({}, []))
            async with Prometheus(_options(cluster.prometheus)) as source:
                marks = await prometheus_clock_marks(source, seen.api_clock, client.clock)
                begin_s, end_s = _span(seen)
                read = await read_ranges(source, nodes, begin_s, end_s)
        return _result(plan, seen, RangesRead(read.samples, [*marks, *read.marks]))


def endpoint_of(cluster: Cluster) -> Endpoint:
    """Return the cluster's API server; `BadInputError` if the kubeconfig or the context is
    missing."""
    paths = (Path(cluster.kubeconfig).expanduser(),) if cluster.kubeconfig else ()
    return load(cluster.context, paths=paths)


def _result(plan: TurnPlan, seen: TurnObjects, read: RangesRead) -> CellResult:
    kinds = {job.name: job.kind for job in plan.jobs}
    ooms = {name: len(ends) for name, ends in seen.ooms.items()}
    rows = job_rows(seen.jobs.values(), seen.pods.values(), kinds, ooms, seen.queries)
    failed = job_marks(seen.jobs, [job.name for job in plan.jobs])
    marks = (*seen.marks, *failed, *clock_marks(rows), *read.marks)
    measures = job_measures(rows)
    usage: list[CardUsage] = []
    if read.samples:
        begin_s, end_s = _span(seen)
        samples = {
            metric: {
                card: CardSeries(series.times_s - begin_s, series.values)
                for card, series in cards.items()
            }
            for metric, cards in read.samples.items()
        }
        usage = usage_over_time(samples, _stays(rows), end_s - begin_s)
        measures |= usage_measures(usage)
    run = {
        "scheduler": msgspec.to_builtins(plan.scheduler),
        "percent": plan.percent,
        "jobs": len(rows),
        "marks": list(marks),
    }
    return CellResult(measures, run, rows, usage, marks)


def _stays(rows: Iterable[TrialJob]) -> list[tuple[float, float | None, float | None]]:
    return [(row.arrived_s, row.bound_s, row.finished_s) for row in rows]


def _span(seen: TurnObjects) -> tuple[float, float]:
    """Return the times of the first Job's creation and the last Job's completion, in seconds since
    1970.

    There must be at least one Job."""
    jobs = seen.jobs.values()
    begins = [moment_s(job.metadata.creation_timestamp) for job in jobs]
    ends = [moment_s(job.status.completion_time) for job in jobs]
    begin_s = min(at for at in begins if at is not None)
    return begin_s, max((at for at in ends if at is not None), default=begin_s)


def _options(access: PrometheusAccess) -> PrometheusOptions:
    return PrometheusOptions(
        url=access.url,
        selector=access.selector,
        timeout_s=access.timeout_seconds,
        bearer_token_file=access.bearer_token_file,
        authority_file=access.authority_file,
    )
