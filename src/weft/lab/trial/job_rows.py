"""Builds one result row per Job from Kubernetes' timestamps, and finds faults in them. Pure
functions.

Times are seconds since the first Job's creation, in whole seconds as the API stores them. The
differences between neighbouring columns are the columns of Ferikoglou et al.'s job statistics."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.lab.trial.objects import KubeJob, TrialPod, moment_s

# Reads query latencies from a container's log, in the format of MLPerf's SingleStream line
#
#     TestScenario.SingleStream qps=…, mean=…, time=…, queries=…, tiles=50.0:…,80.0:…,90.0:…,…
#
# Split at commas, field 6 holds the 90th percentile and field 8 the 99th, in seconds
# (`lab/workloads/queries.py` writes the same line).

_SCENARIO = "TestScenario."
_P90, _P99 = (6, "90.0:"), (8, "99.0:")


class LoggedQueryTimes(NamedTuple):
    """Percentiles of a run's query latencies, in seconds."""

    p90_s: float
    p99_s: float


def read_query_times(log: str) -> LoggedQueryTimes | None:
    """Return the percentiles in the log's last SingleStream line; None without a valid line."""
    for line in reversed(log.splitlines()):
        if _SCENARIO in line:
            fields = line.split(",")
            tiles = [_tile(fields, at, mark) for at, mark in (_P90, _P99)]
            if None not in tiles:
                return LoggedQueryTimes(*(value for value in tiles if value is not None))
    return None


def _tile(fields: list[str], at: int, mark: str) -> float | None:
    text = fields[at].strip() if at < len(fields) else ""
    try:
        value = float(text.removeprefix(mark)) if text.startswith(mark) else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


MOST_CLOCK_ERROR_S = 1.0


class TrialJob(msgspec.Struct, frozen=True, kw_only=True):
    """A Job's times in seconds since the first Job's creation, None for steps not reached.

    arrived_s ≤ job_started_s ≤ pod_created_s ≤ bound_s ≤ pod_started_s ≤ container_started_s ≤
    container_finished_s ≤ finished_s. With several pods the times are the last pod's. `restarts`
    counts container restarts of all pods, `evictions` the pods before the last, `ooms` containers
    that ended for lack of GPU memory. `p90_s` and `p99_s` are percentiles of its query
    latencies."""

    uid: str
    kind: str
    arrived_s: float
    job_started_s: float | None = None
    pod_created_s: float | None = None
    bound_s: float | None = None
    pod_started_s: float | None = None
    container_started_s: float | None = None
    container_finished_s: float | None = None
    finished_s: float | None = None
    restarts: int = 0
    evictions: int = 0
    ooms: int = 0
    node: str = ""
    p90_s: float | None = None
    p99_s: float | None = None

    def moments(self) -> dict[str, float]:
        """Return the times of the steps reached, in the order in which the steps must occur."""
        names = (
            *("arrived_s", "job_started_s", "pod_created_s", "bound_s", "pod_started_s"),
            *("container_started_s", "container_finished_s", "finished_s"),
        )
        moments = {name: getattr(self, name) for name in names}
        return {name: value for name, value in moments.items() if value is not None}


def job_rows(
    jobs: Iterable[KubeJob],
    pods: Iterable[TrialPod],
    kinds: Mapping[str, str],
    ooms: Mapping[str, int],
    queries: Mapping[str, LoggedQueryTimes],
) -> list[TrialJob]:
    """Build one row per existing Job, in the order of `kinds`; `kinds`, `ooms` and `queries` are by
    Job name."""
    by_job: dict[str, list[TrialPod]] = {}
    for pod in pods:
        by_job.setdefault(pod.job, []).append(pod)
    job_of = {job.metadata.name: job for job in jobs}
    began_s = min((_at(job.metadata.creation_timestamp) for job in job_of.values()), default=0.0)
    return [
        _row(
            job_of[name], by_job.get(name, []), began_s, kind, ooms.get(name, 0), queries.get(name)
        )
        for name, kind in kinds.items()
        if name in job_of
    ]


