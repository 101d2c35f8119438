"""Compares two results cell by cell: another version, another cluster, or a simulation of it.

Cells match if levels, scheduler, seed and repeat are equal. Differences are of the second to the
first, over common seeds, with the intervals and p-values of `comparison.py`."""

import itertools
from collections.abc import Mapping

import msgspec

from weft.lab.experiment.run.store import CellRecord, RunStore
from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell, plan
from weft.lab.experiment.spec.measures import TITLES
from weft.lab.experiment.statistics.comparison import (
    Measures,
    MeasureSummary,
    level_text,
    of_places,
    summaries_of_levels,
)

FIRST, SECOND = "first", "second"


class CellPair(msgspec.Struct, frozen=True):
    """One measure of one cell in both results; None if a run lacks it."""

    levels: dict[str, str]
    scheduler: str
    seed: int
    measure: str
    first: float | None
    second: float | None
    repeat: int = 0


class TwoResults(msgspec.Struct, frozen=True):
    """The comparison. `summary` has the second result's mean and its difference to the first, by
    level, scheduler and measure.

    `differs` is the first field of the workload that differs, "" if none does; `only_first` and
    `only_second` name cells that the other lacks; `marked` those left out because one of the
    results marks them, with the reason."""

    differs: str
    only_first: list[str]
    only_second: list[str]
    marked: dict[str, tuple[str, ...]]
    pairs: list[CellPair]
    summary: list[MeasureSummary]
    findings: list[str]


def compare_two(
    first: tuple[ExperimentSpec, RunStore], second: tuple[ExperimentSpec, RunStore]
) -> TwoResults:
    """Compare the results of two experiments."""
    spec = first[0]
    cells, others = _found(*first), _found(*second)
    there = [cell for cell in cells if cell in others]
    marked = {
        cell.folder: marks for cell in there if (marks := cells[cell].marks + others[cell].marks)
    }
    both = {
        cell: (cells[cell].measures, others[cell].measures)
        for cell in there
        if cell.folder not in marked
    }
    pairs = [
        CellPair(
            _levels(cell),
            cell.scheduler,
            cell.seed,
            name,
            one.get(name),
            other.get(name),
            cell.repeat,
        )
        for cell, (one, other) in both.items()
        for name in dict.fromkeys([*one, *other])
    ]
    summary = _summary(both)
    return TwoResults(
        first[1].differing_field(second[1]),
        [cell.folder for cell in cells if cell not in others],
        [cell.folder for cell in others if cell not in cells],
        marked,
        pairs,
        summary,
        [_sentence(spec, row) for row in summary if row.measure in TITLES and row.beyond_chance],
    )


def _found(spec: ExperimentSpec, store: RunStore) -> dict[PlannedCell, CellRecord]:
    """Return the stored cells, without level indexes, which differ between files."""
    records: dict[PlannedCell, CellRecord] = {}
    for cell, record in store.records(plan(spec)).items():
        levels = tuple(msgspec.structs.replace(level, index=0) for level in cell.levels)
        records[msgspec.structs.replace(cell, levels=levels)] = record
    return records


def _summary(both: Mapping[PlannedCell, tuple[Measures, Measures]]) -> list[MeasureSummary]:
    levels = list(dict.fromkeys(cell.levels for cell in both))
    names = dict.fromkeys(
        itertools.chain.from_iterable(measures for pair in both.values() for measures in pair)
    )
    summary = []
    for scheduler in dict.fromkeys(cell.scheduler for cell in both):
        measures = of_places(
            ((cell.levels, side), cell.seed, of_side)
            for cell, pair in both.items()
            if cell.scheduler == scheduler
            for side, of_side in zip((FIRST, SECOND), pair, strict=True)
        )
        for measure in names:
            rows = summaries_of_levels(measures, levels, (SECOND, FIRST), measure)
            summary += [msgspec.structs.replace(row, scheduler=scheduler) for row in rows]
    return summary


def _sentence(spec: ExperimentSpec, row: MeasureSummary) -> str:
    assert row.difference is not None
    at = level_text(spec, row.levels)
    changed = f"{TITLES[row.measure]} of {row.scheduler} differs: {row.difference.text()}."
    return f"At {at} the {changed}" if at else f"The {changed}"


def _levels(cell: PlannedCell) -> dict[str, str]:
    return {level.axis: level.text for level in cell.levels}
