"""The report's figures, in its order."""

from weft.lab.experiment import bar_figures, line_figures
from weft.lab.experiment.drawing import Drawing
from weft.lab.simulate.results import SimulationResults

NAMES = ("allocation", "fragmentation", "by-model", "unscheduled")


def draw_all(
    results: SimulationResults, models_gpus: dict[str, int] | None = None
) -> list[Drawing]:
    """One drawing a name in `NAMES`; `models_gpus` is how many GPUs of each model there are."""
    return [
        line_figures.allocation(results),
        line_figures.fragmentation(results),
        bar_figures.by_model(results, models_gpus),
        bar_figures.unscheduled(results),
    ]
