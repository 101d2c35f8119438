"""Reads files on interference that users supply: datasets, measured pairs, tables, models."""

import codecs
from collections.abc import Sequence
from pathlib import Path

import msgspec

from weft.files.reading import UNREADABLE, raw_bytes, read_bytes, unpack, unreadable
from weft.interference import dataset, model_file
from weft.interference.model_file import PredictorFile
from weft.interference.public_datasets import StaticTable, gavel, slowdowns, static_table
from weft.interference.records import Measurements
from weft.interference.table import from_static
from weft.model.errors import BadInputError
from weft.model.interference_table import (
    InterferenceTable,
    InterferenceView,
    PredictionTier,
    interference,
)
from weft.model.nearest import unknown

GZIP = b"\x1f\x8b"
_BAD = (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError)


def read_measured(paths: Sequence[Path], sources: Sequence[str]) -> list[Measurements]:
    """Return the measurements in these files, one element for each source of data; only those of
    `sources` if any are named."""
    measured: list[Measurements] = []
    for path in paths:
        body = read_bytes(path)
        if body[:2] == GZIP or body.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["):
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
            "have no run of one application with another; measure some with `weft profile measure`",
        )
    return measured


def read_model(path: Path) -> PredictorFile | StaticTable:
    """Read a trained model, or a table of slowdowns."""
    body = read_bytes(path)
    if body[:2] == GZIP or b'"schema"' in body[:200]:
        return read_predictor(body, str(path))
    return static_table(_text(body, path), str(path))


def read_interference(path: Path, where: str = "") -> InterferenceTable:
    """Read a table `{application: {co_resident: slowdown}}`, predictions, or a predictor trained by
    Weft.

    `BadInputError` names the file and, before it, `where`: the setting that names the file.
    """
    place = place_of(where, path)
    body = _read(path, place)
    return (
        predicted_table(read_predictor(body, place)) if body[:2] == GZIP else table_in(body, place)
    )


def read_mystic(path: Path, where: str = "") -> dict[str, dict[str, float]]:
    """Read Mystic's distances, {application: {application: distance}}; `BadInputError` names the
    file."""
    place = place_of(where, path)
    return distances_in(_read(path, place), place)


def read_predictor(body: bytes, place: str) -> PredictorFile:
    """Read a model file of `weft interference train`, gzipped or not; `BadInputError` names
    `place`."""
    try:
        plain = unpack(body, place)
    except UNREADABLE as error:
        raise BadInputError(
            place, f"is not a model of `weft interference train`: {error}"
        ) from None
    return model_file.decode(plain, place)


def table_in(body: bytes, place: str) -> InterferenceTable:
    """Decode a table of slowdowns, which applies to every GPU model, or a table of predictions;
    `BadInputError` names `place`."""
    try:
        decoded = msgspec.json.decode(body)
        if isinstance(decoded, dict) and "classes" in decoded:
            table = msgspec.convert(decoded, InterferenceTable)
            view = InterferenceView(table)  # the constructor checks the arrays' sizes
            arrays = view.mean, view.upper, view.tier
            interference(0, table.gpu_models, table.classes, arrays)  # this checks their values
            for tier in set(view.tier.ravel().tolist()):
                PredictionTier(abs(tier))
            return table
        numbers = msgspec.convert(decoded, dict[str, dict[str, float]])
        return from_static(1, slowdowns(numbers, place))
    except _BAD as error:
        raise BadInputError(place, f"is not a table of interference: {error}") from None


def distances_in(body: bytes, place: str) -> dict[str, dict[str, float]]:
    """Decode distances between applications; `BadInputError` names the place."""
    try:
        return msgspec.json.decode(body, type=dict[str, dict[str, float]])
    except _BAD as error:
        raise BadInputError(place, f"is not a table of distances: {error}") from None


def predicted_table(model: PredictorFile) -> InterferenceTable:
    """Return a table with the predictions for every pair of applications that the model knows."""
    from weft.interference.ladder import Predictor
    from weft.interference.table import from_predictors

    cells = {cell.gpu_model: cell for cell in reversed(model.cells)}
    known = dict.fromkeys(solo.application for cell in model.cells for solo in cell.solos)
    predictors = [Predictor(cell) for cell in cells.values()]
    return from_predictors(1, predictors, tuple(known), model.sources)


def _text(body: bytes, path: Path) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"{path}, byte {error.start}"
        raise BadInputError(place, "is not UTF-8; save the file as UTF-8") from None


def _read(path: Path, place: str) -> bytes:
    try:
        return raw_bytes(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = unreadable(path, error) if isinstance(error, OSError) else error
        raise BadInputError(place, f"cannot be read: {why}") from None


def place_of(where: str, path: Path | str) -> str:
    """Join the name of the setting that names a file and the file's path, for error messages."""
    return ": ".join(filter(None, (where, str(path))))
