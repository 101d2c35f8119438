"""Runs specifications of `benchmarks/experiments/` for benchmarks, which look at their bars alone.

Cells are kept in build/bench/experiments/: what is there is not run again.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.execution import CellWork, run_missing
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.store import RunStore, stored_experiment
from weft.lab.experiment.spec.experiment import (
    ExperimentSpec,
    PlannedCell,
    Seeds,
    data_paths,
    plan,
    read_spec,
)
from weft.lab.experiment.statistics.comparison import ExperimentResults, MeasureSummary, compare

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "benchmarks" / "experiments"
OUT = ROOT / "build" / "bench"
DATA = Path(os.environ.get("WEFT_DATA", "../shared/data")).resolve()
os.environ["WEFT_DATA"] = str(DATA)  # specifications name it
Measured = dict[str, dict[str, float | None]]
"""Measures of each cell, by its folder."""


def specification(name: str, seeds: int, **workload: Any) -> ExperimentSpec:
    """The specification of this name with so many seeds, and other fields of its workload."""
    spec = read_spec(FILES / f"{name}.yaml")
    changed = msgspec.structs.replace(spec.workload, **workload)
    return msgspec.structs.replace(spec, workload=changed, seeds=Seeds(spec.seeds.first, seeds))


def measured(
    spec: ExperimentSpec, jobs: int, cells: Sequence[PlannedCell] | None = None
) -> Measured:
    """Run the cells that are missing, and give the measures of every cell, or of these `cells`."""
    wanted = plan(spec) if cells is None else cells
    data = data_paths(spec, FILES)
    folder = OUT / "experiments" / spec.name
    store = RunStore(folder, stored_experiment(spec, data))
    store.begin()
    work = CellWork(runner_of(spec, data, built_in().from_spec), store)
    ran = run_missing(work, wanted, jobs, {}, lambda cells: None)
    if ran:
        print(f"{spec.name}: {ran} cells run, the others were there", file=sys.stderr, flush=True)
    records = {cell.folder: store.record(cell) for cell in wanted}
    return {name: record.measures for name, record in records.items() if record is not None}


def against(spec: ExperimentSpec, found: Measured, baseline: str) -> ExperimentResults:
    """All schedulers compared with this one."""
    return compare(msgspec.structs.replace(spec, baseline=baseline), found)


def one_of(results: ExperimentResults, scheduler: str, measure: str, level: str) -> MeasureSummary:
    """A scheduler's measure at a level of the only axis that has several."""
    return next(
        one
        for one in results.summary
        if (one.scheduler, one.measure) == (scheduler, measure) and level in one.levels.values()
    )


def by_place(spec: ExperimentSpec, found: Measured) -> dict[tuple[str, ...], list[Any]]:
    """Measures of all seeds, by (scheduler, level of each axis)."""
    places: dict[tuple[str, ...], list[Any]] = {}
    for cell in plan(spec):
        place = cell.scheduler, *(level.text for level in cell.levels)
        places.setdefault(place, []).append(found[cell.folder])
    return places


def pairs_of_table(name: str, asked: str, seeds: int, **workload: Any) -> ExperimentSpec:
    """The specification `name` on one of Gavel's tables, SOURCE:GPU as it is `asked` for.

    Its cells have a folder for each table and each value of `workload` that is no axis.
    """
    source, _, card = asked.partition(":")
    spec = specification(name, seeds, source=source, gpu=card, **workload)
    own = [text for text in workload.values() if isinstance(text, str)]
    parts = [name, source.removesuffix("_throughputs").replace("_", "-"), card, *own]
    return msgspec.structs.replace(spec, name="-".join(parts))
