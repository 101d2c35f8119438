"""Ferikoglou et al.'s published runs as they were measured: jobs, their pods' times, restarts.

`runs` are the job tables of one scheduler, `placements` what the Kube-Knots-like scheduler's log
says of when it found each pod and when it bound it. Seconds since the first pod was found.
"""

import gzip
import re
from pathlib import Path
from statistics import mean

import msgspec

SCHEDULERS = {"exclusive": "DEFAULT", "gpushare": "ALIBABA", "kube-knots": "CUSTSCHED"}
"""Our names for the three schedulers, and the files'."""


class PublishedJob(msgspec.Struct, frozen=True):
    """One row of a job table. `started_s` is since the pod was bound, for the last restart."""

    name: str
    restarts: int
    bound_s: float
    started_s: float
    ran_s: float
    jct_s: float


class PublishedRun(msgspec.Struct, frozen=True):
    """One run of one scheduler."""

    jobs: tuple[PublishedJob, ...]
    makespan_s: int

    @property
    def jct_mean_s(self) -> float:
        """Mean job completion time."""
        return mean(job.jct_s for job in self.jobs)

    @property
    def restarts(self) -> int:
        """Restarts of all containers."""
        return sum(job.restarts for job in self.jobs)


class LoggedPlacement(msgspec.Struct, frozen=True):
    """When the scheduler found a job's pod and when it bound it."""

    name: str
    found_s: float
    bound_s: float


def published(data: Path, percent: int, scheduler: str) -> PublishedRun:
    """The job table of `scheduler`'s run at `percent` over-provisioning; `data` has the logs."""
    path = data / f"overprov_{percent}" / f"jobs_{SCHEDULERS[scheduler]}.txt"
    text = path.read_text(encoding="utf-8")
    jobs = tuple(_job(block) for block in text.split("\n\n") if "Job Name" in block)
    (makespan_s,) = re.findall(r"Overall Duration += (\d+) sec", text)
    return PublishedRun(jobs, int(makespan_s))


def _job(block: str) -> PublishedJob:
    rows = dict(line.split(" = ", 1) for line in block.strip().splitlines())
    rows = {key.strip(): value.strip() for key, value in rows.items()}
    bound, started, ran, jct = (
        _seconds(rows[key])
        for key in (
            "Pod_Start_Time - Pod_Creation_Timestamp",
            "Container_Started_At - Pod_Start_Time",
            "Container_Finished_At - Container_Started_At",
            "Job Execution Time",
        )
    )
    restarts = int(rows["Container Restart Count"])
    return PublishedJob(rows["Job Name"], restarts, bound, started, ran, jct)


def placements(data: Path, percent: int) -> list[LoggedPlacement]:
    """The scheduler's log, pods in the order in which they were bound."""
    path = data / f"overprov_{percent}" / "custom-scheduler.log.gz"
    found: dict[str, float] = {}
    bound: dict[str, float] = {}
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        if match := re.search(r"\t(Found a pod|Placed pod).*\[default/(\S+)-[a-z0-9]+\]", line):
            times = found if match[1] == "Found a pod" else bound
            times[match[2]] = _seconds(line.split()[1])
    first = min(found.values())
    return [LoggedPlacement(name, found[name] - first, at - first) for name, at in bound.items()]


def _seconds(clock: str) -> float:
    hours, minutes, rest = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)
