"""The report's figures, in its order."""

from weft.lab.experiment import bar_figures, line_figures
from weft.lab.experiment.drawing import Drawing
from weft.lab.experiment.layouts import WIDE, Layout
from weft.lab.experiment.ranking import is_timed
from weft.lab.simulate.results import SimulationResults

NAMES = ("allocation", "queue", "fragmentation", "by-model", "unscheduled")
"""Those that a report may have."""


def names_of(results: SimulationResults) -> tuple[str, ...]:
    """Those of these results: pods wait only where runs are timed."""
    return tuple(name for name in NAMES if name != "queue" or is_timed(results))


def draw_all(
    results: SimulationResults,
    models_gpus: dict[str, int] | None = None,
    layout: Layout = WIDE,
) -> list[Drawing]:
    """A drawing for each of `names_of`; `models_gpus` is how many GPUs of each model there are."""
    drawings = [line_figures.allocation(results, layout)]
    if is_timed(results):
        drawings.append(line_figures.queue(results, layout))
    return [
        *drawings,
        line_figures.fragmentation(results, layout),
        bar_figures.by_model(results, models_gpus, layout),
        bar_figures.unscheduled(results, layout),
    ]
