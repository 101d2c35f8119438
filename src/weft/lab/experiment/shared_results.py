"""Results of cells: a run of shared GPUs as the numbers that schedulers are compared by."""

import math

import msgspec
import numpy as np

from weft.lab.experiment.runner import CellResult
from weft.lab.simulate.sharing.outcome import SharedRun

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
"""Fields of a run of shared GPUs that are measures as they stand."""


def shared_result(run: SharedRun) -> CellResult:
    """The cell's result: the run, its jobs' rows, the cards' use, and all measures of these."""
    waits = [
        outcome.bound_s - outcome.arrived_s
        for outcome in run.outcomes
        if outcome.bound_s is not None
    ]  # until the first binding
    measures = {name: finite_or_none(getattr(run, name)) for name in SHARED_MEASURES}
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


def finite_or_none(value: float | None) -> float | None:
    """The value; None where it is not finite: a percentile of no jobs."""
    return None if value is None or not math.isfinite(value) else value
