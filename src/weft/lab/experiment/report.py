"""Writes a report into a folder: `report.html` and its figures, whole or not at all.

Everything is drawn in memory first and written beside its name, then renamed: a failure leaves
the report that was there. `report.html` is renamed last. The folder's other files are not touched.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from weft.files.writing import replacing, unwritten
from weft.lab.experiment import png as png_writer
from weft.lab.experiment.figures import NAMES, draw_all
from weft.lab.experiment.layouts import LAYOUTS, WIDE
from weft.lab.experiment.page import PageParts, ReportTexts, page
from weft.lab.experiment.svg import to_svg
from weft.lab.simulate.holdings import ClusterHoldings
from weft.lab.simulate.results import SimulationResults
from weft.model.errors import BadInputError

PAGE = "report.html"


def write_report(
    results: SimulationResults,
    directory: Path,
    texts: ReportTexts,
    *,
    png: bool = False,
    models_gpus: dict[str, int] | None = None,
    holdings: Sequence[ClusterHoldings] = (),
) -> Path:
    """Write `report.html` and its SVG figures, PNG copies too if `png`; returns the page's path.

    `models_gpus` is how many GPUs of each model the cluster has, for labels and for the headline;
    `holdings` who held what in one run of each policy, for the map.
    An older report in `directory` is replaced. Raises `BadInputError` where there is no run,
    where the folder can't be written, and for `png` without matplotlib.
    """
    files = _draw(results, texts, png, models_gpus, holdings)
    stale = [f"{name}.{kind}" for name in NAMES for kind in ("svg", "png")]
    write_files(directory, files, stale)
    return directory / PAGE


def write_files(directory: Path, files: dict[str, bytes], stale: Sequence[str]) -> None:
    """Put these files into the folder, the last one last, all or none; `stale` ones that are not
    among them go: figures of an older report would show other numbers."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory, files)
        for name in stale:
            if name not in files:
                (directory / name).unlink(missing_ok=True)
    except FileExistsError:
        raise BadInputError(str(directory), "is a file; name a folder for the report") from None
    except OSError as error:
        raise unwritten(directory, error) from None


def _draw(
    results: SimulationResults,
    texts: ReportTexts,
    png: bool,
    models_gpus: dict[str, int] | None,
    holdings: Sequence[ClusterHoldings],
) -> dict[str, bytes]:
    """Every file of the report by name, the page last."""
    if not results.runs or not results.summary:
        raise BadInputError("report", "there is no run to report; give at least one policy")
    if png:
        png_writer.check()
    drawings = draw_all(results, models_gpus)
    files = {f"{drawing.name}.svg": to_svg(drawing).encode() for drawing in drawings}
    if png:
        files |= {f"{drawing.name}.png": png_writer.to_png(drawing) for drawing in drawings}
    svgs: dict[str, list[str]] = {drawing.name: [] for drawing in drawings}
    for layout in LAYOUTS:
        same = drawings if layout is WIDE else draw_all(results, models_gpus, layout)
        for drawing in same:
            svgs[drawing.name].append(to_svg(drawing, layout.name))
    gpus = sum(models_gpus.values()) if models_gpus else None
    files[PAGE] = page(results, texts, PageParts(svgs, holdings, gpus)).encode()
    return files


def _replace(directory: Path, files: dict[str, bytes]) -> None:
    """Put all files beside their names, then rename them; nothing is left over on failure."""
    with ExitStack() as ready:
        for name, content in reversed(files.items()):  # the first is renamed first
            file = ready.enter_context(replacing(directory / name))
            file.write(content)
            file.flush()
