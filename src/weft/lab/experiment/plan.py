"""An experiment's cells: one run each, in the order of the results."""

import itertools
from typing import Any
from urllib.parse import quote

import msgspec

from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.experiment.spec_workloads import levels_of

_PLAIN = "=,:.-_"
"""Characters that stay as they are in a folder's name, beside letters and digits."""


class CellLevel(msgspec.Struct, frozen=True):
    """A cell's place on one axis: `index` of the axis' levels, and how it is written."""

    axis: str
    index: int
    text: str


class PlannedCell(msgspec.Struct, frozen=True):
    """One run: a scheduler meets one seed's workload at these levels, for the `repeat`-th time."""

    levels: tuple[CellLevel, ...]
    scheduler: str
    seed: int
    repeat: int = 0

    def index(self, axis: str) -> int | None:
        """The number of its level on this axis; None where the experiment has no such axis."""
        return next((level.index for level in self.levels if level.axis == axis), None)

    @property
    def folder(self) -> str:
        """Its folder within the run's, the same for equal cells of any plan."""
        parts = [f"{level.axis}={level.text}" for level in self.levels]
        return "/".join(quote(part, safe=_PLAIN) for part in [*parts, self.scheduler]) + (
            f"/seed={self.seed}" + (f",repeat={self.repeat}" if self.repeat else "")
        )


def plan(spec: ExperimentSpec) -> list[PlannedCell]:
    """Every cell: levels, then schedulers, then seeds, then repeats."""
    axes = [
        [CellLevel(axis, index, text) for index, text in enumerate(texts)]
        for axis, texts in axes_of(spec).items()
    ]
    seeds = range(spec.seeds.first, spec.seeds.first + spec.seeds.count)
    return [
        PlannedCell(levels, scheduler, seed, repeat)
        for levels in itertools.product(*axes)
        for scheduler in spec.schedulers
        for seed in seeds
        for repeat in range(spec.repeats)
    ]


def axes_of(spec: ExperimentSpec) -> dict[str, list[str]]:
    """The levels of each axis, as they are written, by its name."""
    return {
        axis: [_text(level) for level in levels]
        for axis, levels in levels_of(spec.workload).items()
    }


def _text(level: Any) -> str:
    if name := str(getattr(level, "name", "")):
        return name
    short = f"{level:g}"
    return short if float(short) == level else repr(level)
