"""Figures of an experiment on a trace: as `weft simulate` draws, from the cells' runs."""

import msgspec

from weft.lab.experiment import line_figures
from weft.lab.experiment.drawing import Drawing
from weft.lab.experiment.layouts import Layout
from weft.lab.experiment.plan import plan
from weft.lab.experiment.ranking import is_timed
from weft.lab.experiment.spec import ExperimentSpec
from weft.lab.experiment.spec_workloads import OpenbPods
from weft.lab.experiment.statistics import summarise
from weft.lab.experiment.store import RunStore
from weft.lab.simulate.results import PolicyRun, SimulationResults

NAMES = ("allocation", "queue", "fragmentation")


def trace_results(spec: ExperimentSpec, store: RunStore) -> SimulationResults | None:
    """The runs up to the highest demand, as `weft simulate` would sum them up; None without any,
    and for other workloads."""
    if not isinstance(spec.workload, OpenbPods):
        return None
    highest = max(range(len(spec.workload.demands)), key=spec.workload.demands.__getitem__)
    runs = [
        msgspec.convert(record.run, PolicyRun)
        for cell in plan(spec)
        if (cell.index("demand") or 0) == highest and (record := store.record(cell)) is not None
    ]
    return SimulationResults(runs, summarise(runs)) if runs else None


def trace_drawings(results: SimulationResults, layout: Layout) -> list[Drawing]:
    """Allocation and fragments as demand arrives; over time with pods waiting where pods leave."""
    drawings = [line_figures.allocation(results, layout)]
    if is_timed(results):
        drawings.append(line_figures.queue(results, layout))
    return [*drawings, line_figures.fragmentation(results, layout)]
