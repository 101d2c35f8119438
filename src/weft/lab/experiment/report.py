"""Writes a report into a folder: `report.html` and its figures, whole or not at all.

Everything is drawn in memory first and written beside its name, then renamed: a failure leaves
the report that was there. `report.html` is renamed last. The folder's other files are not touched.
"""

import os
import tempfile
from pathlib import Path

from weft.lab.experiment import png as png_writer
from weft.lab.experiment.figures import NAMES, draw_all
from weft.lab.experiment.page import page
from weft.lab.experiment.svg import to_svg
from weft.lab.simulate.results import SimulationResults
from weft.model.errors import BadInputError

PAGE = "report.html"


def write_report(
    results: SimulationResults,
    directory: Path,
    title: str,
    subtitle: str,
    *,
    png: bool = False,
    models_gpus: dict[str, int] | None = None,
) -> Path:
    """Write `report.html` and four SVG figures, PNG copies too if `png`; returns the page's path.

    `models_gpus` is how many GPUs of each model the cluster has, for labels and for the headline.
    An older report in `directory` is replaced. Raises `BadInputError` where there is no run,
    where the folder can't be written, and for `png` without matplotlib.
    """
    files = _draw(results, title, subtitle, png, models_gpus)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory, files)
    except FileExistsError:
        raise BadInputError(str(directory), "is a file; name a folder for the report") from None
    except OSError as error:
        problem = f"can't be written: {error.strerror}; name a folder you may write to"
        raise BadInputError(str(directory), problem) from None
    return directory / PAGE


def _draw(
    results: SimulationResults,
    title: str,
    subtitle: str,
    png: bool,
    models_gpus: dict[str, int] | None,
) -> dict[str, bytes]:
    """Every file of the report by name, the page last."""
    if not results.runs or not results.summary:
        raise BadInputError("report", "there is no run to report; give at least one policy")
    if png:
        png_writer.check()
    drawings = draw_all(results, models_gpus)
    svgs = {drawing.name: to_svg(drawing) for drawing in drawings}
    files = {f"{name}.svg": svg.encode() for name, svg in svgs.items()}
    if png:
        files |= {f"{drawing.name}.png": png_writer.to_png(drawing) for drawing in drawings}
    gpus = sum(models_gpus.values()) if models_gpus else None
    files[PAGE] = page(results, svgs, title, subtitle, gpus).encode()
    return files


def _replace(directory: Path, files: dict[str, bytes]) -> None:
    """Put all files beside their names, then rename them; nothing is left over on failure."""
    ready: dict[str, str] = {}
    try:
        for name, content in files.items():
            handle, ready[name] = tempfile.mkstemp(dir=directory, prefix=f".{name}-")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            # mkstemp is for secrets; a report is as readable as the user's other files.
            Path(ready[name]).chmod(0o666 & ~_umask())
        for name in files:
            Path(ready[name]).replace(directory / name)
            del ready[name]
        _drop_stale(directory, files)
    finally:
        for left in ready.values():
            Path(left).unlink(missing_ok=True)


def _drop_stale(directory: Path, files: dict[str, bytes]) -> None:
    """PNG figures of an older report would show other numbers than this one."""
    for name in NAMES:
        if f"{name}.png" not in files:
            (directory / f"{name}.png").unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
