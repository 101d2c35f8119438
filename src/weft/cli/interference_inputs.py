"""Files that `weft interference` reads and writes: datasets, pairs, tables, models."""

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.files import writing
from weft.files.reading import read_bytes
from weft.model.errors import BadInputError, install_extra
from weft.model.nearest import nearest, unknown

if TYPE_CHECKING:
    from weft.interference.model_file import PredictorFile
    from weft.interference.public_datasets import StaticTable
    from weft.interference.records import Measurements

_GZIP = b"\x1f\x8b"


def read_measured(paths: Sequence[Path], sources: Sequence[str]) -> "list[Measurements]":
    """Reads each file, each source by itself; only `sources`, where any are named."""
    from weft.interference import dataset
    from weft.interference.public_datasets import gavel

    measured: list[Measurements] = []
    for path in paths:
        body = read_bytes(path)
        if body[:2] == _GZIP or body.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["):
            decoded = dataset.decode(body, str(path))
            measured.append(dataset.measured(decoded, path.stem))
        else:
            measured += gavel(_text(body, path), str(path)).values()
    names = [cells.source for cells in measured]
    wrong = [name for name in sources if name not in names]
    if wrong:
        raise BadInputError("--source", unknown(wrong[0], names, "these files have"))
    measured = [cells for cells in measured if not sources or cells.source in sources]
    if not any(cells.runs for cells in measured):
        raise BadInputError(
            ", ".join(map(str, paths)),
            "hold no application beside another; measure some with `weft profile measure`",
        )
    return measured


def read_model(path: Path) -> "PredictorFile | StaticTable":
    """A model that was trained, or someone's table of slowdowns."""
    from weft.cli.interference_files import read_predictor
    from weft.interference.public_datasets import static_table

    body = read_bytes(path)
    if body[:2] == _GZIP or b'"schema"' in body[:200]:
        return read_predictor(body, str(path))
    return static_table(_text(body, path), str(path))


def _text(body: bytes, path: Path) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"{path}, byte {error.start}"
        raise BadInputError(place, "is not UTF-8; save it as that") from None


def note_unknown(model: "PredictorFile | StaticTable", path: Path, names: Sequence[str]) -> None:
    """Say on stderr which of these names the file does not know: they may be misspelt."""
    from weft.interference.model_file import PredictorFile

    known = (
        {solo.application for cell in model.cells for solo in cell.solos}
        if isinstance(model, PredictorFile)
        else set(model.applications)
    )
    for name in dict.fromkeys(names):
        if name not in known:
            near = nearest(name, known)
            hint = f" (did you mean {near!r}?)" if near else ""
            print(
                f"weft: note: {path} knows no application {name!r}{hint}; it is predicted as "
                "one that nobody knows",
                file=sys.stderr,
            )


def note_no_trees(cell: "Measurements", place: str) -> None:
    """Say on stderr where profiles are there to learn from, and LightGBM is not."""
    from weft.interference import trees
    from weft.interference.features import Applications, profile_columns

    if not trees.available() and len(profile_columns(Applications(cell.solos).columns)) >= 2:
        print(
            f"weft: note: {place} has profiles, but LightGBM is not installed: its say is "
            f"left out; {install_extra('interference')}",
            file=sys.stderr,
        )


def check_place(path: Path) -> None:
    """`BadInputError` where no file can be written there: before the work, not after it."""
    if path.is_dir():
        raise BadInputError(str(path), "cannot be written: Is a directory; name a file")
    if not path.parent.is_dir():
        raise BadInputError(str(path), f"cannot be written: there is no folder {path.parent}")


def write_whole(path: Path, body: bytes) -> None:
    """`writing.write_whole`; `BadInputError` where that fails."""
    try:
        writing.write_whole(path, body)
    except OSError as error:
        raise writing.unwritten(path, error) from None
