"""Assumptions of results: how jobs share a GPU in words, and headlines under other assumptions."""

import msgspec

from weft.lab.experiment.spec.experiment import ExperimentSpec
from weft.lab.experiment.spec.workloads import (
    MeasuredPairs,
    OverprovisionedJobs,
    SimulatedJobs,
    TimeAssumptions,
)
from weft.lab.experiment.statistics.comparison import ExperimentResults, MeasureSummary

AXIS = "assumption"


class AssumedRow(msgspec.Struct, frozen=True):
    """A headline under one assumption; `summary` is None if its cells are missing."""

    assumption: str
    summary: MeasureSummary | None

    @property
    def text(self) -> str:
        """The difference to the baseline with its interval."""
        if self.summary is None:
            return "not run"
        difference = self.summary.difference
        return "–" if difference is None else difference.text().replace("-", "−")


def model_of_time(spec: ExperimentSpec) -> str:
    """Say in words how jobs of this experiment share a GPU; "" if nothing is assumed."""
    workload = spec.workload
    if not isinstance(workload, SimulatedJobs):
        return ""
    if isinstance(workload, OverprovisionedJobs):
        return "Slowdowns as measured on a V100, by how many share it, of jobs bound by the CPU."
    if isinstance(workload, MeasuredPairs):
        return "Slowdowns as measured for each pair of jobs; those of three and more multiply."
    return (
        "Compute shared in proportion to what containers together need of SMs and memory "
        "bandwidth; nobody measured these programs side by side."
    )


def in_words(assumed: TimeAssumptions, workload: SimulatedJobs) -> str:
    """Return an assumption as part of a sentence."""
    measured = isinstance(workload, OverprovisionedJobs | MeasuredPairs)
    if assumed.compute == "measured":
        compute = "slowdowns as measured" if measured else "sharing costs nothing"
    elif assumed.compute_ratio is None:
        compute = "compute shared in proportion"
    else:
        compute = f"compute shared in proportion, each needs {100 * assumed.compute_ratio:g} %"
        compute += ", as metrics show" if assumed.compute_shown else ", unseen by metrics"
    return compute if assumed.earlier_runs else f"{compute}; nothing known of earlier runs"


def assumed_rows(
    spec: ExperimentSpec, results: ExperimentResults, measure: str, scheduler: str
) -> list[AssumedRow]:
    """Return the scheduler's measure against the baseline for each assumption, at the first level
    of other axes; empty without that axis."""
    workload = spec.workload
    if not isinstance(workload, SimulatedJobs):
        return []
    rows = []
    for assumed in workload.assumptions:
        summaries = (
            summary
            for summary in results.summary
            if (summary.measure, summary.scheduler) == (measure, scheduler)
            and summary.levels.get(AXIS) == assumed.name
        )
        rows.append(AssumedRow(in_words(assumed, workload), next(summaries, None)))
    return rows
