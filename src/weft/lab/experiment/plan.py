"""An experiment's cells: one run each, in the order of the results."""

import itertools
from urllib.parse import quote

import msgspec

from weft.lab.experiment.spec import ExperimentSpec, MeasuredPairs, OverprovisionedJobs
from weft.lab.experiment.spec_cluster import ClusterJobs

_PLAIN = "=,:.-_"
"""Characters that stay as they are in a folder's name, beside letters and digits."""


class CellLevel(msgspec.Struct, frozen=True):
    """A cell's place on one axis: `index` of the axis' levels, and how it is written."""

    axis: str
    index: int
    text: str


class PlannedCell(msgspec.Struct, frozen=True):
    """One run: a scheduler meets one seed's workload at these levels."""

    levels: tuple[CellLevel, ...]
    scheduler: str
    seed: int

    @property
    def folder(self) -> str:
        """Its folder within the run's, the same for equal cells of any plan."""
        parts = [f"{level.axis}={level.text}" for level in self.levels]
        return "/".join(quote(part, safe=_PLAIN) for part in [*parts, self.scheduler]) + (
            f"/seed={self.seed}"
        )


def plan(spec: ExperimentSpec) -> list[PlannedCell]:
    """Every cell: levels, then schedulers, then seeds."""
    axes = [
        [CellLevel(axis, index, text) for index, text in enumerate(texts)]
        for axis, texts in axes_of(spec).items()
    ]
    seeds = range(spec.seeds.first, spec.seeds.first + spec.seeds.count)
    return [
        PlannedCell(levels, scheduler, seed)
        for levels in itertools.product(*axes)
        for scheduler in spec.schedulers
        for seed in seeds
    ]


def axes_of(spec: ExperimentSpec) -> dict[str, list[str]]:
    """The levels of each axis, as they are written, by its name."""
    workload = spec.workload
    if isinstance(workload, OverprovisionedJobs):
        faults = [each.name for each in workload.faults]
        return {"percent": [str(each) for each in workload.percents], "faults": faults}
    if isinstance(workload, MeasuredPairs):
        return {"load": [f"{load:g}" for load in workload.loads]}
    if isinstance(workload, ClusterJobs):
        return {"percent": [str(each) for each in workload.percents]}
    if workload.mode == "timed":
        return {}
    return {"demand": [f"{demand:g}" for demand in workload.demands]}