def _row(
    job: KubeJob,
    pods: list[TrialPod],
    began_s: float,
    kind: str,
    ooms: int,
    queries: LoggedQueryTimes | None,
) -> TrialJob:
    def since(text: str | None) -> float | None:
        at_s = moment_s(text)
        return None if at_s is None else at_s - began_s

    pods = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "")
    last = pods[-1] if pods else TrialPod()
    container = next(iter(last.status.container_statuses or ()), None)
    ended = container.state.terminated if container else None
    ran = ended or (container.state.running if container else None)
    states = [state for pod in pods for state in pod.status.container_statuses or ()]
    return TrialJob(
        uid=job.metadata.name,
        kind=kind,
        arrived_s=_at(job.metadata.creation_timestamp) - began_s,
        job_started_s=since(job.status.start_time),
        pod_created_s=since(last.metadata.creation_timestamp),
        bound_s=since(last.bound_at),
        pod_started_s=since(last.status.start_time),
        container_started_s=since(ran.started_at if ran else None),
        container_finished_s=since(ended.finished_at if ended else None),
        finished_s=since(job.status.completion_time),
        restarts=sum(state.restart_count for state in states),
        evictions=max(0, len(pods) - 1),
        ooms=ooms,
        node=last.spec.node_name,
        p90_s=queries.p90_s if queries else None,
        p99_s=queries.p99_s if queries else None,
    )


def job_marks(jobs: Mapping[str, KubeJob], names: Sequence[str]) -> list[str]:
    """Return a mark (a fault's text) if Jobs failed or no Job was seen; `names` are the planned
    Jobs.

    Completion times cover only completed Jobs, so a scheduler whose Jobs fail would look fast. Jobs
    that did not end in time are marked by `Turn`."""
    if not jobs:
        return ["no Job was seen: none was due within cluster.turnSeconds, or none was created"]
    failed = [name for name in names if name in jobs and jobs[name].failed]
    if not failed:
        return []
    count = f"{len(failed)} of {len(names)} Jobs failed, the first is {failed[0]}"
    return [f"{count}: completion times cover only completed Jobs"]


def clock_marks(rows: Sequence[TrialJob]) -> list[str]:
    """Return at most one mark (a fault's text): the largest gap by which a later step of a Job has
    an earlier time, as clocks disagree."""
    worst: tuple[float, str] = (MOST_CLOCK_ERROR_S, "")
    for row in rows:
        for (earlier, first_s), (later, then_s) in itertools.pairwise(row.moments().items()):
            text = (
                f"clocks are {first_s - then_s:g} s apart: {later} of Job {row.uid} on node "
                f"{row.node or '(none)'} is before its {earlier}; set the machines' clocks (NTP)"
            )
            if first_s - then_s > worst[0]:
                worst = (first_s - then_s, text)
    return [worst[1]] if worst[1] else []


def job_measures(rows: Sequence[TrialJob]) -> dict[str, float | None]:
    """Return the measures by which schedulers are compared, named as in simulations; None without
    values."""
    took = [row.finished_s - row.arrived_s for row in rows if row.finished_s is not None]
    waits = [row.bound_s - row.arrived_s for row in rows if row.bound_s is not None]
    ends = [row.finished_s for row in rows if row.finished_s is not None]
    return {
        "jct_mean_s": _mean(took),
        "jct_p50_s": _percentile(took, 50),
        "jct_p99_s": _percentile(took, 99),
        "makespan_s": max(ends, default=None),
        "queue_mean_s": _mean(waits),
        "queue_p99_s": _percentile(waits, 99),
        "ooms": float(sum(row.ooms for row in rows)),
        "restarts": float(sum(row.restarts for row in rows)),
        "evictions": float(sum(row.evictions for row in rows)),
        "unfinished": float(sum(row.finished_s is None for row in rows)),
        "query_p90_s": _mean([row.p90_s for row in rows if row.p90_s is not None]),
        "query_p99_s": _mean([row.p99_s for row in rows if row.p99_s is not None]),
    }


def _at(text: str | None) -> float:
    return moment_s(text) or 0.0


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 6) if values else None
