"""Carries out the cells of an experiment; one is made for each experiment."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from weft.lab.experiment.plan import PlannedCell


class CellResult(msgspec.Struct, frozen=True):
    """The result of a cell. The same cell gives the same result, byte by byte.

    `measures` are numbers to compare schedulers by, None where the run has none (a percentile of
    no jobs). `run` is all that was measured, as JSON takes it. `jobs` has one row a job
    (`JobTimes` and more), `usage` what the cards did over time (`UsagePoint`'s that are known).
    `marks` say why the numbers are not to be relied on: such a cell is left out of comparisons.
    `decisions` is the run's decisions file, gzipped; empty where it has none.
    """

    measures: dict[str, float | None]
    run: Any
    jobs: Sequence[msgspec.Struct] = ()
    usage: Sequence[msgspec.Struct] = ()
    marks: tuple[str, ...] = ()
    decisions: bytes = b""


class Runner(Protocol):
    """A host of runs. It is handed to other processes."""

    def run(self, cell: PlannedCell) -> CellResult:
        """Carry out the cell. `BadInputError` where its data is broken."""
        ...
