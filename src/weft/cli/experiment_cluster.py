"""Experiments on a cluster, for `weft experiment check` and `run`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.output import duration_text
from weft.cli.progress import status_line

if TYPE_CHECKING:
    from weft.lab.experiment.run.cluster_jobs import PlannedJob
    from weft.lab.experiment.run.execution import CellWork
    from weft.lab.experiment.run.runner import Runner
    from weft.lab.experiment.run.store import RunStore
    from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell

JOB_BYTES, SECOND_BYTES, CELL_BYTES = 90, 40, 16_384
"""The most that a cell takes: a Job's row, a second of all cards', and files that are empty."""


def runner(spec: "ExperimentSpec", data: Mapping[str, Path]) -> "Runner":
    """The runner that carries out its cells on its cluster."""
    from weft.lab.experiment.spec.cluster import ClusterJobs
    from weft.lab.trial.runner import ClusterRunner

    assert spec.cluster is not None
    assert isinstance(spec.workload, ClusterJobs)  # as `read_spec` has seen
    return ClusterRunner(spec.name, spec.workload, spec.cluster, data.get("models"), status_line())


def check_access(spec: "ExperimentSpec") -> None:
    """`BadInputError` where its kubeconfig or context are not there; the cluster is not asked."""
    from weft.lab.trial.runner import endpoint_of

    assert spec.cluster is not None
    endpoint_of(spec.cluster)


def how_long(spec: "ExperimentSpec", work: "CellWork", cells: Sequence["PlannedCell"]) -> str:
    """Estimates time and disk of the turns among `cells` that are still to run.

    Time is the mean of turns that ran; without any, at least what arrivals and `runSeconds` say.
    """
    from weft.lab.trial.runner import ClusterRunner

    assert spec.cluster is not None
    assert isinstance(work.runner, ClusterRunner)
    done = work.store.done(cells)
    left = [cell for cell in cells if cell not in done]
    jobs = {seed: work.runner.jobs(seed) for seed in {cell.seed for cell in left}}
    ran_s = _ran_s(work.store, cells)
    least_s = {seed: min(_least_s(jobs[seed]), spec.cluster.turn_seconds) for seed in jobs}
    turns_s = [sum(ran_s) / len(ran_s) if ran_s else least_s[cell.seed] for cell in left]
    first = jobs[left[0].seed]
    took = duration_text(sum(turns_s))
    if ran_s:
        time = f"; about {took}, as the mean of {len(ran_s)} that ran"
    elif all(job.run_s is not None for job in first):
        time = f"; at least {took}, by arrivals and `runSeconds`"
    else:
        time = ", and it lasts until the last one ends"
    seconds_bytes = SECOND_BYTES if spec.cluster.prometheus is not None else 0
    size = sum(
        CELL_BYTES + JOB_BYTES * len(jobs[cell.seed]) + seconds_bytes * turn_s
        for cell, turn_s in zip(left, turns_s, strict=True)
    )
    return (
        f"{len(left)} turns on the cluster, one after another; in each {len(first)} Jobs come "
        f"within {first[-1].arrival_s:,.0f} s{time}\n"
        f"{'about' if ran_s else 'at least'} {max(1, round(size / 2**20)):,} MiB of disk"
    )


def _ran_s(store: "RunStore", cells: Sequence["PlannedCell"]) -> list[float]:
    """How long those of the turns took that the folder's manifest has."""
    manifest = store.manifest()
    timings = manifest.cells if manifest is not None else {}
    return [timings[cell.folder].wall_s for cell in cells if cell.folder in timings]


def _least_s(jobs: Sequence["PlannedJob"]) -> float:
    """A turn's length where every Job gets its GPUs at once; to the last arrival, where Jobs do not
    say how long they run."""
    return max(job.arrival_s + (job.run_s or 0.0) for job in jobs)
